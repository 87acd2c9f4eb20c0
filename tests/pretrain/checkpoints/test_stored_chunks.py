"""How arrays are cut on the disk: so that a host that needs a part of one reads little more than that."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs import common
from pretrain.checkpoints import params_only, restore
from pretrain.checkpoints.manager import CheckpointManager


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("x"), PartitionSpec(None, "x")])
def test_no_piece_is_larger_than_a_chunk_whatever_the_sharding(tmp_path, monkeypatch, spec):
    monkeypatch.setattr(params_only, "CHUNK", 1024)
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    array = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    state = {"params": {"w": jax.device_put(array, NamedSharding(mesh, spec))}}
    checkpoints = CheckpointManager(str(tmp_path), common.base().checkpoint)
    checkpoints.save(1, state, 0)
    checkpoints.wait()
    checkpoints.close()
    folder = checkpoints.workdir.checkpoint(1)
    chunk = restore.stored(folder)["params"]["w"].storage.chunk_shape
    assert np.prod(chunk) * 4 <= 1024
    other = NamedSharding(mesh, PartitionSpec(None, "x"))
    read = restore.read_state(folder, {"params": {"w": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=other)}})
    np.testing.assert_array_equal(read["params"]["w"], array)
