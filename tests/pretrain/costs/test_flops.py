"""FLOPs of models against formulas on paper, against counts by hand and against what the slowest path multiplies."""

from collections.abc import Mapping
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from every_recipe import MOSTLY, config_of

import models
from configs.common import base
from models.attention.patterns import parse_pattern
from models.transformer.mlp import GATED
from pretrain.costs.flops import Visible, flops_per_token, forward_flops, keys_per_query
from pretrain.parallel import devices
from pretrain.step.train_spec import TrainSpec


def keys_both_ways(model: Mapping, length: int) -> float:
    """Keys that a query of a row that sees both sides is charged in the mean, over all layers."""
    seen = (Visible(parse_pattern(word), False, 0).keys(length, length, "full") for word in model["attention"])
    return sum(seen) / length * model["layers"] / len(model["attention"])


def of_decoder(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through the decoder, by part."""
    D, N, L, length = model["width"], model["heads"], model["layers"], row["tokens"]
    H, G = model["head_size"] or D // N, model["kv_heads"] or N
    Q = model["query_size"] or H
    matrices = 3 if model["activation"].startswith(GATED) else 2
    patterns = model["attention"]
    seen = "full" if model["bidirectional"] else convention
    keys = sum(keys_per_query(patterns[layer % len(patterns)], N, length, seen) for layer in range(L))
    return {
        "attention projections": L * D * (Q * (N + G) + H * (G + N)),
        "attention scores and values": N * (Q + H) * keys,
        "feed-forward": L * matrices * D * model["ff"],
        "logits": D * model["vocab_size"] * row.get("slots", length) / length,
    }


def of_recurrent(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through Transformer-XL, by part."""
    D, N, L, M = model["width"], model["heads"], model["layers"], model["memory"]
    H, length = model["head_size"] or D // N, row["tokens"]
    again = (M + length) / length  # keys and values are made of the memory too
    keys = M + (length if convention == "full" else (length + 1) / 2)
    if model["same_length"]:
        keys = M
    read, scored, words = _clusters(model)
    by_pair = 3 if model["positions"] == "relative" else 2  # content, position, values; position is in rotary content
    return {
        "embedding projections": D * read,
        "attention projections": L * D * N * H * (2 + 2 * again),
        "attention scores and values": by_pair * L * N * H * keys,
        "feed-forward": L * 2 * D * model["ff"],
        "logits": D * scored + words,
    }


def of_two_stream(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through XLNet, whose second stream has rows for slots, filled to 8."""
    D, N, L, M = model["width"], model["heads"], model["layers"], model["memory"]
    H, T, K = model["head_size"] or D // N, row["tokens"], row["slots"]
    rows = (T + K + -K % 8) / T
    return {
        "attention projections": L * N * H * (D * (2 * rows + 2 * (M + T) / T) + 2 * rows),  # and two segments
        "attention scores and values": rows * L * N * H * 3 * (M + T),  # content, position, values
        "feed-forward": rows * L * 2 * D * model["ff"],
        "logits": K * D * model["vocab_size"] / T,
    }


def _clusters(model: Mapping) -> tuple[int, int, int]:
    """Sums over the clusters of an adaptive vocabulary.

    (widths that are projected at the input, those at the output, width x words).
    """
    edges = (0, *model["cutoffs"], model["vocab_size"])
    first = model["embed"] or model["width"]
    widths = [first // model["divisor"] ** i for i in range(len(edges) - 1)]
    sizes = [stop - start for start, stop in pairwise(edges)]
    sizes[0] += len(model["cutoffs"])  # the first softmax chooses among the other clusters too
    projected = [width if model["project_always"] or width != model["width"] else 0 for width in widths]
    read = scored = sum(projected)
    if model["divisor"] == 1:  # one width: one projection of the input, and of all softmaxes that share it
        read = projected[0]
        scored = read * {"all": 1, "tails": min(2, len(widths)), "none": len(widths)}[model["shared_projections"]]
    return read, scored, sum(width * size for width, size in zip(widths, sizes, strict=True))


def of_encoder(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through BERT, whose first head scores slots, and its second rows."""
    D, L, T, K = model["width"], model["layers"], row["tokens"], row["slots"]
    E = model["embed"] or D
    return {
        "embedding projections": (E != D or model["project_always"]) * E * D,
        "attention projections": L * 4 * D**2,
        "attention scores and values": 2 * D * keys_both_ways(model, T),
        "feed-forward": L * 2 * D * model["ff"],
        "logits": (
            K * (model["head_transform"] * D * E + E * model["vocab_size"]) + model["pair_head"] * (D**2 + 2 * D)
        )
        / T,
    }


def of_replaced_tokens(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """The same through ELECTRA: a generator, whose head scores slots, and a discriminator with the head that it has."""
    D, L, T, K, V = model["width"], model["layers"], row["tokens"], row["slots"], model["vocab_size"]
    E, own = model["embed"] or D, round(model["generator_size"] * D)
    widths = [D, *[own] * bool(own)]
    tokens = D * E + E * V
    head = {"replaced": D**2 + D, "tokens": tokens, "copied": tokens + D}[model["head"]]
    return {
        "embedding projections": sum(width != E and E * width for width in widths),
        "attention projections": L * sum(4 * width**2 for width in widths),
        "attention scores and values": L * sum(2 * width * T for width in widths),
        "feed-forward": L * (2 * D * model["ff"] + 8 * own**2),
        "logits": head + K * (own * E + E * V) * bool(own) / T,
    }


def of_encoder_decoder(model: Mapping, row: Mapping[str, int], convention: str) -> dict[str, float]:
    """Multiply-adds of one token's forward pass through T5, over the tokens of both sides."""
    D, L, NH, S, T = model["width"], model["layers"], model["heads"] * model["head_size"], row["inputs"], row["tokens"]
    matrices = 3 if model["activation"].startswith(GATED) else 2
    keys = T if convention == "full" else (T + 1) / 2
    return {
        "attention projections": L * 4 * D * NH,
        "attention scores and values": 2 * NH * (S * keys_both_ways(model, S) + L * T * keys) / (S + T),
        "feed-forward": L * matrices * D * model["ff"],
        "cross-attention projections": L * 2 * D * NH,
        "cross-attention scores and values": L * 2 * NH * S * T / (S + T),
        "logits": D * model["vocab_size"] * T / (S + T),
    }


def distilled(config, row: Mapping[str, int], alone: Mapping[str, float], convention: str) -> dict[str, float]:
    """The same with a teacher: the student computes its logits at all tokens once more."""
    teacher = config.model.to_dict() | config.distill.model.to_dict() | {"pair_head": False}
    of_teacher = FORMULAS[config.model.kind](teacher, row | {"slots": row["tokens"]}, convention)
    head = FORMULAS[config.model.kind](config.model, row | {"slots": row["tokens"]}, convention)["logits"]
    return {**alone, "logits": alone["logits"] + head, "teacher": sum(of_teacher.values())}


FORMULAS = {
    "decoder": of_decoder,
    "recurrent": of_recurrent,
    "two_stream": of_two_stream,
    "encoder": of_encoder,
    "replaced_tokens": of_replaced_tokens,
    "encoder_decoder": of_encoder_decoder,
}


def forward(config):
    """FLOPs of a token's forward pass, by convention and part."""
    return forward_flops(TrainSpec.build_abstract(config), config.data.length)


def check_formula(config):
    """What is counted is what the formula says, part by part, to the integer."""
    spec = TrainSpec.build_abstract(config)
    row = {name: feature.shape[-1] for name, feature in spec.features(1, config.data.length).items()}
    for convention, parts in forward_flops(spec, config.data.length).items():
        formula = FORMULAS[config.model.kind](config.model, row, convention)
        if config.distill.teacher:
            formula = distilled(config, row, formula, convention)
        assert {part: round(count) for part, count in parts.items()} == {
            part: round(2 * count) for part, count in formula.items() if count
        }


@pytest.mark.parametrize(("name", "variant"), MOSTLY)
def test_every_recipe_and_variant_is_counted_as_on_paper(name, variant):
    check_formula(config_of(name, variant))


def small(**model):
    config = base()
    config.data.length = 16
    config.model.update(
        dict(vocab_size=50, context=16, layers=3, width=24, heads=4, ff=40, dtype="float32", attention_path="reference")
    )
    config.model.update(model)
    return config


def traced_products(jaxpr) -> int:
    """Multiply-adds of all dot_generals in a traced program, loops unrolled; of branches, one for each platform."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += times * traced_products(inner)
        if equation.primitive.name == "cond":
            (alike,) = {traced_products(branch.jaxpr) for branch in equation.params["branches"]}
            total += alike
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = 1
            for axis in contracted:
                depth *= equation.invars[0].aval.shape[axis]
            total += equation.outvars[0].aval.size * depth
    return total


def test_counted_by_hand():
    parts = forward(small())
    assert parts["full"] == {
        "attention projections": 2 * 3 * 4 * 24 * 24,
        "attention scores and values": 2 * 3 * 2 * 24 * 16,
        "feed-forward": 2 * 3 * 2 * 24 * 40,
        "logits": 2 * 24 * 50,
    }
    assert parts["causal"] == parts["full"] | {"attention scores and values": 2 * 3 * 2 * 24 * 8.5}
    training = flops_per_token(TrainSpec.build_abstract(small()), 16)
    assert training == {name: 3 * sum(part.values()) for name, part in parts.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"model.attention_path": "sparse", "model.attention": ("local_4", "strided_4", "fixed_4_1")},
        {"model.attention_path": "chunked", "model.remat": "full", "model.scan": False},
        {"data.layout": "packed", "train.accumulate": 4, "train.batch_size": 8, "model.dropout_attention": 0.5},
        {"train.z_loss": 1e-4, "train.label_smoothing": 0.1, "model.head_bias": True},
    ],
    ids=str,
)
def test_how_a_step_is_computed_changes_nothing(changes):
    config = small()
    config.update_from_flattened_dict(changes)
    check_formula(config)


@pytest.mark.parametrize(
    "model", [{}, {"query_size": 5, "kv_heads": 2, "head_size": 10}, {"activation": "gated_silu"}], ids=str
)
def test_equals_the_products_of_the_traced_forward_pass(model):
    """The reference path multiplies all T x S scores, which is the `full` convention to the integer."""
    config = small(**model)
    decoder = models.build(config.model.to_dict())
    tokens = jnp.zeros((1, config.data.length), jnp.int32)
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), tokens))

    def logits(params):
        return decoder.apply(params, decoder.apply(params, tokens).hidden, method="logits")

    products = traced_products(jax.make_jaxpr(logits)(params).jaxpr)
    check_formula(config)
    assert 2 * products == config.data.length * sum(forward(config)["full"].values())


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("TPU v5 lite", 197e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA L40", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("cpu", None),
    ],
)
def test_peak_by_device_name(kind, peak):
    assert devices.peak_flops(kind, 0.0) == peak
    assert devices.peak_flops(kind, 5e12) == 5e12
