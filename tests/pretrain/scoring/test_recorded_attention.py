"""Recorded attention, its figures in closed form, and the page about it."""

import base64
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import decoder, recurrent
from pretrain.scoring.attention import Attention, record_weights
from pretrain.scoring.attention_page import SCALE, render

N, T = 4, 6


@pytest.mark.parametrize("pattern", ["local_2+dense", "dense+local_2"])
def test_heads_of_two_patterns_keep_their_order(pattern):
    fields = decoder()
    fields.update(vocab_size=31, context=T, layers=2, width=16, heads=N, ff=16, attention=(pattern,), init_std=0.5)
    model, tokens = models.build(fields.to_dict()), jnp.arange(T)[None]
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), tokens)["params"])
    (weights,) = record_weights(model, params, {"tokens": tokens}).values()
    assert weights.shape == (2, N, T, T)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, atol=1e-6)
    i, j = np.indices((T, T))
    local = slice(0, 2) if pattern.startswith("local") else slice(2, 4)
    seen = np.broadcast_to(j <= i, weights.shape).copy()
    seen[:, local] &= i - j < 2
    np.testing.assert_array_equal(np.asarray(weights) > 0, seen)


def test_recurrent_models_read_rows_alone():
    fields = recurrent()
    fields.update(vocab_size=31, context=T, layers=2, width=16, heads=N, ff=16, memory=8, init_std=0.5)
    model, ones = models.build(fields.to_dict()), np.ones((1, T), np.int32)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), **model.example())["params"])
    (weights,) = record_weights(model, params, {"tokens": np.arange(T)[None], "segments": ones}).values()
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(weights) > 0, np.broadcast_to(np.tri(T, dtype=bool), (2, N, T, T)))


@pytest.fixture
def attention():
    """Heads that attend everywhere alike, to themselves, to the token before, and to the first token."""
    before = np.eye(T, k=-1) + np.eye(T)[:1] * np.eye(T)[0][:, None]
    first = np.tile(np.eye(T)[0], (T, 1))
    weights = np.stack([np.full((T, T), 1 / T), np.eye(T), before, first])[None].astype(np.float32)
    cross = np.random.default_rng(0).dirichlet(np.ones(3), (2, N, T)).astype(np.float32)
    tokens = {"encoder": ["a", "<b>", "</script>"], "decoder": list("uvwxyz")}
    return Attention({"encoder": weights[..., :3, :3], "decoder": weights, "cross": cross}, tokens)


def test_entropy_and_distance(attention):
    np.testing.assert_allclose(attention.entropy("decoder"), [[np.log(T), 0, 0, 0]], atol=1e-6)
    i, j = np.indices((T, T))
    expected = [[np.abs(i - j).mean(), 0, (T - 1) / T, (T - 1) / 2]]
    np.testing.assert_allclose(attention.distance("decoder"), expected, atol=1e-6)


def test_page_holds_the_probabilities(attention):
    page = render(attention, "a & b")
    assert page.count("</script>") == 1 and "<title>a &amp; b</title>" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)  # no other file
    data = json.loads(re.search(r"DATA = (\{.*\});", page)[1].replace("<\\/", "</"))
    assert list(data) == ["encoder", "decoder", "cross"] and data["cross"]["keys"] == attention.tokens["encoder"]
    for kind, part in data.items():
        found = np.frombuffer(base64.b64decode(part["data"]), "<u2").reshape([part[axis] for axis in "LNTS"])
        np.testing.assert_allclose(found / SCALE, attention.weights[kind], atol=1e-5)
        np.testing.assert_allclose(part["entropy"], attention.entropy(kind), atol=1e-4)
    assert data["cross"]["distance"] is None
