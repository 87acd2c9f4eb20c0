"""Paths and names of all files in a work folder.

A work folder may be in an object store. Nothing is renamed there: a checkpoint is complete once it holds `COMMITTED`,
which is written last and deleted first.
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
from pathlib import Path

from etils import epath

from input_pipeline.io import Folders, filesystem, is_remote, open_path, replace

CONFIG = "config.json"
TRIALS = "trials.json"  # next to the folders of several seeds

# In the folder of a checkpoint.
STATE, DATA, METRICS = "state", "data", "metrics"  # Orbax items
POSITION = f"{DATA}/metadata"  # JSON: step, position in the data, fingerprints of text and tokenizer
LOSS = f"{METRICS}/metrics"  # JSON: validation loss and how it was measured
RECORD = "files.json"  # sizes and checksums of the files
COMMITTED = "commit_success.txt"  # Orbax's mark of a complete checkpoint in an object store

# Remedy for a run that cannot continue.
FRESH_START = "start at step 0 with --fresh=NAME, which moves this run to earlier/NAME"

_UNNAMED, _DELETED = ".orbax-checkpoint-tmp", ".deleted"  # in names of incomplete and of doomed checkpoints
_EARLIER = "earlier"  # folder of the runs that --fresh moved away
_MOVING = ".partial"  # suffix of a folder that a run is being moved into


@dataclasses.dataclass(frozen=True)
class Workdir:
    """A run's folder, which need not exist. Methods that read it raise OSError."""

    name: str | Path  # as the user gives it

    @property
    def path(self) -> Path | epath.Path:
        return open_path(self.name)

    @property
    def remote(self) -> bool:
        """Whether it is in an object store."""
        return is_remote(self.name)

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / CONFIG

    @property
    def folders(self) -> Folders:
        """Paths of tokenizer and token stores; a run in earlier/ uses those of the run that replaced it."""
        run = self.path
        while not self.remote and not (run / "tokenizer").exists():
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
        """Damaged checkpoints, on the same disk as the others so that a rename moves them."""
        return self.checkpoints / "broken"

    @property
    def pins(self) -> Path:
        """Empty files named like the checkpoints that other runs need, which are not pruned."""
        return self.path / "pins"

    @property
    def teacher(self) -> "Workdir":
        """Copy of the teacher's config and checkpoint."""
        return Workdir(self.path / "teacher")

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def goodput(self) -> Path:
        """Ledger of the time of each start."""
        return self.path / "goodput.jsonl"

    @property
    def changes(self) -> Path:
        """Record of the keys that resumed runs changed."""
        return self.path / "changes.jsonl"

    def scores(self, step: int) -> Path:
        """Results of tasks that a checkpoint was asked."""
        return self.path / "scores" / f"{step}.json"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def lock(self) -> Path:
        """Lock of the process that writes here."""
        return self.path / "lock"

    @property
    def earlier(self) -> Path:
        """Runs that `--fresh` moved away, by name."""
        return self.path / _EARLIER

    def moving(self, name: str) -> "Workdir":
        """The earlier run `name` while it is being moved."""
        return Workdir(self.earlier / f"{name}{_MOVING}")

    def being_moved(self) -> str | None:
        """Name of the earlier run whose move was interrupted, if any."""
        found = [path.name for path in self.earlier.glob("*")]
        return next((name.removesuffix(_MOVING) for name in sorted(found) if name.endswith(_MOVING)), None)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / str(step)

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, intact or damaged, oldest first."""
        try:
            return sorted(int(path.name) for path in self._numbered() if self.finished(int(path.name)))
        except FileNotFoundError:
            return []

    def _numbered(self):
        return [path for path in self.checkpoints.iterdir() if path.name.isdecimal()]

    def finished(self, step: int) -> bool:
        """Whether there is a complete checkpoint of that step."""
        folder = self.checkpoint(step)
        return (folder / COMMITTED).is_file() if self.remote else folder.is_dir()

    def unnamed(self, step: int) -> Path:
        """The temporary folder in which Orbax writes the checkpoint of `step`."""
        if self.remote:
            return self.checkpoint(step)
        (found,) = [path for path in self.checkpoints.iterdir() if path.name.startswith(f"{step}{_UNNAMED}")]
        return found

    def unfinished(self) -> list[Path]:
        """Checkpoints that a killed process was writing or deleting."""
        if self.remote:
            with contextlib.suppress(FileNotFoundError):
                return [path for path in self._numbered() if not self.finished(int(path.name))]
            return []
        return [path for path in self.checkpoints.iterdir() if _UNNAMED in path.name or _DELETED in path.name]

    def discard(self, path: Path | epath.Path) -> None:
        """Deletes a checkpoint; a kill in between leaves no half checkpoint under its name."""
        if is_remote(path):
            (path / COMMITTED).unlink(missing_ok=True)  # first, since deleting many objects is not atomic
            path.rmtree(missing_ok=True)
        else:
            shutil.rmtree(path.rename(f"{path}{_DELETED}") if path.name.isdecimal() else path)


def may_be_earlier(name: str) -> bool:
    """Whether --fresh=`name` can name a folder."""
    return Path(name).name == name and not name.startswith(".") and not name.endswith(_MOVING)


def real(path: str | Path | epath.Path) -> Path | epath.Path:
    """A path without links, for comparison."""
    found = open_path(path)
    return found if is_remote(found) else Path(os.path.realpath(found))


def rows(metrics: Path, split: str, suffix: str) -> Path:
    """Metrics of `split`, one row per step."""
    return metrics / f"{split}{suffix}"


def events(metrics: Path) -> Path:
    """Folder of TensorBoard's files."""
    return metrics / "tensorboard"


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically. Errors: OSError."""
    with replace(path) as partial:
        partial.write_bytes(content)


def free_name(path: Path | epath.Path) -> Path | epath.Path:
    """`path`, or `path.1`, `path.2`, ...: the first that does not exist."""
    numbered = (path.with_name(f"{path.name}.{number}" if number else path.name) for number in itertools.count())
    return next(name for name in numbered if not exists(name))


def exists(path: Path | epath.Path) -> bool:
    """Whether anything has that name, including a dangling link."""
    return path.exists() if is_remote(path) else os.path.lexists(path)


def move(source: Path | epath.Path, to: Path | epath.Path) -> None:
    """Renames a file, folder or link; in an object store copies what is below it, then deletes the source."""
    if is_remote(source):
        # fsspec's recursive `mv` fails on S3 at names of folders, which are not objects.
        store, key, new = filesystem(source), str(source).partition("://")[2], str(to).partition("://")[2]
        for name in store.find(str(source)):
            store.cp_file(name, f"{new}{name.removeprefix(key)}")
        store.rm(str(source), recursive=True)
    elif source.is_symlink() and not os.path.isabs(os.readlink(source)):
        # A relative link points elsewhere from another folder.
        os.symlink(os.path.relpath(os.path.realpath(source), os.path.realpath(to.parent)), to)
        source.unlink()
    else:
        os.replace(source, to)
