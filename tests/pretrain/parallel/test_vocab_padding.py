"""Vocabularies that do not divide: split evenly by padding that no result depends on and no checkpoint has."""

from functools import partial

import jax
import numpy as np
import pytest
from random_batches import random_batch
from runs import mostly

from configs import common
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.parallel import vocab_padding
from pretrain.step.train_spec import TrainSpec

BATCH, LENGTH, VOCABULARY = 8, 8, 67  # a prime
TENSOR = {"data": 1, "tensor": 4}
MIXED = {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2}


def decoder(optimizer, **model):
    config = common.base()
    config.model.update(context=LENGTH, layers=1, width=16, heads=4, ff=32, dtype="float32", attention_path="xla")
    config.model.update(vocab_size=VOCABULARY, tied_head=False, head_bias=True, **model)
    return shared(config, optimizer)


def recurrent(optimizer):
    config = common.base()
    config.model = common.recurrent()
    config.model.update(vocab_size=VOCABULARY, cutoffs=(21, 40), embed=32, divisor=2, context=64, memory=8, dropout=0.0)
    config.model.update(layers=1, width=32, heads=4, ff=64, dtype="float32", attention_path="xla")
    config.data.layout = "stream"
    return shared(config, optimizer)


def shared(config, optimizer):
    config.train.update(steps=10, batch_size=BATCH)
    # A rate of 0.1 and weights that are clipped and decay: whatever saw the padding would leave other parameters.
    config.optimizer.update(name=optimizer, clip=0.5, weight_decay=0.1, b1=0.0 if optimizer == "sgd" else 0.9)
    config.schedule.update(kind="constant", warmup=0, peak=0.1)
    return config


def batch(number, layout):
    rows = random_batch(number, BATCH, LENGTH, VOCABULARY)
    rows["tokens"][0, 0] = rows["targets"][0, -1] = VOCABULARY - 1  # the last row is a row like any other
    return rows | ({"reset": np.zeros(BATCH, bool)} if layout == "stream" else {})


def spec_on(config, sizes):
    config.mesh.update(dict.fromkeys(("data", "fsdp", "sequence", "tensor"), 1) | sizes)
    return TrainSpec.build(config, jax.devices()[: int(np.prod([*sizes.values()]))])


def train(config, sizes, updates=2):
    spec = spec_on(config, sizes)
    state, history = spec.init(0, BATCH), []
    for number in range(updates):
        rows = spec.put(batch(number, config.data.layout), BATCH)
        state, metrics = spec.train_step(state, rows)
        history.append([float(metrics["sums"]["loss"]), float(metrics["grad_norm"])])
    scores, _ = spec.eval_step(state.params, rows, spec.init_recurrent_state(spec.eval_model, BATCH))
    return spec, state, np.array([*history, [float(scores[name]["loss"]) for name in ("sums", "counts")]])


def host(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


CASES = {
    "sgd": (decoder, "sgd", TENSOR),
    "adamw, mixed": (decoder, "adamw", MIXED),
    "lamb": (decoder, "lamb", TENSOR),
    "adafactor": (decoder, "adafactor", TENSOR),
    "over fsdp": (partial(decoder, width=14, heads=2), "sgd", {"data": 1, "fsdp": 4}),
    "adaptive softmax": (recurrent, "sgd", MIXED),
}


@pytest.mark.parametrize("name", mostly(CASES, "adamw, mixed", "lamb", "adaptive softmax", "over fsdp", "adafactor"))
def test_padding_changes_no_result(name):
    make, optimizer, sizes = CASES[name]
    _, alone, expected = train(make(optimizer), {"data": 1})
    spec, state, found = train(make(optimizer), sizes)
    np.testing.assert_allclose(found, expected, rtol=2e-4)  # float32 sums in another order, through three updates
    expected, found = host(alone), host(spec.to_checkpoint(state))
    assert {name: leaf.shape for name, leaf in found.items()} == {name: leaf.shape for name, leaf in expected.items()}
    for path, leaf in found.items():
        # Adam and its kin divide by roots of tiny moments, which magnifies rounding in near-zero gradients.
        np.testing.assert_allclose(leaf, expected[path], atol=2e-5 if optimizer == "sgd" else 5e-3, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("make", mostly([decoder, recurrent], recurrent), ids=["decoder", "adaptive"])
def test_checkpoint_fits_every_mesh(make, workdir):
    """Saved on one device, restored and saved on four, restored on a mixture: every leaf the same."""
    config = make("adamw")
    spec, state, _ = train(config, {"data": 1}, updates=1)
    expected = host(spec.to_checkpoint(state))
    checkpoints = CheckpointManager(workdir, config.checkpoint)
    for step, sizes in enumerate((TENSOR, MIXED, {"data": 1}), start=1):
        checkpoints.save(step, spec.to_checkpoint(state), step)
        checkpoints.wait()
        spec = spec_on(config, sizes)
        state = spec.from_checkpoint(checkpoints.restore_newest(spec.checkpoint_shapes(BATCH), print)[0])
        found = host(spec.to_checkpoint(state))
        assert found.keys() == expected.keys()
        for path, leaf in found.items():
            np.testing.assert_array_equal(leaf, expected[path], err_msg=path)
        params = host(spec.restore_params(checkpoints, step))
        for path, leaf in host(state.params).items():
            np.testing.assert_array_equal(params[path], leaf, err_msg=path)
    checkpoints.close()


def test_one_device_has_no_padding():
    spec, state, _ = train(decoder("adamw"), {"data": 1}, updates=1)
    for stored, resting in zip(jax.tree.leaves(spec.to_checkpoint(state)), jax.tree.leaves(state), strict=True):
        assert stored is resting


def test_stored_sharding_of_uneven_axis():
    mesh = jax.sharding.AbstractMesh((2, 4), ("fsdp", "tensor"))

    def leaf(shape, *spec):
        return jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec)))

    assert vocab_padding.padded(leaf((67, 32), "tensor", None)).shape == (68, 32)
    assert vocab_padding.stored(leaf((67, 32), "tensor", None)).sharding.spec == jax.P(None, "tensor")
    assert vocab_padding.stored(leaf((67, 32), "tensor", "fsdp")).sharding.spec == jax.P(None, "fsdp")
    assert vocab_padding.stored(leaf((68, 32), "tensor", "fsdp")).sharding.spec == jax.P("tensor", "fsdp")
