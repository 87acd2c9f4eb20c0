"""`distill.teacher`: the run that a student learns from, of which its work folder keeps a copy and needs no other.

The copy is `<workdir>/teacher`, a config and a checkpoint of weights alone, made before the first update.
"""

import dataclasses
import functools
import shutil
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from input_pipeline.remote import RemotePath
from pretrain import config as configs
from pretrain.checkpoints import integrity, param_compat, params_only, restore
from pretrain.checkpoints.init_from import Weights, find
from pretrain.distributed.consensus import on_host0
from pretrain.errors import UserError
from pretrain.workdir import Workdir, real

COPY_OF = "copy_of"  # in the item `data` of the copy: the fingerprint of the checkpoint that it was made of


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher's parameters, wherever they are."""

    weights: Weights
    run: str  # the work folder that they are in
    fingerprint: str

    def read(self, shapes):
        """The parameters, into `shapes`, arrays' shapes, types and shardings."""
        return restore.read_parts(self.weights.folder, {"params": shapes})["params"]


def named(config: ConfigDict, workdir: str) -> Teacher | None:
    """The teacher that `config.distill.teacher` names; None where it names none. Errors: UserError."""
    if not config.distill.teacher:
        return None
    weights = find(config.distill.teacher, workdir, "distill.teacher")
    if isinstance(weights.folder, RemotePath):
        raise UserError(f"{weights.named} lies in an object store, and a teacher is copied from a disk; fetch it first")
    return _teacher(weights, str(weights.folder.parent.parent))


def kept(config: ConfigDict, workdir: str) -> Teacher | None:
    """The teacher that the work folder of a run keeps. Errors: UserError where it should and does not."""
    if not config.distill.teacher:
        return None
    here = Workdir(workdir).teacher
    steps = on_host0(here.steps)
    if not steps:
        raise UserError(
            f"{here.path} is to have the teacher that this run learns from, and has none; bring that folder back"
        )
    said = f"the teacher in {here.path}"
    tokenizer, model = Workdir(workdir).folders.tokenizer, configs.saved(here.name).model
    return _teacher(Weights(said, here.checkpoint(steps[-1]).absolute(), tokenizer, model, whole=True), here.name)


def keep(teacher: Teacher, workdir: str) -> Teacher:
    """The copy of a teacher's parameters in a work folder, which is made where it is not there. All processes call it,
    and process 0 works."""
    here, source = Workdir(workdir).teacher, teacher.weights.folder
    copy = here.checkpoint(int(source.name)).absolute()
    if real(source) == real(copy):  # of a run that goes on
        return teacher

    def make() -> None:
        if here.steps() == [int(source.name)] and restore.noted(copy).get(COPY_OF) == teacher.fingerprint:
            return
        shutil.rmtree(here.path, ignore_errors=True)
        partial = here.moving(here.path.name)
        there = flatten_dict(restore.stored(source)["params"], sep="/")
        params = {
            path: params_only.Promised(
                tuple(leaf.shape),
                np.dtype(leaf.dtype),
                functools.partial(restore.read_parameter, source, path, leaf.dtype),
            )
            for path, leaf in there.items()
        }
        tokenizer = restore.noted(source).get("tokenizer", "unknown")
        params_only.write(partial, params, tokenizer, int(source.name), **{COPY_OF: teacher.fingerprint})
        configs.save(configs.saved(teacher.run), str(here.path))
        copy.parent.mkdir(parents=True)
        partial.checkpoint(int(source.name)).replace(copy)
        shutil.rmtree(here.earlier)

    on_host0(make)
    return _teacher(dataclasses.replace(teacher.weights, folder=copy), str(here.path))


def resolved(config: ConfigDict, teacher: Teacher | None) -> ConfigDict:
    """`config` with what its teacher's model has otherwise. Errors: UserError where it is of another kind."""
    if teacher is None:
        return config
    there, here = configs.saved(teacher.run).model, config.model
    if there.kind != here.kind:
        raise UserError(
            f"{teacher.weights.named}: config.model.kind = {there.kind} there and {here.kind} here; a teacher and its "
            "student are of one kind"
        )
    # How it is run, a teacher is as its student.
    unlike = {key: value for key, value in there.items() if value != here[key] and key not in param_compat.RUNNING}
    changed = config.copy_and_resolve_references()
    with changed.unlocked():
        changed.distill.model = ConfigDict(unlike)
    return changed


def _unlike(changed: Mapping, model: Mapping) -> dict[str, str]:
    """In what a teacher's parameters mean something else; `changed` is what its model has otherwise."""
    there = {key: value for key, value in changed.items() if key not in param_compat.SHARING}  # begun with set by set
    return param_compat.unlike({**model, **there}, model)


def begun(initial, boxes, taught, sets: Sequence[int], config: ConfigDict):
    """(parameters that a student begins with, a report): the teacher's of the same name, of stacked ones those `sets`.

    `initial` are the student's own, arrays where they are to be; `boxes` say which are of layers; `taught` are the
    teacher's; `config` is the student's. What fits no shape stays as it is.
    """
    import jax.numpy as jnp

    numbers, there, taken = jnp.asarray(sets), dict(_flat(taught)), []

    def one(path, leaf, box):
        name = jax.tree_util.keystr(path)
        if name not in there:
            return leaf
        source = there[name]
        wanted = (len(sets), *source.shape[1:]) if box.stacked else source.shape
        if wanted != leaf.shape:
            return leaf
        taken.append(leaf.size)
        pick = jax.jit(lambda a: (a[numbers] if box.stacked else a).astype(leaf.dtype), out_shardings=leaf.sharding)
        return pick(source)

    params = jax.tree_util.tree_map_with_path(one, initial, boxes)
    total = sum(leaf.size for leaf in jax.tree.leaves(initial))
    layers = ", ".join(map(str, config.distill.layers))
    said = f"took {sum(taken) / total:.1%} of the numbers from the teacher, its layers {layers}"
    return params, said + param_compat.warning(_unlike(config.distill.model, config.model))


def _flat(tree):
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _teacher(weights: Weights, run: str) -> Teacher:
    print_of = on_host0(lambda: integrity.fingerprint(weights.folder))
    return Teacher(dataclasses.replace(weights, whole=True), run, print_of)
