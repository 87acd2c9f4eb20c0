"""`distill.teacher`: the run that a student learns from.

A student's work folder has a copy of it, `<workdir>/teacher`: a config and a checkpoint of parameters alone, made
before the first update.
"""

import dataclasses
import functools
import shutil
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from pretrain import config as configs
from pretrain.checkpoints import init_from, integrity, params_only, restore
from pretrain.checkpoints.init_from import Weights, find_weights
from pretrain.distributed.consensus import on_host0
from pretrain.errors import UserError
from pretrain.workdir import Workdir, real

COPY_OF = "copy_of"  # in the item `data` of the copy: fingerprint of the original checkpoint


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher's parameters, in its own work folder or in the copy."""

    weights: Weights
    run: str  # the work folder that they are in
    fingerprint: str

    def read(self, shapes):
        """The parameters, into `shapes` with types and shardings."""
        return restore.read_parts(self.weights.folder, {"params": shapes})["params"]


def find_teacher(config: ConfigDict, workdir: str) -> Teacher | None:
    """The teacher that `config.distill.teacher` names, if any. Errors: UserError."""
    if not config.distill.teacher:
        return None
    weights = find_weights(config.distill.teacher, workdir, "distill.teacher")
    return _build(weights, str(weights.folder.parent.parent))


def load_teacher(config: ConfigDict, workdir: str) -> Teacher | None:
    """The copy of the teacher in a work folder, if the config has one."""
    if not config.distill.teacher:
        return None
    here = Workdir(workdir).teacher
    tokenizer, model = Workdir(workdir).folders.tokenizer, configs.saved(here.name).model
    folder = here.checkpoint(on_host0(here.steps)[-1]).absolute()
    return _build(Weights(f"the teacher in {here.path}", folder, tokenizer, model), here.name)


def _build(weights: Weights, run: str) -> Teacher:
    fingerprint = on_host0(lambda: integrity.fingerprint(weights.folder))
    return Teacher(dataclasses.replace(weights, complete=True), run, fingerprint)


def copy_teacher(teacher: Teacher, workdir: str) -> Teacher:
    """The copy of a teacher in a work folder, made by process 0 if it is absent. All processes call it."""
    here, source = Workdir(workdir).teacher, teacher.weights.folder
    step = int(source.name)
    copy = here.checkpoint(step).absolute()
    if real(source) == real(copy):  # the run continues
        return teacher

    def make() -> None:
        # A killed process may have left a part, or the copy of another teacher.
        if here.steps() == [step] and restore.read_notes(copy).get(COPY_OF) == teacher.fingerprint:
            return
        shutil.rmtree(here.path, ignore_errors=True)
        partial = here.moving(here.path.name)
        params = {
            path: params_only.LazyArray(
                tuple(leaf.shape),
                np.dtype(leaf.dtype),
                functools.partial(restore.read_parameter, source, path, leaf.dtype),
            )
            for path, leaf in flatten_dict(restore.read_metadata(source)["params"], sep="/").items()
        }
        tokenizer = restore.read_notes(source).get("tokenizer", "unknown")
        params_only.write(partial, params, tokenizer, step, **{COPY_OF: teacher.fingerprint})
        configs.save(configs.saved(teacher.run), str(here.path))
        copy.parent.mkdir(parents=True)
        partial.checkpoint(step).replace(copy)
        shutil.rmtree(here.earlier)

    on_host0(make)
    return _build(dataclasses.replace(teacher.weights, folder=copy), str(here.path))


def set_teacher_model(config: ConfigDict, teacher: Teacher | None) -> ConfigDict:
    """`config` with `distill.model`: the fields in which the teacher's model differs. Errors: UserError."""
    if teacher is None:
        return config
    there, here = configs.saved(teacher.run).model, config.model
    if there.kind != here.kind:
        raise UserError(f"{teacher.weights.label}: config.model.kind={there.kind}, here {here.kind}. Use one kind.")
    # Runtime fields come from the student's config.
    different = {name: value for name, value in there.items() if value != here[name] and name not in init_from.RUNTIME}
    changed = config.copy_and_resolve_references()
    with changed.unlocked():
        changed.distill.model = ConfigDict(different)
    return changed


def init_from_teacher(initial, boxes, taught, layers: Sequence[int], config: ConfigDict):
    """(initial parameters of a student, a report): the teacher's of the same name, and `layers` of stacked ones.

    `initial` are the student's own arrays, `taught` the teacher's; `boxes` tell which are stacked by layer. A parameter
    of another shape keeps its initial value.
    """
    numbers, copied = jnp.asarray(layers), []
    # By path: either tree may lack some of the other's.
    teacher = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(taught)}

    def pick(path, leaf, box):
        source = teacher.get(jax.tree_util.keystr(path))
        if source is None or leaf.shape != ((len(layers), *source.shape[1:]) if box.stacked else source.shape):
            return leaf
        copied.append(leaf.size)
        select = lambda array: (array[numbers] if box.stacked else array).astype(leaf.dtype)  # noqa: E731
        return jax.jit(select, out_shardings=leaf.sharding)(source)

    # Leaf by leaf, each into its own sharding: the teacher's layers are not all gathered at once.
    params = jax.tree_util.tree_map_with_path(pick, initial, boxes)
    share = sum(copied) / sum(leaf.size for leaf in jax.tree.leaves(initial))
    report = f"loaded {share:.1%} of the values from layers {', '.join(map(str, config.distill.layers))} of the teacher"
    # Numbers of layers differ on purpose.
    there = {name: value for name, value in config.distill.model.items() if name not in init_from.SHARING}
    differences = init_from.compare_models({**config.model, **there}, config.model)
    return params, report + init_from.difference_warning(differences)
