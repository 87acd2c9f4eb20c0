"""Import: from a folder of Hugging Face's library to a work folder with config, tokenizer and weights."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from input_pipeline import corruption
from input_pipeline.io import read_json
from input_pipeline.tokenizers import store as tokenizer_store
from pretrain import config as configs
from pretrain.checkpoints import params_only
from pretrain.distributed.init import quiet
from pretrain.errors import UserError, join_some
from pretrain.interop import config_map, electra, families, tokenizer_files
from pretrain.interop.family import Family
from pretrain.interop.hf_export import check_new, new_folder
from pretrain.interop.safetensors_io import Tensors
from pretrain.workdir import CONFIG, Workdir

Report = Callable[[str], None]
SHOWN = 6  # tensors of a kind that an error names


class Source:
    """A model in Hugging Face's files: config.json, tensors, and the family of the two.

    Errors: UserError for a folder that lacks one of them, and for a model that has no family here.
    """

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.file = str(self.folder / CONFIG)
        if not (self.folder / CONFIG).is_file():
            raise UserError(f"--folder={folder}: has no {CONFIG}. Give a folder of save_pretrained.")
        self.given = read_json(self.folder / CONFIG)
        self.tensors = Tensors(self.folder)
        self.family = families.of_config(self.given, self.tensors.shapes, self.file)

    def section(self) -> dict:
        """Fields of our `model` section."""
        return self.family.to_section(self.given, self.file, frozenset(self.tensors.shapes))

    def params(self, family: Family, section: Mapping, report: Report) -> dict[str, params_only.LazyArray]:
        """{our path: array} of the part `family`; tensors are read while their parameters are written.

        Errors: UserError that lists tensors that are missing, unexpected, or of another shape or value.
        """
        weights = families.weight_map(family, section)
        names = match_tensors(family, section, weights.shapes(), self.tensors, report)
        return weights.arrays(lambda name: self.tensors.read(names[name]))


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
        if generator:
            generator_model = _open_generator(generator, family, config.model)
        legacy = [kind for name, kind in family.legacy_tokenizers.items() if name == given["model_type"]]
        kinds = (*family.tokenizers, *legacy)
        config.tokenizer.update(tokenizer_files.section(model.folder, kinds, prepared))
        config.data.length = min(config.data.length, config.model.context)
        family.complete(config, given, tokenizer_files.codes(config.tokenizer))
    # All checks come before the folder: a refused import leaves nothing.
    section = config.model.to_dict()
    params = model.params(family, section, report)
    if generator:
        params |= _generator_params(params, section, generator_model, report)
    roles = tokenizer_files.roles(model.folder, config.tokenizer, family, given)
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    with new_folder(Path(workdir)) as partial:
        run = Workdir(partial)
        tokenizer = tokenizer_store.make_folder(
            run.folders.tokenizer, config.tokenizer.to_dict(), {}, 0.0, report, special, roles=roles
        )
        if tokenizer.vocab_size > config.model.vocab_size:
            raise UserError(
                f"{model.file}: vocab_size={config.model.vocab_size}: {config.tokenizer.path} has "
                f"{tokenizer.vocab_size} entries. Use files of one model."
            )
        ids = family.ids(tokenizer_files.with_language(run.folders.tokenizer, tokenizer.special, family))
        if line := config_map.ignored_settings(given, model.folder, ids):
            report(line)
        with quiet():
            params_only.write(run, params, tokenizer.fingerprint)
        configs.save(config.lock(), str(partial))
    count = sum(leaf.size for leaf in params.values())
    origin = " and ".join(filter(None, (source, generator)))
    report(f"{workdir} holds {family.model_type} of {origin}: {count:,} parameters")
    return config


def match_tensors(
    family: Family, section: Mapping, shapes: Mapping[str, tuple[int, ...]], tensors: Tensors, report: Report
) -> dict[str, str]:
    """{name in the weight map: name in the files} of every tensor of the weight map's `shapes`."""
    # Older files and headless classes have other names for the same tensors.
    files = {family.canonical(name, shapes): name for name in tensors.shapes}
    names = {name: files.pop(name) for name in shapes if name in files}
    unequal = []
    for copy, original in family.tied.items():
        if copy in files:
            name = files.pop(copy)
            # Files may hold a tied tensor under either of its names.
            if original not in names:
                names[original] = name
            elif not np.array_equal(tensors.read(name), tensors.read(names[original])):
                unequal.append(f"{name} differs from {names[original]}")
    for name, other in family.fallbacks.items():
        if name in shapes and name not in names and other in names:
            names[name] = names[other]
            report(f"no {name}: read {names[other]} for it, as the class does")
    unequal += [f"{name} is not 0" for name in files.values() if name in family.zeros and np.any(tensors.read(name))]
    skipped = [name for name in files.values() if family.is_ignored(name)]
    if skipped:
        report(f"skipped {len(skipped)} tensors without use in pretraining, such as {skipped[0]}")
    unequal += [
        f"{file} is {list(tensors.shapes[file])}, not {list(shapes[name])}"
        for name, file in names.items()
        if tensors.shapes[file] != shapes[name]
    ]
    problems = {
        "missing": [name for name in shapes if name not in names],
        "unexpected": sorted(set(files.values()) - set(skipped)),
        "unequal": unequal,
    }
    if any(problems.values()):
        lists = "; ".join(f"{len(each)} {what}: {join_some(each, SHOWN)}" for what, each in problems.items() if each)
        architecture = family.architecture(section)
        raise UserError(f"{tensors.folder}: the weights are not {architecture}'s. Save with that class. {lists}")
    return names


def _open_generator(folder: str, family: Family, section: ConfigDict) -> Source:
    """ELECTRA's generator; its size is set in `section`, the discriminator's."""
    model = Source(folder)
    if (family, model.family) != (electra.ELECTRA, electra.GENERATOR):
        raise UserError(f"--generator={folder}: --folder must be ELECTRA's discriminator. Fix or omit it.")
    electra.add_generator(section, model.section(), model.file)
    return model


def _generator_params(
    params: Mapping[str, params_only.LazyArray], section: Mapping, model: Source, report: Report
) -> dict[str, params_only.LazyArray]:
    """The generator's own parameters. Errors: UserError if its tables are not those of `params`, which it shares."""
    part = electra.GENERATOR_PART
    own = {part.whole_path(path): array for path, array in model.params(part, section, report).items()}
    for path in own.keys() & params.keys():
        if not np.array_equal(own[path].make(), params[path].make()):
            raise UserError(f"{model.folder}: {path} differs from the discriminator's. Use folders of one training.")
    return {path: array for path, array in own.items() if path not in params}
