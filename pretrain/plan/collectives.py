"""What devices tell each other in a compiled step: kinds of collectives, over which axes, how many bytes.

    found = collectives(hlo.read(compiled.as_text()), mesh_sizes)

An asynchronous pair is one collective, and one in the body of a loop is counted as often as the loop turns. Bytes are
those of one device: of the whole array that is gathered, reduced or exchanged there (`bytes`), and what a ring sends of
it, which is (n - 1) / n of that among n devices, twice for an all-reduce (`sent`).
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
UNKNOWN = "unknown"  # those of one whose groups are written in a way that is not read here


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program."""

    kind: str
    axes: tuple[str, ...]  # of the mesh, over which its groups reach
    devices: int  # of a group
    bytes: int  # of one device, each time
    times: int
    name: str  # in the program
    source: str  # what in the model it came from, as JAX names it

    @property
    def sent(self) -> float:
        """Bytes that a device sends around a ring, each time."""
        share = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)


def collectives(program: hlo.Program, mesh: Mapping[str, int]) -> list[Collective]:
    """Every collective of a program that was compiled for a mesh of these sizes, in their order."""
    times, _ = program.runs()
    scattered = {name: kind for name in program.computations if (kind := _fused(program.computations[name]))}
    found, channels = [], set()
    for name, count in times.items():
        for one in program.computations[name]:
            inner = scattered.get(one.attribute("calls").lstrip("%")) if one.opcode == "fusion" else None
            kind = "reduce-scatter" if inner else one.opcode.removesuffix("-start")
            if kind not in KINDS or name in scattered:
                continue
            # What computes beside one that is under way has a copy of it, of the same channel.
            channel = (inner or one).attribute("channel_id")
            if not channel or channel not in channels:
                found.append(_collective(kind, inner or one, one, count, mesh))
            channels.add(channel)
    return [one for one in found if one.devices > 1]


def summed(found: Iterable[Collective]) -> list[dict]:
    """Rows of a table: collectives of a kind over the same axes, the heaviest first."""
    rows: dict[tuple, dict] = {}
    for one in found:
        row = rows.setdefault(
            (one.kind, one.axes),
            {
                "kind": one.kind,
                "axes": list(one.axes),
                "devices": one.devices,
                "in_program": 0,
                "in_step": 0,
                "bytes": 0,
                "sent": 0.0,
            },
        )
        row["in_program"] += 1
        row["in_step"] += one.times
        row["bytes"] += one.times * one.bytes
        row["sent"] += one.times * one.sent
    return sorted(rows.values(), key=lambda row: -row["sent"])


def groups(text: str) -> np.ndarray | None:
    """The groups of devices [groups, devices] that `replica_groups` names; None where it names none.

    They are a list, an iota such as [4,2]<=[2,4]T(1,0), or axes of a mesh of the compiler's own, such as
    mesh['a'=2,'b'=4] {'b'}, of which a part may be meant, 'b':(1)2. Errors: ValueError for any other text.
    """
    text = text.strip()
    if text in ("", "{}"):
        return None
    if text.startswith("{"):
        return np.array([[int(place) for place in one.split(",")] for one in re.findall(r"\{([\d, ]+)\}", text)])
    if text.startswith("mesh["):
        return _of_mesh(text)
    iota = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not iota:
        raise ValueError(f"replica groups {text}")
    shape, sizes, order = ([int(size) for size in part.split(",")] if part else None for part in iota.groups())
    places = np.arange(math.prod(sizes)).reshape(sizes)
    return (places if order is None else places.transpose(order)).reshape(shape)


def _of_mesh(text: str) -> np.ndarray:
    found = OF_MESH.fullmatch(text)
    if not found:
        raise ValueError(f"replica groups {text}")
    sizes = {name: [int(size)] for name, size in re.findall(r"'([^']*)'=(\d+)", found[1])}
    taken = []  # (axis, place among its parts)
    for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", found[4]):
        if size:
            sizes[name] = [int(before), int(size), sizes[name][0] // int(before) // int(size)]
        taken.append((name, 1 if size else 0))
    parts = [(name, place) for name, of_axis in sizes.items() for place in range(len(of_axis))]
    devices = np.arange(math.prod(map(math.prod, sizes.values())))
    if found[2]:  # numbered in another order
        shape, order = ([int(size) for size in part.split(",")] for part in found.groups()[1:3])
        devices = devices.reshape(shape).transpose(order)
    places = devices.reshape([sizes[name][place] for name, place in parts])
    last = [parts.index(one) for one in taken]
    first = [place for place in range(len(parts)) if place not in last]
    count = math.prod(places.shape[place] for place in last)
    return places.transpose(*first, *last).reshape(-1, count)


def axes_of(members: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a mesh along which these devices, numbered as they lie in it, differ."""
    places = np.array(np.unravel_index(np.asarray(members), tuple(mesh.values())))
    return tuple(axis for axis, along in zip(mesh, places, strict=True) if len(set(along.tolist())) > 1)


def _fused(computation: Sequence[hlo.Instruction]) -> hlo.Instruction | None:
    """The all-reduce of a fusion that keeps no more than a slice of it: what TPUs make of a reduce-scatter."""
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
    """(devices of a group, the axes over which they lie)."""
    if pairs := one.attribute("source_target_pairs"):
        between = [pair for pair in groups(pairs) if pair[0] != pair[1]]
        over = {axis for pair in between for axis in axes_of(pair, mesh)}
        return 2, tuple(axis for axis in mesh if axis in over)
    try:
        of_mesh = OF_MESH.search(one.attributes)
        found = groups(of_mesh[0] if of_mesh else one.attribute("replica_groups"))
    except ValueError:
        return math.prod(mesh.values()), (UNKNOWN,)
    if found is None:
        return math.prod(mesh.values()), tuple(axis for axis, size in mesh.items() if size > 1) or (ALL,)
    return found.shape[1], axes_of(found[0], mesh)


def _bytes(one: hlo.Instruction, devices: int) -> int:
    """Bytes of the whole array on one device: what is gathered, what is to be reduced, what is exchanged."""
    type, kind = one.type, one.opcode.removesuffix("-start")
    if one.opcode.endswith("-start") and kind in ("all-gather", "reduce-scatter", "collective-permute"):
        type = hlo.members(type)[0 if kind == "reduce-scatter" else 1]  # what goes in, and what comes out
        return sum(array.bytes for array in hlo.arrays(type))
    size = sum(array.bytes for array in hlo.arrays(type))
    return size * devices if kind == "reduce-scatter" else size
