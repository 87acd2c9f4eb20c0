"""Arrays read back slab by slab where a host's devices need a little of every stored piece.

Orbax asks TensorStore for a device's share at once, and TensorStore holds every piece that the share touches until all
of it is there: a host that reads columns of what was stored as rows holds the whole array.
"""

import asyncio
import math

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

SLAB = 1 << 24  # bytes of stored pieces that are read at once, or one row of them
WIDE = 2  # times as much as is needed: what touches more is read by slabs

Share = tuple[tuple[int, int], ...]  # the first place along each axis, and the one behind the last


class BySlabs(ocp.type_handlers.ArrayHandler):
    """Reads arrays as Orbax does, but for those whose pieces are more than WIDE times what this process needs."""

    async def deserialize(self, infos, args=None):
        """The arrays; where one cannot be read, what reads the others is ended before that is raised.

        Orbax closes the loop at once, and each of these would print a traceback of its own when it is let go.
        """
        before = asyncio.all_tasks()
        try:
            return await self._deserialize(infos, args)
        except BaseException:
            reading = asyncio.all_tasks() - before
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            raise

    async def _deserialize(self, infos, args):
        stores = await asyncio.gather(*map(_opened, infos))
        wide = [
            store.shape == tuple(arg.global_shape) and _is_wide(store, arg.sharding)
            for store, arg in zip(stores, args, strict=True)
        ]
        plain = [(info, arg) for info, arg, by_slabs in zip(infos, args, wide, strict=True) if not by_slabs]
        found = iter(await super().deserialize(*zip(*plain, strict=True)) if plain else ())
        return [
            await _read(store, arg.sharding, arg.dtype) if by_slabs else next(found)
            for store, arg, by_slabs in zip(stores, args, wide, strict=True)
        ]


async def _opened(info) -> tensorstore.TensorStore:
    spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=info.is_ocdbt_checkpoint)
    return await tensorstore.open(spec, open=True, context=info.ts_context)


def _ends(place, shape) -> Share:
    return tuple(part.indices(size)[:2] for part, size in zip(place, shape, strict=True))


def _shares(store, sharding) -> set[Share]:
    """The parts of an array that the devices of this process hold."""
    places = sharding.addressable_devices_indices_map(store.shape).values()
    return {_ends(place, store.shape) for place in places}


def _is_wide(store, sharding) -> bool:
    """Whether the pieces that this process's shares touch hold more than WIDE times as many numbers as those."""
    if not store.rank:
        return False
    shares, sizes = _shares(store, sharding), store.chunk_layout.read_chunk.shape
    touched = sum(
        math.prod((-(-last // size) - first // size) * size for (first, last), size in zip(share, sizes, strict=True))
        for share in shares
    )
    return touched > WIDE * sum(math.prod(last - first for first, last in share) for share in shares)


async def _read(store, sharding, dtype) -> jax.Array:
    """The array on the devices; this process holds never more of it than these do, and a slab."""
    shape, sizes, stored = store.shape, store.chunk_layout.read_chunk.shape, store.dtype.numpy_dtype
    shares = {share: np.empty([last - first for first, last in share], stored) for share in _shares(store, sharding)}
    box = [(min(first), max(last)) for first, last in (zip(*ends, strict=True) for ends in zip(*shares, strict=True))]
    axis = max(range(len(shape)), key=lambda at: (box[at][1] - box[at][0]) / sizes[at])  # along which most pieces lie
    row = sizes[axis] * math.prod(last - first for at, (first, last) in enumerate(box) if at != axis) * stored.itemsize
    step = max(1, SLAB // row) * sizes[axis]
    first, last = box[axis]
    for begin in range(first - first % sizes[axis], last, step):
        slab = [(max(begin, first), min(begin + step, last)) if at == axis else ends for at, ends in enumerate(box)]
        read = await store[tuple(slice(*ends) for ends in slab)].read()
        for share, out in shares.items():
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(share, slab, strict=True)]
            if all(a < b for a, b in both):
                out[_within(both, share)] = read[_within(both, slab)]
    places = sharding.addressable_devices_indices_map(shape)
    placed = dict.fromkeys(places)
    while shares:  # each is let go once it is on its devices
        share, out = shares.popitem()
        those = [device for device, place in places.items() if _ends(place, shape) == share]
        placed |= {device: jax.device_put(out.astype(dtype, copy=False), device) for device in those}
        jax.block_until_ready([placed[device] for device in those])
        del out
    return jax.make_array_from_single_device_arrays(shape, sharding, list(placed.values()))


def _within(ends, of) -> tuple[slice, ...]:
    """The slices that cut a part from an array that begins where `of` does."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(ends, of, strict=True))
