"""What masks and patterns charge for attention, against the pairs that they let see, one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern, per_head
from models.attention.relative import attend_relative
from pretrain.costs import flops
from pretrain.costs.flops import keys_per_query


@pytest.mark.parametrize(
    ("word", "keys"),  # of each of the 8 queries of a row
    [
        ("dense", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("local_3", [1, 2, 3, 3, 3, 3, 3, 3]),
        ("column_4", [1, 1, 1, 1, 2, 2, 2, 2]),
        ("strided_4", [1, 2, 3, 4, 5, 5, 5, 5]),
        ("fixed_4_1", [1, 2, 3, 4, 2, 3, 4, 5]),
        ("dense+local_1", [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
    ],
)
def test_keys_that_a_pattern_may_see(word, keys):
    assert keys_per_query(word, 2, 8, "causal") == pytest.approx(sum(keys) / 8)


SIZES = st.integers(1, 12)


@st.composite
def patterns(draw):
    """A pattern's word, for four heads."""
    stride, width = draw(SIZES), draw(SIZES)
    summary = draw(st.sampled_from(["summary", "fixed"])) + f"_{stride * width}_{width}"
    words = [f"{name}_{stride}" for name in ("local", "column", "block", "strided")]
    return draw(st.sampled_from([*words, summary, summary + "_by_head", f"{words[0]}+{summary}_by_head"]))


@given(patterns(), st.integers(1, 40), st.integers(0, 30), st.booleans())
def test_keys_are_counted_as_the_mask_shows_them(word, length, memory, causal):
    """Queries of a row behind `memory` more keys, causal or both ways."""
    query, key = memory + np.arange(length)[:, None], np.arange(memory + length)[None]
    for pattern in per_head(parse_pattern(word), 4):
        seen = np.broadcast_to(pattern.sees(query, key) & ((key <= query) | (not causal)), (length, memory + length))
        charged = flops.Visible(pattern, causal, memory).keys(length, memory + length, "causal")
        assert charged == seen.sum()


def test_both_conventions_charge_a_sparse_layer_what_it_sees():
    assert keys_per_query("local_3", 2, 8, "full") == keys_per_query("local_3", 2, 8, "causal")
    assert keys_per_query("dense", 2, 8, "full") == 8


def charged(convention, mask, T, S, *, heads=4, kv_heads=2, size=3, value_size=5, relative=False, **arrays):
    """Multiply-adds of a traced call; `arrays` are what the mask holds."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def call(query, key, value, distances, arrays):
        if not relative:
            return attend(query, key, value, mask.replace(**arrays), backend=flops.DESCRIBED)
        biases = jnp.zeros((heads, size))
        asked = mask.replace(**arrays)
        return attend_relative(query, key, value, distances, biases, biases, asked, backend=flops.DESCRIBED)

    keys, values = array(2, S, kv_heads, size), array(2, S, kv_heads, value_size)
    traced = jax.make_jaxpr(call)(array(2, T, heads, size), keys, values, array(S, heads, size), arrays)
    assert traced.out_avals[0].shape == (2, T, heads, value_size)
    return sum(
        flops.attention_multiply_adds(equation, convention)
        for equation in traced.jaxpr.eqns
        if equation.primitive is flops.ATTENTION
    )


@pytest.mark.parametrize("convention", flops.CONVENTIONS)
def test_charges_of_a_call(convention):
    half = convention == "causal"
    pair = 2 * 4 * (3 + 5)  # rows, heads, sizes of keys and values
    assert charged(convention, Mask(), 6, 10) == pair * 6 * 10  # cross-attention
    assert charged(convention, Mask(causal=True), 6, 6) == pair * (21 if half else 36)
    assert charged(convention, Mask(causal=True, memory=4), 6, 10) == pair * (24 + 21 if half else 60)
    split = Mask(causal=True, pattern=parse_pattern("dense+local_2"))
    assert charged(convention, split, 6, 6) == pair // 2 * ((21 if half else 36) + 11)
    # Each score by distance takes one product more.
    relative = charged(convention, Mask(causal=True), 6, 6, kv_heads=4, relative=True)
    assert relative == 2 * 4 * (3 + 3 + 5) * (21 if half else 36)


def test_what_only_data_tell_hides_nothing():
    segments, places = np.ones((2, 6), np.int32), np.zeros((2,), np.int32)
    plain = charged("causal", Mask(causal=True), 6, 6)
    assert charged("causal", Mask(causal=True), 6, 6, query_segments=segments) == plain
    assert charged("causal", Mask(causal=True), 6, 6, prefix=places) == plain
    assert charged("causal", Mask(causal=True), 2, 9, offset=places) == charged("causal", Mask(), 2, 9)
