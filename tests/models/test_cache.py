"""Decoding with a cache gives what recomputing everything gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

CASES = {
    "learned": {"positions": "learned"},
    "sinusoid": {"positions": "sinusoid"},
    "rotary_grouped": {"positions": "rotary", "kv_heads": 2},
    "patterns": {"layers": 3, "attention": ("local_3", "fixed_4_1")},
    "unrolled": {"scan": False},
}
LENGTHS = np.array([7, 3])  # of the two prompts
STEPS = 5


@pytest.mark.parametrize("case", CASES)
def test_cached_equals_uncached(small, case):
    model, params = small(**CASES[case])
    tokens = np.random.default_rng(1).integers(0, model.vocab_size, (2, LENGTHS.max() + STEPS))
    whole = jax.jit(model.apply)(params, tokens).hidden

    apply = jax.jit(lambda params, tokens, segments, cache: model.apply(params, tokens, segments=segments, cache=cache))
    there = np.arange(LENGTHS.max())[None, :] < LENGTHS[:, None]
    prompts = np.where(there, tokens[:, : LENGTHS.max()], 0)
    output = apply(params, prompts, there.astype(np.int32), model.init_cache(2, tokens.shape[1]))
    np.testing.assert_array_equal(output.cache.lengths, LENGTHS)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(output.hidden[row, :length], whole[row, :length], atol=1e-5)

    rows = np.arange(2)
    for step in range(STEPS):
        here = LENGTHS + step
        output = apply(params, tokens[rows, here][:, None], None, output.cache)
        np.testing.assert_allclose(output.hidden[:, 0], whole[rows, here], atol=1e-5)


def test_prompt_in_two_parts(small):
    """A prefill may go on where another ended."""
    model, params = small()
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, (1, 8))
    whole = model.apply(params, tokens).hidden
    first = model.apply(params, tokens[:, :5], cache=model.init_cache(1, 8))
    second = model.apply(params, tokens[:, 5:], cache=first.cache)
    np.testing.assert_allclose(jnp.concatenate([first.hidden, second.hidden], 1), whole, atol=1e-5)


def test_padding_beyond_the_end_is_dropped(small):
    """A short prompt padded past the cache's last slot leaves the tokens before it alone."""
    model, params = small()
    tokens = np.array([[1, 2, 3, 4]])
    first = model.apply(params, tokens[:, :2], cache=model.init_cache(1, 4)).cache
    padded = np.array([[3, 4, 0, 0]])
    output = model.apply(params, padded, segments=np.array([[1, 1, 0, 0]]), cache=first)
    np.testing.assert_allclose(output.hidden[:, :2], model.apply(params, tokens).hidden[:, 2:], atol=1e-5)
    np.testing.assert_array_equal(output.cache.lengths, [4])
