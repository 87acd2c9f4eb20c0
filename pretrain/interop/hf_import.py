"""Import: from a folder of Hugging Face's library to a work folder with config, tokenizer and weights."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from configs.common import MODELS
from input_pipeline import corruption
from input_pipeline.io import read_json
from input_pipeline.tokenizers import store as tokenizer_store
from pretrain import config as configs
from pretrain.checkpoints import params_only
from pretrain.distributed.init import quiet
from pretrain.errors import UserError, join_some
from pretrain.interop import electra, families, generation_config, tokenizer_files
from pretrain.interop.family import Family
from pretrain.interop.hf_export import check_new, new_folder
from pretrain.interop.safetensors_io import Tensors
from pretrain.interop.weight_map import WeightMap
from pretrain.workdir import CONFIG, Workdir

Report = Callable[[str], None]
SHOWN = 6  # tensors of a kind that an error names


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
    folder, file = Path(source), str(Path(source) / CONFIG)
    given, tensors = read_config(folder), Tensors(Path(source))
    family = families.of_config(given, tensors.shapes, file)
    config = configs.load(family.aliases.get(given["model_type"], family.recipe))
    section = family.config_map.to_section(given, file, MODELS[family.kind]())
    generator_tensors = None
    with config.unlocked():
        config.name = f"{given['model_type']}:{Path(workdir).name}"
        config.model.update(family.settle(section, frozenset(tensors.shapes)))
        if generator:
            generator_tensors = _open_generator(generator, family, config.model)
        legacy = [kind for name, kind in family.legacy_tokenizers.items() if name == given["model_type"]]
        config.tokenizer.update(tokenizer_files.section(folder, (*family.tokenizers, *legacy), prepared))
        if prepared and config.tokenizer.kind != "xlm":
            raise UserError(f"--prepared: {config.tokenizer.path} is not XLM's vocab.json. Leave --prepared out.")
        config.data.length = min(config.data.length, config.model.context)
        family.complete(config, given, tokenizer_files.codes(config.tokenizer))
    weights = families.weight_map(family, config.model.to_dict())
    # All checks come before the folder: a refused import leaves nothing.
    names = match_tensors(family, config.model, weights, tensors, report)
    roles = tokenizer_files.roles(folder, config.tokenizer, family, given)
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    with new_folder(Path(workdir)) as partial:
        run = Workdir(partial)
        tokenizer = tokenizer_store.make_folder(
            run.folders.tokenizer, config.tokenizer.to_dict(), {}, 0.0, report, special, roles=roles
        )
        if tokenizer.vocab_size > config.model.vocab_size:
            raise UserError(
                f"{file}: vocab_size={config.model.vocab_size}: the tokenizer {config.tokenizer.path} has "
                f"{tokenizer.vocab_size} entries. Use files of one model."
            )
        ids = family.ids(tokenizer_files.with_language(run.folders.tokenizer, tokenizer.special, family))
        if line := generation_config.ignored_settings(given, folder, ids):
            report(line)
        # Promises, not arrays: each tensor is read while its parameter is written.
        params = _params(weights, tensors, names)
        if generator_tensors:
            params |= _generator_params(params, config.model, generator_tensors, report)
        with quiet():
            params_only.write(run, params, tokenizer.fingerprint)
        configs.save(config.lock(), str(partial))
    count = sum(leaf.size for leaf in params.values())
    origin = f"{len(names)} tensors" + (f" and those of {generator}" if generator else "")
    report(f"{workdir} holds {family.model_type} of {source}: {count:,} parameters, from {origin}")
    return config


def read_config(folder: Path) -> dict:
    """The config.json of a model's folder."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"--folder={folder}: no {CONFIG}. Give a folder that save_pretrained or hf download made.")
    given = read_json(folder / CONFIG)
    if "model_type" not in given:
        choices = ", ".join(sorted(families.MODEL_TYPES))
        raise UserError(f"{folder / CONFIG}: no model_type. Set it to one of: {choices}.")
    return given


def match_tensors(
    family: Family, section: Mapping, weights: WeightMap, tensors: Tensors, report: Report
) -> dict[str, str]:
    """{name in the weight map: name in the files} of every tensor.

    Errors: UserError that lists tensors that are missing, unexpected, or of another shape or value.
    """
    shapes = weights.shapes()
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
    for row in weights.rows:
        if row.fallback in names and row.hf not in names:
            names[row.hf] = names[row.fallback]
            report(f"no {row.hf}: read {names[row.fallback]} for it, as the class does")
    unequal += [f"{name} is not 0" for name in files.values() if name in family.zeros and np.any(tensors.read(name))]
    skipped = [name for name in files.values() if family.is_ignored(name)]
    if skipped:
        report(f"skipped {len(skipped)} tensors without use in pretraining, such as {skipped[0]}")
    unequal += [
        f"{names[name]} is {list(tensors.shapes[names[name]])}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in names and tensors.shapes[names[name]] != shape
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


def _params(weights: WeightMap, tensors: Tensors, names: Mapping[str, str]) -> dict[str, params_only.LazyArray]:
    """{our path: array}, each read when it is written; `names` are those of `match_tensors`."""
    params = {}
    for path, source in weights.sources(lambda name: tensors.read(names[name])).items():
        layer = source.layer if source.row.stacked else None
        params[path] = params_only.LazyArray(source.leaf.shape, source.leaf.dtype, source.array, layer)
    return params


def _open_generator(folder: str, family: Family, model: ConfigDict) -> Tensors:
    """The tensors of ELECTRA's generator; its size is set in `model`, the discriminator's section."""
    file, given, tensors = str(Path(folder) / CONFIG), read_config(Path(folder)), Tensors(Path(folder))
    other = families.of_config(given, tensors.shapes, file)
    if (family, other) != (electra.ELECTRA, electra.GENERATOR):
        raise UserError(f"--generator={folder}: --folder must be ELECTRA's discriminator. Fix or omit it.")
    electra.add_generator(model, other.config_map.to_section(given, file, MODELS[other.kind]()), file)
    return tensors


def _generator_params(
    params: Mapping[str, params_only.LazyArray], section: Mapping, tensors: Tensors, report: Report
) -> dict[str, params_only.LazyArray]:
    """The generator's own parameters. Errors: UserError if its tables are not those of `params`, which it shares."""
    part = electra.GENERATOR_PART
    weights = families.weight_map(part, section)
    own = _params(weights, tensors, match_tensors(part, section, weights, tensors, report))
    own = {part.whole_path(path): array for path, array in own.items()}
    for path in own.keys() & params.keys():
        if not np.array_equal(own[path].make(), params[path].make()):
            raise UserError(f"{tensors.folder}: {path} differs from the discriminator's. Use folders of one training.")
    return {path: array for path, array in own.items() if path not in params}
