"""FLOPs against counts by hand and against the traced program; peak rates by device name."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given
from hypothesis import strategies as st

import models
from configs import sparse_transformer
from configs.common import base, recurrent
from models.attention.patterns import parse_pattern, per_head
from pretrain.costs.flops import flops_per_token, forward_flops, keys_per_query
from pretrain.errors import UserError
from pretrain.parallel import devices


def small(**model):
    config = base()
    config.data.length = 16
    config.model.update(
        dict(vocab_size=50, context=16, layers=3, width=24, heads=4, ff=40, dtype="float32", attention_path="reference")
    )
    config.model.update(model)
    return config


def traced_products(jaxpr) -> int:
    """Multiply-adds of all dot_generals in a traced program, loops unrolled."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += times * traced_products(inner)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = 1
            for axis in contracted:
                depth *= equation.invars[0].aval.shape[axis]
            total += equation.outvars[0].aval.size * depth
    return total


def test_counted_by_hand():
    parts = forward_flops(small())
    assert parts["full"] == {
        "attention projections": 2 * 3 * 4 * 24 * 24,
        "attention scores and values": 2 * 3 * 2 * 24 * 16,
        "feed-forward": 2 * 3 * 2 * 24 * 40,
        "logits": 2 * 24 * 50,
    }
    assert parts["causal"] == parts["full"] | {"attention scores and values": 2 * 3 * 2 * 24 * 8.5}
    assert flops_per_token(small()) == {name: 3 * sum(part.values()) for name, part in parts.items()}


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"kv_heads": 2},
        {"head_size": 10},
        {"query_size": 3},
        {"query_size": 5, "kv_heads": 2, "head_size": 10},
        {"activation": "gated_silu"},
        {"tied_head": False},
        {"scan": False},
    ],
    ids=str,
)
def test_equals_the_products_of_the_traced_forward_pass(model):
    """The reference path multiplies all T x S scores, which is the `full` convention to the integer."""
    config = small(**model)
    decoder = models.build(config.model.to_dict())
    tokens = jnp.zeros((1, config.data.length), jnp.int32)
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), tokens))

    def forward(params):
        return decoder.apply(params, decoder.apply(params, tokens).hidden, method="logits")

    products = traced_products(jax.make_jaxpr(forward)(params).jaxpr)
    assert 2 * products == config.data.length * sum(forward_flops(config)["full"].values())


def small_xl(**model):
    config = base()
    config.model, config.data.length = recurrent(), 8
    config.model.update(vocab_size=50, layers=3, width=16, heads=2, ff=40, memory=12, context=32)
    config.model.update(dtype="float32", attention_path="reference")
    config.model.update(model)
    return config


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"head_size": 5},
        {"cutoffs": (20, 30), "divisor": 2},
        {"cutoffs": (20,), "divisor": 2, "project_always": True, "shared_projections": "none", "tied_words": False},
        {"cutoffs": (20,), "embed": 8},
        {"cutoffs": (20, 30), "embed": 8, "shared_projections": "all"},
        {"cutoffs": (20, 30), "embed": 8, "shared_projections": "none"},
    ],
    ids=str,
)
def test_equals_the_products_of_a_traced_segment_with_memory(model):
    config = small_xl(**model)
    T, M = config.data.length, config.model.memory
    network = models.build(config.model.to_dict())
    tokens = jnp.zeros((1, T), jnp.int32)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), tokens))

    def forward(params):
        hidden = network.apply(params, tokens, carried=nn.unbox(network.start(1))).hidden
        return network.apply(params, hidden, method="logits")

    products = traced_products(jax.make_jaxpr(forward)(params).jaxpr)
    parts = forward_flops(config)
    D, NH = config.model.width, config.model.heads * (config.model.head_size or config.model.width // 2)
    of_distances = config.model.layers * (T + M) * D * NH
    # Where softmaxes share a projection, the trace repeats its product for each, and the compiler makes it once.
    sharing = {"all": 3, "tails": 1, "none": 1}[config.model.shared_projections] if config.model.embed else 1
    repeated = T * 8 * D * (sharing - 1)
    zeros = config.model.layers * T * NH  # the column that the relative shift reads for keys of the future
    assert 2 * (products - of_distances - repeated - zeros) == T * sum(parts["full"].values())
    unseen = 3 * config.model.layers * NH * (T - 1) / 2  # future keys of the segment
    assert sum(parts["full"].values()) - sum(parts["causal"].values()) == 2 * unseen


def test_same_length_sees_as_many_keys_as_the_memory_holds():
    parts = forward_flops(small_xl(same_length=True))
    assert parts["full"] == parts["causal"]
    assert parts["full"]["attention scores and values"] == 2 * 3 * 3 * 16 * 12


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


@given(patterns(), st.integers(1, 70))
def test_keys_are_counted_as_the_pattern_sees_them(word, length):
    query, key = np.arange(length)[:, None], np.arange(length)[None]
    seen = [one.sees(query, key) & (key <= query) for one in per_head(parse_pattern(word), 4)]
    assert keys_per_query(word, 4, length, "causal") == pytest.approx(np.mean(seen) * length, rel=1e-12)


def test_a_million_tokens_are_counted_at_once():
    began = time.perf_counter()
    assert keys_per_query("strided_1024", 1, 2**20, "causal") == pytest.approx(1024 + 512, rel=1e-2)
    assert time.perf_counter() - began < 5  # pair by pair, 10^12 of them, it takes half an hour


def test_cifar10_halves_queries_and_keys():
    config = sparse_transformer.get_config("cifar10")
    assert forward_flops(config)["causal"]["attention projections"] == 2 * 128 * 256 * 2 * (64 + 64 + 128 + 128)


def test_both_conventions_charge_a_sparse_layer_what_it_sees():
    assert keys_per_query("local_3", 2, 8, "full") == keys_per_query("local_3", 2, 8, "causal")
    assert keys_per_query("dense", 2, 8, "full") == 8


def test_unknown_kind():
    config = small()
    config.model.kind = "decodr"
    with pytest.raises(UserError, match=r"'decodr' are not known, did you mean 'decoder'\?"):
        flops_per_token(config)


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA L40", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("cpu", None),
    ],
)
def test_peak_by_device_name(kind, peak):
    assert devices.peak_flops(kind, 0.0) == peak
    assert devices.peak_flops(kind, 5e12) == 5e12


def test_measured_ceiling_is_a_plausible_rate():
    """Between a pocket calculator and the fastest device of the table."""
    assert 1e8 < devices.measure_matmul_ceiling("float32", size=256, repeats=5) < max(devices.PEAKS.values())
