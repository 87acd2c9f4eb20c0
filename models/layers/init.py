"""Initializers, and the box that records a parameter's axis names and role.

Every initializer here returns a `Parameter`: the logical names of its axes, which the config maps to a mesh, and how
many of them are inputs. Optimizers (weight decay, muP, Muon) and scaling laws read roles from it, never from names.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from flax import linen as nn
from flax import struct


@struct.dataclass
class Parameter(nn.LogicallyPartitioned):
    """A boxed parameter.

    inputs: number of leading axes, not counting layers, that are a matrix's inputs; the others are its outputs. 1 for a
        table (its rows), 0 for vectors that are added or scale: biases, gains of norms.
    is_embedding: rows are looked up, not multiplied. Scaling laws leave such tables out (Kaplan et al. 2020, section
        2.1).
    """

    inputs: int = struct.field(pytree_node=False, default=0)
    is_embedding: bool = struct.field(pytree_node=False, default=False)

    @property
    def stacked(self) -> bool:
        """Whether the first axis counts layers (`models.transformer.layer_stack.Stack`)."""
        return self.names[:1] == ("layers",)


def box(draw: Callable, names: tuple[str | None, ...], inputs: int) -> Callable[..., Parameter]:
    """Wrap the initializer `draw` so that it returns a `Parameter`."""

    def boxed(key: jax.Array, *shape_and_dtype) -> Parameter:
        return Parameter(draw(key, *shape_and_dtype), names, inputs=inputs)

    return boxed


def embedding_table(initializer: Callable[..., Parameter]) -> Callable[..., Parameter]:
    """Mark what `initializer` returns as an embedding table."""
    return lambda *args: initializer(*args).replace(is_embedding=True)


def is_box(node) -> bool:
    """Whether a node of a tree is a box: an array with the names of its axes."""
    return isinstance(node, nn.LogicallyPartitioned)


def path_name(path) -> str:
    """A tree path as text: layers/attention/query/kernel."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def mesh_axes_of(part: str | Sequence[str] | None) -> tuple[str, ...]:
    """The mesh axes in one entry of a `PartitionSpec`."""
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def normal(std: float, *names: str | None, inputs: int = 1, mean: float = 0.0):
    """Initializer N(mean, std^2) of a parameter with axes `names`."""
    draw = nn.initializers.normal(std)
    # No addition of 0.0 where the mean is 0: -0.0 would become 0.0, and draws would differ in a bit.
    return box((lambda *args: mean + draw(*args)) if mean else draw, names, inputs)


def truncated_normal(std: float, *names: str | None, inputs: int = 1):
    """Initializer N(0, std^2), cut off at two standard deviations, as in BERT's release."""
    # Like TensorFlow's, Flax's draws are not rescaled: at std = 0.02 their actual deviation is 0.0176.
    return box(nn.initializers.truncated_normal(std), names, inputs)


def uniform(std: float, *names: str | None, inputs: int = 1):
    """Initializer U(-a, a) of standard deviation `std`."""
    bound = std * math.sqrt(3)  # the variance of U(-a, a) is a^2 / 3

    def draw(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return box(draw, names, inputs)


def constant(value: float, *names: str | None):
    """Initializer of a vector filled with `value`."""
    return box(nn.initializers.constant(value), names, inputs=0)


def residual_std(std: float, layers: int) -> float:
    """Standard deviation of a residual branch's last matrix: std / sqrt(2 L) (Radford et al. 2019, section 2.3).

    L layers add 2 L branches to the residual stream; so scaled, their sum keeps the variance of one.
    """
    return std / math.sqrt(2 * layers)


# By `model.initialiser` of encoders. PyTorch's "fan_in" draws matrices uniformly and tables normally.
INITIALIZERS: Mapping[str, Callable] = {"truncated": truncated_normal, "normal": normal, "fan_in": uniform}
TABLE_INITIALIZERS: Mapping[str, Callable] = INITIALIZERS | {"fan_in": normal}


class InitScheme(NamedTuple):
    """How an encoder-decoder's matrices and tables are initialized.

    matrix_std: (scale, inputs, outputs) -> std of a matrix, which `initializer` draws.
    table_std: (scale, width) -> std of a table with rows of that width, always drawn from a normal.
    """

    initializer: Callable
    matrix_std: Callable[[float, int, int], float]
    table_std: Callable[[float, int], float]


# By `model.initialiser` of encoder-decoders.
INIT_SCHEMES = {
    # T5 (Raffel et al. 2019): table rows of variance 1. The first norm, and the head's 1/sqrt(D), bring them down.
    "fan_in": InitScheme(normal, lambda scale, inputs, outputs: scale * inputs**-0.5, lambda scale, width: scale),
    # BERT's family, BART among them: one standard deviation for everything.
    "normal": InitScheme(normal, lambda scale, inputs, outputs: scale, lambda scale, width: scale),
    # Original Transformer: Glorot-uniform matrices (Glorot and Bengio 2010); tables that sqrt(width) brings to variance
    # 1 (Vaswani et al. 2017, section 3.4).
    "glorot": InitScheme(
        uniform,
        lambda scale, inputs, outputs: scale * math.sqrt(2 / (inputs + outputs)),
        lambda scale, width: scale * width**-0.5,
    ),
}
