"""Text that follows from another: decoding with caches of both texts is decoding without any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import encoder_decoder
from pretrain.decoding.decoding import generate

V = 31
OPTIONS = {"max_tokens": 9, "top_k": 0, "top_p": 1.0, "length_penalty": 0.6, "end_id": 1, "vocabulary": V, "seed": 0}
WAYS = {
    "greedy": {"temperature": 0.0, "beams": 1},
    "sampled": {"temperature": 1.0, "beams": 1},
    "beams": {"temperature": 0.0, "beams": 3},
}
PROMPTS = [np.array([0]), np.array([0, 5, 9, 2, 30, 4, 17]), np.array([0, 3])]


@pytest.fixture(scope="module")
def t5():
    """An encoder-decoder with decided opinions; distances beyond 12 share a bucket."""
    fields = encoder_decoder()
    fields.update(vocab_size=V, context=32, layers=2, width=16, heads=4, head_size=6, ff=24, dtype="float32")
    fields.update(buckets=8, max_distance=12)
    model = models.build(fields.to_dict())
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0)))["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)


@pytest.mark.parametrize("way", WAYS)
def test_caches_change_nothing(t5, way):
    """Inputs and prompts of different lengths: each row's queries stand where its own text has got to."""
    there = np.arange(11)[None] < np.array([[11], [4], [8]])
    inputs = np.random.default_rng(1).integers(2, V, there.shape)
    source = {"inputs": inputs, "input_segments": there.astype(np.int32)}
    cached, plain, other = (
        generate(*t5, PROMPTS, **WAYS[way], **OPTIONS, **changes)
        for changes in (
            {"source": source},
            {"source": source, "cached": False},
            {"source": {**source, "inputs": (inputs + 1) % V}},
        )
    )
    for (ids, nats), (expected, total) in zip(cached, plain, strict=True):
        np.testing.assert_array_equal(ids, expected)
        assert nats == pytest.approx(total, abs=1e-4)
    assert any(list(a) != list(b) for (a, _), (b, _) in zip(cached, other, strict=True))  # what it reads matters
