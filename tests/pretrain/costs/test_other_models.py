"""FLOPs of a model and an objective that nothing ships: read off what they do, with no word about them in the code."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from flax import linen as nn

from input_pipeline.batch_spec import Feature, by_row, by_token
from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.layers.init import normal
from models.layers.linear import Linear
from models.layers.norm import Norm
from models.transformer.block import Block
from models.transformer.context import Context
from models.transformer.mlp import FeedForward
from models.transformer.model import Output
from models.transformer.multihead import SelfAttention
from pretrain.costs.flops import forward_flops
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import parameters_of, unboxed

D, N, H, F, V, S, T, K = 12, 3, 4, 20, 50, 24, 16, 5
TYPES = {"dtype": "float32", "param_dtype": "float32"}
SHARED = {"width": D, "std": 0.02, "initializer": normal, **TYPES}


class CrossAttention(nn.Module):
    """Looks at all of another side's output."""

    source: jax.Array
    attention_path: str

    @nn.compact
    def __call__(self, x, signals, carried):
        make = functools.partial(Linear, {"embed": D}, {"heads": N, "head_size": H}, bias=False, std=0.02, **TYPES)
        query, key, value = make(name="query")(x), make(name="key")(self.source), make(name="value")(self.source)
        y = attend(query, key, value, Mask(), backend=self.attention_path)
        return Linear({"heads": N, "head_size": H}, {"embed": D}, False, 0.02, **TYPES, name="output")(y), carried


class TwoSides(nn.Module):
    """An encoder that looks both ways, nearby, and a decoder that looks at it; both project narrow words first."""

    attention_path: str = "auto"

    @nn.compact
    def __call__(self, inputs, tokens, carried=None, row=None, train=False):
        table = self.param("table", normal(0.02, "vocab", "narrow"), (V, 6))
        widen = Linear({"narrow": 6}, {"embed": D}, bias=False, std=0.02, **TYPES, name="widen")
        source = self.side(widen(table[inputs]), Mask(), "local_3")
        cross = functools.partial(CrossAttention, source, self.attention_path)
        return Output(self.side(widen(table[tokens]), Mask(causal=True), "dense", cross_attention=cross), carried)

    def side(self, x, mask, word, **more):
        attention = functools.partial(
            SelfAttention,
            **SHARED,
            **dict(heads=N, kv_heads=N, head_size=H, query_size=H, pattern=parse_pattern(word), rotary=False),
            **dict(
                query_std=0.02,
                scale=None,
                bias=True,
                dropout=0.0,
                out_std=0.02,
                fused_glorot=False,
                backend=self.attention_path,
            ),
        )
        ff = functools.partial(FeedForward, **SHARED, ff=F, activation="relu", bias=True, out_std=0.02, dropout=0.0)
        norm = functools.partial(Norm, "rms", 1e-6, "float32", "float32")
        block = Block({"attention": attention, **more, "feed_forward": ff}, norm, "pre", 0.0)
        return block(x, Context(mask), {})[0]

    def scores(self, hidden):
        return Linear({"embed": D}, {"vocab": V}, bias=False, std=0.02, **TYPES, name="scores")(hidden)

    def example(self):
        return {"inputs": jnp.ones((1, S), jnp.int32), "tokens": jnp.ones((1, T), jnp.int32)}

    def init_memory(self, lanes):
        return {}


class AtSlots:
    """Scores a few of the tokens."""

    def score(self, model, batch, carried, key):
        hidden, carried = model(batch, carried, key)
        picked = jnp.take_along_axis(hidden, batch["slots"][..., None], axis=1)
        with jax.named_scope("a scope of its own"):
            logits = picked @ jnp.zeros((D, V))
        return {"loss": logits.sum()}, carried


def features(rows, length):
    slots = Feature((rows, K), by_token(rows, length).dtype, ("batch", None))
    names = {"inputs": S, "tokens": length, "segments": length}
    return {name: by_token(rows, size) for name, size in names.items()} | {"slots": slots, "row": by_row(rows)}


def test_two_sides_and_an_objective_that_scores_slots():
    model = TwoSides()
    # `forward_flops` needs these parts of a spec alone.
    parts = {"parameters": parameters_of(model), "inputs": ("inputs", "tokens"), "frozen_parameters": {}}
    parts |= {"features": features, "objective": AtSlots()}
    spec = SimpleNamespace(model=model, param_shapes=unboxed(parts["parameters"]), **parts)
    spec.batch_shapes = functools.partial(TrainSpec.batch_shapes, spec)
    found = forward_flops(spec, T)
    near = sum(min(i + 3, S) - max(i - 2, 0) for i in range(S))
    projections = 4 * D * N * H
    expected = {
        "embedding projections": (S + T) * 6 * D,
        "attention projections": (S + T) * projections,
        "attention scores and values": 2 * N * H * (near + T * T),
        "feed-forward": (S + T) * 2 * D * F,
        "cross-attention projections": (T + S) * projections // 2,
        "cross-attention scores and values": 2 * N * H * T * S,
        "logits": K * D * V,
    }
    assert {part: round(count * T / 2) for part, count in found["full"].items()} == expected
    expected["attention scores and values"] = 2 * N * H * (near + T * (T + 1) // 2)
    assert {part: round(count * T / 2) for part, count in found["causal"].items()} == expected
