"""Reading checkpoints: which one, whether its files are intact, and its arrays into any sharding."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint._src.path import gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from input_pipeline import io
from models.layers.init import path_name
from pretrain import changes
from pretrain.checkpoints import integrity
from pretrain.distributed.consensus import allgather_json, on_all_hosts, on_host0
from pretrain.distributed.init import print_on_host0
from pretrain.errors import UserError, join_some
from pretrain.workdir import FRESH_START, LOSS, POSITION, STATE, Workdir, exists, write

# Keys of the item `data`, beside `step`, `position` and the fingerprints of `tokenizer`, `text` and `teacher`.
BAD = "bad_in_row"  # updates in a row, up to this step, without a finite loss or gradient; absent for none
CONFIG = "config"  # the config it was made with
TOKENS = "tokens"  # tokens read in training up to this step; absent in older checkpoints
BEFORE = "before"  # step of the run's previous checkpoint; 0 for none
WEIGHTS_ONLY = "weights_alone"  # true for parameters without optimizer state, such as imported ones
BASE = "base"  # folder, fingerprint and names: where frozen parameters are, which this one leaves out
UNTRAINED = "untrained"  # modules that an import found no weights for; absent for none

SHOWN = 3  # differences between two trees that a message names
TRIES = 3  # reads of checkpoints that a training run deletes meanwhile

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Base:
    """The checkpoint that a run began from, as the place of those of its frozen parameters that it holds."""

    folder: Path
    fingerprint: str
    names: tuple[str, ...]  # paths of the parameters

    @classmethod
    def of(cls, folder: Path) -> "Base | None":
        """The base of the checkpoint in `folder`, if it has one. Errors: UserError if it is missing or changed."""
        if not (notes := read_notes(folder).get(BASE)):
            return None
        # Joined to this folder's: weights in the run's own folder have a name alone, so that both can be moved.
        name = notes["folder"]
        path = io.open_path(name) if io.is_remote(name) else folder.parent / name
        # From the record of its files, so that this reads no array; `check_base` compares the checksums once.
        gone = not exists(path / POSITION)
        if gone or integrity.fingerprint(path) != notes["fingerprint"]:
            problem = "is missing" if gone else "has changed"
            raise UserError(f"checkpoint {folder.name} in {folder.parent}: its base {path} {problem}. Restore that.")
        return cls(path, notes["fingerprint"], tuple(notes["names"]))

    def pin(self) -> None:
        """Marks the checkpoint, so that its own run does not prune it; a folder that cannot be written prunes none."""
        with contextlib.suppress(PermissionError):
            pins = Workdir(self.folder.parent.parent).pins
            pins.mkdir(exist_ok=True)
            write(pins / self.folder.name, b"")

    def notes(self, checkpoints: Path) -> dict:
        """What a checkpoint in the folder `checkpoints` notes of it; a base there goes where that folder goes."""
        own = self.folder.parent == checkpoints
        return vars(self) | {"folder": self.folder.name if own else str(self.folder), "names": list(self.names)}

    def split(self, params) -> tuple[dict, dict]:
        """(parameters that a checkpoint holds itself, those of the base), of a tree."""
        flat = flatten_dict(params, sep="/")
        here = {name: leaf for name, leaf in flat.items() if name not in self.names}
        there = {name: flat[name] for name in flat.keys() - here.keys()}
        return unflatten_dict(here, sep="/"), unflatten_dict(there, sep="/")

    def join(self, params, there) -> dict:
        """The inverse of `split`; `there` may be of all parameters of the base."""
        there = {name: leaf for name, leaf in flatten_dict(there, sep="/").items() if name in self.names}
        return unflatten_dict(flatten_dict(params, sep="/") | there, sep="/")


def find_damage(folder: Path) -> str | None:
    """The first proven fault of a checkpoint's files, or None. Each process reads its share of the bytes."""
    record = on_host0(lambda: integrity.read_record(folder))
    if record is None:
        print_on_host0(f"warning: checkpoint {folder.name} has no checksums, and is used as it is")
        return None
    share = jax.process_index(), jax.process_count()
    # All processes see all faults, so that they choose the same checkpoint.
    faults = allgather_json(on_all_hosts(lambda: integrity.find_faults(folder, record, *share)))
    return next((fault for some in faults for fault in some), None)


def check_intact(folder: Path) -> None:
    """Raises UserError where the files of a checkpoint, or of its base, are damaged."""
    if damage := find_damage(folder):
        raise UserError(f"checkpoint {folder.name} is damaged: {damage}. Choose another.")
    check_base(folder)


def check_base(folder: Path) -> None:
    """Raises UserError where the base of a checkpoint is missing, changed or damaged."""
    if base := on_all_hosts(lambda: Base.of(folder)):
        check_intact(base.folder)


def read_data(folder: Path) -> dict:
    """The item `data`, in all processes: step, position in the data, fingerprints."""
    return on_host0(lambda: json.loads((folder / POSITION).read_bytes()))


def read_notes(folder: Path) -> dict:
    """The item `data`, read by this process alone; empty if it is missing or damaged."""
    try:
        return json.loads((folder / POSITION).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def saved_config(notes: dict) -> dict:
    """The config of the run that saved a checkpoint with these notes; empty for old checkpoints."""
    return notes.get(CONFIG) or {}


def is_weights_only(folder: Path) -> bool:
    """Whether a checkpoint holds parameters without optimizer state or position."""
    return read_notes(folder).get(WEIGHTS_ONLY) is True


def is_good(folder: Path) -> bool:
    """Whether the last update before a checkpoint had a finite loss and gradient."""
    notes = read_notes(folder)
    return bool(notes) and not notes.get(BAD)


def warn_if_bad(folder: Path, notes: dict, read: Container[str] | None = None) -> None:
    """Warns about a checkpoint with untrained modules, or saved after updates without a finite loss.

    read: the modules that are used; None for all.
    """
    if modules := [name for name in notes.get(UNTRAINED, ()) if read is None or name in read]:
        print_on_host0(
            f"warning: checkpoint {folder.name} in {folder.parent}: {', '.join(modules)} untrained, from the seed"
        )
    if bad := notes.get(BAD):
        print_on_host0(
            f"warning: checkpoint {folder.name} in {folder.parent} followed {bad} updates without a finite loss"
        )


def check_origin(folder: Path, data: dict, origin: dict) -> None:
    """Raises UserError unless a checkpoint's `data` names the tokenizer, text and teacher of `origin`."""
    for name in ("tokenizer", "text", "teacher"):
        if name in origin and data.get(name) != origin[name]:
            raise UserError(
                f"checkpoint {folder.name} in {folder.parent} has another {name} ({data.get(name)}, now "
                f"{origin[name]}). Restore that {name}, or {FRESH_START}."
            )


def read_state(folder: Path, wanted: dict, subset: bool = False) -> dict:
    """Parts of a checkpoint's train state: `wanted` is part -> tree of shapes, types and shardings.

    subset: the checkpoint may have further leaves. Errors: UserError, if it belongs to another model.
    """
    check_fits(folder, wanted, subset)
    return read_parts(folder, wanted)


def read_parts(folder: Path, wanted: dict) -> dict:
    """The arrays of `wanted`, part of a checkpoint's tree, as shapes, types and shardings. Reads no more than that."""
    if "params" in wanted and (base := Base.of(folder)):
        here, there = base.split(wanted["params"])
        own = {part: tree for part, tree in (wanted | {"params": here}).items() if part != "params" or here}
        # Orbax refuses trees without a leaf, as where a frozen parameter is read by itself.
        found = _read(folder, own) if own else {}
        more = read_parts(base.folder, {"params": there})["params"] if there else {}
        return found | {"params": base.join(found.get("params", {}), more)}
    return _read(folder, wanted)


def _read(folder: Path, wanted: dict) -> dict:
    # Restore arguments carry each leaf's sharding and type, so that arrays are cast and placed as they are read.
    arguments = ocp.args.PyTreeRestore(
        item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )
    with ocp.Checkpointer(_handler(folder), multiprocessing_options=_this_process()) as reader:
        return reader.restore(str(folder / STATE), args=arguments)


def read_parameter(folder: Path, path: str, dtype) -> np.ndarray:
    """One parameter of a checkpoint, whole, into this process's memory, whatever the others do."""
    wanted = unflatten_dict({path: np.empty((), dtype)}, sep="/")
    (array,) = jax.tree.leaves(read_parts(folder, {"params": wanted}))
    return np.asarray(array)


def read_metadata(folder: Path) -> dict:
    """Shape and type of each array of a checkpoint's train state, as a tree; those of its base included."""
    tree = _handler(folder).metadata(epath.Path(str(folder / STATE))).tree
    if base := Base.of(folder):
        tree = {**tree, "params": base.join(tree["params"], read_metadata(base.folder)["params"])}
    return tree


def check_fits(folder: Path, wanted: dict, subset: bool = False) -> None:
    """Raises UserError unless the parts of `wanted` are stored with the same leaves, shapes and types.

    subset: further leaves of these parts may be stored.
    """
    metadata = on_all_hosts(lambda: read_metadata(folder))
    there, here = _describe({part: metadata[part] for part in wanted if part in metadata}), _describe(wanted)
    there = {name: leaf for name, leaf in there.items() if name in here} if subset else there
    # Parameters first: a message shows three differences, and optimizer state repeats those of parameters.
    names = sorted(there.keys() | here.keys(), key=lambda name: (not name.startswith("params"), name))
    different = [name for name in names if there.get(name) != here.get(name)]
    if different:
        shown = [f"{name} is {there.get(name, 'absent')}, not {here.get(name, 'absent')}" for name in different]
        raise UserError(
            f"checkpoint {folder.name} in {folder.parent} belongs to another model: {join_some(shown, SHOWN, '; ')}. "
            "Choose another --workdir, or its config."
        )


def _describe(tree) -> dict[str, str]:
    """Type and shape of each leaf by its path, whatever container holds it."""
    return {
        path_name(path): f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _this_process() -> ocp.options.MultiprocessingOptions:
    """Orbax options without barriers, so that one process can read while others do not."""
    return ocp.options.MultiprocessingOptions(
        primary_host=None,
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process_{jax.process_index()}",
    )


def _handler(folder: Path) -> ocp.PyTreeCheckpointHandler:
    if str(folder).startswith("s3://"):
        enable_s3()
    return ocp.PyTreeCheckpointHandler(multiprocessing_options=_this_process())


def enable_s3() -> None:
    """Lets Orbax describe s3:// to TensorStore, which has a driver for it; Orbax 0.12 itself only knows gs://.

    Orbax has no public setting for it, and takes s3://... for a relative path. Three of its functions are wrapped.
    """
    uses, normalize, describe = (
        tensorstore_utils._use_gcs_driver,
        tensorstore_utils._normalize_path,
        gcs_utils.get_kvstore_for_gcs,
    )
    if uses("s3://"):
        return

    def normalize_s3(path: str) -> str:
        return "s3://" + os.path.normpath(path.removeprefix("s3://")) if path.startswith("s3://") else normalize(path)

    def describe_s3(path: str) -> dict:
        if not path.startswith("s3://"):
            return describe(path)
        bucket, _, key = path.removeprefix("s3://").partition("/")
        place = {"endpoint": os.environ.get("AWS_ENDPOINT_URL"), "aws_region": os.environ.get("AWS_REGION")}
        if "AWS_ACCESS_KEY_ID" in os.environ:  # else TensorStore prints which files it searched for credentials
            place["aws_credentials"] = {"type": "environment"}
        return {"driver": "s3", "bucket": bucket, "path": key} | {name: value for name, value in place.items() if value}

    tensorstore_utils._use_gcs_driver = lambda directory: directory.startswith("s3://") or uses(directory)
    tensorstore_utils._normalize_path = normalize_s3
    gcs_utils.get_kvstore_for_gcs = describe_s3


class Checkpoints:
    """The checkpoints of one work folder, for readers: a training run may save and delete some meanwhile."""

    def __init__(self, workdir: str, subset: bool = False):
        """subset: parameters that the model lacks, such as heads of pretraining, are left out."""
        self.workdir = Workdir(workdir if io.is_remote(workdir) else Path(workdir).absolute())
        self.folder, self.subset = self.workdir.checkpoints, subset

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, oldest first."""
        return self.workdir.steps()

    def trained(self) -> list[int]:
        """Steps that training can continue from: all but weights only."""
        return [step for step in self.steps() if not is_weights_only(self.workdir.checkpoint(step))]

    def losses(self) -> dict[int, tuple[float, str]]:
        """Validation loss, and how it was measured, of each checkpoint with a finite loss."""
        losses = {}
        for step in self.steps():
            try:
                metrics = json.loads((self.workdir.checkpoint(step) / LOSS).read_bytes())
                loss, measure = metrics["loss"], metrics["measure"]
            except (FileNotFoundError, ValueError, KeyError, TypeError):  # not evaluated, or damaged
                continue
            if isinstance(loss, float) and math.isfinite(loss):
                losses[step] = loss, measure
        return losses

    def best(self) -> int | None:
        """The step with the lowest validation loss among those measured as the newest one was."""
        losses = self.losses()
        if not losses:
            return None
        # A loss on a part of the text, or with other windows, is no measure of progress beside one on all of it.
        _, measure = losses[max(losses)]
        return min((step for step in losses if losses[step][1] == measure), key=losses.get)

    def measures(self) -> list[str]:
        """How the checkpoints' losses were measured, oldest first."""
        return on_host0(lambda: [measure for _, measure in self.losses().values()])

    def loss(self, step: int, measure: str) -> float | None:
        """The validation loss of one checkpoint; None unless it was measured in that way."""
        loss, measured = on_host0(lambda: self.losses().get(step, (None, None)))
        return loss if measured == measure else None

    def last_good(self, before: int) -> int | None:
        """The newest good step before `before`; a good update's own step is not known to be good.

        Its loss was computed with the parameters before it.
        """
        return on_host0(lambda: max((step for step in self.good_steps() if step < before), default=None))

    def good_steps(self) -> list[int]:
        """Steps whose last update had a finite loss and gradient, newest first."""
        return [step for step in reversed(self.steps()) if is_good(self.workdir.checkpoint(step))]

    def find(self, word: str, flag: str = "--step") -> int:
        """The step of "latest", "best" or a number, the value of `flag`. Errors: UserError."""

        def choose() -> int:
            steps = self.steps()
            if not steps:
                raise UserError(f"{flag}={word}: no checkpoint in {self.folder}. Choose another run.")
            words = {"latest": steps[-1], "best": self.best()} | {str(step): step for step in steps}
            if words.get(word) is None:
                known = [name for name, step in words.items() if step is not None]
                raise UserError(f"{flag}={word}: not in {self.folder}. Choose one of: {', '.join(known)}.")
            return words[word]

        return on_host0(choose)

    def read(self, word: str, step: int, function: Callable[[int], Result]) -> tuple[int, Result]:
        """(step, `function(step)`) of the checkpoint that `word` names.

        If a training run deletes checkpoints meanwhile, continues with what "latest" or "best" names then.
        """
        for attempt in range(TRIES):
            before = on_host0(self.steps)
            try:
                return step, function(step)
            except Exception:
                # Any error can follow from files that vanish while Orbax reads them.
                deleted = set(before) - set(on_host0(self.steps))
                if not deleted or word.isdecimal() or attempt == TRIES - 1:
                    raise
                step = self.find(word)

    def check_made_with(self, step: int, tokenizer, config, read: Container[str] | None = None) -> None:
        """Raises UserError unless the checkpoint of `step` was made with `tokenizer` and this folder's `config`.

        Warns about a bad checkpoint; `read` as in `warn_if_bad`.
        """
        folder = self.workdir.checkpoint(step)
        data = read_data(folder)
        check_origin(folder, data, {"tokenizer": tokenizer.fingerprint})
        on_all_hosts(lambda: changes.check_unedited(str(self.workdir.path), config, saved_config(data)))
        warn_if_bad(folder, data, read)

    def restore_params(self, step: int, shapes):
        """The parameters alone; optimizer state is neither read nor allocated."""
        folder = self.workdir.checkpoint(step)
        check_intact(folder)
        return read_state(folder, {"params": shapes}, self.subset)["params"]
