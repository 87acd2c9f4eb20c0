"""Files of rows in an object store, to which nothing can be appended."""

import tempfile
from pathlib import Path

from etils import epath

from pretrain import workdir

ROWS = (".csv", ".jsonl")  # what a run that goes on takes up


class Staged:
    """A folder of this machine's that stands for a remote one, from which the files of rows right in it are fetched.

    What has changed is uploaded whole by `publish`: rows since then are lost with the process, as are the updates since
    the last checkpoint, which makes the same rows again.
    """

    def __init__(self, folder: epath.Path):
        self._remote, self._sent = folder, {}
        self._holds = tempfile.TemporaryDirectory(prefix="longhaul-metrics-")
        self.path = Path(self._holds.name)
        for path in folder.glob("*"):
            if path.suffix in ROWS:
                workdir.write(self.path / path.name, path.read_bytes())

    def publish(self) -> None:
        """Uploads what has changed. Errors: OSError."""
        for path in sorted(self.path.rglob("*")):
            if not path.is_file():
                continue
            status = path.stat()
            sign = status.st_size, status.st_mtime_ns
            if self._sent.get(path) != sign:
                (self._remote / str(path.relative_to(self.path))).write_bytes(path.read_bytes())
                self._sent[path] = sign

    def close(self) -> None:
        self._holds.cleanup()
