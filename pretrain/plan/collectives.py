"""Collectives of a compiled step: kinds, mesh axes and bytes.

    found = collectives(hlo.read(compiled.as_text()), mesh_sizes)

An asynchronous pair counts as one collective, and one in a loop body counts once per iteration. Bytes are per device:
`bytes` of the whole array that is gathered, reduced or exchanged, and `ring_bytes`, what a ring sends of it: (n - 1) /
n of that among n devices, twice for an all-reduce.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pretrain.plan import hlo

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "collective-broadcast")
ALL = "all devices"  # the axes of a collective without groups
OF_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}")
UNKNOWN = "unknown"  # axes of groups in a format that `groups` does not read


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program."""

    kind: str
    axes: tuple[str, ...]  # mesh axes that its groups span
    devices: int  # of a group
    bytes: int  # of one device, each time
    times: int
    name: str  # in the program
    source: str  # what in the model it came from, as JAX names it

    @property
    def ring_bytes(self) -> float:
        """Bytes that a device sends around a ring, per execution."""
        share = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)


def collectives(program: hlo.Program, mesh: Mapping[str, int]) -> list[Collective]:
    """All collectives of a program compiled for a mesh of the given sizes, in program order."""
    times, _ = program.runs()
    # TPUs fuse an all-reduce with the slice that follows it; that fusion is a reduce-scatter.
    scattered = {name: kind for name in program.computations if (kind := _fused(program.computations[name]))}
    found, channels = [], set()
    for name, count in times.items():
        for one in program.computations[name]:
            inner = scattered.get(one.attribute("calls").lstrip("%")) if one.opcode == "fusion" else None
            kind = "reduce-scatter" if inner else one.opcode.removesuffix("-start")
            if kind not in KINDS or name in scattered:
                continue
            # A computation that overlaps a collective holds a copy of it with the same channel.
            channel = (inner or one).attribute("channel_id")
            if not channel or channel not in channels:
                found.append(_collective(kind, inner or one, one, count, mesh))
            channels.add(channel)
    return [one for one in found if one.devices > 1]


def summed(found: Iterable[Collective]) -> list[dict]:
    """Table rows: collectives by kind and axes, largest first."""
    rows: dict[tuple, dict] = {}
    for one in found:
        fresh = {"kind": one.kind, "axes": list(one.axes), "devices": one.devices}
        row = rows.setdefault((one.kind, one.axes), fresh | {"in_program": 0, "in_step": 0, "bytes": 0, "sent": 0.0})
        row["in_program"] += 1
        row["in_step"] += one.times
        row["bytes"] += one.times * one.bytes
        row["sent"] += one.times * one.ring_bytes
    return sorted(rows.values(), key=lambda row: -row["sent"])


def groups(text: str) -> np.ndarray | None:
    """Device groups [groups, devices] that `replica_groups` names; None in an unknown format.

    Formats: a list; an iota such as [4,2]<=[2,4]T(1,0); axes of a mesh such as mesh['a'=2,'b'=4] {'b'}, or a part of
    one, 'b':(1)2.
    """
    if text.startswith("{"):
        return np.array([[int(place) for place in one.split(",")] for one in re.findall(r"\{([\d, ]+)\}", text)])
    if of_mesh := OF_MESH.fullmatch(text):
        return _of_mesh(of_mesh)
    iota = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not iota:
        return None
    shape, sizes, order = ([int(size) for size in part.split(",")] if part else None for part in iota.groups())
    places = np.arange(math.prod(sizes)).reshape(sizes)
    return (places if order is None else places.transpose(order)).reshape(shape)


def _of_mesh(found: re.Match) -> np.ndarray:
    sizes = {name: [int(size)] for name, size in re.findall(r"'([^']*)'=(\d+)", found[1])}
    taken = []  # (axis, index of its part)
    for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", found[4]):
        if size:
            sizes[name] = [int(before), int(size), sizes[name][0] // int(before) // int(size)]
        taken.append((name, 1 if size else 0))
    parts = [(name, place) for name, of_axis in sizes.items() for place in range(len(of_axis))]
    # Axis 'b':(2)4 is the middle part of an axis that is split into three: 2 devices before it, 4 in it, the rest
    # after.
    devices = np.arange(math.prod(map(math.prod, sizes.values())))
    if found[2]:  # devices numbered in another order
        shape, order = ([int(size) for size in part.split(",")] for part in found.groups()[1:3])
        devices = devices.reshape(shape).transpose(order)
    places = devices.reshape([sizes[name][place] for name, place in parts])
    # Group axes go last, so that each row of the reshaped array is one group.
    last = [parts.index(one) for one in taken]
    first = [place for place in range(len(parts)) if place not in last]
    count = math.prod(places.shape[place] for place in last)
    return places.transpose(*first, *last).reshape(-1, count)


def axes_of(members: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes along which these devices, numbered in mesh order, differ."""
    places = np.array(np.unravel_index(np.asarray(members), tuple(mesh.values())))
    return tuple(axis for axis, along in zip(mesh, places, strict=True) if len(set(along.tolist())) > 1)


def _fused(computation: Sequence[hlo.Instruction]) -> hlo.Instruction | None:
    """The all-reduce in a fusion that keeps only a slice of it: how TPUs write a reduce-scatter."""
    reduces = [one for one in computation if one.opcode == "all-reduce"]
    slices = any(one.opcode == "dynamic-slice" for one in computation)
    return reduces[0] if slices and len(reduces) == 1 else None


def _collective(kind: str, one: hlo.Instruction, outer: hlo.Instruction, times: int, mesh) -> Collective:
    devices, axes = _over(one, mesh)
    source = re.search(r'op_name="([^"]*)"', outer.attributes) or re.search(r'op_name="([^"]*)"', one.attributes)
    return Collective(
        kind=kind,
        axes=axes,
        devices=devices,
        bytes=_bytes(one, devices),
        times=times,
        name=outer.name,
        source=source[1] if source else "",
    )


def _over(one: hlo.Instruction, mesh: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """(devices in a group, mesh axes that the group spans)."""
    # A permute has pairs instead of groups; each device exchanges with one other.
    if pairs := one.attribute("source_target_pairs"):
        between = [pair for pair in groups(pairs) if pair[0] != pair[1]]
        over = {axis for pair in between for axis in axes_of(pair, mesh)}
        return 2, tuple(axis for axis in mesh if axis in over)
    of_mesh = OF_MESH.search(one.attributes)
    text = of_mesh[0] if of_mesh else one.attribute("replica_groups")
    if text in ("", "{}"):
        return math.prod(mesh.values()), tuple(axis for axis, size in mesh.items() if size > 1) or (ALL,)
    found = groups(text)
    if found is None:
        return math.prod(mesh.values()), (UNKNOWN,)
    return found.shape[1], axes_of(found[0], mesh)


def _bytes(one: hlo.Instruction, devices: int) -> int:
    """Bytes of the whole array on one device: the gathered result, the reduced input, the exchanged array."""
    type, kind = one.type, one.opcode.removesuffix("-start")
    if one.opcode.endswith("-start") and kind in ("all-gather", "reduce-scatter", "collective-permute"):
        type = hlo.members(type)[0 if kind == "reduce-scatter" else 1]  # index 0 is the input, 1 the output
        return sum(array.bytes for array in hlo.arrays(type))
    size = sum(array.bytes for array in hlo.arrays(type))
    # A reduce-scatter's result is one device's share; its input was `devices` times as large.
    return size * devices if kind == "reduce-scatter" else size
