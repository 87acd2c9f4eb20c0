"""Transformer-XL: memory is a longer row, gradients stop at it, lanes and documents stay apart, the cache agrees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import recurrent
from models.layers.init import is_box

B, T = 2, 6


def build(**changes):
    fields = recurrent()
    fields.update(vocab_size=31, context=24, layers=2, width=16, heads=4, ff=24, memory=2 * T, dtype="float32")
    fields.update(changes)
    return models.build(fields.to_dict())


def drawn(model):
    """Parameters drawn wide, because at the usual 0.02 attention is uniform and hides mistakes."""
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32), shapes)


@pytest.fixture(scope="module", params=["relative", "rotary"])
def xl(request):
    model = build(positions=request.param)
    return model, drawn(model)


def tokens(length, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 31, (B, length)))


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, tokens, **inputs):
    return model.apply(params, tokens, **inputs)


def in_segments(model, params, row, **inputs):
    carried, hidden = nn.unbox(model.init_memory(B)), []
    for start in range(0, row.shape[1], T):
        part = {name: x[:, start : start + T] for name, x in inputs.items()}
        out = run(model, params, row[:, start : start + T], carried=carried, **part)
        carried = out.carried
        hidden.append(out.hidden)
    return jnp.concatenate(hidden, 1), carried


def test_segments_with_memory_are_one_long_row(xl):
    row = tokens(3 * T)
    whole = run(*xl, row).hidden
    parts, carried = in_segments(*xl, row)
    np.testing.assert_allclose(parts, whole, atol=1e-5)
    assert carried["attention"].hidden.shape == (2, B, 2 * T, 16)
    np.testing.assert_array_equal(carried["attention"].held, [2 * T] * B)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_memory_reaches_further_in_each_layer(positions):
    """With memory M, the last position of a stack of L layers depends on what is about L M back, and on no more."""
    model = build(memory=T, same_length=True, positions=positions)
    params, row = drawn(model), tokens(4 * T)

    def last(row):
        return in_segments(model, params, row)[0][:, -1]

    changed = [np.abs(last(row.at[:, i].add(1) % 31) - last(row)).max() > 0 for i in range(4 * T)]
    reach = 2 * (T - 1)  # each of the two layers sees itself and T - 1 before
    assert changed == [i >= 4 * T - 1 - reach for i in range(4 * T)]


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_same_length_shows_every_query_as_many_keys(positions):
    model = build(memory=3, same_length=True, layers=1, positions=positions)
    params, row = drawn(model), tokens(12)
    parts, _ = in_segments(model, params, row)
    np.testing.assert_allclose(parts, run(model, params, row).hidden, atol=1e-5)


def test_a_longer_memory_serves_the_same_parameters(xl):
    model, params = xl
    long, row = model.clone(memory=4 * T), tokens(4 * T)
    np.testing.assert_allclose(in_segments(long, params, row)[0], run(long, params, row).hidden, atol=1e-5)


def test_no_gradient_flows_through_memory(xl):
    model, params = xl
    memory = in_segments(model, params, tokens(T))[1]["attention"]

    def loss(hidden, weights):
        carried = {"attention": memory.replace(hidden=hidden)}
        return model.apply(weights, tokens(T), carried=carried).hidden.var()

    by_memory, by_params = jax.grad(loss, (0, 1))(memory.hidden, params)
    assert (by_memory == 0).all()
    assert all((np.abs(leaf).max() > 0) for leaf in jax.tree.leaves(by_params["params"]["layers"]))


@pytest.mark.parametrize("path", ["xla", "chunked"])
def test_gradients_equal_the_oracle_with_memory(xl, path):
    model, params = xl
    _, carried = in_segments(*xl, tokens(T))

    def gradient(path):
        other = model.clone(attention_path=path)
        return jax.jit(jax.grad(lambda params: other.apply(params, tokens(T), carried=carried).hidden.var()))(params)

    fast, slow = jax.tree.leaves(gradient(path)), jax.tree.leaves(gradient("reference"))
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


def test_a_lane_that_is_reset_forgets(xl):
    model, params = xl
    _, carried = in_segments(*xl, tokens(2 * T))
    out = run(model, params, tokens(T, 5), carried=carried, reset=jnp.array([True, False]))
    alone = run(model, params, tokens(T, 5)).hidden
    np.testing.assert_allclose(out.hidden[0], alone[0], atol=1e-5)
    assert np.abs(out.hidden[1] - alone[1]).max() > 1e-3
    np.testing.assert_array_equal(out.carried["attention"].held, [T, 2 * T])


def test_documents_in_a_stream_never_leak(xl):
    """Lane 0 changes document in the middle of its second segment; its later tokens know nothing of the first."""
    row = tokens(3 * T)
    segments = jnp.ones((B, 3 * T), jnp.int32).at[0, 8:12].set(2)  # the third segment goes on with what is 2 here
    before, _ = in_segments(*xl, row, segments=segments)
    after, _ = in_segments(*xl, row.at[0, :8].set(0), segments=segments)
    np.testing.assert_array_equal(before[0, 8:], after[0, 8:])
    assert np.abs(before[0, :8] - after[0, :8]).max() > 1e-3
    alone = run(*xl, jnp.roll(row, -8, axis=1)[:, : 3 * T - 8]).hidden
    np.testing.assert_allclose(before[0, 8:], alone[0], atol=1e-5)


@pytest.mark.parametrize("path", ["xla", "chunked"])
def test_documents_in_a_stream_give_no_gradient_to_one_another(xl, path):
    """The loss of lane 0's second document has the same gradient whatever the first, which fills the memory, was."""
    model, params = xl[0].clone(attention_path=path), xl[1]
    segments = jnp.ones((B, T), jnp.int32).at[0, 2:].set(2)
    weights = jnp.zeros((B, T)).at[0, 2:].set(1.0)

    @jax.jit
    def gradient(params, carried, tokens):
        def loss(params):
            hidden = model.apply(params, tokens, carried=carried, segments=segments).hidden
            return (jnp.square(hidden).sum(-1) * jnp.cos(hidden).sum(-1) * weights).sum()

        return jax.grad(loss)(params)

    row, results = tokens(2 * T), []
    for changed in (row, row.at[0, : T + 2].add(7) % 31):
        _, carried = in_segments(model, params, changed[:, :T])
        results.append(gradient(params, carried, changed[:, T:]))
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(results[0])) > 1e-3


def test_cached_decoding_equals_the_whole_row(xl):
    model, params = xl
    row = tokens(9)
    whole = run(model, params, row).hidden
    prompt = jnp.arange(5)[None, :] < jnp.array([[5], [3]])  # prompts of 5 and 3 tokens, padded on the right
    out = run(model, params, row[:, :5], segments=prompt.astype(jnp.int32), carried=model.init_cache(B, 9))
    np.testing.assert_allclose(out.hidden[0], whole[0, :5], atol=1e-5)
    np.testing.assert_allclose(out.hidden[1, :3], whole[1, :3], atol=1e-5)
    for step in range(4):
        places = jnp.array([5, 3]) + step
        out = run(model, params, row[jnp.arange(B), places][:, None], carried=out.carried)
        np.testing.assert_allclose(out.hidden[:, 0], whole[jnp.arange(B), places], atol=1e-5)


def test_every_leaf_of_the_memory_names_the_axis_of_its_lanes(xl):
    boxes = jax.tree.leaves(xl[0].init_memory(5), is_leaf=is_box)
    assert [box.names for box in boxes] == [("layers", "batch", None, None), ("batch",)]
    assert all(box.value.shape[box.names.index("batch")] == 5 for box in boxes)


def test_head_inputs_of_adaptive_softmax_is_none():
    model = build(cutoffs=(10, 20))
    assert model.apply(drawn(model), jnp.ones((1, 2, 16)), method="head_inputs") is None
