"""Frozen parameters: they have no gradient and no optimizer state."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from models.layers.init import is_box, path_name
from pretrain.errors import UserError, nearest
from pretrain.optimizers.transforms import matches

KEEP = "!"  # begins a pattern of parameters that are trained


@dataclass(frozen=True)
class Partition:
    """Splits trees like the parameters into a trained part and a frozen one."""

    frozen: frozenset[str]  # paths

    @classmethod
    def build(cls, given: Sequence[str], parameters, default: Sequence[str] = ()) -> "Partition":
        """The partition of `config.optimizer.frozen`, of which the last matching pattern decides. Errors: UserError.

        default: the patterns if none are given; some may match nothing.
        """
        patterns = given or default
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(parameters, is_leaf=is_box)]
        frozen = set()
        for pattern in patterns:
            place = pattern.removeprefix(KEEP)
            found = {name for name in names if matches(name, (place,))}
            if given and not found:
                depth = place.count("/") + 1
                near = nearest(place, {"/".join(name.split("/")[:depth]) for name in names})
                raise UserError(f"config.optimizer.frozen: {pattern!r} matches no parameter{near}")
            frozen = frozen - found if place != pattern else frozen | found
        if len(frozen) == len(names):
            raise UserError(f"config.optimizer.frozen={tuple(patterns)}: no parameter is left to train. Leave one out.")
        return cls(frozenset(frozen))

    def split(self, tree) -> tuple:
        """(trained, frozen), each with the nested keys of its own parameters."""
        if not self.frozen:
            return tree, {}
        flat = flatten_dict(tree, sep="/")
        trained, frozen = {}, {}
        for name, leaf in flat.items():
            (frozen if name in self.frozen else trained)[name] = leaf
        return unflatten_dict(trained, sep="/"), unflatten_dict(frozen, sep="/")

    def trained(self, tree):
        """The trained part of a tree."""
        return self.split(tree)[0]

    def join(self, trained, frozen):
        """The inverse of `split`."""
        if not self.frozen:
            return trained
        return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")
