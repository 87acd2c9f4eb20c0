"""What a training step holds on each device, by what it is for, and whether that fits."""

import dataclasses
import math
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # how XLA says that a program does not fit
ROOM = 0.85  # of a device's memory, which a remedy is to need at most
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
STATED = (  # (bytes that are needed, bytes that there are), in the words of several compilers
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"Hbm usage: {_SIZE}.*?exceeding available bytes: {_SIZE}"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Bytes of one device, as the compiler reports them."""

    argument: int
    output: int
    alias: int  # outputs that lie where arguments lay
    temporary: int
    generated_code: int

    @property
    def needed(self) -> int:
        """What the program takes while it runs."""
        return self.argument + self.output - self.alias + self.temporary + self.generated_code


def compiled(program: jax.stages.Compiled) -> Compiled:
    """What the compiler says of a program."""
    facts = program.memory_analysis()
    return Compiled(
        argument=facts.argument_size_in_bytes,
        output=facts.output_size_in_bytes,
        alias=facts.alias_size_in_bytes,
        temporary=facts.temp_size_in_bytes,
        generated_code=facts.generated_code_size_in_bytes,
    )


def held(engine, config) -> dict[str, int]:
    """Bytes of one device by category of what a step is given, and of the gradient that it makes; from shapes alone."""
    train = config.train
    state = engine.resting_shapes(config.seed, train.batch_size)
    # Parts of an accumulated batch are added up in float32, each after its own gradient was made.
    gradients = on_device(state.params)
    if train.accumulate > 1:
        gradients += on_device(state.params, jnp.float32)
    return {
        "parameters": on_device(state.params),
        "optimiser state": on_device(state.opt_state),
        "teacher": on_device(engine.frozen_shapes()),
        "memory of lanes": on_device(state.carried),
        "batch": on_device(engine.batch_shapes(train.batch_size, config.data.length)),
        "gradients": gradients,
    }


GIVEN = ("parameters", "optimiser state", "teacher", "memory of lanes", "batch")  # arguments of the program


def categories(of_shapes: Mapping[str, int], found: Compiled) -> dict[str, int]:
    """Bytes of one device by category; they add up to what the program takes.

    The compiler knows no gradients: of its temporaries so many are theirs as shapes say, at most all, and the rest are
    activations and what else is computed on the way. `other` is what is neither: code, outputs without a place of
    their own, and how arguments are laid out.
    """
    rows = {name: of_shapes[name] for name in GIVEN}
    unread = max(0, sum(rows.values()) - found.argument)  # what the step does not read is no argument
    for name in ("teacher", "batch"):  # heads that teach nothing, such as BERT's of pairs; features
        left_out = min(unread, rows[name])
        rows[name], unread = rows[name] - left_out, unread - left_out
    rows["gradients"] = min(of_shapes["gradients"], found.temporary)
    rows["activations"] = found.temporary - rows["gradients"]
    rows["other"] = found.needed - sum(rows.values())
    return rows


def estimated(of_shapes: Mapping[str, int], needed: float) -> dict[str, int]:
    """The same of a program that did not fit, of which the compiler says no more than how many bytes it needs."""
    rows = dict(of_shapes)
    rows["activations"] = max(0, round(needed) - sum(rows.values()))
    rows["other"] = 0
    return rows


def stated(message: str) -> tuple[float, float] | None:
    """(bytes that a program needs, bytes that there are), in the words of a compiler that refuses it; None: unsaid."""
    for pattern in STATED:
        if found := pattern.search(message):
            needed, unit, there, unit_there = found.groups()
            return float(needed) * UNITS[unit], float(there) * UNITS[unit_there]
    return None


def on_device(shapes, dtype=None) -> int:
    """Bytes on one device of a tree of shapes with shardings; in another type if one is given."""
    leaves = jax.tree.leaves(shapes)
    sizes = ((leaf.sharding.shard_shape(leaf.shape), jnp.dtype(dtype or leaf.dtype).itemsize) for leaf in leaves)
    return sum(math.prod(shape) * itemsize for shape, itemsize in sizes)


def remedy(rows: Mapping[str, int], config, mesh: Mapping[str, int], capacity: float) -> tuple[str, str]:
    """(what takes the most, what makes it less)."""
    most = max((name for name in rows if name != "other"), key=rows.get)
    needed, count = sum(rows.values()), math.prod(mesh.values())
    if most in ("activations", "batch"):
        # Parts are added up in a gradient of its own, and something of each part is as large whatever its rows.
        summed = rows.get("gradients", 0) if config.train.accumulate == 1 else 0
        room = ROOM * capacity - (needed - rows[most]) - summed
        parts = config.train.accumulate * rows[most] / room if room > 0 else math.inf
        more = _parts(config.train, parts, mesh["data"] * mesh["fsdp"])
        if more and more < parts and config.model.remat != "full":
            what = f"raise config.train.accumulate to {more} and set --config.model.remat=full"
        elif more:
            what = f"raise config.train.accumulate to {more}"
        elif config.model.remat != "full":
            what = "set --config.model.remat=full"
        else:
            what = "split rows with config.mesh.sequence or heads with config.mesh.tensor"
        return most, what
    if most == "memory of lanes":
        return most, "lower config.model.memory or config.train.batch_size"
    if most == "teacher":
        return most, "choose a smaller one in config.distill.teacher, or raise config.mesh.fsdp"
    if mesh["data"] > 1:
        return most, f"split them with --config.mesh.data=1 --config.mesh.fsdp={mesh['data'] * mesh['fsdp']}"
    times = math.ceil(needed / capacity)
    return most, f"take {times} times as many devices, {count * times} or more, or lower the model's size"


def _parts(train, wanted: float, shards: int) -> int | None:
    """More parts than a batch has: the least number from `wanted` on that splits it into rows which `shards` devices
    divide, or else the greatest; None where there is none."""
    rows, left = divmod(train.batch_size, shards)
    several = [parts for parts in range(train.accumulate + 1, rows + 1) if rows % parts == 0 and not left]
    return next((parts for parts in several if parts >= wanted), several[-1] if several else None)
