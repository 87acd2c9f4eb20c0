"""Arrays that are read back slab by slab: the same numbers, whatever cut them before and does now."""

import gc
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs import common
from pretrain.checkpoints import params_only, restore, slabs
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.errors import UserError

SPECS = [
    PartitionSpec(),
    PartitionSpec("x"),
    PartitionSpec(None, "x"),
    PartitionSpec(None, None, ("y", "x")),
    PartitionSpec("y", "x", None),
    PartitionSpec(("x", "y"), None, None),
]
MESH = {"y": 2, "x": 4}


def saved(folder, array, spec):
    """(a checkpoint of an array that is divided so, what reads it back divided otherwise)."""
    mesh = Mesh(np.array(jax.devices()).reshape(*MESH.values()), tuple(MESH))
    checkpoints = CheckpointManager(str(folder), common.base().checkpoint)
    everywhere = NamedSharding(mesh, PartitionSpec())
    params = {"w": jax.device_put(array, NamedSharding(mesh, spec)), "scalar": jax.device_put(2.5, everywhere)}
    checkpoints.save(1, {"params": params}, 0)
    checkpoints.wait()
    checkpoints.close()

    def back(spec):
        of = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))
        wanted = {"w": of, "scalar": jax.ShapeDtypeStruct((), np.float32, sharding=everywhere)}
        found = restore.read_state(checkpoints.workdir.checkpoint(1), {"params": wanted})["params"]
        assert found["scalar"] == 2.5 and found["w"].sharding == of.sharding
        return found["w"]

    return back


@pytest.mark.parametrize("stored", SPECS, ids=str)
@pytest.mark.parametrize("wide", [0, slabs.WIDE], ids=["all by slabs", "as it comes"])
def test_the_same_numbers_come_back_from_any_cut_into_any(tmp_path, monkeypatch, stored, wide):
    monkeypatch.setattr(params_only, "CHUNK", 500)
    monkeypatch.setattr(slabs, "SLAB", 3000)
    monkeypatch.setattr(slabs, "WIDE", wide)
    array = np.random.default_rng(0).integers(0, 1 << 16, (16, 24, 40)).astype(np.float32)
    back = saved(tmp_path, array, stored)
    for spec in SPECS:
        np.testing.assert_array_equal(back(spec), array)


def test_columns_of_what_was_stored_as_rows_are_read_by_slabs(tmp_path, monkeypatch):
    found, whole = [], slabs._read

    async def told(store, sharding, dtype):
        found.append(store.shape)
        return await whole(store, sharding, dtype)

    monkeypatch.setattr(slabs, "_read", told)
    array = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    back = saved(tmp_path, array, PartitionSpec(("y", "x")))
    np.testing.assert_array_equal(back(PartitionSpec(("y", "x"))), array)
    assert not found
    np.testing.assert_array_equal(back(PartitionSpec(None, ("y", "x"))), array)
    assert found == [array.shape]


def test_another_shape_than_the_stored_one_is_refused(tmp_path):
    """Of columns too, which are read by slabs: no more and no less of an array than was asked for comes back."""
    saved(tmp_path, np.arange(64 * 48, dtype=np.float32).reshape(64, 48), PartitionSpec(("y", "x")))
    columns = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec(None, "x"))
    wanted = {"params": {"w": jax.ShapeDtypeStruct((64, 40), np.float32, sharding=columns)}}
    with pytest.raises(UserError, match=r"Requested shape: \(64, 40\) is not compatible"):
        restore.read_parts(CheckpointManager(str(tmp_path), common.base().checkpoint).workdir.checkpoint(1), wanted)


def test_an_array_that_cannot_be_read_is_the_only_one_that_is_told_of(tmp_path, monkeypatch):
    """What read the others at that moment once told of its end too, in a traceback each, after the sentence."""
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    numbers = np.random.default_rng(0).random((40, 50_000), np.float32)
    params = {f"{at:02}": jax.device_put(row, there) for at, row in enumerate(numbers)}
    checkpoints = CheckpointManager(str(tmp_path), common.base().checkpoint)
    checkpoints.save(1, {"params": params}, 0)
    checkpoints.wait()
    folder = checkpoints.workdir.checkpoint(1)
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    unseen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: unseen.append(str(failure.exc_value)))
    wanted = {"params": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), params)}
    for _ in range(5):
        with pytest.raises(UserError, match="checkpoint 1 cannot be read"):
            restore.read_parts(folder, wanted)
        gc.collect()
    assert set(unseen) <= {"Event loop is closed"}  # which no command shows
