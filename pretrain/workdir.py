"""The folder of a run: the one place that knows what lies where in it, under which name, and how a file is written.

What the tokenizer's and the data's folders hold is `input_pipeline`'s, and what an item of a checkpoint holds Orbax's.

The folder may lie in an object store. There nothing is renamed: a checkpoint is finished when `COMMITTED` is in it,
which is written last and deleted first.
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
from pathlib import Path

from input_pipeline.away import names, persistently
from input_pipeline.files import replaced
from input_pipeline.folders import Folders
from input_pipeline.remote import RemotePath, at, is_remote

CONFIG = "config.json"

# In the folder of a checkpoint.
STATE, DATA, METRICS = "state", "data", "metrics"  # its items
POSITION = f"{DATA}/metadata"  # JSON: the step, the position in the data, and of which text
LOSS = f"{METRICS}/metrics"  # JSON: the validation loss, and how it was measured
RECORD = "files.json"  # what its files were
COMMITTED = "commit_success.txt"  # Orbax's: in an object store, that all of it is there

# The remedy of a run that cannot be gone on with, in a sentence of what is wrong with it.
ANEW = "begin at update 0 with train --fresh=NAME, which keeps what is there in earlier/NAME"

_UNNAMED, _DELETED = ".orbax-checkpoint-tmp", ".deleted"  # in the names of folders that are no checkpoints (any more)
_EARLIER = "earlier"  # the folder of runs that were put aside
_MOVING = ".partial"  # ends the name of a folder that a run is still being moved into


def gone(folder: Path | RemotePath) -> str:
    """The sentence of a work folder that is not where it was when a command began to use it."""
    return (
        f"{folder} has been moved or removed while this process used it; start the same command again with --workdir "
        "where the run is now"
    )


@dataclasses.dataclass(frozen=True)
class Workdir:
    """A run's folder, there or not. Errors of all that looks into it: OSError."""

    name: str | Path  # as the user gives it

    @property
    def path(self) -> Path | RemotePath:
        return at(self.name)

    @property
    def remote(self) -> bool:
        """Whether it lies in an object store."""
        return is_remote(self.name)

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / CONFIG

    @property
    def folders(self) -> Folders:
        """What is made of text; a run that was put aside, even several times, has left it where it was."""
        run = self.path
        while not self.remote and not persistently((run / "tokenizer").exists):
            itself = real(run)
            if itself.parent.name != _EARLIER or not (itself.parent.parent / CONFIG).is_file():
                break
            run = itself.parent.parent
        return Folders(run / "tokenizer", run / "data")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def broken(self) -> Path:
        """Damaged checkpoints: among the others, where a rename reaches whatever disk they are on."""
        return self.checkpoints / "broken"

    @property
    def teacher(self) -> "Workdir":
        """The run that teaches, of which there are a config and a checkpoint."""
        return Workdir(self.path / "teacher")

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def goodput(self) -> Path:
        """Where the time of each start went."""
        return self.path / "goodput.jsonl"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def lock(self) -> Path:
        """Which process writes here, while one does."""
        return self.path / "lock"

    @property
    def earlier(self) -> Path:
        """The runs that `--fresh` put aside, each under its name."""
        return self.path / _EARLIER

    def moving(self, name: str) -> "Workdir":
        """What is to be the earlier run `name`, while it is being moved there."""
        return Workdir(self.earlier / f"{name}{_MOVING}")

    def being_moved(self) -> str | None:
        """The name of the earlier run whose move was begun and not ended; None where there is none."""
        found = [path.name for path in self.earlier.glob("*")] if self.remote else names(self.earlier)
        return next((name.removesuffix(_MOVING) for name in sorted(found) if name.endswith(_MOVING)), None)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / str(step)

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, whole or damaged, oldest first."""
        try:
            return sorted(int(path.name) for path in self._numbered() if self.finished(int(path.name)))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if self.checkpoints.exists():
                raise
            return []  # what should be a folder above is a file

    def _numbered(self):
        return [path for path in self.checkpoints.iterdir() if path.name.isdecimal()]

    def finished(self, step: int) -> bool:
        """Whether there is a finished checkpoint of that step."""
        folder = self.checkpoint(step)
        return (folder / COMMITTED).is_file() if self.remote else folder.is_dir()

    def unnamed(self, step: int) -> Path:
        """The folder in which Orbax writes the checkpoint of `step`, before it gets its name, or is committed."""
        if self.remote:
            return self.checkpoint(step)
        # Not by a pattern of its own: each would stay in the caches of `re` and `pathlib`.
        (found,) = [path for path in self.checkpoints.iterdir() if path.name.startswith(f"{step}{_UNNAMED}")]
        return found

    def unfinished(self) -> list[Path]:
        """Folders that a killed process was writing or deleting."""
        if self.remote:
            with contextlib.suppress(FileNotFoundError):
                return [path for path in self._numbered() if not self.finished(int(path.name))]
            return []
        return [path for path in self.checkpoints.iterdir() if _UNNAMED in path.name or _DELETED in path.name]

    def discard(self, path: Path | RemotePath) -> None:
        """Deletes a folder among the checkpoints, which is none any more as soon as that begins. Errors: OSError."""
        if isinstance(path, RemotePath):
            (path / COMMITTED).unlink(missing_ok=True)
            path.remove_tree()
        else:
            shutil.rmtree(path.rename(self._doomed(path)))

    def try_out(self) -> None:
        """Makes a folder among the checkpoints and deletes it, as who saves does. Errors: OSError."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        if not self.remote:
            tried = self._doomed(self.checkpoint(0))
            tried.mkdir()
            tried.rmdir()

    def _doomed(self, path: Path) -> Path:
        """A free name for a folder among the checkpoints that is being deleted."""
        name = path.name.partition(".")[0]
        named = (self.checkpoints / f"{name}.{number}{_DELETED}" for number in itertools.count())
        return next(free for free in named if not free.exists())


def of_config(name: str) -> str:
    """The folder of a run that is given none, by its config's name."""
    return str(Path("runs") / name)


def may_be_earlier(name: str) -> bool:
    """Whether a run can be put aside as `name`: the name of one folder, which is none that is being moved into."""
    return Path(name).name == name and name not in (".", "..") and not name.endswith(_MOVING) and is_utf8(name)


def real(path: str | Path | RemotePath) -> Path | RemotePath:
    """A path without links, which may be compared with others; what a link to itself is named stays."""
    found = at(path)
    return found if isinstance(found, RemotePath) else Path(os.path.realpath(found))


def is_utf8(path: str) -> bool:
    """Whether a path is text, as what reads and writes checkpoints takes it."""
    try:
        path.encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


def rows(metrics: Path, split: str, suffix: str) -> Path:
    """The file of the metrics of `split`, a row a step."""
    return metrics / f"{split}{suffix}"


def events(metrics: Path) -> Path:
    """The folder of TensorBoard's files."""
    return metrics / "tensorboard"


def event_file(metrics: Path, seconds: float, host: str) -> Path:
    """The file of one start, under a name that TensorBoard looks for and sorts by."""
    return events(metrics) / f"events.out.tfevents.{seconds:.6f}.{host}"


def damaged(path: Path) -> Path:
    """Where something among the metrics that cannot be taken up is set aside, unless that is taken."""
    return path.with_name(f"{path.name}.damaged")


def write(path: Path, content: bytes) -> None:
    """Writes a file of a work folder, whole or not at all: every one that is not a log. Errors: OSError."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return

    def work() -> None:
        with replaced(path) as partial:
            partial.write_bytes(content)

    persistently(work)
