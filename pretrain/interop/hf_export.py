"""From a work folder to a folder that Hugging Face's library loads: config.json, safetensors, tokenizer, a card."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.checkpoints import params_only
from pretrain.checkpoints.average import Averaged
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.distributed.init import quiet
from pretrain.errors import UserError
from pretrain.interop import families, safetensors_io, tokenizers
from pretrain.interop.model_card import CARD, Exported, card
from pretrain.interop.new_folder import check_free, new_folder
from pretrain.interop.weight_map import Table
from pretrain.workdir import CONFIG, Workdir, write


def export_folder(
    workdir: str,
    target: str,
    step: str = "latest",
    report: Callable[[str], None] = lambda message: None,
    part: str = "",
    average: int = 1,
) -> int:
    """Makes the folder `target` of a checkpoint of `workdir`, and returns the step of that.

    `step` is "best", a number, or "latest", which is to be after a run's last update or an import's; `average` of more
    than 1 means the mean of so many checkpoints, that one and those before it; `part` is of a model that is several
    there, as ELECTRA. Weights are written as checkpoints hold them, in float32 but for a run whose
    config.model.param_dtype is another. Errors: UserError where the model or its tokenizer has nothing that it could be
    there, the run is not at its end, or `target` is there already; then nothing is made.
    """
    here, config = Workdir(workdir), configs.saved(workdir)
    tokenizer = pipeline.open_tokenizer(here.folders.tokenizer)
    family, written = families.of_section(config.model.to_dict(), workdir, part)
    families.check_padding(family, tokenizer.special, workdir)
    check_free(Path(target))
    checkpoints = Checkpoints(workdir)
    table = families.table(family, config.model.to_dict())
    whole = families.leaves(config.model.to_dict())
    shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in whole.items()}
    averaged = Averaged(checkpoints, config.checkpoint, average, report)
    architecture = family.architecture(config.model)

    def export(number: int) -> None:
        if step == "latest":
            _check_whole(here, number, config.train.steps)
        checkpoints.check_made_with(number, tokenizer, config)
        steps, read = averaged.steps(number), averaged.reader(number, shapes)
        with new_folder(Path(target)) as folder:
            special = tokenizers.write(here.folders.tokenizer, tokenizer, folder, family, config.model.context)
            about = {"architectures": [architecture], "model_type": family.model_type}
            whole = about | {"dtype": config.model.param_dtype} | written | family.ids(special) | family.more(config)
            write(folder / CONFIG, json.dumps(whole, indent=2).encode())
            tensors = _tensors(table, lambda path: read(family.path_of(path)))
            safetensors_io.write(folder, _sizes(table), tensors, report=report)
            exported = Exported(
                family,
                architecture=architecture,
                parameters=sum(int(np.prod(leaf.shape)) for leaf in table.leaves.values()),
                entries=tokenizer.vocab_size,
                steps=steps,
                part=part,
            )
            write(folder / CARD, card(here, config, target, exported).encode(errors="backslashreplace"))

    with quiet():
        number, _ = checkpoints.read(step, checkpoints.find(step), export)
    report(f"{target} holds checkpoint {number} of {workdir} as {architecture}")
    return number


def _check_whole(here: Workdir, number: int, steps: int) -> None:
    """Raises UserError where the newest checkpoint, `number`, is one before the last of a run's `steps` updates."""
    if number < steps and not params_only.is_alone(here.checkpoint(number)):
        raise UserError(
            f"{here.path} is after {number:,} of {steps:,} updates, and a run that is not at its end is exported only "
            f"where its checkpoint is named: --step={number}"
        )


def _tensors(table: Table, read: Callable[[str], np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for row in table.rows:
        yield from table.theirs(row, read)


def _sizes(table: Table) -> dict[str, int]:
    """{their name: its bytes}, in the order of `_tensors`."""
    sizes = {}
    for row in table.rows:
        size = int(np.prod(table.shape(row))) * table.leaves[row.ours[0]].dtype.itemsize
        sizes |= dict.fromkeys(table.names(row), size)
    return sizes
