"""Weight maps: which of our parameters is which Hugging Face tensor, and how each array is laid out there.

A family declares one table of rows, read in both directions. A row with `{layer}` in its name is one tensor per layer;
ours are stacked, [L, ...]:

    Row("h.{layer}.attn.c_proj.weight", ("layers/attention/output/kernel",), INPUTS_FIRST)

maps layer 3 of our kernel, [heads, size, width], to h.3.attn.c_proj.weight, [heads x size, width].
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]
Pair = tuple[str, str | tuple[str, ...]]  # (Hugging Face's name, our path or paths)


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


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor, or one of each layer, and the parameters of ours that it holds, in order.

    fallback: the tensor to read from files without this one.
    """

    hf: str
    params: tuple[str, ...]
    layout: Layout
    fallback: str = ""

    @property
    def stacked(self) -> bool:
        return "{layer}" in self.hf


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter of ours: shape in checkpoints, type, and number of input axes of one layer."""

    shape: Shape
    dtype: np.dtype
    inputs: int


def rows(layout: Layout, *pairs: Pair) -> list[Row]:
    """Rows of one layout."""
    return [Row(hf, (ours,) if isinstance(ours, str) else ours, layout) for hf, ours in pairs]


def linear(*pairs: Pair, layout: Layout = OUTPUTS_FIRST, bias: bool = True) -> list[Row]:
    """Rows of linear layers: kernels, and biases if there are any."""
    table = []
    for row in rows(layout, *pairs):
        table += rows(layout, (f"{row.hf}.weight", tuple(f"{path}/kernel" for path in row.params)))
        if bias:
            table += rows(FLATTEN, (f"{row.hf}.bias", tuple(f"{path}/bias" for path in row.params)))
    return table


def norms(*pairs: tuple[str, str], bias: bool = True) -> list[Row]:
    """Rows of norms: gains, and biases if there are any."""
    parts = (("weight", "scale"), ("bias", "bias"))[: 1 + bias]
    return rows(FLATTEN, *((f"{hf}.{name}", f"{path}/{own}") for hf, path in pairs for name, own in parts))


def layers(
    prefix: str, attention: Sequence[str], attention_norm: str, feed_forward: Sequence[str], feed_forward_norm: str
) -> list[Row]:
    """Rows of a stack of layers, by their names after `prefix`.

    attention: query, key, value and output. feed_forward: in and out.
    """
    ours = [f"attention/{part}" for part in ("query", "key", "value", "output")] + [
        "feed_forward/in",
        "feed_forward/out",
    ]
    # Pre-norm and post-norm stacks have the same parameters, so the same rows.
    pairs = zip((*attention, *feed_forward), ours, strict=True)
    return [
        *linear(*((prefix + name, f"layers/{path}") for name, path in pairs)),
        *norms((prefix + attention_norm, "layers/attention_norm")),
        *norms((prefix + feed_forward_norm, "layers/feed_forward_norm")),
    ]


@dataclasses.dataclass(frozen=True)
class Source:
    """The tensors that one parameter of ours is read from, when it is asked for."""

    leaf: Leaf
    row: Row
    names: Sequence[str]  # of the tensors, layer by layer
    index: tuple[slice, ...]  # this parameter's part of each tensor
    read: Callable[[str], np.ndarray]

    def array(self) -> np.ndarray:
        # Filled layer by layer: one tensor is in memory besides the array itself.
        array = np.empty(self.leaf.shape, self.leaf.dtype)
        for number in range(len(self.names)):
            array[number if self.row.stacked else ...] = self.layer(number)
        return array

    def layer(self, number: int) -> np.ndarray:
        shape = self.leaf.shape[1:] if self.row.stacked else self.leaf.shape
        return self.row.layout.from_hf(self.read(self.names[number])[self.index], shape)


class WeightMap:
    """The rows of a family on the parameters of one model."""

    def __init__(self, table: Sequence[Row], leaves: Mapping[str, Leaf]):
        covered = [path for row in table for path in row.params]
        assert sorted(covered) == sorted(leaves), f"missing or repeated: {sorted(set(covered) ^ set(leaves))}"
        self.rows, self.leaves = table, leaves

    def names(self, row: Row) -> list[str]:
        """The names of a row's tensors, layer by layer."""
        count = self.leaves[row.params[0]].shape[0] if row.stacked else 1
        return [row.hf.format(layer=layer) for layer in range(count)]

    def shapes(self) -> dict[str, Shape]:
        """{tensor: shape} of all rows."""
        return {name: self.shape(row) for row in self.rows for name in self.names(row)}

    def shape(self, row: Row) -> Shape:
        """The shape of each tensor of a row."""
        parts, axis = [self._hf_shape(path, row) for path in row.params], row.layout.axis
        return (*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])

    def sources(self, read: Callable[[str], np.ndarray]) -> dict[str, Source]:
        """{our path: where it is read from}; `read` returns a tensor by name and is not called before."""
        sources = {}
        for row in self.rows:
            # GPT-2's c_attn is [width, 3 x width]: query, key and value are slices of its output axis.
            axis, start = row.layout.axis, 0
            for path in row.params:
                stop = start + self._hf_shape(path, row)[axis]
                index = (*(slice(None),) * axis, slice(start, stop))
                sources[path] = Source(self.leaves[path], row, self.names(row), index, read)
                start = stop
        return sources

    def tensors(self, read: Callable[[str], np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of every tensor, row by row; `read` returns one of our parameters by path."""
        for row in self.rows:
            arrays = [(read(path), self.leaves[path].inputs) for path in row.params]
            for layer, name in enumerate(self.names(row)):
                parts = [row.layout.to_hf(x[layer] if row.stacked else x, inputs) for x, inputs in arrays]
                yield name, parts[0] if len(parts) == 1 else np.concatenate(parts, row.layout.axis)

    def _hf_shape(self, path: str, row: Row) -> Shape:
        """The shape of our parameter, or of a layer of it, in Hugging Face's layout."""
        leaf = self.leaves[path]
        shape = leaf.shape[1:] if row.stacked else leaf.shape
        # A broadcast scalar: the layout's own reshapes say the shape without the memory of a real array.
        return row.layout.to_hf(np.broadcast_to(np.zeros((), np.int8), shape), leaf.inputs).shape
