"""Which parameters optimisers treat how: what models declare of each, beside the names of its axes."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax

from models.layers.parameter import Parameter, is_box, path_name


@dataclass(frozen=True)
class Role:
    """What a parameter is to an optimiser."""

    stacked: bool  # [L, ...]: a tensor for each layer
    inputs: int  # so many leading axes of a layer's are the inputs of a matrix; 0: a vector, such as a bias or a gain

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix or a table, rather than a bias or gains; stacked, those have two axes too."""
        return self.inputs > 0


def roles(params):
    """The role of every parameter, of the boxes in which a model starts them (`models.layers.parameter`)."""

    def role(path, box):
        if not isinstance(box, Parameter):
            raise TypeError(f"parameter {path_name(path)} says nothing of its role; make it by models.layers.init")
        return Role(box.stacked, box.inputs)

    return jax.tree_util.tree_map_with_path(role, params, is_leaf=is_box)


def each(function: Callable, roles, *trees):
    """`function(role, leaf, ...)` of every leaf of trees like the parameters; what optax hides in them stays hidden."""
    return jax.tree.map(lambda role, *nodes: jax.tree.map(functools.partial(function, role), *nodes), roles, *trees)
