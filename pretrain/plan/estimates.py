"""Estimates of memory and time from shapes, to choose the layouts worth compiling.

They rank candidates; reported figures come from compiled programs.
"""

import dataclasses
import math

import jax

from models.layers.init import mesh_axes_of
from pretrain.costs import flops
from pretrain.costs.capacity import whole_bytes
from pretrain.parallel.mesh import AXES, Layout, smallest_mesh
from pretrain.plan import roofline
from pretrain.plan.memory import Kept, kept_of_row
from pretrain.plan.topology import Topology
from pretrain.step import recurrent_state
from pretrain.step.checks import check_batches
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import state_shapes, unboxed


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to run a config on a topology."""

    mesh: tuple[int, ...]  # sizes of AXES
    accumulate: int
    remat: str

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(AXES, self.mesh, strict=True))

    def apply(self, config):
        """A copy of `config` with this choice."""
        changed = config.copy_and_resolve_references()
        changed.mesh.update(self.sizes)
        changed.train.accumulate, changed.model.remat = self.accumulate, self.remat
        return changed

    def overrides(self) -> list[str]:
        """Its command-line overrides."""
        words = [f"--config.mesh.{axis}={size}" for axis, size in self.sizes.items()]
        return [*words, f"--config.train.accumulate={self.accumulate}", f"--config.model.remat={self.remat}"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated bytes of one device and seconds of a step."""

    held: float  # inputs of the step, and gradients
    activations: float
    seconds: float


class Estimates:
    """Estimates for one config and topology; layout-independent parts are computed once."""

    def __init__(self, config, topology: Topology, devices):
        self.config, self.topology, self.devices = config, topology, devices
        self.spec = TrainSpec.build_abstract(config)
        self.tokens = config.train.batch_size * flops.tokens_of_row(self.spec, config.data.length)
        self.forward = flops.forward_flops(self.spec, config.data.length)
        self.state = state_shapes(self.spec, 1).replace(carried={})
        self.carried = whole_bytes(recurrent_state.shapes(self.spec.model, config.train.batch_size))
        self._kept = {}
        self._held = {}

    def check(self, choice: Choice) -> None:
        """Raises UserError where the mesh of a choice does not divide rows or lengths."""
        check_batches(self._layout(choice), self.spec, choice.apply(self.config), training=True)

    def of(self, choice: Choice) -> Estimate:
        return Estimate(self._bytes_held(choice), self._activations(choice), self._seconds(choice))

    def _layout(self, choice: Choice) -> Layout:
        return Layout(smallest_mesh(choice.sizes), self.config.mesh.rules)

    def _bytes_held(self, choice: Choice) -> float:
        if choice.mesh not in self._held:
            layout = self._layout(choice)
            params = layout.parameters(self.spec.parameters)
            optimizer = layout.optimizer(self.state.opt_state, params, self.state.params)
            frozen = layout.parameters(self.spec.frozen_parameters)
            trained = self.spec.partition.trained
            self._held[choice.mesh] = (
                _bytes(self.state.params, params),
                _bytes(trained(self.state.params), trained(params)),
                _bytes(self.state.opt_state, optimizer) + _bytes(unboxed(self.spec.frozen_parameters), frozen),
            )
        params, gradients, others = self._held[choice.mesh]
        # Parameters, their gradients, and with accumulation the float32 sum of gradients.
        carried = self.carried / (choice.sizes["data"] * choice.sizes["fsdp"])
        return params + gradients * (2 if choice.accumulate > 1 else 1) + others + carried

    def _activations(self, choice: Choice) -> float:
        """Residuals of the forward pass; with remat also those of one recomputed layer."""
        total = self._kept_of_row(choice.remat).on_device(choice.sizes)
        if choice.remat != "none":
            total += self._kept_of_row("none").on_device(choice.sizes) / self.config.model.layers
        return self.config.train.batch_size / choice.accumulate * total

    def _kept_of_row(self, remat: str) -> Kept:
        if remat not in self._kept:
            config = Choice((1, 1, 1, 1), 1, remat).apply(self.config)
            self._kept[remat] = kept_of_row(config, self.spec, self.devices)
        return self._kept[remat]

    def _seconds(self, choice: Choice) -> float:
        """The slower of compute and interconnect, plus a tenth of the other, which never overlaps fully."""
        hardware, count = self.topology.hardware, self.topology.count
        again = roofline.recomputed(self.forward["causal"], choice.remat, self.tokens)
        products = flops.of_training(self.forward)["causal"] * self.tokens + again
        if hardware.flops is None:
            return products
        compute = products / count / hardware.flops
        talk = sum(sent / self._bandwidth(choice.sizes[axis]) for axis, sent in self._traffic(choice).items())
        return max(compute, talk) + 0.1 * min(compute, talk)

    def _traffic(self, choice: Choice) -> dict[str, float]:
        """Bytes that a device sends per step over each mesh axis.

        fsdp gathers parameters in the model's dtype, forward and backward, and scatters gradients in float32, once per
        part of the batch. Tensor parallelism sums a layer's output twice each way.
        """
        sizes, model, parts = choice.sizes, self.config.model, choice.accumulate
        # A ring all-gather or reduce-scatter of n bytes sends (s - 1) / s * n; an all-reduce is one of each.
        itemsize = jax.numpy.dtype(model.dtype).itemsize
        count = sum(leaf.size for leaf in jax.tree.leaves(self.spec.param_shapes)) / sizes["tensor"]
        tokens = self.tokens / (sizes["data"] * sizes["fsdp"] * sizes["sequence"])
        share = {axis: (size - 1) / size for axis, size in sizes.items()}
        passes = 3 if choice.remat == "full" else 2  # forward and backward, and the forward pass again
        return {
            "data": share["data"] * parts * 2 * 4 * count / sizes["fsdp"],
            "fsdp": share["fsdp"] * parts * (2 * itemsize + 4) * count,
            "sequence": share["sequence"] * passes * 4 * model.layers * tokens * model.width * itemsize,
            "tensor": share["tensor"] * passes * 2 * 2 * model.layers * tokens * model.width * itemsize,
        }

    def _bandwidth(self, size: int) -> float:
        """Bytes per second around a ring over a mesh axis of this size, as if it had its own pod axes."""
        hardware, shape = self.topology.hardware, self.topology.shape
        if not hardware.ring:
            return hardware.link
        # An axis larger than one side of the pod spans several sides, whose links work at once.
        axes = max(1, math.ceil(math.log(max(2, size)) / math.log(max(2, *shape)) - 1e-9))
        return hardware.link * axes * (2 if max(shape) % hardware.ring == 0 else 1)


def _bytes(shapes, shardings) -> float:
    """Bytes on one device; a vocabulary that does not divide counts as if it did."""
    total = 0.0
    for leaf, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True):
        axes = [axis for part in sharding.spec for axis in mesh_axes_of(part)]
        total += leaf.size * leaf.dtype.itemsize / math.prod(sharding.mesh.shape[axis] for axis in axes)
    return total
