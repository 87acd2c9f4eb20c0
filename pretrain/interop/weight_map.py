"""Tables of names: which of our parameters is which of another project's tensors, and how the one lies in the other.

A table is declared once for each family and serves both ways. A row whose name has `{layer}` in it stands for a tensor
of each layer; ours are stacked, [L, ...]:

    Row("h.{layer}.attn.c_proj.weight", ("layers/attention/output/kernel",), INPUTS_FIRST)

says that layer 3 of our kernel, [heads, size, width], is h.3.attn.c_proj.weight there, [heads x size, width].
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """How an array of ours is laid out there, one layer's where it is stacked.

    Of ours the first `inputs` axes are a matrix's inputs, the others its outputs (`models.layers.parameter`). `there`
    takes an array of ours and `inputs`; `back` an array of theirs and the shape of ours. Several of ours that are one
    there are joined along `axis`, the outputs'.
    """

    there: Callable[[np.ndarray, int], np.ndarray]
    back: Callable[[np.ndarray, Shape], np.ndarray]
    axis: int


def _matrix(array: np.ndarray, inputs: int) -> np.ndarray:
    return array.reshape(math.prod(array.shape[:inputs]), -1)


SAME = Form(there=lambda array, inputs: array, back=lambda array, shape: array, axis=0)
TURNED = Form(there=lambda array, inputs: array.T, back=lambda array, shape: array.T, axis=0)
FLAT = Form(there=lambda array, inputs: array.reshape(-1), back=lambda array, shape: array.reshape(shape), axis=0)
INPUTS_FIRST = Form(there=_matrix, back=lambda array, shape: array.reshape(shape), axis=1)
OUTPUTS_FIRST = Form(
    there=lambda array, inputs: _matrix(array, inputs).T, back=lambda array, shape: array.T.reshape(shape), axis=0
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor of theirs, or one of each layer, and the parameters of ours that it holds, in that order.

    otherwise: the tensor that stands for it in files that lack it.
    """

    theirs: str
    ours: tuple[str, ...]
    form: Form
    otherwise: str = ""

    @property
    def stacked(self) -> bool:
        return "{layer}" in self.theirs


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter of ours: its shape in checkpoints, its type, and how many axes of a layer's are inputs."""

    shape: Shape
    dtype: np.dtype
    inputs: int


def rows(form: Form, *pairs: tuple[str, str | tuple[str, ...]]) -> list[Row]:
    """Rows of one form, each of (theirs, ours)."""
    return [Row(theirs, (ours,) if isinstance(ours, str) else ours, form) for theirs, ours in pairs]


def linear(kernels: Form, *pairs: tuple[str, str | tuple[str, ...]], bias: bool = True) -> list[Row]:
    """Rows of linear layers, each of (theirs, ours): a kernel, whose form is given, and a bias where there is one."""
    found = []
    for theirs, ours in pairs:
        ours = (ours,) if isinstance(ours, str) else ours
        found.append(Row(f"{theirs}.weight", tuple(f"{one}/kernel" for one in ours), kernels))
        if bias:
            found.append(Row(f"{theirs}.bias", tuple(f"{one}/bias" for one in ours), FLAT))
    return found


def norms(*pairs: tuple[str, str], bias: bool = True) -> list[Row]:
    """Rows of norms, each of (theirs, ours): gains, and biases where there are any."""
    parts = (("weight", "scale"), ("bias", "bias"))[: 1 + bias]
    return [Row(f"{theirs}.{name}", (f"{ours}/{own}",), FLAT) for theirs, ours in pairs for name, own in parts]


@dataclasses.dataclass(frozen=True)
class Made:
    """How a parameter of ours is made of a row's tensors: called whole, or one layer of it."""

    leaf: Leaf
    row: Row
    names: Sequence[str]  # of the tensors, layer by layer
    index: tuple[slice, ...]  # which part of each is this parameter's
    read: Callable[[str], np.ndarray]

    def __call__(self) -> np.ndarray:
        array = np.empty(self.leaf.shape, self.leaf.dtype)
        for number in range(len(self.names)):
            array[number if self.row.stacked else ...] = self.layer(number)
        return array

    def layer(self, number: int) -> np.ndarray:
        shape = self.leaf.shape[1:] if self.row.stacked else self.leaf.shape
        return self.row.form.back(self.read(self.names[number])[self.index], shape)


class Table:
    """The rows of a family's table, on the parameters of one model."""

    def __init__(self, table: Sequence[Row], leaves: Mapping[str, Leaf]):
        covered = [path for row in table for path in row.ours]
        if sorted(covered) != sorted(leaves):
            unlike = sorted(set(covered) ^ set(leaves))
            raise ValueError(f"the table and the model differ in, or twice have: {', '.join(unlike)}")
        self.rows, self.leaves = table, leaves

    def layers(self, row: Row) -> range | tuple[None]:
        """The layers that a row has a tensor of; None for one that has no layers."""
        return range(self.leaves[row.ours[0]].shape[0]) if row.stacked else (None,)

    def names(self, row: Row) -> list[str]:
        """Their names of a row's tensors, layer by layer."""
        return [row.theirs.format(layer=layer) for layer in self.layers(row)]

    def shapes(self) -> dict[str, Shape]:
        """{their name: its shape}."""
        return {name: self.shape(row) for row in self.rows for name in self.names(row)}

    def shape(self, row: Row) -> Shape:
        """The shape of a row's tensors."""
        parts = [self._part(path, row) for path in row.ours]
        return tuple(
            sum(part[axis] for part in parts) if axis == row.form.axis else size for axis, size in enumerate(parts[0])
        )

    def ours(self, read: Callable[[str], np.ndarray]) -> dict[str, "Made"]:
        """{our path: what makes the array}; nothing is read before that is called, then tensor by tensor.

        `read` gives the tensor of one of their names.
        """
        found = {}
        for row in self.rows:
            place = 0
            for path in row.ours:
                size = self._part(path, row)[row.form.axis]
                index = (slice(None),) * row.form.axis + (slice(place, place + size),)
                found[path] = Made(self.leaves[path], row, self.names(row), index, read)
                place += size
        return found

    def theirs(self, row: Row, read: Callable[[str], np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """(their name, array) of each of a row's tensors; `read` gives the array of one of our paths."""
        parts = [read(path) for path in row.ours]
        for layer, name in zip(self.layers(row), self.names(row), strict=True):
            there = [
                row.form.there(part if layer is None else part[layer], self.leaves[path].inputs)
                for path, part in zip(row.ours, parts, strict=True)
            ]
            yield name, there[0] if len(there) == 1 else np.concatenate(there, row.form.axis)

    def _part(self, path: str, row: Row) -> Shape:
        """The shape that a parameter of ours, or a layer's, has there."""
        leaf = self.leaves[path]
        shape = leaf.shape[1:] if row.stacked else leaf.shape
        return row.form.there(np.broadcast_to(np.zeros((), np.int8), shape), leaf.inputs).shape
