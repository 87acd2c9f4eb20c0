"""Reading a checkpoint back: its files proven whole, its tree the model's own, by all processes or by none."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import unflatten_dict

from input_pipeline.away import passes
from input_pipeline.files import read_json
from input_pipeline.remote import RemotePath
from models.layers.init import path_name
from pretrain.checkpoints import integrity, paths, remote
from pretrain.checkpoints.slabs import BySlabs
from pretrain.distributed.consensus import allgather_json, on_all_hosts, on_host0
from pretrain.distributed.init import say
from pretrain.errors import UserError, listed
from pretrain.workdir import ANEW, POSITION, RECORD, STATE, Workdir

BAD = "bad_in_row"  # in the item `data`: updates without a finite loss or gradient since one had; absent for none
CONFIG = "config"  # likewise: the config that it was made with
BEFORE = "before"  # likewise: the checkpoint that the run saved, or went on from, before it; 0 where there was none
SHOWN = 3  # differences between two trees that a sentence names


def damage(folder: Path) -> str | None:
    """What proves a checkpoint's files damaged (missing, of another size, of other bytes), or None.

    Each process opens every file and reads its share of them. What one of them finds counts as damage only if process 0
    finds it too; else a file system shows the processes different files, and all raise UserError, as for any trouble.
    """
    written = on_host0(lambda: integrity.read(folder))
    if written is None and not on_host0(folder.exists):
        raise UserError(unreadable(folder, "it is gone"))
    if written is None:
        say(
            f"checkpoint {folder.name} has no {RECORD} that can be read, so that its bytes are not compared with those "
            "that were written; they are taken as they are"
        )
        return None

    def look() -> dict[str, str]:
        wrong = integrity.sizes(folder, written)
        return wrong or integrity.checksums(folder, written, jax.process_index(), jax.process_count())

    found = allgather_json(on_all_hosts(look))
    names = {name for wrong in found for name in wrong}
    confirmed = on_host0(lambda: integrity.faults(folder, written, sorted(names)))
    doubted = [f"process {i}: {words}" for i, wrong in enumerate(found) for words in wrong.values()]
    if doubted and not confirmed:
        raise UserError(unreadable(folder, f"{'; '.join(doubted[:SHOWN])}; but process 0 finds these files whole"))
    return confirmed[0] if confirmed else None


def read_state(folder: Path, wanted: dict) -> dict:
    """Parts of a checkpoint's train state: `wanted` is part -> tree of arrays' shapes, types and shardings.

    UserError: the checkpoint is another model's, or cannot be read.
    """
    return on_all_hosts(lambda: _read_whole(folder, wanted))


def read_data(folder: Path) -> dict:
    """The position in the data that a checkpoint holds: `step`, `position`, and of which `tokenizer` and `text`."""

    def position() -> dict:
        found = read_json(folder / POSITION)
        if not (isinstance(found, dict) and all(type(found.get(name)) is int for name in ("step", "position"))):
            raise ValueError(f"{POSITION} does not hold the whole numbers `step` and `position`")
        return found

    found = on_all_hosts(position)
    if folder.name.isdecimal() and int(folder.name) != found["step"]:
        raise UserError(
            f"{folder} holds the checkpoint of update {found['step']} by another name; rename it {found['step']}, or "
            "move it away"
        )
    return found


def noted(folder: Path) -> dict:
    """What a checkpoint says of itself in the item `data`; empty where that cannot be read, as restoring it tells.

    Errors: OSError where the folder is away.
    """
    try:
        found = read_json(folder / POSITION)
    except (OSError, ValueError) as error:
        if passes(error):
            raise
        return {}
    return found if isinstance(found, dict) else {}


def is_whole(folder: Path, name: str) -> bool:
    """Whether a file of a checkpoint is as it was written, where that is on record. Errors: OSError, ValueError."""
    written = integrity.read(folder)
    return not written or not integrity.faults(folder, written, [name])


def made_with(notes: Mapping) -> dict:
    """The config of the run that saved a checkpoint with these `notes`, as JSON has it; empty where it is not told."""
    found = notes.get(CONFIG)
    return found if isinstance(found, dict) else {}


def is_sound(folder: Path) -> bool:
    """Whether a checkpoint was saved when its last update was a good one, as far as its files can be read."""
    found = noted(folder)
    return bool(found) and not found.get(BAD)


def tell_unsound(folder: Path, notes: Mapping) -> None:
    """Says of a checkpoint with these `notes`, saved while updates were bad, that its weights may be why."""
    if bad := notes.get(BAD):
        say(
            f"checkpoint {folder.name} in {folder.parent} was saved while updates were bad ({bad} in a row, whose loss "
            "or gradient was not finite); its own weights may be why"
        )


def check_origin(folder: Path, data: dict, origin: dict) -> None:
    """Raises UserError unless a checkpoint's `data` item names the tokenizer, the text and the teacher of `origin`."""
    changed = [name for name in ("tokenizer", "text", "teacher") if name in origin and data.get(name) != origin[name]]
    if not changed:
        return
    name = changed[0]
    found = f"checkpoint {folder.name} in {folder.parent} was trained with another {name}"
    remedy = {
        "tokenizer": "its ids mean nothing in this one: bring the work folder's tokenizer/ back",
        "text": "its position in the data means nothing in this one: bring the text back",
        "teacher": "its losses are about that one: bring the work folder's teacher/ back",
    }[name]
    raise UserError(
        f"{found} (fingerprint {data.get(name, 'unknown')} there, {origin[name]} here), and {remedy}, or {ANEW}; "
        "nothing was changed"
    )


def unreadable(folder: Path, why: str) -> str:
    """The sentence of a checkpoint that is not known to be damaged, and yet cannot be read."""
    workdir = Workdir(folder.parent.parent)
    if not workdir.finished(int(folder.name)):
        return (
            f"checkpoint {folder.name} is no longer in {folder.parent}; nothing was changed: start the same command "
            "again, and where a run trains in that folder, which deletes its older checkpoints, wait for its end or "
            "name one that it keeps, such as its best"
        )
    steps = [step for step in workdir.steps() if step < int(folder.name)]
    otherwise = f"go on from checkpoint {steps[-1]} by moving {folder} elsewhere" if steps else ANEW
    return (
        f"checkpoint {folder.name} cannot be read ({why}); nothing was changed: mend the cause and start the same "
        f"command again, or {otherwise}"
    )


def read_parts(folder: Path, wanted: dict) -> dict:
    """The arrays of `wanted`, a tree of shapes, types and shardings that is part of a checkpoint's; no more is read."""
    return on_all_hosts(lambda: _read(folder, wanted))


def read_parameter(folder: Path, path: str, dtype) -> np.ndarray:
    """One parameter of a checkpoint, whole, into the memory of the process that asks, whatever the others do."""
    wanted = unflatten_dict({path: np.empty((), dtype)}, sep="/")
    (array,) = jax.tree.leaves(_read(folder, {"params": wanted}))
    return np.asarray(array)


def stored(folder: Path) -> dict:
    """The tree of a checkpoint's train state: what describes each array, its shape and type."""
    try:
        return _handler(folder).metadata(epath.Path(str(folder / STATE))).tree
    except (FileNotFoundError, ValueError, AttributeError, TypeError, NotImplementedError) as error:  # any JSON's
        if passes(error):
            raise
        raise ValueError(
            f"{STATE}/_METADATA, which describes its tree, or one of the files beside it, which say where its arrays "
            "are, is missing or unreadable"
        ) from error


def _alone() -> ocp.options.MultiprocessingOptions:
    """No barriers: a process that fails leaves none waiting."""
    return ocp.options.MultiprocessingOptions(
        primary_host=None,
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process_{jax.process_index()}",
    )


def _handler(folder: Path | RemotePath) -> ocp.PyTreeCheckpointHandler:
    """What reads the train state of a checkpoint in `folder`."""
    if isinstance(folder, RemotePath):
        remote.reaches_s3()
    paths.answer_truly()
    handlers = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, BySlabs()), (np.ndarray, ocp.type_handlers.NumpyHandler())
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=handlers, multiprocessing_options=_alone())


def _read_whole(folder: Path, wanted: dict) -> dict:
    check_fits(folder, stored(folder), wanted)
    return _read(folder, wanted)


def _read(folder: Path, wanted: dict) -> dict:
    restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
    with ocp.Checkpointer(_handler(folder), multiprocessing_options=_alone()) as reader:
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=restore_args, partial_restore=True)
        try:
            return reader.restore(str(folder / STATE), args=args)
        except Exception as error:
            if type(error) is Exception and error.__cause__:  # Orbax's own, around what TensorStore says of an array
                raise error.__cause__ from None
            raise


def check_fits(folder: Path, stored: dict, wanted: dict) -> None:
    """Raises UserError unless the parts of `wanted` are stored with the same leaves, of the same shapes and types."""
    there, here = _leaves({part: stored[part] for part in wanted if part in stored}), _leaves(wanted)
    names = sorted(there.keys() | here.keys(), key=lambda name: (not name.startswith("params"), name))
    unlike = [name for name in names if there.get(name) != here.get(name)]
    if unlike:
        told = [f"{n} is {there.get(n, 'absent')} there and {here.get(n, 'absent')} here" for n in unlike]
        raise UserError(
            f"checkpoint {folder.name} in {folder.parent} belongs to another model: {listed(told, SHOWN, '; ')}; "
            "nothing was changed: choose another --workdir, or the config that this one was made with"
        )


def _leaves(tree) -> dict[str, str]:
    """Type and shape of every leaf by its path, whatever holds it: a class's field, a key or a place in a tuple."""
    return {
        path_name(path): f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
