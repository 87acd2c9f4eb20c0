"""XLNet's model: who sees whom, what is remembered, text back to front. test_hf_parity.py has its numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import two_stream
from models.transformer.cache import Memory

T, K, M, REUSE, V = 12, 4, 5, 6, 31
SIZES = {"vocab_size": V, "context": T, "layers": 2, "width": 16, "heads": 4, "ff": 24, "memory": M, "reuse": REUSE}


def build(**changes):
    fields = two_stream()
    fields.update(SIZES | {"dtype": "float32", "init_std": 0.3, "dropout": 0.0, "dropout_attention": 0.0} | changes)
    return models.build(fields.to_dict())


def initial(model):
    return nn.unbox(jax.jit(lambda key: model.init(key, **model.example()))(jax.random.key(0)))


@pytest.fixture(scope="module")
def xlnet():
    model = build()
    return model, initial(model)


@pytest.fixture
def batch():
    """A row whose first half never sees the second: places of rank -1 and 6 are free, two more are functional."""
    ranks = jnp.array([[-1, 2, -1, 0, 4, -1, 8, 6, 6, 11, 10, 9]])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, V, (1, T)))
    types = jnp.array([[0] * 8 + [1] * 3 + [2]])
    return {"tokens": tokens, "types": types, "ranks": ranks, "slots": jnp.array([[1, 3, 6, 9]])}


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, carried=None, **inputs):
    return model.apply(params, **inputs, carried=carried)


def memory_of(lanes=1, held=M):
    hidden = np.random.default_rng(1).standard_normal((2, lanes, M, 16))
    return {"attention": Memory(jnp.asarray(hidden, jnp.float32), jnp.full((lanes,), held, jnp.int32))}


def changed(first, second):
    return np.abs(np.asarray(first) - np.asarray(second)).max(-1)[0] > 1e-5


def test_a_slot_depends_on_no_token_of_its_rank_or_later_and_on_all_others(xlnet, batch):
    before = run(*xlnet, **batch).hidden
    for place in range(T):
        tokens = batch["tokens"].at[0, place].add(1) % V
        after = run(*xlnet, **batch | {"tokens": tokens}).hidden
        seen = batch["ranks"][0, place] < jnp.take(batch["ranks"][0], batch["slots"][0])
        np.testing.assert_array_equal(changed(before, after), seen, err_msg=str(place))


def test_a_token_depends_on_those_of_lower_rank_and_itself(xlnet, batch):
    """What the tokens that it sees have seen comes before it too, so that two layers are no further than one."""
    del batch["slots"]
    before, ranks = run(*xlnet, **batch).hidden, batch["ranks"][0]
    for place in range(T):
        tokens = batch["tokens"].at[0, place].add(1) % V
        after = run(*xlnet, **batch | {"tokens": tokens}).hidden
        np.testing.assert_array_equal(changed(before, after), ranks[place] < ranks + 1, err_msg=str(place))


def test_all_see_the_memory_once_it_is_filled(xlnet, batch):
    nothing, full = memory_of(held=0), memory_of()
    other = {"attention": full["attention"].replace(hidden=full["attention"].hidden + 1.0)}
    alone = run(*xlnet, **batch).hidden
    np.testing.assert_allclose(run(*xlnet, nothing, **batch).hidden, alone, atol=1e-6)
    assert changed(run(*xlnet, full, **batch).hidden, alone).all()
    assert changed(run(*xlnet, full, **batch).hidden, run(*xlnet, other, **batch).hidden).all()
    reset = run(*xlnet, full, **batch, reset=jnp.ones((1,), bool))
    np.testing.assert_allclose(reset.hidden, alone, atol=1e-6)
    assert reset.carried["attention"].held.tolist() == [M]


def test_what_is_remembered_are_the_inputs_of_the_first_positions(xlnet, batch):
    model, params = xlnet
    output = run(model, params, memory_of(held=2), **batch).carried["attention"]
    words = jnp.take(params["params"]["tokens"], batch["tokens"][0], axis=0)
    np.testing.assert_array_equal(output.hidden[0, 0], words[REUSE - M : REUSE])
    assert output.held.tolist() == [M]
    first = batch | {"tokens": batch["tokens"].at[0, REUSE:].add(1) % V}
    again = run(model, params, memory_of(held=2), **first).carried["attention"]
    np.testing.assert_array_equal(again.hidden, output.hidden)

    def total(params):
        carried = model.apply(params, **batch, carried=memory_of()).carried
        return carried["attention"].hidden.sum()

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.jit(jax.grad(total))(params)))
    longer = build(memory=8)
    start = nn.unbox(longer.init_memory(1))
    once = run(longer, params, start, **batch).carried
    assert once["attention"].held.tolist() == [REUSE]
    assert run(longer, params, once, **batch).carried["attention"].held.tolist() == [8]


def test_text_back_to_front_is_text_at_negative_distances(xlnet, batch):
    """A row whose tokens, ranks and types are turned round, and is said to be, has the same states, turned round."""
    model, params = xlnet
    forward = run(model, params, **batch, backward=jnp.zeros((1,), bool)).hidden
    np.testing.assert_allclose(forward, run(model, params, **batch).hidden, atol=1e-6)
    turned = {name: batch[name][:, ::-1] for name in ("tokens", "types", "ranks")}
    turned |= {"slots": T - 1 - batch["slots"]}
    np.testing.assert_allclose(run(model, params, **turned, backward=jnp.ones((1,), bool)).hidden, forward, atol=1e-5)
    assert changed(run(model, params, **turned).hidden, forward).all()
    both = {name: jnp.concatenate([batch[name], turned[name]]) for name in batch}
    hidden = run(model, params, **both, backward=jnp.array([False, True])).hidden
    np.testing.assert_allclose(hidden[0], hidden[1], atol=1e-5)


def test_padding_is_not_seen(xlnet, batch):
    segments = jnp.ones((1, T), jnp.int32).at[0, 7].set(0)  # else places 6 and 9 see it
    seen = run(*xlnet, **batch, segments=segments).hidden
    other = batch | {"tokens": jnp.where(segments > 0, batch["tokens"], 7)}
    np.testing.assert_array_equal(run(*xlnet, **other, segments=segments).hidden, seen)
    assert changed(seen, run(*xlnet, **batch).hidden).tolist() == [False, False, True, True]


def test_without_ranks_all_is_seen(xlnet, batch):
    hidden = run(*xlnet, tokens=batch["tokens"]).hidden
    assert changed(hidden, run(*xlnet, tokens=batch["tokens"].at[0, 11].add(1) % V).hidden).all()
    assert changed(hidden, run(*xlnet, tokens=batch["tokens"], types=batch["types"]).hidden).all()


@pytest.mark.parametrize("path", [pytest.param("chunked", marks=pytest.mark.slow), "xla"])
def test_paths_agree_in_values_and_gradients(xlnet, batch, path):
    _, params = xlnet
    both = {name: jnp.concatenate([values, values[:, ::-1]]) for name, values in batch.items()}
    both |= {"backward": jnp.array([False, True])}

    def of(path):
        model = build(attention_path=path)

        def loss(params):
            return jnp.sin(model.apply(params, **both, carried=memory_of(2, 3)).hidden).sum()

        return jax.jit(jax.value_and_grad(loss))(params)

    found, expected = of(path), of("reference")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)
    assert np.abs(found[1]["params"]["layers"]["attention"]["segments"]).min() > 0


def test_parameters_do_not_depend_on_what_is_remembered(xlnet):
    shapes = jax.eval_shape(lambda: initial(build(memory=1, reuse=2, clamp=3)))
    assert jax.tree.map(jnp.shape, xlnet[1]) == jax.tree.map(lambda leaf: leaf.shape, shapes)


def test_two_stream_refuses_decoding_and_long_rows(xlnet):
    model, params = xlnet
    with pytest.raises(models.ModelError):
        model.init_cache(1, 4)
    with pytest.raises(models.ModelError):
        model.apply(params, jnp.zeros((1, 13), jnp.int32))
