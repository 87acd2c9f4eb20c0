"""Rotary positions over a memory: the formula, a dense rotary decoder's long row, distances alone, eight devices."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import decoder, recurrent
from models.attention.masks import Mask
from models.layers.init import normal
from models.transformer.block import Context
from models.transformer.cache import Memory
from models.transformer.multihead import SelfAttention

B, T, M, D, N, V = 4, 8, 16, 16, 2, 32
SIZES = {"vocab_size": V, "layers": 2, "width": D, "heads": N, "ff": 24, "dtype": "float32"}


def build(**changes):
    fields = recurrent().to_dict() | SIZES | {"memory": M, "positions": "rotary"}
    return models.build(fields | changes)


def drawn(model):
    """Parameters drawn wide, because at the usual 0.02 attention is uniform and hides mistakes."""
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.4, leaf.shape), jnp.float32), shapes)


def tokens(length, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, V, (B, length)), jnp.int32)


def in_segments(model, params, row):
    run, carried, hidden = jax.jit(model.apply), nn.unbox(model.init_memory(B)), []
    for start in range(0, row.shape[1], T):
        out = run(params, row[:, start : start + T], carried=carried)
        carried = out.carried
        hidden.append(out.hidden)
    return jnp.concatenate(hidden, 1)


def as_decoder(params, length, pattern):
    """The dense rotary decoder of the same network, and its parameters: the word vectors are its table and its head."""
    fields = decoder().to_dict() | SIZES | {"context": length, "attention": (pattern,), "positions": "rotary"}
    fields |= {"placement": "post", "activation": "relu", "scale_embedding": True, "attention_bias": False}
    layers, vocabulary = params["params"]["layers"], params["params"]["vocabulary"]
    return models.build(fields), {"params": {"tokens": vocabulary["words_0"], "layers": layers}}


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [({"memory": 3 * T}, "dense"), ({"memory": M, "same_length": True, "layers": 1}, f"local_{M}")],
    ids=["dense", "same_length"],
)
def test_segments_are_a_dense_rotary_decoders_long_row(changes, pattern):
    """With a memory of all that came before; or, in one layer, of all that a query's window holds."""
    model, row = build(**changes), tokens(4 * T)
    params = drawn(model)
    dense, same = as_decoder(params, 4 * T, pattern)
    dense = dense.clone(layers=model.layers)
    np.testing.assert_allclose(in_segments(model, params, row), dense.apply(same, row).hidden, atol=2e-5)


def test_a_layer_over_memory_is_the_formula():
    """softmax_j Re(conj(q_i) k_j e^(i f (p_j - p_i))): pairs of features as complex numbers, p the place in [M ; T]."""
    H = D // N
    layer = SelfAttention(
        width=D,
        heads=N,
        kv_heads=N,
        head_size=H,
        query_size=H,
        pattern=Mask().pattern,
        rotary=True,
        bias=False,
        dropout=0.0,
        query_std=1.0,
        std=1.0,
        out_std=1.0,
        initializer=normal,
        fused_glorot=False,
        scale=None,
        backend="xla",
        dtype="float32",
        param_dtype="float32",
    )
    rng = np.random.default_rng(0)
    x, hidden = rng.normal(size=(B, T, D)), rng.normal(size=(3, B, M, D))
    weights = {name: rng.normal(0, D**-0.5, (D, N, H)) for name in ("query", "key", "value")}
    weights["output"] = rng.normal(0, D**-0.5, (N, H, D))
    held = np.array([0, 5, M, M])
    valid = np.arange(M + T)[None, :] >= M - held[:, None]

    memory = Memory(jnp.asarray(hidden, jnp.float32), jnp.asarray(held))
    signals = Context(
        Mask(causal=True, memory=M, key_valid=jnp.asarray(valid)), positions=jnp.arange(M + T)[None], layer=1
    )
    kernels = {name: {"kernel": jnp.asarray(kernel, jnp.float32)} for name, kernel in weights.items()}
    out, kept = layer.apply({"params": kernels}, jnp.asarray(x, jnp.float32), signals, memory)

    seen = np.concatenate([hidden[1], x], axis=1)
    query, key, value = (
        np.einsum("BTD,DNH->BTNH", of, weights[name]) for name, of in (("query", x), ("key", seen), ("value", seen))
    )
    query, key = (one[..., : H // 2] + 1j * one[..., H // 2 :] for one in (query, key))
    frequency, expected = 10_000.0 ** (-np.arange(0, H, 2) / H), np.zeros((B, T, N, H))
    for b, i, n in np.ndindex(B, T, N):
        places = np.array([j for j in range(M + i + 1) if valid[b, j]])
        turns = np.exp(1j * (places - (M + i))[:, None] * frequency)
        weight = np.exp((query[b, i, n].conj() * key[b, places, n] * turns).real.sum(-1) / math.sqrt(H))
        expected[b, i, n] = weight / weight.sum() @ value[b, places, n]
    np.testing.assert_allclose(out, np.einsum("BTNH,NHD->BTD", expected, weights["output"]), atol=1e-4)
    np.testing.assert_array_equal(kept.hidden[1], seen[:, -M:].astype(np.float32))  # states as they are, not turned
    np.testing.assert_array_equal(kept.hidden[::2], memory.hidden[::2])  # of the other layers
