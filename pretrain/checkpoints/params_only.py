"""A checkpoint of weights alone: what an import writes, and what training begins with at update 0.

It is read as any other by whoever wants parameters. There is no optimiser state in it and no position in a text.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax.traverse_util import unflatten_dict

from pretrain.checkpoints import integrity, paths, restore
from pretrain.distributed.consensus import on_all_hosts
from pretrain.errors import UserError, reason
from pretrain.workdir import DATA, POSITION, STATE, Workdir

STEP = 0
MARK = "weights_alone"  # in the item `data`
CHUNK = 1 << 24  # bytes of what is stored in one piece, and so can be read apart: a device's share needs no more


@dataclasses.dataclass(frozen=True)
class Promised:
    """An array that is made when it is written, and where one of its layers can be made alone, layer by layer."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]
    layer: Callable[[int], np.ndarray] | None = None  # what lies at one place of its first axis

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def apart(self) -> bool:
        """Whether its layers are made, and stored, each alone."""
        return self.layer is not None and self.nbytes > CHUNK


class _OneByOne(ocp.type_handlers.NumpyHandler):
    """Writes promised arrays as NumPy's, each, or each layer of one, made, written and let go before the next."""

    def __init__(self):
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(self, values, infos, args=None):
        for value, info, arg in zip(values, infos, args, strict=True):
            for writing in await super().serialize([value], [info], [arg]):
                writing.result()
        return []

    async def _open_and_write(self, value, tspec, ts_context):
        """What the handler does with an array and a place to write it to."""
        store = await tensorstore.open(tensorstore.Spec(tspec), create=True, open=True, context=ts_context)
        if not value.apart:
            await store.write(value.make(), can_reference_source_data_indefinitely=True)
            return
        for number in range(value.shape[0]):
            layer = np.ascontiguousarray(value.layer(number), value.dtype)
            await store[number].write(layer, can_reference_source_data_indefinitely=True)


def write(workdir: Workdir, params: Mapping[str, Promised], tokenizer: str, step: int = STEP, **more: str) -> None:
    """Writes a checkpoint of `params`, {path: array}; `tokenizer` is the fingerprint of the one that they know.

    One array at a time, or a layer of one, is in memory, and what is being written of it. Process 0 of several alone
    calls this. `more` is noted beside. Errors: UserError where it cannot be written.
    """
    registry = ocp.type_handlers.create_type_handler_registry(
        (Promised, _OneByOne()), (jax.Array, ocp.type_handlers.ArrayHandler())
    )
    tree = {"params": unflatten_dict(dict(params), sep="/")}
    chunks = jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=CHUNK, shard_axes=(0,) * leaf.apart), tree)
    alone = ocp.options.MultiprocessingOptions(active_processes={0}, barrier_sync_key_prefix="process_0")
    # A file for each chunk: while an array is written 1.4 times its size is in memory, of one database 2.5 times.
    state = ocp.PyTreeCheckpointHandler(type_handler_registry=registry, use_ocdbt=False, multiprocessing_options=alone)
    position = ocp.JsonCheckpointHandler(filename=Path(POSITION).name, multiprocessing_options=alone)
    handler = ocp.CompositeCheckpointHandler(
        **{STATE: state, DATA: position}, composite_options=ocp.CompositeOptions(multiprocessing_options=alone)
    )
    data = {"step": step, "position": 0, "tokenizer": tokenizer, MARK: True} | more
    folder = workdir.checkpoint(step).absolute()  # as Orbax has it
    paths.answer_truly()
    try:
        folder.parent.mkdir(parents=True)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as writer:
            items = {STATE: ocp.args.PyTreeSave(tree, save_args=chunks), DATA: ocp.args.JsonSave(data)}
            writer.save(folder, args=ocp.args.Composite(**items))
        integrity.write(folder)
    except OSError as error:
        remedy = "make room or choose another folder"
        raise UserError(f"the weights cannot be written in {folder} ({reason(error)}); {remedy}") from error


def pieces(tree):
    """How the arrays of a tree are stored, in pieces of at most CHUNK bytes.

    So a host that reads its devices' share needs that and some pieces, however the array was divided when it was saved.
    """
    return jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)


def begins(workdir: Workdir) -> bool:
    """Whether `workdir` holds weights that a run in it begins with: no other checkpoint is there."""
    return workdir.steps() == [STEP] and is_alone(folder_in(workdir))


def folder_in(workdir: Workdir) -> Path:
    """Where a work folder has weights alone, if it has any."""
    return workdir.checkpoint(STEP).absolute()  # as Orbax has it


def is_alone(folder: Path) -> bool:
    """Whether a checkpoint holds weights alone."""
    return restore.noted(folder).get(MARK) is True


def trained(here: Workdir) -> list[int]:
    """The steps that can be gone on from, oldest first: all but one of weights alone."""
    return [step for step in here.steps() if not is_alone(here.checkpoint(step))]


def reader(folder: Path, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[str], np.ndarray]:
    """What reads one parameter of a checkpoint by its path, whole, into this host's memory.

    `shapes` are those of the model's parameters, {path: shape and type}. Errors: UserError where the checkpoint is
    damaged, or another model's.
    """
    if damage := restore.damage(folder):
        raise UserError(f"checkpoint {folder.name} is damaged: {damage}; choose another with --step")
    there = on_all_hosts(lambda: restore.stored(folder))
    restore.check_fits(folder, there, {"params": unflatten_dict(dict(shapes), sep="/")})

    def read(path: str) -> np.ndarray:
        return on_all_hosts(lambda: restore.read_parameter(folder, path, shapes[path].dtype))

    return read
