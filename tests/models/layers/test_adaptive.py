"""Adaptive embedding and softmax against the definition, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from models.layers.adaptive_softmax import AdaptiveVocabulary
from pretrain.losses.cross_entropy import adaptive_cross_entropy

V, CUTS, D = 20, (6, 11), 8
PLAIN = {"divisor": 1, "project_always": False, "tied_words": True, "shared_projections": "tails"}
KINDS = {
    "one width": PLAIN,
    "narrowing, tails shared": PLAIN | {"divisor": 2, "project_always": True},
    "narrowing, first not projected": PLAIN | {"divisor": 2},
    "nothing shared": PLAIN | {"divisor": 2, "tied_words": False, "shared_projections": "none"},
    "one narrow width, tails shared": PLAIN | {"embed": 4},
    "one narrow width, all shared": PLAIN | {"embed": 4, "shared_projections": "all"},
    "one narrow width, nothing shared": PLAIN | {"embed": 4, "tied_words": False, "shared_projections": "none"},
    "one width, projected": PLAIN | {"project_always": True},
    "all shared": PLAIN | {"divisor": 2, "project_always": True, "shared_projections": "all"},
}


def make(**changes):
    sizes = {"vocab_size": V, "cutoffs": CUTS, "width": D, "embed": D, "std": 1.0, "projection_std": 1.0}
    model = AdaptiveVocabulary(**sizes | {"dtype": "float32", "param_dtype": "float32"} | changes)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = nn.unbox(model.init(jax.random.key(0), tokens, method="embed_tokens"))
    return model, params


def by_definition(params, kind, hidden):
    """log p of every word [V], from one hidden state, in float64."""
    p = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
    edges = (0, *CUTS, V)

    def softmax(x):
        return np.log(np.exp(x) / np.exp(x).sum())

    def words(i):
        own = "words" if kind["tied_words"] else "out_words"
        return p[f"{own}_0"][edges[i] : edges[i + 1]] if kind["divisor"] == 1 else p[f"{own}_{i}"]

    def project(i):
        matrix = p.get(f"out_{i}", p.get("in_0" if kind["divisor"] == 1 else f"in_{i}"))
        return hidden if matrix is None else matrix @ hidden

    bias = p["word_bias"]
    tops = np.concatenate([words(0), p["clusters"]]) @ project(0) + np.concatenate([bias[:6], p["cluster_bias"]])
    head = softmax(tops)
    tails = [softmax(words(i) @ project(i) + bias[edges[i] : edges[i + 1]]) + head[5 + i] for i in (1, 2)]
    return np.concatenate([head[:6], *tails])


@pytest.mark.parametrize("name", KINDS)
def test_probabilities_by_definition(name):
    kind = KINDS[name]
    model, params = make(**kind)
    hidden = jax.random.normal(jax.random.key(1), (1, 20, D))
    whole = model.apply(params, hidden, method="logits")
    expected = np.stack([by_definition(params, kind, np.asarray(h, np.float64)) for h in hidden[0]])
    np.testing.assert_allclose(whole[0], expected, atol=1e-4)
    np.testing.assert_allclose(np.exp(whole).sum(-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_words_come_from_their_cluster(name):
    model, params = make(**KINDS[name])
    vectors = model.apply(params, jnp.arange(V)[None], method="embed_tokens")[0]
    p = params["params"]
    for word, (cluster, row) in {0: (0, 0), 5: (0, 5), 6: (1, 0), 19: (2, 8)}.items():
        vector = p["words_0"][word] if KINDS[name]["divisor"] == 1 else p[f"words_{cluster}"][row]
        projection = p.get("in_0" if KINDS[name]["divisor"] == 1 else f"in_{cluster}")
        if projection is not None:
            vector = vector @ projection
        np.testing.assert_allclose(vectors[word], vector * np.sqrt(D), rtol=1e-5)


def test_without_cutoffs_it_is_a_plain_softmax():
    model, params = make(cutoffs=(), **PLAIN)
    hidden = jax.random.normal(jax.random.key(1), (2, 3, D))
    p = params["params"]
    expected = jax.nn.log_softmax(hidden @ p["words_0"].T + p["word_bias"][None, None])
    np.testing.assert_allclose(model.apply(params, hidden, method="logits"), expected, atol=1e-5)
    assert sorted(p) == ["word_bias", "words_0"]


@pytest.mark.parametrize(
    ("name", "rows"),
    [("one width", 3), ("nothing shared", 3), ("all shared", 1), ("all shared", 3), ("all shared", 100)],
)
def test_loss_and_gradients_are_those_of_the_logits(name, rows):
    """Whatever the chunks, and whether they divide the row; every word, words of no weight among them."""
    model, params = make(**KINDS[name])
    hidden, targets = jax.random.normal(jax.random.key(1), (1, V, D)), jnp.arange(V)[None, ::-1]
    weights = jnp.arange(V, dtype=jnp.float32)[None] % 3 / 2

    def chunked(params, hidden):
        softmaxes = model.apply(params, hidden, method="cluster_inputs")
        return adaptive_cross_entropy(softmaxes, targets, weights, chunk=rows)

    def at_once(params, hidden):
        log_probs = model.apply(params, hidden, method="logits")
        return -jnp.sum(weights * jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0])

    found, expected = (jax.value_and_grad(way, argnums=(0, 1))(params, hidden) for way in (chunked, at_once))
    np.testing.assert_allclose(chunked(params, hidden), expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)
