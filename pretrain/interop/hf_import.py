"""Import: from a folder of Hugging Face's library to a work folder with config, tokenizer and weights."""

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn
from ml_collections import ConfigDict

import models
from input_pipeline import corruption
from input_pipeline.io import read_object
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.export import LANGUAGE
from models.layers.init import path_name
from models.transformer.task_head import Task
from pretrain import config as configs
from pretrain import losses
from pretrain.checkpoints import params_only, restore
from pretrain.distributed.init import quiet
from pretrain.errors import UserError
from pretrain.interop import config_map, electra, families, task_heads, tokenizer_files
from pretrain.interop.family import Family
from pretrain.interop.hf_export import check_new, new_folder
from pretrain.interop.safetensors_io import Tensors
from pretrain.interop.tensor_match import match_tensors
from pretrain.step.train_step import init_params
from pretrain.workdir import CONFIG, Workdir

Report = Callable[[str], None]


class Params(NamedTuple):
    """Parameters by our path, and the paths of those that the files lack."""

    arrays: dict[str, params_only.LazyArray]
    untrained: frozenset[str]


class Source:
    """A model in Hugging Face's files: config.json, tensors, and the family of the two.

    Errors: UserError for a folder that lacks one of them, and for a model that has no family here.
    """

    task: Task | None = None  # set by `set_objective`

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.file = str(self.folder / CONFIG)
        if not (self.folder / CONFIG).is_file():
            raise UserError(f"--folder={folder}: has no {CONFIG}. Give a folder of save_pretrained.")
        self.given = read_object(self.folder / CONFIG)
        self.tensors = Tensors(self.folder)
        family = families.of_config(self.given, self.tensors.shapes, self.file)
        self.ending = task_heads.of_files(family, self.given, self.tensors.shapes)
        self.family = task_heads.with_head(family, self.ending) if self.ending else family

    def section(self) -> dict:
        """Fields of our `model` section."""
        return self.family.to_section(self.given, self.file, frozenset(self.tensors.shapes))

    def set_objective(self, config: ConfigDict) -> None:
        """Sets the objective of a class with the head of a task."""
        if self.ending:
            task_heads.set_objective(config, self.family, self.ending, self.given)
            self.task = losses.task(config.objective)

    def params(self, family: Family, section: Mapping, seed: int, report: Report) -> Params:
        """Parameters of the part `family`; tensors are read while their parameters are written.

        Errors: UserError that lists tensors that are missing, unexpected, or of another shape or value.
        """
        weights = families.weight_map(family, section, self.task)
        names, untrained = match_tensors(family, section, weights, self.tensors, report)
        arrays = weights.arrays(lambda name: self.tensors.read(names[name]))
        arrays |= initial_values(family.part_section(section), seed, untrained, self.task)
        if untrained:
            modules = sorted({path.partition("/")[0] for path in untrained})
            report(f"no weights for {', '.join(modules)}: untrained, initialised from seed {seed}")
        return Params(arrays, untrained)


def import_folder(
    source: str,
    workdir: str,
    report: Report = lambda message: None,
    generator: str = "",
    prepared: bool = False,
) -> ConfigDict:
    """Makes the work folder `workdir` from `source`, which `save_pretrained` wrote; returns its config.

    The config is the recipe of the family with the model and the tokenizer of `source`. generator: ELECTRA's second
    folder, if `source` is the discriminator. prepared: texts are split into words as XLM's. Errors: UserError,
    DataError or ModelError; then no folder is made.
    """
    check_new(Path(workdir))
    configs.check_folder(workdir)
    model = Source(source)
    family, given = model.family, model.given
    config = configs.load(family.aliases.get(given["model_type"], family.recipe))
    with config.unlocked():
        config.name = f"{given['model_type']}:{Path(workdir).name}"
        config.model.update(model.section())
        model.set_objective(config)
        if generator:
            generator_model = _open_generator(generator, family, config.model)
        legacy = [kind for name, kind in family.legacy_tokenizers.items() if name == given["model_type"]]
        kinds = (*family.tokenizers, *legacy)
        config.tokenizer.update(tokenizer_files.section(model.folder, kinds, prepared))
        config.data.length = min(config.data.length, config.model.context)
        # All checks come before the folder: a refused import leaves nothing.
        section = config.model.to_dict()
        params, untrained = model.params(family, section, config.seed, report)
        if generator:
            params |= _generator_params(params, section, generator_model, config.seed, report)
        modules = sorted({path.partition("/")[0] for path in untrained})
        if not model.ending:
            family.complete(config, given, tokenizer_files.codes(config.tokenizer), modules)
        if family.template and LANGUAGE not in family.template[0]:
            config.tokenizer.update(single=family.template[0], pair=family.template[1])
    roles = tokenizer_files.roles(model.folder, config.tokenizer, family, given)
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    with new_folder(Path(workdir)) as partial:
        run = Workdir(partial)
        tokenizer = tokenizer_store.make_folder(
            run.folders.tokenizer, config.tokenizer.to_dict(), {}, 0.0, report, special, roles=roles
        )
        if model.ending and not family.template:
            single, pair = tokenizer_files.frames(model.folder, config.tokenizer, tokenizer.special)
            with config.unlocked():
                config.tokenizer.update(single=single, pair=pair)
        if tokenizer.vocab_size > config.model.vocab_size:
            raise UserError(
                f"{model.file}: vocab_size={config.model.vocab_size}: {config.tokenizer.path} has "
                f"{tokenizer.vocab_size} entries. Use files of one model."
            )
        ids = family.ids(tokenizer_files.with_language(run.folders.tokenizer, tokenizer.special, family))
        if line := config_map.ignored_settings(given, model.folder, ids):
            report(line)
        with quiet():
            notes = {restore.UNTRAINED: modules} if modules else {}
            params_only.write(run, params, tokenizer.fingerprint, **notes)
        configs.save(config.lock(), str(partial))
    count = sum(leaf.size for leaf in params.values())
    origin = " and ".join(filter(None, (source, generator)))
    report(f"{workdir} holds {family.model_type} of {origin}: {count:,} parameters")
    return config


def initial_values(
    section: Mapping, seed: int, paths: Collection[str], task: Task | None = None
) -> dict[str, params_only.LazyArray]:
    """{path: array} of some parameters, as a run that starts from the seed has them."""
    model, (key, _) = models.build(section, task), jax.random.split(jax.random.key(seed))

    @jax.jit  # computes nothing that is not in `paths`
    def init() -> dict[str, jax.Array]:
        leaves = jax.tree_util.tree_leaves_with_path(nn.unbox(init_params(model, key)))
        return {path_name(path): value for path, value in leaves if path_name(path) in paths}

    arrays = {path: np.asarray(value) for path, value in init().items()} if paths else {}
    return {
        path: params_only.LazyArray(a.shape, a.dtype, functools.partial(np.asarray, a)) for path, a in arrays.items()
    }


def _open_generator(folder: str, family: Family, section: ConfigDict) -> Source:
    """ELECTRA's generator; its size is set in `section`, the discriminator's."""
    model = Source(folder)
    if (family, model.family) != (electra.ELECTRA, electra.GENERATOR):
        raise UserError(f"--generator={folder}: --folder must be ELECTRA's discriminator. Fix or omit it.")
    electra.add_generator(section, model.section(), model.file)
    return model


def _generator_params(
    params: Mapping[str, params_only.LazyArray], section: Mapping, model: Source, seed: int, report: Report
) -> dict[str, params_only.LazyArray]:
    """The generator's own parameters. Errors: UserError if its tables are not those of `params`, which it shares."""
    part = electra.GENERATOR_PART
    own = {part.whole_path(path): array for path, array in model.params(part, section, seed, report).arrays.items()}
    for path in own.keys() & params.keys():
        if not np.array_equal(own[path].make(), params[path].make()):
            raise UserError(f"{model.folder}: {path} differs from the discriminator's. Use folders of one training.")
    return {path: array for path, array in own.items() if path not in params}
