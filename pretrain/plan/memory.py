"""Memory of a training step on each device, by category, and whether it fits."""

import dataclasses
import math
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.costs.capacity import on_device
from pretrain.losses.objective import BoundModel
from pretrain.parallel.mesh import AXES, Layout, make_mesh
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import unboxed

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's error for a program that does not fit
ROOM = 0.85  # share of a device's memory that a remedy may use
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
STATED = (  # (bytes needed, bytes available) in the messages of several compilers
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"Hbm usage: {_SIZE}.*?exceeding available bytes: {_SIZE}"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Bytes of one device, as the compiler reports them."""

    argument: int
    output: int
    alias: int  # outputs that reuse the memory of arguments
    temporary: int
    generated_code: int

    @classmethod
    def of(cls, program: jax.stages.Compiled) -> "Compiled":
        facts = program.memory_analysis()
        names = ("argument", "output", "alias", "temp", "generated_code")
        return cls(*(getattr(facts, f"{name}_size_in_bytes") for name in names))

    @property
    def needed(self) -> int:
        """Peak bytes of the running program."""
        return self.argument + self.output - self.alias + self.temporary + self.generated_code


def state_bytes(spec, config) -> dict[str, int]:
    """Bytes of one device by category of the step's inputs and of the gradient; from shapes alone."""
    train = config.train
    state = spec.padded_shapes(train.batch_size)
    # Parts of an accumulated batch are summed in float32 next to the gradient of the current part.
    trained = spec.partition.trained(state.params)
    gradients = on_device(trained)
    if train.accumulate > 1:
        gradients += on_device(trained, jnp.float32)
    return {
        "parameters": on_device(state.params),
        "optimiser state": on_device(state.opt_state),
        "teacher": on_device(spec.frozen_shapes()),
        "memory of lanes": on_device(state.carried),
        "batch": on_device(spec.sharded_batch_shapes(train.batch_size, config.data.length)),
        "gradients": gradients,
    }


GIVEN = ("parameters", "optimiser state", "teacher", "memory of lanes", "batch")  # inputs of the program
MADE = ("activations", "temporaries")  # while it runs, besides gradients
WORK = " and ".join(MADE)


def categories(of_shapes: Mapping[str, int], found: Compiled, kept: float) -> dict[str, int]:
    """Bytes of one device by category; they add up to what the program needs.

    The compiler does not say what its temporaries are for. They are counted as gradients up to the gradients' size,
    then as activations up to the residuals of the forward pass (`kept`); the rest are `temporaries`. `other` is code,
    outputs that alias no input, and padding of inputs.
    """
    rows = {name: of_shapes[name] for name in GIVEN}
    unread = max(0, sum(rows.values()) - found.argument)  # unused inputs are dropped by the compiler
    for name in ("teacher", "batch"):  # the teacher's unused heads; unused features
        left_out = min(unread, rows[name])
        rows[name], unread = rows[name] - left_out, unread - left_out
    # Gradients are temporaries of the program, which the compiler may free early, so they never exceed them.
    rows["gradients"] = min(of_shapes["gradients"], found.temporary)
    rows |= _split_work(found.temporary - rows["gradients"], kept)
    rows["other"] = found.needed - sum(rows.values())
    return rows


def estimated(of_shapes: Mapping[str, int], needed: float, kept: float) -> dict[str, int]:
    """Like `categories`, for a program that the compiler refused, which reports only its total."""
    rows = dict(of_shapes)
    return rows | _split_work(max(0, round(needed) - sum(rows.values())), kept) | {"other": 0}


def _split_work(rest: int, kept: float) -> dict[str, int]:
    activations = min(rest, round(kept))
    return dict(zip(MADE, (activations, rest - activations), strict=True))


def stated(message: str) -> tuple[float, float] | None:
    """(bytes needed, bytes available) from a compiler's refusal; None if it does not say."""
    for pattern in STATED:
        if found := pattern.search(message):
            needed, unit, there, unit_there = found.groups()
            return float(needed) * UNITS[unit], float(there) * UNITS[unit_there]
    return None


def remedy(rows: Mapping[str, int], config, mesh: Mapping[str, int], capacity: float) -> tuple[str, int, str]:
    """(largest category, its bytes, what reduces it); all temporaries of the step count as one."""
    made = sum(rows.get(name, 0) for name in MADE)
    shares = {name: size for name, size in rows.items() if name not in (*MADE, "other")} | {WORK: made}
    most, needed = max(shares, key=shares.get), sum(rows.values())
    room = ROOM * capacity - (needed - shares[most])
    target = most
    if most == WORK and room <= 0:  # the rest alone is too much, in however many parts
        target = max(shares, key=lambda name: shares[name] if name != most else -1)
    if target == WORK:
        # Parts of a batch are summed in float32, next to the gradient of the current part.
        summed = shares.get("gradients", 0) if config.train.accumulate == 1 else 0
        return most, shares[most], _less_work(made, room - summed, config, mesh)
    if target in SMALLER:
        return most, shares[most], SMALLER[target]
    if mesh["data"] > 1:
        fsdp = mesh["data"] * mesh["fsdp"]
        return most, shares[most], f"split parameters with --config.mesh.data=1 --config.mesh.fsdp={fsdp}"
    devices = math.prod(mesh.values()) * math.ceil(needed / capacity)
    return most, shares[most], f"take {devices} devices or more, or lower the model's size"


SMALLER = {  # what reduces a category that the mesh does not
    "batch": "lower config.train.batch_size",
    "memory of lanes": "lower config.model.memory or config.train.batch_size",
    "teacher": "choose a smaller config.distill.teacher, or raise config.mesh.fsdp",
}


def _less_work(made: int, room: float, config, mesh: Mapping[str, int]) -> str:
    """Remedy that reduces activations and temporaries to `room` bytes: parts of the batch, remat, other axes."""
    train, full = config.train, config.model.remat == "full"
    rows = train.batch_size // (mesh["data"] * mesh["fsdp"])
    several = [parts for parts in range(train.accumulate + 1, rows + 1) if rows % parts == 0]
    enough = [parts for parts in several if room > 0 and train.accumulate * made / parts <= room]
    if enough or (full and several):
        return f"raise config.train.accumulate to {(enough or several[-1:])[0]}"
    if full:
        return "split rows with config.mesh.sequence or heads with config.mesh.tensor"
    more = f"raise config.train.accumulate to {several[-1]} and " if several and room > 0 else ""
    return f"{more}set --config.model.remat=full"


@dataclasses.dataclass(frozen=True)
class Kept:
    """Bytes of residuals that the forward pass of one row keeps for the backward pass."""

    whole: int  # not split by tensor parallelism
    split: int  # split by tensor parallelism

    def on_device(self, mesh: Mapping[str, int]) -> float:
        """Bytes per row on one device."""
        return (self.whole + self.split / mesh["tensor"]) / (mesh["data"] * mesh["fsdp"] * mesh["sequence"])


def kept_of_row(config, spec: TrainSpec, devices) -> Kept:
    """Residual bytes of one more row; what does not grow with rows, such as parameters, is left out.

    The compiler may keep less, where it recomputes, or more.
    """
    # Two row counts and their difference: residuals that do not grow with rows cancel.
    rows = config.model.heads + 1  # differs from every size that tensor parallelism splits
    some, more = (_residuals(config, spec, count, devices) for count in (rows, rows + 1))
    return Kept(**{kind: max(0, more[kind] - some[kind]) for kind in more})


def _residuals(config, spec, rows: int, devices) -> dict[str, int]:
    """Bytes of residuals of a forward pass of `rows` rows, on one of `devices`."""
    model = TrainSpec.build_abstract(config).model
    batch, carried = spec.batch_shapes(rows, config.data.length), recurrent_state.shapes(model, rows)
    split = {config.model.ff, config.model.heads}

    def forward(params, batch, carried, key, frozen):
        params, fixed = spec.partition.split(params)

        def loss(params):
            bound = BoundModel(model, spec.partition.join(params, fixed), spec.inputs, frozen)
            return sum(jax.tree.leaves(spec.objective.score(bound, batch, carried, key)[0]))

        return jax.vjp(loss, params)[1]

    with Layout(make_mesh(dict.fromkeys(AXES, 1), devices[:1]), config.mesh.rules).scope():
        key = jax.eval_shape(lambda: jax.random.key(0))
        kept = jax.eval_shape(forward, spec.param_shapes, batch, carried, key, unboxed(spec.frozen_parameters))
    # The leaves of the VJP closure are the residuals; typed PRNG keys among them take no memory worth counting.
    found = {"whole": 0, "split": 0}
    for leaf in jax.tree.leaves(kept):
        if hasattr(leaf, "shape") and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            # The first axis is rows or layers, whose number may equal that of heads.
            found["split" if split & set(leaf.shape[1:]) else "whole"] += leaf.size * leaf.dtype.itemsize
    return found
