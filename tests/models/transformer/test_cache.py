"""Decoding with a cache gives what recomputing everything gives."""

import jax
import numpy as np
import pytest

CASES = {
    "learned": {"positions": "learned"},
    "sinusoid": {"positions": "sinusoid"},
    "rotary_grouped": {"positions": "rotary", "kv_heads": 2},
    "patterns": {"layers": 2, "attention": ("local_3", "fixed_4_1")},
    "unrolled": {"scan": False},
}
LENGTHS = np.array([7, 3])  # of the two prompts
STEPS = 5


@pytest.mark.parametrize("case", CASES)
def test_cached_equals_uncached(small, case):
    model, params = small(**CASES[case])
    tokens = np.random.default_rng(1).integers(0, model.vocab_size, (2, LENGTHS.max() + STEPS))
    whole = jax.jit(model.apply)(params, tokens).hidden

    @jax.jit
    def apply(params, tokens, segments, carried):
        return model.apply(params, tokens, segments=segments, carried=carried)

    there = np.arange(LENGTHS.max())[None, :] < LENGTHS[:, None]
    prompts = np.where(there, tokens[:, : LENGTHS.max()], 0)
    output = apply(params, prompts, there.astype(np.int32), model.init_cache(2, tokens.shape[1]))
    np.testing.assert_array_equal(output.carried["attention"].lengths, LENGTHS)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(output.hidden[row, :length], whole[row, :length], atol=1e-5)

    rows = np.arange(2)
    for step in range(STEPS):
        here = LENGTHS + step
        output = apply(params, tokens[rows, here][:, None], None, output.carried)
        np.testing.assert_allclose(output.hidden[:, 0], whole[rows, here], atol=1e-5)


def test_a_prompt_in_parts(small):
    """A prefill may go on where another ended; padding past the last slot leaves the tokens before it alone."""
    model, params = small()
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, (1, 6))
    whole = jax.jit(model.apply)(params, tokens).hidden
    apply = jax.jit(lambda tokens, segments, carried: model.apply(params, tokens, segments=segments, carried=carried))
    first = apply(tokens[:, :4], np.ones((1, 4), int), model.init_cache(1, 6))
    rest, padding = np.pad(tokens[:, 4:], ((0, 0), (0, 2))), np.array([[1, 1, 0, 0]])
    second = apply(rest, padding, first.carried)
    np.testing.assert_allclose(first.hidden, whole[:, :4], atol=1e-5)
    np.testing.assert_allclose(second.hidden[:, :2], whole[:, 4:], atol=1e-5)
    np.testing.assert_array_equal(second.carried["attention"].lengths, [6])
