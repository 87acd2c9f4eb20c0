"""From a folder of Hugging Face's to a work folder: its config, its tokenizer, and a checkpoint of weights alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from configs.common import MODELS
from input_pipeline import corruption
from input_pipeline.files import read_json
from input_pipeline.tokenizers import folder as tokenizer_folder
from input_pipeline.tokenizers.base import Tokenizer
from models.errors import ModelError
from pretrain import config as configs
from pretrain.checkpoints import params_only
from pretrain.distributed.init import quiet
from pretrain.errors import UserError, listed
from pretrain.interop import electra, families, generation_config, tokenizers
from pretrain.interop.electra import GENERATOR
from pretrain.interop.family import Family
from pretrain.interop.new_folder import check_free, new_folder
from pretrain.interop.safetensors_io import Tensors
from pretrain.interop.weight_map import Shape, Table
from pretrain.workdir import CONFIG, Workdir

SHOWN = 6  # tensors of a kind that a sentence names


def import_folder(
    source: str,
    workdir: str,
    report: Callable[[str], None] = lambda message: None,
    generator: str = "",
    prepared: bool = False,
) -> ConfigDict:
    """Makes the work folder `workdir` of the folder `source`, which `save_pretrained` wrote, and returns its config.

    The config is that of the family's recipe, with the model and the tokenizer that `source` holds; `generator` is the
    folder of ELECTRA's, where `source` holds the discriminator, and `prepared` says that texts are split into words as
    XLM's are. `report` hears what was done. Errors: UserError,
    DataError or ModelError where a folder will not do; then nothing is made.
    """
    folder, file = Path(source), str(Path(source) / CONFIG)
    check_free(Path(workdir))
    configs.check_folder(workdir)
    given, tensors = read_config(folder), Tensors(folder)
    family = families.of_type(given.get("model_type"), tensors.shapes, file)
    config = configs.load(family.also.get(given["model_type"], family.recipe))
    section = family.keys.section(given, file, MODELS[family.kind])
    with config.unlocked():
        config.name = f"{given['model_type']}:{Path(workdir).name}"
        config.model.update(family.settle(section, frozenset(tensors.shapes)))
        other = _generator(generator, family, config.model) if generator else None
        kinds = (*family.tokenizers, *[kind for name, kind in family.files.items() if name == given["model_type"]])
        config.tokenizer.update(tokenizers.section(folder, kinds, prepared))
        if prepared and config.tokenizer.kind != "xlm":
            raise UserError(f"--prepared is of XLM's vocab.json, and {config.tokenizer.path} is another; leave it out")
        config.data.length = min(config.data.length, config.model.context)
        family.complete(config)
        family.speak(config, given, file, tokenizers.codes(config.tokenizer))
    try:
        table = families.table(family, config.model.to_dict())
    except ModelError as error:
        why = family.keys.in_theirs(str(error))
        raise UserError(f"{file} makes a model that there is none of: {why}") from None
    named = matched(family, config.model, table, tensors, report)
    with new_folder(Path(workdir)) as partial:
        made = Workdir(partial)
        tokenizer = _tokenizer(config, made, report, tokenizers.roles(folder, config.tokenizer, family, given))
        if tokenizer.vocab_size > config.model.vocab_size:
            raise UserError(
                f"{file}: vocab_size = {config.model.vocab_size}, and the tokenizer beside it, "
                f"{config.tokenizer.path}, has {tokenizer.vocab_size} entries; bring those of one model together"
            )
        family.check(given, file, tokenizer.special)
        ids = family.ids(tokenizers.with_language(made.folders.tokenizer, tokenizer.special, family))
        for line in (*family.says(given, config), generation_config.left_out(given, folder, ids)):
            if line:
                report(line)
        promised = _promised(table, tensors, named)
        if other:
            promised |= _beside(promised, electra.GENERATOR_PART, config.model, other, report)
        with quiet():
            params_only.write(made, promised, tokenizer.fingerprint)
        configs.save(config.lock(), str(partial))
    count = sum(leaf.size for leaf in promised.values())
    read = f"{len(named)} tensors" + (f" and those of {generator}" if generator else "")
    report(f"{workdir} holds {family.model_type} of {source}: {count:,} parameters, from {read}")
    return config


def _promised(table: Table, tensors: Tensors, named: Mapping[str, str]) -> dict[str, params_only.Promised]:
    """The parameters of a table, {our path: array}; `named` as `matched` gives it."""
    makers = table.ours(lambda name: tensors.read(named[name]))
    layers = {path: one.layer if one.row.stacked else None for path, one in makers.items()}
    return {
        path: params_only.Promised(leaf.shape, leaf.dtype, makers[path], layers[path])
        for path, leaf in table.leaves.items()
    }


def _generator(folder: str, family: Family, model: ConfigDict) -> Tensors:
    """The tensors of a generator's folder, whose size `model`, the discriminator's section, is given."""
    file, given = str(Path(folder) / CONFIG), read_config(Path(folder))  # which says where there is no folder
    tensors = Tensors(Path(folder))
    kind = families.of_type(given.get("model_type"), tensors.shapes, file)
    if family is not electra.ELECTRA or kind is not GENERATOR:
        raise UserError(
            f"--generator={folder} is for an ELECTRA whose discriminator is --folder; leave it out, or give both"
        )
    electra.join(model, GENERATOR.keys.section(given, file, MODELS[GENERATOR.kind]), file)
    return tensors


def _beside(
    there: Mapping[str, params_only.Promised], part: Family, section: Mapping, tensors: Tensors, report: Callable
) -> dict[str, params_only.Promised]:
    """The parameters of a `part` besides those that are `there`, which it shares: they must be the same in both."""
    table = families.table(part, section)
    named = matched(part, section, table, tensors, report)
    own = {part.path_of(path): array for path, array in _promised(table, tensors, named).items()}
    unlike = [path for path in own if path in there and not np.array_equal(own[path].make(), there[path].make())]
    if unlike:
        raise UserError(
            f"{tensors.folder} has other {', '.join(unlike)} than the discriminator, and the two share them; bring "
            "those of one training together"
        )
    return {path: array for path, array in own.items() if path not in there}


def read_config(folder: Path) -> dict:
    """The config.json of a folder. Errors: UserError where there is none, or none of a model."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder; models are imported from a folder that `save_pretrained` wrote, or that "
            f"`hf download NAME --local-dir={folder}` makes"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}; give a folder that `save_pretrained` wrote")
    try:
        given = read_json(folder / CONFIG)
    except ValueError as error:
        raise UserError(f"{folder / CONFIG} is not readable JSON ({error}); fetch it again") from error
    if not isinstance(given, dict) or "model_type" not in given:
        raise UserError(
            f"{folder / CONFIG} names no model_type, as those of Hugging Face's models do; it is to be one of: "
            f"{', '.join(sorted(families.TYPES))}"
        )
    return given


def matched(
    family: Family, section: Mapping, table: Table, tensors: Tensors, report: Callable[[str], None]
) -> dict[str, str]:
    """{name in the table: name in the files} of every tensor that the table asks for.

    Errors: UserError that lists what is missing, left over, or of another shape.
    """
    shapes = table.shapes()
    there: dict[str, str] = {}
    twice = [name for name in tensors.shapes if there.setdefault(family.canonical(name, shapes), name) != name]
    buffers = [name for name in tensors.shapes if family.is_buffer(name)]
    found = {name: there.pop(name) for name in shapes if name in there}
    unlike = []
    for copy, original in family.copies.items():
        if copy in there:
            name = there.pop(copy)
            if original not in found:
                found[original] = name
            elif not np.array_equal(tensors.read(name), tensors.read(found[original])):
                unlike.append(f"{name} differs from {found[original]}, which it must be a copy of")
    for row in table.rows:
        if row.otherwise in found and row.theirs not in found:
            found[row.theirs] = found[row.otherwise]
            report(f"there is no {row.theirs}: {found[row.otherwise]} stands for it, as its class has it")
    for name in set(buffers).intersection(family.zeros):
        if np.any(tensors.read(name)):
            unlike.append(f"{name} is not 0 everywhere, as that class leaves it")
    if buffers:
        report(f"left out what is no weights: {buffers[0]}" + (f" and {len(buffers) - 1} more" if buffers[1:] else ""))
    unused = [name for name in there.values() if family.is_unused(name)]
    if unused:
        report(f"left out {len(unused)} tensors that pretraining has no use for, such as {unused[0]}")
    left = [name for name in (*there.values(), *twice) if name not in buffers and name not in unused]
    missing = [name for name in shapes if name not in found]
    unlike += [
        f"{found[name]} is {_shape(tensors.shapes[found[name]])}, and {CONFIG} makes it {_shape(shape)}"
        for name, shape in shapes.items()
        if name in found and tensors.shapes[found[name]] != shape
    ]
    parts = {"missing": missing, "left over": left, "of another shape": unlike}
    if any(parts.values()):
        said = "; ".join(f"{len(names)} {what}: {listed(names, SHOWN)}" for what, names in parts.items() if names)
        raise UserError(
            f"the weights of {tensors.folder} are not those of {family.architecture(section)} as its {CONFIG} has it "
            f"({said}); save the model again with that class"
        )
    return found


def _tokenizer(config: ConfigDict, workdir: Workdir, report: Callable, roles: Mapping[str, str]) -> Tokenizer:
    """The work folder's tokenizer, made as `prepare` makes it."""
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    return tokenizer_folder.make_folder(
        workdir.folders.tokenizer, config.tokenizer.to_dict(), {}, 0.0, report, special, roles=roles
    )


def _shape(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
