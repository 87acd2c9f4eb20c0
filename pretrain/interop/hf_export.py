"""Export: from a work folder to a folder that Hugging Face's library loads."""

import contextlib
import dataclasses
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from input_pipeline import pipeline
from input_pipeline.corruption.examples import Frame
from pretrain import config as configs
from pretrain import losses
from pretrain.checkpoints import restore
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.restore import Checkpoints
from pretrain.distributed.init import quiet
from pretrain.errors import UserError
from pretrain.interop import families, model_card, safetensors_io, task_heads, tokenizer_files
from pretrain.workdir import CONFIG, Workdir, write


def check_new(folder: Path) -> None:
    """Raises UserError if `folder` is a file or has files."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} exists. Choose the name of a new folder.")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary sibling to fill, renamed to `folder` at the end, or removed after an error."""
    folder = Path(os.path.realpath(folder))  # a link to an empty folder stays a link
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def export_folder(
    workdir: str,
    target: str,
    step: str = "latest",
    report: Callable[[str], None] = lambda message: None,
    part: str = "",
    average: int = 1,
) -> int:
    """Writes a checkpoint of `workdir` to the new folder `target`; returns its step.

    step: "best", a number, or "latest", which must be a finished run's last or an import's. part: of a model that is
    several there, as ELECTRA. average: number of checkpoints to average, this and those before. Weights keep
    config.model.param_dtype. Errors: UserError if the model or the tokenizer cannot be expressed there.
    """
    run, config = Workdir(workdir), configs.saved(workdir)
    section = config.model.to_dict()
    merged = families.without_lora(section)
    tokenizer = pipeline.open_tokenizer(run.folders.tokenizer)
    family, model_config = families.of_section(merged, part)
    task = losses.task(config.objective)
    task = task and dataclasses.replace(task, predicts_tokens=False)  # no class of theirs has both heads
    pairs = bool(task) and task.unit == "pair"
    # A checkpoint has the run's own head even where their class has none.
    own = task
    if pairs:
        task = dataclasses.replace(task, outputs=0)  # nor one that compares two texts
        family = family if part else family.base()
    elif task and not part:
        frame = Frame(config.tokenizer.single, config.tokenizer.pair, tokenizer.special)
        family = task_heads.with_head(family, task_heads.ending_of(family, config.objective), frame.names)
    families.check_padding(family, tokenizer.special)
    check_new(Path(target))
    checkpoints = Checkpoints(workdir)
    averaged = CheckpointAverage(checkpoints, average, report)
    weights = families.weight_map(family, merged, task)
    leaves = families.leaves(section, own).items()
    shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves}
    modules = {family.whole_path(path).partition("/")[0] for path in weights.leaves}
    architecture = family.architecture(config.model)

    # Called again with another step if training deletes a checkpoint while it is read.
    def export(number: int) -> None:
        if step == "latest" and number < config.train.steps and not restore.is_weights_only(run.checkpoint(number)):
            steps = f"{number:,} of {config.train.steps:,}"
            raise UserError(f"--step=latest: {run.path} is at step {steps}. Set --step={number}.")
        checkpoints.check_made_with(number, tokenizer, config, modules)
        steps, read = averaged.steps(number), families.merge_lora(section, averaged.reader(number, shapes))
        with new_folder(Path(target)) as folder:
            special = tokenizer_files.write(
                run.folders.tokenizer, tokenizer, folder, family, config.model.context, framed=bool(task)
            )
            content = {"architectures": [architecture], "model_type": family.model_type}
            content |= {"dtype": config.model.param_dtype} | model_config | family.ids(special)
            write(folder / CONFIG, json.dumps(content | family.extra_keys(config), indent=2).encode())
            for name, value in task_heads.pooling_files(config).items() if pairs else ():
                (folder / name).parent.mkdir(exist_ok=True)
                write(folder / name, json.dumps(value, indent=2).encode())
            tensors = weights.tensors(lambda path: read(family.whole_path(path)))
            itemsize = np.dtype(config.model.param_dtype).itemsize
            sizes = {name: math.prod(shape) * itemsize for name, shape in weights.shapes().items()}
            safetensors_io.write(folder, sizes, tensors, report=report)
            card = model_card.ModelCard(
                run,
                config,
                target,
                family,
                architecture=architecture,
                parameters=sum(math.prod(leaf.shape) for leaf in weights.leaves.values()),
                entries=tokenizer.vocab_size,
                steps=steps,
                part=part,
                modules=modules,
            )
            write(folder / model_card.FILE, card.render().encode(errors="backslashreplace"))

    with quiet():
        number, _ = checkpoints.read(step, checkpoints.find(step), export)
    report(f"{target} holds checkpoint {number} of {workdir} as {architecture}")
    return number
