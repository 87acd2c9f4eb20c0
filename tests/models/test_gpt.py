"""The decoder against the papers' formulas in float64 NumPy, one head and one token at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models


def norm(x, p, kind, epsilon):
    if kind == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * p["scale"]
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def linear(x, p, inputs=1):
    return np.tensordot(x, p["kernel"], inputs) + p.get("bias", 0.0)


ACTIVATION = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def rotated(vector, position):
    """Rotary position, pair by pair: (i, i + H/2) rotated by position / 10000^(2i/H)."""
    half = len(vector) // 2
    out = vector.copy()
    for i in range(half):
        angle = position / 10000 ** (2 * i / len(vector))
        a, b = vector[i], vector[i + half]
        out[i], out[i + half] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return out


def attention(x, p, model, positions):
    """x [T, D]: one sequence, one head, one query at a time."""
    query, key, value = (linear(x, p[name]) for name in ("query", "key", "value"))
    T, heads, size = query.shape
    shared = heads // key.shape[1]  # consecutive query heads share a key/value head
    out = np.zeros_like(query)
    for n in range(heads):
        for t in range(T):
            last = T if model.bidirectional else t + 1
            q, keys = query[t, n], key[:last, n // shared]
            if model.positions == "rotary":
                q, keys = rotated(q, positions[t]), np.stack([rotated(k, positions[s]) for s, k in enumerate(keys)])
            scores = keys @ q / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            out[t, n] = weights / weights.sum() @ value[:last, n // shared]
    return linear(out, p["output"], 2)


def feed_forward(x, p, model):
    if model.activation.startswith("gated_"):
        return linear(ACTIVATION[model.activation[6:]](linear(x, p["gate"])) * linear(x, p["in"]), p["out"])
    return linear(ACTIVATION[model.activation](linear(x, p["in"])), p["out"])


def oracle(model, params, tokens):
    """Logits [T, V] of one sequence."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    T, D = len(tokens), model.width
    positions = np.arange(T)
    x = params["tokens"][tokens] * (np.sqrt(D) if model.scale_embedding else 1)
    if model.positions == "learned":
        x = x + params["positions"][:T]
    angle = positions[:, None] / 10000 ** (np.arange(0, D, 2) / D)
    if model.positions == "sinusoid_concatenated":
        x = x + np.concatenate([np.sin(angle), np.cos(angle)], -1)
    if model.positions == "sinusoid":
        x = x + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(T, D)
    for layer in range(model.layers):
        p = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["layers"])
        for name, branch in (
            ("attention", lambda y, p=p: attention(y, p["attention"], model, positions)),
            ("feed_forward", lambda y, p=p: feed_forward(y, p["feed_forward"], model)),
        ):
            gains = p[f"{name}_norm"], model.norm, model.norm_epsilon
            if model.placement == "pre":
                x = x + branch(norm(x, *gains))
            elif model.placement == "post":
                x = norm(x + branch(x), *gains)
            else:
                x = norm(x, *gains)
                x = x + branch(x)
    if model.placement == "pre":
        x = norm(x, params["final_norm"], model.norm, model.norm_epsilon)
    return x @ (params["tokens"] if model.tied_head else params["head"]).T + params.get("head_bias", 0.0)


CASES = {
    "gpt2": {},
    "gpt": {"placement": "post"},
    "hands_on": {"placement": "replace", "activation": "relu", "norm_epsilon": 1e-12},
    "hands_on_masked": {"placement": "replace", "activation": "relu", "bidirectional": True},
    "ctrl": {"positions": "sinusoid_concatenated", "scale_embedding": True, "activation": "relu", "head_bias": True},
    "rotary_grouped": {"positions": "rotary", "kv_heads": 2},
    "multi_query": {"kv_heads": 1, "positions": "none"},
    "sinusoid_wide_head": {"positions": "sinusoid", "head_size": 6},
    "rms_gated_untied": {
        "norm": "rms",
        "activation": "gated_silu",
        "attention_bias": False,
        "ff_bias": False,
        "tied_head": False,
        "head_bias": True,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_formulas(small, case):
    model, params = small(**CASES[case])
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (2, 13))

    @jax.jit
    def logits(params, tokens):
        return model.apply(params, model.apply(params, tokens).hidden, method="logits")

    ours = logits(params, tokens)
    assert ours.dtype == jnp.float32
    theirs = np.stack([oracle(model, params, row) for row in tokens])
    # float32 against float64: a few hundred roundings of 1e-7 on logits of order 10
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5)


def test_compute_type_and_storage_type(small):
    model, params = small(dtype="bfloat16")
    output = model.apply(params, jnp.zeros((1, 4), jnp.int32))
    assert output.hidden.dtype == jnp.bfloat16 and output.carried == {}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    _, params = small(param_dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}


def test_long_rows_are_refused(small):
    model, params = small(context=8)
    with pytest.raises(models.ModelError):
        model.apply(params, jnp.zeros((1, 9), jnp.int32))
    with pytest.raises(models.ModelError):
        model.init_cache(1, 9)
    with pytest.raises(models.ModelError):
        model.apply(params, jnp.zeros((1, 5), jnp.int32), carried=model.init_cache(1, 4))


def test_patterns_alternate_over_the_depth(small):
    """With a window of 1 in every layer a token sees itself alone, unless one layer is dense."""
    tokens = np.array([[1, 2, 3, 4, 5], [9, 8, 3, 4, 5]])

    def differs(attention):
        model, params = small(attention=attention, layers=6)
        first, second = jax.jit(lambda params: model.apply(params, tokens).hidden)(params)
        return np.abs(first - second)[2:].max() > 1e-3

    assert not differs(("local_1",))
    assert differs(("local_1", "dense"))
    assert differs(("local_1", "local_1", "dense"))


def test_bidirectional_sees_its_whole_document(small):
    model, params = small(bidirectional=True, placement="replace")
    tokens, segments = np.array([[1, 2, 3, 4, 5, 6, 7, 8]]), np.array([[1, 1, 1, 1, 2, 2, 0, 0]])
    run = jax.jit(lambda tokens: model.apply(params, tokens, segments=segments).hidden[0])
    hidden, changed = run(tokens), run(np.where(segments == 2, tokens, 9))
    np.testing.assert_array_equal(hidden[4:6], changed[4:6])
    last = run(np.where(np.arange(8) == 3, 9, tokens))
    assert (np.abs(last - hidden)[:4].max(-1) > 1e-4).all()
    with pytest.raises(models.ModelError):
        model.init_cache(1, 4)
