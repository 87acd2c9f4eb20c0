"""Lower bound of a step's time, and its bottleneck: compute, memory or interconnect.

The bound is the slowest of the three at data-sheet rates, as if they overlapped fully; `apart` is their sum, as if they
did not overlap. A real step is in between, or above where kernels do not reach those rates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from pretrain.plan import hlo
from pretrain.plan.collectives import Collective
from pretrain.plan.topology import Hardware

NOTHING_MOVED = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional"}
NOTHING_MOVED |= {"after-all", "partition-id", "replica-id", "iota", "optimization-barrier"}

CUTS = ("dynamic-slice", "slice", "gather")
SAME = ("bitcast", "copy")  # same values
APPLIED = ("reduce", "all-reduce", "sort", "scatter", "map", "select-and-scatter")  # run a computation per element


def estimate(
    hardware: Hardware,
    devices: int,
    flops: Mapping[str, float],
    recomputed: float,
    moved: float,
    collectives: Iterable[Collective],
    mesh: "Links",
) -> dict | None:
    """{seconds by resource; of the step; its bottleneck; MFU as training reports it}; None without rates.

    flops: of a step on all devices by convention, without `recomputed` (causal); moved: bytes of one device.
    """
    if hardware.flops is None:
        return None
    seconds = {
        "compute": (flops["causal"] + recomputed) / devices / hardware.flops,
        "memory": moved / hardware.bandwidth,
        "interconnect": sum(one.times * one.ring_bytes / mesh.bandwidth(one.axes) for one in collectives),
    }
    # MFU divides by all keys of causal attention ("full"), the convention of most published figures.
    step = max(seconds.values())
    return {
        "seconds": seconds,
        "step_seconds": step,
        "apart_seconds": sum(seconds.values()),
        "bound": max(seconds, key=seconds.get),
        "mfu": flops["full"] / (step * devices * hardware.flops),
    }


class Links:
    """Links that serve a mesh axis: those of all pod axes along which its devices are placed."""

    def __init__(self, hardware: Hardware, shape: Sequence[int], mesh):
        self.hardware, self.shape, self.mesh = hardware, shape, mesh

    def bandwidth(self, axes: Sequence[str]) -> float:
        """Bytes per second that a device can send around a ring over these mesh axes.

        A closed ring sends both ways, a line one way; several pod axes work at once.
        """
        if not self.hardware.ring:
            return self.hardware.link
        ways = sum(2 if self.shape[axis] % self.hardware.ring == 0 else 1 for axis in self._physical(axes))
        return self.hardware.link * max(1, ways)

    def _physical(self, axes: Sequence[str]) -> list[int]:
        """Pod axes along which the devices of a group over these mesh axes differ."""
        # One group: fix all other mesh axes at 0 and look which pod coordinates vary.
        names = list(self.mesh.axis_names)
        over = [names.index(axis) for axis in axes if axis in names] or range(len(names))
        index = tuple(slice(None) if place in over else 0 for place in range(len(names)))
        group = [device.coords for device in self.mesh.devices[index].flat]
        return [axis for axis, along in enumerate(zip(*group, strict=True)) if len(set(along)) > 1][: len(self.shape)]


def moved(program: hlo.Program) -> float:
    """Bytes that one device reads from and writes to main memory per step, loop bodies once per iteration.

    An instruction reads its operands and writes its result; slices and updates count only the slice. On-chip memory is
    free.
    """
    times, _ = program.runs()
    # Computations inside fusions and reductions run in registers; only their caller moves memory.
    inner = {
        name
        for computation in program.computations.values()
        for one in computation
        if one.opcode == "fusion" or one.opcode.startswith(APPLIED)
        for name in hlo.called_by(one)
    }
    total = 0.0
    for name, count in times.items():
        if name not in inner:
            total += count * _of_computation(program, program.computations[name])
    return total


def _of_computation(program: hlo.Program, computation: Sequence[hlo.Instruction]) -> float:
    made = {one.name: one for one in computation}
    return sum(_of_instruction(program, one, made) for one in computation)


def _of_instruction(program: hlo.Program, one: hlo.Instruction, made: Mapping[str, hlo.Instruction]) -> float:
    if one.opcode in NOTHING_MOVED or one.opcode.endswith(("-done", "-update")):
        return 0.0
    given = [_main(made[name]) if name in made else 0 for name in one.operands]
    opcode, result = one.opcode.removesuffix("-start"), _result(one)
    out = [array.bytes if array.main else 0 for array in result]
    # An update reads the slice and writes it in place; the rest of the array is untouched.
    if opcode == "dynamic-update-slice":
        return 2 * given[1]
    if opcode in CUTS:
        return sum(out) + min(given[0], sum(array.bytes for array in result))
    if opcode == "custom-call" and not given:  # an uninitialised buffer
        return 0.0
    if one.opcode == "fusion":
        inside = program.computations.get(one.attribute("calls").lstrip("%"), [])
        given = [min(whole, _read(program, inside, place, whole)) for place, whole in enumerate(given)]
        out = _written(inside, out)
    return sum(out) + sum(given)


def _result(one: hlo.Instruction) -> list[hlo.Array]:
    """Arrays that an instruction makes; the start of an asynchronous one names its operands beside them."""
    parts = hlo.members(one.type)
    if one.opcode == "copy-start":  # (result, operand, ...)
        return hlo.arrays(parts[0])
    if one.opcode.endswith("-start") and one.opcode != "all-reduce-start" and len(parts) > 1:  # (operand, result, ...)
        return hlo.arrays(parts[1])
    return one.arrays


def _read(program: hlo.Program, inside: Sequence[hlo.Instruction], place: int, whole: float) -> float:
    """Bytes that a fusion reads of an operand: only the slices, if it does nothing but slice it."""
    name = next((one.name for one in inside if one.opcode == "parameter" and one.arguments == str(place)), None)
    return _used(program, inside, name, whole)


def _used(program: hlo.Program, inside: Sequence[hlo.Instruction], name: str | None, whole: float) -> float:
    """Bytes that a fusion uses of an array, through copies and nested fusions."""
    users = [one for one in inside if name in one.operands]
    if not users:
        return whole
    total = 0.0
    for one in users:
        if one.opcode in CUTS and one.operands[0] == name:
            total += one.bytes
        elif one.opcode == "dynamic-update-slice" and one.operands[0] == name:
            continue  # in place; writes are counted in _written
        elif one.opcode == "tuple" and one.root:
            continue  # passed through
        elif one.opcode == "fusion":
            within = program.computations.get(one.attribute("calls").lstrip("%"), [])
            if len(within) == 2 and within[-1].opcode in SAME:  # a copy: count only what is used of it
                total += _used(program, inside, one.name, whole)
            else:
                total += _read(program, within, one.operands.index(name), whole)
        elif one.opcode in SAME:
            total += _used(program, inside, one.name, whole)
        else:
            return whole
    return min(total, whole)


def _written(inside: Sequence[hlo.Instruction], out: Sequence[int]) -> list[float]:
    """Bytes that a fusion writes of each result: only the slice, where it updates an operand in place."""
    made = {one.name: one for one in inside}
    root = next((one for one in inside if one.root), None)
    if root is None:
        return list(out)
    makes = [made.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
    if len(makes) != len(out):
        return list(out)
    written = []
    for one, whole in zip(makes, out, strict=True):
        while one is not None and one.opcode == "bitcast" and one.operands:
            one = made.get(one.operands[0])
        if one is not None and one.opcode == "parameter" and root.opcode == "tuple":
            whole = 0  # passed through
        elif one is not None and one.opcode == "dynamic-update-slice" and one.operands[1] in made:
            whole = min(whole, made[one.operands[1]].bytes)
        written.append(whole)
    return written


def _main(one: hlo.Instruction) -> int:
    """Bytes of an instruction's result in main memory."""
    return sum(array.bytes for array in one.arrays if array.main)


def recomputed(forward: Mapping[str, float], remat: str, tokens: float) -> float:
    """FLOPs per step that a remat policy recomputes, from the forward FLOPs of a token by part.

    "full" runs every layer twice; "dots_no_batch" recomputes the products inside attention; the others recompute none.
    """
    # Remat wraps layers: the embedding, the head and the teacher run outside of it.
    outside = ("logits", "embedding projections", "teacher")
    parts = {name: count for name, count in forward.items() if name not in outside}
    if remat == "dots_no_batch":
        parts = {name: count for name, count in parts.items() if name.endswith("scores and values")}
    return tokens * math.fsum(parts.values()) if remat in ("full", "dots_no_batch") else 0.0
