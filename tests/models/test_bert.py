"""BERT's encoder: visibility, heads, initialization. test_hf_parity.py has its numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import encoder


def build(**changes):
    fields = encoder()
    fields.update(vocab_size=31, context=24, layers=2, width=16, heads=4, ff=24, dtype="float32", init_std=0.3)
    fields.update(changes)
    return models.build(fields.to_dict())


def initial(model):
    return nn.unbox(jax.jit(lambda key: model.init(key, **model.example()))(jax.random.key(0)))


@pytest.fixture(scope="module")
def bert():
    model = build()
    return model, initial(model)


def tokens(rows=2, length=9):
    return jnp.asarray(np.random.default_rng(1).integers(0, 31, (rows, length)))


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, tokens, **inputs):
    return model.apply(params, tokens, **inputs).hidden


def test_every_token_sees_the_whole_row(bert):
    row = tokens(1)
    hidden = run(*bert, row)
    for place in (0, 4, 8):
        assert (np.abs(run(*bert, row.at[0, place].add(1) % 31) - hidden).max(-1) > 1e-4).all()


def test_padding_is_not_seen(bert):
    row, real = tokens(), jnp.array([[1] * 9, [1] * 5 + [0] * 4])
    hidden = run(*bert, row, segments=real)
    np.testing.assert_array_equal(run(*bert, jnp.where(real, row, 7), segments=real)[1, :5], hidden[1, :5])
    np.testing.assert_allclose(run(*bert, row[1:, :5])[0], hidden[1, :5], atol=1e-5)


def test_documents_do_not_leak(bert):
    """In gradients too: a document's are the same whatever shares its row."""
    row, segments = tokens(1, 12), jnp.array([[1] * 5 + [2] * 4 + [0] * 3])
    positions = jnp.array([[*range(5), *range(4), 0, 0, 0]])
    model, params = bert

    @jax.jit
    def second(params, row):
        def loss(params):
            hidden = model.apply(params, row, segments=segments, positions=positions).hidden[0, 5:9]
            return jnp.sin(hidden).sum(), hidden

        return jax.grad(loss, has_aux=True)(params)

    gradient, hidden = second(params, row)
    changed, same = second(params, row.at[0, :5].add(3) % 31)
    np.testing.assert_allclose(run(*bert, row[:, 5:9])[0], hidden, atol=1e-5)
    np.testing.assert_array_equal(same, hidden)
    jax.tree.map(np.testing.assert_array_equal, gradient, changed)
    assert np.abs(gradient["params"]["layers"]["attention"]["query"]["kernel"]).max() > 1e-3


def test_heads(bert):
    """Logits of a few positions need no others; pairs depend on the first token alone."""
    model, params = bert
    hidden = run(*bert, tokens())
    logits = model.apply(params, hidden, method="logits")
    assert logits.shape == (2, 9, 31) and logits.dtype == jnp.float32
    np.testing.assert_allclose(model.apply(params, hidden[:, 3:5], method="logits"), logits[:, 3:5], atol=1e-5)
    given, matrix, bias = model.apply(params, hidden, method="head_inputs")
    np.testing.assert_allclose(given @ matrix.T + bias[None, None], logits, atol=1e-5)
    np.testing.assert_array_equal(matrix, params["params"]["tokens"])
    pairs = model.apply(params, hidden, method="pair_logits")
    assert pairs.shape == (2, 2) and pairs.dtype == jnp.float32
    np.testing.assert_array_equal(model.apply(params, hidden.at[:, 1:].set(0), method="pair_logits"), pairs)
    assert np.abs(model.apply(params, hidden, method="pooled")).max() < 1


def test_truncated_init():
    params = initial(build(init_std=0.02, width=128, ff=512, vocab_size=1000))["params"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name in ("scale", "bias", "head_bias"):
            np.testing.assert_array_equal(leaf, 1.0 if name == "scale" else 0.0)
        else:
            assert 0.02 < np.abs(leaf).max() <= 0.04
        if leaf.size > 50_000:  # a normal cut off at two standard deviations has 0.8796 of its spread
            assert float(leaf.std()) == pytest.approx(0.8796 * 0.02, rel=0.01)


def test_normal_init_has_tails():
    params = initial(build(initialiser="normal", init_std=0.02, width=128, ff=512, vocab_size=1000))["params"]
    for leaf in (
        params["tokens"],
        params["layers"]["attention"]["query"]["kernel"],
        params["layers"]["feed_forward"]["in"]["kernel"],
    ):
        assert np.abs(leaf).max() > 0.06 and float(leaf.std()) == pytest.approx(0.02, rel=0.01)


def test_position_offset_skips_rows(bert):
    """A table with rows in front is the same table without them."""
    model, params = build(position_offset=2), bert[1]["params"]
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))
    assert nn.unbox(shapes)["params"]["positions"].shape == (26, 16)
    moved = {"params": params | {"positions": jnp.pad(params["positions"], [(2, 0), (0, 0)], constant_values=jnp.nan)}}
    np.testing.assert_array_equal(run(model, moved, tokens(2, 24)), run(*bert, tokens(2, 24)))


def test_without_types_there_is_no_table():
    model = build(types=0, pair_head=False)
    params = initial(model)
    assert "types" not in params["params"] and "types" not in model.inputs and "types" not in model.example()
    one = params["params"] | {"types": jnp.zeros((1, 16))}
    np.testing.assert_array_equal(
        run(model, params, tokens()), run(build(types=1, pair_head=False), {"params": one}, tokens())
    )


@pytest.mark.slow
def test_tables_of_another_width():
    """They are normed, then projected; the head returns to their width before the table."""
    model = build(embed=5)
    params = initial(model)["params"]
    shapes = jax.tree.map(jnp.shape, params)
    assert [shapes[name][1] for name in ("tokens", "positions", "types")] == [5, 5, 5]
    assert shapes["embedding_norm"]["scale"] == shapes["transform_norm"]["scale"] == (5,)
    assert shapes["projection"] == {"kernel": (5, 16), "bias": (16,)}
    assert shapes["transform"] == {"kernel": (16, 5), "bias": (5,)}
    hidden = run(model, {"params": params}, tokens())
    given, matrix, bias = model.apply({"params": params}, hidden, method="head_inputs")
    np.testing.assert_allclose(
        given @ matrix.T + bias[None, None], model.apply({"params": params}, hidden, method="logits"), atol=1e-5
    )
    assert hidden.shape == (2, 9, 16) and given.shape == (2, 9, 5)


def test_project_always_with_equal_widths(bert):
    """The identity changes nothing; by default there is no projection."""
    model, params = build(project_always=True), bert[1]["params"]
    assert "projection" not in params and "projection" not in initial(build(embed=16))["params"]
    same = {"params": params | {"projection": {"kernel": jnp.eye(16), "bias": jnp.zeros(16)}}}
    np.testing.assert_allclose(run(model, same, tokens()), run(*bert, tokens()), atol=1e-6)


def test_language_vectors_are_added():
    """The first language is the default; a table of zeros changes nothing."""
    model = build(languages=3)
    params, row = initial(model), tokens()
    assert "languages" in model.inputs and model.input_limits["languages"] == 3
    hidden = run(model, params, row)
    np.testing.assert_array_equal(run(model, params, row, languages=jnp.zeros_like(row)), hidden)
    assert np.abs(run(model, params, row, languages=jnp.full_like(row, 2)) - hidden).max() > 1e-2
    table = params["params"].pop("languages")
    assert table.shape == (3, 16)
    nothing = {"params": params["params"] | {"languages": jnp.zeros((3, 16))}}
    np.testing.assert_array_equal(run(model, nothing, row, languages=row % 3), run(build(), params, row))


def test_head_without_transform(bert):
    model = build(head_transform=False)
    params = {"params": {name: leaf for name, leaf in bert[1]["params"].items() if not name.startswith("transform")}}
    assert initial(model)["params"].keys() == params["params"].keys()
    hidden = run(model, params, tokens())
    expected = hidden @ params["params"]["tokens"].T + params["params"]["head_bias"][None, None]
    np.testing.assert_allclose(model.apply(params, hidden, method="logits"), expected, atol=1e-5)


def test_zero_padding(bert):
    segments = jnp.array([[1] * 9, [1] * 5 + [0] * 4])
    hidden = run(build(zero_padding=True), bert[1], tokens(), segments=segments)
    np.testing.assert_array_equal(hidden, run(*bert, tokens(), segments=segments) * segments[..., None])


def test_fan_in_init():
    params = initial(build(initialiser="fan_in", init_std=0.05, width=128, ff=512, vocab_size=1000))["params"]
    assert float(params["tokens"].std()) == pytest.approx(0.05, rel=0.01)
    kernels = params["layers"]["attention"]["query"], params["layers"]["feed_forward"]["out"], params["transform"]
    for kernel, inputs in zip(kernels, (128, 512, 128), strict=True):
        kernel = np.abs(kernel["kernel"])
        assert 0.99 < kernel.max() * inputs**0.5 <= 1 and kernel.mean() * inputs**0.5 == pytest.approx(0.5, rel=0.02)


def test_encoder_refuses_decoding_and_long_rows(bert):
    with pytest.raises(models.ModelError):
        bert[0].init_cache(1, 4)
    with pytest.raises(models.ModelError):
        bert[0].apply(bert[1], jnp.zeros((1, 25), jnp.int32))
