"""Checkpoints of parameters alone: written by an import or as the copy of a teacher, read parameter by parameter.

They have no optimizer state and no position in the data; a run starts from them at step 0.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax.traverse_util import unflatten_dict

from pretrain.checkpoints import integrity, restore
from pretrain.workdir import DATA, POSITION, STATE, Workdir

STEP = 0
# Bytes of a stored chunk: a host that restores a shard reads that and a few chunks around it.
CHUNK = 1 << 24


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array that is computed when it is written, layer by layer along its first axis if `layer` is given."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]
    layer: Callable[[int], np.ndarray] | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def by_layer(self) -> bool:
        return self.layer is not None and self.nbytes > CHUNK


class _LazyHandler(ocp.type_handlers.NumpyHandler):
    """Writes lazy arrays one after the other, so that one of them, or a layer of it, is in memory at a time."""

    async def serialize(self, values, infos, args=None):
        # In a thread that first waits until Orbax has made the folder.
        return [ocp.future.CommitFutureAwaitingContractedSignals(self._write(values, infos, args), name="lazy arrays")]

    async def _write(self, values, infos, args):
        for value, info, arg in zip(values, infos, args, strict=True):
            await info.await_path_creation()
            shape, kwargs = value.shape, {"create": True, "open": True, "context": info.ts_context}
            spec = ocp.type_handlers.get_json_tspec_write(info, False, shape, shape, value.dtype, arg=arg)
            store = await tensorstore.open(tensorstore.Spec(spec), **kwargs)
            if not value.by_layer:
                await store.write(value.make(), can_reference_source_data_indefinitely=True)
                continue
            for number in range(shape[0]):
                # TensorStore writes without a copy, which needs the bytes in order.
                layer = np.ascontiguousarray(value.layer(number), value.dtype)
                await store[number].write(layer, can_reference_source_data_indefinitely=True)


def write(workdir: Workdir, params: Mapping[str, LazyArray], tokenizer: str, step: int = STEP, **notes) -> None:
    """Writes a checkpoint of `params` by path, in one process; `tokenizer` is a fingerprint, `notes` are saved too."""
    registry = ocp.type_handlers.create_type_handler_registry(
        (LazyArray, _LazyHandler()), (jax.Array, ocp.type_handlers.ArrayHandler())
    )
    tree = {"params": unflatten_dict(dict(params), sep="/")}
    # Chunks of whole layers, so that each one is written once.
    chunks = jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=CHUNK, shard_axes=(0,) * leaf.by_layer), tree)
    only = ocp.options.MultiprocessingOptions(active_processes={0}, barrier_sync_key_prefix="process_0")
    # A file per chunk: while an array is written 1.4 times its size is in memory, with one database 2.5 times.
    state = ocp.PyTreeCheckpointHandler(type_handler_registry=registry, use_ocdbt=False, multiprocessing_options=only)
    position = ocp.JsonCheckpointHandler(filename=Path(POSITION).name, multiprocessing_options=only)
    handler = ocp.CompositeCheckpointHandler(
        **{STATE: state, DATA: position}, composite_options=ocp.CompositeOptions(multiprocessing_options=only)
    )
    data = {"step": step, "position": 0, "tokenizer": tokenizer, restore.WEIGHTS_ONLY: True} | notes
    folder = workdir.checkpoint(step).absolute()  # as Orbax requires
    folder.parent.mkdir(parents=True)
    with ocp.Checkpointer(handler, multiprocessing_options=only) as writer:
        items = {STATE: ocp.args.PyTreeSave(tree, save_args=chunks), DATA: ocp.args.JsonSave(data)}
        writer.save(folder, args=ocp.args.Composite(**items))
    integrity.write_record(folder)


def chunked_save_args(tree):
    """Orbax arguments that store each array in chunks of at most CHUNK bytes, whatever its sharding."""
    return jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)


def has_initial_weights(workdir: Workdir) -> bool:
    """Whether `workdir` holds weights to start from and no other checkpoint."""
    return workdir.steps() == [STEP] and restore.is_weights_only(initial_weights(workdir))


def initial_weights(workdir: Workdir) -> Path:
    """The folder of the weights that a run starts from, if it has any."""
    return workdir.checkpoint(STEP).absolute()


def reader(folder: Path, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[str], np.ndarray]:
    """A function that reads one parameter of a checkpoint by its path, whole, into this host's memory.

    `shapes` are the model's parameters by path. Errors: UserError, if the checkpoint is damaged or another model's.
    """
    restore.check_intact(folder)
    restore.check_fits(folder, {"params": unflatten_dict(dict(shapes), sep="/")})
    return lambda path: restore.read_parameter(folder, path, shapes[path].dtype)
