"""What devices should hold alike is compared: one changed bit on one device ends the run before it is saved."""

import jax
import numpy as np
import pytest
from runs import train_here

from models.layers.init import path_name
from pretrain import config as configs
from pretrain.distributed.shutdown import FAULT
from pretrain.errors import FaultError
from pretrain.step.jit import JitSpec
from pretrain.step.train_spec import TrainSpec
from pretrain.training.replica_check import ReplicaCheck

MESHES = {
    "data 8": {"mesh.data": 8},
    "data 4 x tensor 2": {"mesh.data": 4, "mesh.tensor": 2},
    "pmap": {"train.backend": "pmap"},
}
SMALL = {"model.vocab_size": 257, "model.layers": 1, "model.width": 16, "model.heads": 2, "model.ff": 32}
HIGH = 1 << 20  # a bit that updates do not round away; of the lowest ones, they do it to every fifth within two


def made(keys):
    config = configs.load("configs/quickstart.py:tiny", [(key, str(value)) for key, value in (SMALL | keys).items()])
    spec = TrainSpec.build(config)
    return spec, spec.init(config.seed, config.train.batch_size)


def corrupted(state, leaf, device, bit=1):
    """The state with one bit of one leaf's last number changed on one device."""
    leaves, tree = jax.tree_util.tree_flatten(state)
    pieces = []
    for shard in leaves[leaf].addressable_shards:
        piece = np.array(shard.data)
        if shard.device.id == device:
            piece.reshape(-1).view(np.uint32)[-1] ^= bit
        pieces.append(jax.device_put(piece, shard.device))
    leaves[leaf] = jax.make_array_from_single_device_arrays(leaves[leaf].shape, leaves[leaf].sharding, pieces)
    return jax.tree_util.tree_unflatten(tree, leaves)


@pytest.mark.parametrize("mesh", MESHES)
def test_replica_check_names_device_and_parameter(mesh):
    spec, state = made(MESHES[mesh])
    replicas = ReplicaCheck(spec, enabled=True)
    replicas.compare(state, 1)
    named = jax.tree_util.tree_leaves_with_path(state)
    large = [place for place, (_, leaf) in enumerate(named) if leaf.ndim > 2]
    leaf = large[len(large) // 2]
    with pytest.raises(FaultError) as caught:
        replicas.compare(corrupted(state, leaf, device=5), 2)
    assert path_name(named[leaf][0]) in str(caught.value)
    assert "cpu:5 of process 0" in str(caught.value)


def test_replica_check_without_majority():
    spec, state = made({"mesh.data": 2, "mesh.fsdp": 4})
    leaf = next(place for place, leaf in enumerate(jax.tree.leaves(state)) if leaf.ndim > 2)
    with pytest.raises(FaultError, match=r"cpu:1 of process 0 on .+, cpu:5 of process 0"):
        ReplicaCheck(spec, enabled=True).compare(corrupted(state, leaf, device=5), 1)


@pytest.mark.parametrize("every", [pytest.param(1000, marks=pytest.mark.slow), 3])
def test_corrupt_state_is_not_saved(tmp_path, text, monkeypatch, capsys, every):
    """Update 6 goes wrong on one device; the next save would be of update 8."""
    whole, made_so_far = JitSpec.train_step, []

    def step(self, state, batch):
        state, metrics = whole(self, state, batch)
        made_so_far.append(1)
        large = next(place for place, leaf in enumerate(jax.tree.leaves(state)) if leaf.ndim > 2)
        return corrupted(state, large, device=2, bit=HIGH) if len(made_so_far) == 6 else state, metrics

    monkeypatch.setattr(JitSpec, "train_step", step)
    assert train_here(tmp_path, text, train__compare_every=every, mesh__data=8, evaluate__every=0) == FAULT
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"after step {6 if every == 3 else 8} replicas of 'params/" in said
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["4"]
