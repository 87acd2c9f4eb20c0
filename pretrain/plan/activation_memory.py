"""What a forward pass keeps for the backward pass, reckoned from shapes."""

import dataclasses
from collections.abc import Mapping

import jax

from pretrain.losses.applied import Applied
from pretrain.parallel.mesh import AXES, Layout, make_mesh
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import unboxed


@dataclasses.dataclass(frozen=True)
class Kept:
    """Bytes that the forward pass of one row keeps for the backward pass."""

    whole: int  # what tensor parallelism leaves whole
    split: int  # what it splits

    def on_device(self, mesh: Mapping[str, int]) -> float:
        """Bytes that a device keeps for each row of the batch."""
        return (self.whole + self.split / mesh["tensor"]) / (mesh["data"] * mesh["fsdp"] * mesh["sequence"])


def kept_of_row(config, spec: TrainSpec, devices) -> Kept:
    """The bytes of one more row, on such devices: what one keeps whatever their number, parameters, is no part of it.

    A compiler may keep less, where it makes something again, or more.
    """
    rows = config.model.heads + 1  # no size that tensor parallelism splits is confused with it
    some, more = (_residuals(config, spec, count, devices) for count in (rows, rows + 1))
    return Kept(**{kind: max(0, more[kind] - some[kind]) for kind in more})


def _residuals(config, spec, rows: int, devices) -> dict[str, int]:
    """Bytes that the forward pass of so many rows keeps for the backward pass, on one of `devices`."""
    model = TrainSpec.build_abstract(config).model
    batch, carried = spec.batch_shapes(rows, config.data.length), recurrent_state.shapes(model, rows)
    split = {config.model.ff, config.model.heads}

    def forward(params, batch, carried, key, frozen):
        def loss(params):
            sums, _ = spec.objective.score(Applied(model, params, spec.inputs, frozen), batch, carried, key)
            return sum(jax.tree.leaves(sums))

        return jax.vjp(loss, params)[1]

    with Layout(make_mesh(dict.fromkeys(AXES, 1), devices[:1]), config.mesh.rules).scope():
        key = jax.eval_shape(lambda: jax.random.key(0))
        kept = jax.eval_shape(forward, spec.param_shapes, batch, carried, key, unboxed(spec.frozen_parameters))
    found = {"whole": 0, "split": 0}
    for leaf in jax.tree.leaves(kept):
        if hasattr(leaf, "shape") and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            # The first axis is that of rows, or of layers, of which there may be as many as heads.
            found["split" if split & set(leaf.shape[1:]) else "whole"] += leaf.size * leaf.dtype.itemsize
    return found
