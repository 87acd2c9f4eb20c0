"""Safetensors files of a folder: read tensor by tensor, one file or several with an index; and written so."""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from input_pipeline.files import read_json
from pretrain import workdir
from pretrain.errors import UserError, reason

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = 4 << 30  # bytes of a file that is written, at most, but for one tensor that is larger
FLOATS = ("F32", "F16", "BF16", "F64")  # types of weights


def library():
    """The package `safetensors`. Errors: UserError where it is not installed."""
    try:
        import safetensors
    except ImportError:
        raise UserError(
            "Hugging Face's weights need the package safetensors; in the clone, pip install -e '.[hf]'"
        ) from None
    return safetensors


class Tensors:
    """The tensors of a folder. Opening looks at names and shapes alone; each is read when it is asked for.

    shapes: {name: shape}. Errors: UserError where there are none, where they are pickled, and for an index that names
    what is not there.
    """

    def __init__(self, folder: Path):
        self._library, self.folder = library(), folder
        self._file_of, self.shapes = {}, {}
        for file, expected in _files(folder).items():
            with self._opened(file) as content:
                names = list(content.keys())
                self.shapes |= {name: tuple(content.get_slice(name).get_shape()) for name in names}
            if missing := sorted(expected - set(names)):
                raise UserError(
                    f"{folder / INDEX} has {missing[0]} in {file.name}, which does not hold it; bring the files of one "
                    "and the same save together"
                )
            self._file_of |= dict.fromkeys(names, file)

    def read(self, name: str) -> np.ndarray:
        """One tensor, in the type that it has in its file."""
        with self._opened(self._file_of[name]) as content:
            kind = content.get_slice(name).get_dtype()
            if kind not in FLOATS:
                raise UserError(
                    f"{self._file_of[name]}: {name} is of type {kind}; weights can be of {', '.join(FLOATS)}, so save "
                    "the model again in one of those"
                )
            return content.get_tensor(name)

    @contextlib.contextmanager
    def _opened(self, file: Path) -> Iterator:
        """A file, mapped while it is open: pages that were read stay with the process no longer than that."""
        try:
            with self._library.safe_open(file, framework="np") as content:
                yield content
        except (self._library.SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read ({reason(error)}); fetch it again") from error


def _files(folder: Path) -> dict[Path, set[str]]:
    """The files of a folder's weights, each with the names that the index has it hold."""
    if (folder / INDEX).is_file() and (folder / FILE).is_file():
        raise UserError(
            f"{folder} holds {FILE} and {INDEX}, which are of two saves; move the one that is not meant away"
        )
    if (folder / INDEX).is_file():
        try:
            held = read_json(folder / INDEX)["weight_map"]
            found: dict[Path, set[str]] = {}
            for name, file in held.items():
                found.setdefault(folder / Path(file).name, set()).add(name)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{folder / INDEX} is no index of weights; fetch it again") from None
        if missing := [file.name for file in found if not file.is_file()]:
            raise UserError(
                f"{folder / INDEX} names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not there; "
                "fetch the folder again, whole"
            )
        return found
    if (folder / FILE).is_file():
        return {folder / FILE: set()}
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        raise UserError(
            f"{folder} has its weights in {pickled[0]} alone, a pickle, which runs whatever code it holds when it is "
            f"read; make {FILE} of it where you trust it: in Python with transformers and PyTorch, "
            "AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    raise UserError(f"{folder} holds no {FILE} and no {INDEX}; give a folder that `save_pretrained` wrote")


def write(
    folder: Path,
    sizes: Mapping[str, int],
    tensors: Iterator[tuple[str, np.ndarray]],
    shard: int = SHARD,
    report: Callable[[str], None] = lambda message: None,
) -> None:
    """Writes `tensors` in turn, a file's worth in memory at a time; `sizes` are the bytes of each, in that order."""
    from safetensors.numpy import save_file

    split = _split(sizes, shard)
    held = {}
    for number, names in enumerate(split, 1):
        file = FILE if len(split) == 1 else f"model-{number:05}-of-{len(split):05}.safetensors"
        some = {name: np.ascontiguousarray(array) for name, array in itertools.islice(tensors, len(names))}
        save_file(some, folder / file, metadata={"format": "pt"})  # which readers there ask for
        held |= dict.fromkeys(names, file)
        report(f"wrote {file}: {len(names)} tensors, {sum(sizes[name] for name in names) / 1e6:,.1f} MB")
    if len(split) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": held}
        workdir.write(folder / INDEX, json.dumps(index, indent=2).encode())


def _split(sizes: Mapping[str, int], shard: int) -> list[list[str]]:
    """Names in files of at most `shard` bytes, in order."""
    found, room = [], -math.inf
    for name, size in sizes.items():
        if size > room:
            found.append([])
            room = shard
        found[-1].append(name)
        room -= size
    return found
