"""Safetensors files of a folder, one file or several with an index, read and written tensor by tensor."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from input_pipeline.io import read_object
from pretrain import workdir
from pretrain.errors import UserError

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_FILE_BYTES = 4 << 30  # a larger tensor has a file for itself


def _library():
    try:
        import safetensors
    except ImportError:
        raise UserError("import and export need safetensors. Run pip install -e '.[hf]'.") from None
    return safetensors


class Tensors:
    """The tensors of a folder: names and shapes at once, each array when it is read.

    Errors: UserError if the folder has no safetensors, or if a file is missing or damaged.
    """

    def __init__(self, folder: Path):
        library = _library()
        self._open, self.folder = library.safe_open, folder
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in _weight_files(folder):
            try:
                with self._open(file, framework="np") as content:
                    for name in list(content.keys()):
                        self._files[name], self.shapes[name] = file, tuple(content.get_slice(name).get_shape())
            except library.SafetensorError as error:  # a download cut short, or a pointer of Git LFS
                raise UserError(f"{file}: no whole safetensors file ({error}). Download it again.") from error

    def read(self, name: str) -> np.ndarray:
        """One tensor, in the file's type."""
        # Reopened for each tensor: pages of the mapped file that were read stay in memory while it is open.
        with self._open(self._files[name], framework="np") as content:
            return content.get_tensor(name)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / FILE).is_file():
        return [folder / FILE]
    if (folder / INDEX).is_file():
        files = [
            folder / name for name in sorted(set(read_object(folder / INDEX, "weight_map")["weight_map"].values()))
        ]
        if missing := [file.name for file in files if not file.is_file()]:
            raise UserError(f"{folder / INDEX}: missing {', '.join(missing)}. Download the whole folder.")
        return files
    remedy = "Give a folder that save_pretrained wrote."
    if pickles := [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt")]:
        # Unpickling runs any code that the file holds.
        remedy = f"If you trust {min(pickles)}, load it with Transformers' from_pretrained and call save_pretrained."
    raise UserError(f"{folder}: no {FILE} or {INDEX}. {remedy}")


def write(
    folder: Path,
    sizes: Mapping[str, int],
    tensors: Iterator[tuple[str, np.ndarray]],
    max_bytes: int = MAX_FILE_BYTES,
    report: Callable[[str], None] = lambda message: None,
) -> None:
    """Writes `tensors` with one file's worth in memory; `sizes` are their bytes, in the same order."""
    from safetensors.numpy import save_file

    files = _split(sizes, max_bytes)
    index = {}
    for number, names in enumerate(files, 1):
        file = FILE if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        content = {name: np.ascontiguousarray(array) for name, array in itertools.islice(tensors, len(names))}
        save_file(content, folder / file, metadata={"format": "pt"})  # Transformers requires this entry
        index |= dict.fromkeys(names, file)
        report(f"wrote {file}: {len(names)} tensors, {sum(sizes[name] for name in names) / 1e6:,.1f} MB")
    if len(files) > 1:
        whole = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": index}
        workdir.write(folder / INDEX, json.dumps(whole, indent=2).encode())


def _split(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names of each file, in order."""
    # -1: the first tensor opens a file even if it has no bytes.
    files, room = [], -1
    for name, size in sizes.items():
        if size > room:
            files.append([])
            room = max_bytes
        files[-1].append(name)
        room -= size
    return files
