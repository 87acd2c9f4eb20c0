"""Weight maps: which of our parameters is which Hugging Face tensor, and how each array is laid out there.

A family declares one table of names, ours and theirs, read in both directions. A name is a module's, or one
parameter's:

    "tokens": "transformer.wte.weight"
    "layers/attention/output": "transformer.h.{layer}.attn.c_proj"

The second maps layer 3 of our kernel, [L, heads, size, width], to transformer.h.3.attn.c_proj.weight, and the bias to
transformer.h.3.attn.c_proj.bias. Parameters with one name there form one tensor, in the table's order. A table may name
modules that only some models have.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pretrain.checkpoints.params_only import LazyArray

Shape = tuple[int, ...]
Read = Callable[[str], np.ndarray]
PARTS = {"kernel": "weight", "scale": "weight", "bias": "bias"}  # ours -> theirs, of modules


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one of our arrays, or a layer of it, is laid out in Hugging Face's files.

    to_hf: of our array and the number of its leading axes that are a matrix's inputs. from_hf: the inverse, of their
    array and our shape. axis: the output axis, along which several of our parameters form one tensor.
    """

    to_hf: Callable[[np.ndarray, int], np.ndarray]
    from_hf: Callable[[np.ndarray, Shape], np.ndarray]
    axis: int = 0


def _matrix(array: np.ndarray, inputs: int) -> np.ndarray:
    return array.reshape(math.prod(array.shape[:inputs]), -1)


IDENTITY = Layout(lambda array, inputs: array, lambda array, shape: array)
TRANSPOSE = Layout(lambda array, inputs: array.T, lambda array, shape: array.T)
FLATTEN = Layout(lambda array, inputs: array.reshape(-1), lambda array, shape: array.reshape(shape))
# Our kernels keep heads apart: [width, heads, size]. GPT-2's Conv1D has [in, out], torch.nn.Linear has [out, in].
INPUTS_FIRST = Layout(_matrix, lambda array, shape: array.reshape(shape), axis=1)
OUTPUTS_FIRST = Layout(lambda array, inputs: _matrix(array, inputs).T, lambda array, shape: array.T.reshape(shape))


class Leaf(NamedTuple):
    """A parameter of ours: shape in checkpoints, type, and number of input axes of one layer."""

    shape: Shape
    dtype: np.dtype
    inputs: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor, or one of each layer, and the parameters of ours that it holds, in order."""

    hf: str
    params: tuple[str, ...]
    layout: Layout
    layers: int | None  # None: not stacked

    @property
    def names(self) -> list[str]:
        """The names of its tensors, layer by layer."""
        return [self.hf] if self.layers is None else [self.hf.format(layer=layer) for layer in range(self.layers)]


def under(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """A table of names with a prefix on either side."""
    return {ours + name: theirs + other for name, other in names.items()}


class WeightMap:
    """The table of a family on the parameters of one model.

    kernels: the layout of modules' kernels. layouts: of parameters with one of their own.
    """

    def __init__(
        self, names: Mapping[str, str], leaves: Mapping[str, Leaf], kernels: Layout, layouts: Mapping[str, Layout]
    ):
        self.leaves = leaves
        usual = {"kernel": kernels, "scale": FLATTEN, "bias": FLATTEN}
        params, layout_of, order = {}, {}, {name: place for place, name in enumerate(names)}
        # The table's order, not the tree's: GPT-2's c_attn is query, key, value.
        for path in sorted(leaves, key=lambda path: order[path if path in names else path.rpartition("/")[0]]):
            module, _, part = path.rpartition("/")
            hf = names[path] if path in names else f"{names[module]}.{PARTS[part]}"
            params.setdefault(hf, []).append(path)
            layout_of[hf] = layouts.get(path) or usual.get(part, IDENTITY)
        self.rows = [
            Row(hf, tuple(paths), layout_of[hf], leaves[paths[0]].shape[0] if "{layer}" in hf else None)
            for hf, paths in params.items()
        ]

    def shapes(self) -> dict[str, Shape]:
        """{tensor: shape} of all rows."""
        shapes = {}
        for row in self.rows:
            parts, axis = [self._hf_shape(path, row) for path in row.params], row.layout.axis
            shape = (*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])
            shapes |= dict.fromkeys(row.names, shape)
        return shapes

    def arrays(self, read: Read) -> dict[str, LazyArray]:
        """{our path: array}; `read` returns a tensor by name, when the array is made."""
        arrays = {}
        for row in self.rows:
            # GPT-2's c_attn is [width, 3 x width]: query, key and value are slices of its output axis.
            axis, start = row.layout.axis, 0
            for path in row.params:
                stop = start + self._hf_shape(path, row)[axis]
                index = (*(slice(None),) * axis, slice(start, stop))
                layer = functools.partial(self._layer, row, self._shape(path, row), index, read)
                make = functools.partial(self._stack, self.leaves[path], row, layer)
                arrays[path] = LazyArray(*self.leaves[path][:2], make, None if row.layers is None else layer)
                start = stop
        return arrays

    def tensors(self, read: Read) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of every tensor, row by row; `read` returns one of our parameters by path."""
        for row in self.rows:
            arrays = [(read(path), self.leaves[path].inputs) for path in row.params]
            for layer, name in enumerate(row.names):
                index = ... if row.layers is None else layer
                parts = [row.layout.to_hf(array[index], inputs) for array, inputs in arrays]
                yield name, parts[0] if len(parts) == 1 else np.concatenate(parts, row.layout.axis)

    def _shape(self, path: str, row: Row) -> Shape:
        """The shape of our parameter, or of a layer of it."""
        return self.leaves[path].shape[row.layers is not None :]

    def _hf_shape(self, path: str, row: Row) -> Shape:
        """The same in Hugging Face's layout."""
        # A broadcast scalar: the layout's own reshapes say the shape without the memory of a real array.
        scalar = np.broadcast_to(np.zeros((), np.int8), self._shape(path, row))
        return row.layout.to_hf(scalar, self.leaves[path].inputs).shape

    @staticmethod
    def _layer(row: Row, shape: Shape, index: tuple[slice, ...], read: Read, number: int) -> np.ndarray:
        return row.layout.from_hf(read(row.hf.format(layer=number))[index], shape)

    @staticmethod
    def _stack(leaf: Leaf, row: Row, layer: Callable[[int], np.ndarray]) -> np.ndarray:
        # Filled layer by layer: one tensor is in memory besides the array itself.
        array = np.empty(leaf.shape, leaf.dtype)
        for number in range(row.layers or 1):
            array[... if row.layers is None else number] = layer(number)
        return array
