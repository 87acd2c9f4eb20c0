"""LoRA and adapters in every kind of model: counts by formula, the base at the start, and merged matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

import models
from configs.common import MODELS
from pretrain.interop.families import merge_lora, without_lora

R, A, D, N, H, F, L = 3, 5, 16, 2, 8, 24, 2
SIZES = {"vocab_size": 19, "context": 12, "layers": L, "width": D, "heads": N, "ff": F, "dtype": "float32"}
KINDS = {
    "decoder": {"kv_heads": 1, "attention_path": "xla", "placement": "pre"},
    "encoder": {"groups": 1, "attention_path": "xla"},
    "recurrent": {"memory": 4},
    "two_stream": {"memory": 4, "reuse": 4},
    "encoder_decoder": {"head_size": H, "activation": "gated_gelu_tanh", "attention_path": "xla", "buckets": 8},
    "replaced_tokens": {"generator_size": 0.0, "attention_path": "xla"},
}
# Sets of parameters of layers; inputs + outputs of query, key, value and output, of in (and gate) and out.
STACKS = dict.fromkeys(KINDS, L) | {"encoder": 1, "encoder_decoder": 3 * L}  # a decoder's layer attends twice
PLAIN, NARROW = 4 * (D + N * H), 2 * (D + N * H) + 2 * (D + H)


def build(kind, **changes):
    section = MODELS[kind]().to_dict() | SIZES | KINDS[kind] | changes
    model = models.build(section)
    return section, model, nn.unbox(model.init(jax.random.key(0), **model.example())["params"])


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def inputs_of(model):
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 19, (2, 8)), jnp.int32)
    return {"tokens": tokens} | ({"inputs": tokens[:, :6]} if "inputs" in model.inputs else {})


def hidden(model, params, train=False):
    rngs = {"dropout": jax.random.key(1)} if train else {}
    return model.apply({"params": params}, **inputs_of(model), train=train, rngs=rngs).hidden


@pytest.mark.parametrize("kind", KINDS)
def test_lora_counts_and_start(kind):
    gated = kind == "encoder_decoder"
    targets = ("query", "key", "value", "output", "in", "out") + ("gate",) * gated
    _, base, params = build(kind)
    _, model, adapted = build(kind, lora=R, lora_targets=targets)
    attention = NARROW if kind == "decoder" else PLAIN
    branches = (2 * L if gated else STACKS[kind]) * (2 + gated) * (D + F)
    assert count(adapted) - count(params) == R * (STACKS[kind] * attention + branches)
    flat = flatten_dict(adapted, sep="/")
    assert {name for name in flat if "/lora_" not in name} == flatten_dict(params, sep="/").keys()
    for name, leaf in flatten_dict(params, sep="/").items():  # the seed's parameters are the base's
        np.testing.assert_array_equal(leaf, flat[name], err_msg=name)
    for train in (False, True):
        np.testing.assert_array_equal(hidden(model, adapted, train), hidden(base, params, train))


@pytest.mark.parametrize("kind", KINDS)
def test_lora_merges(kind):
    """The plain model with merged matrices is the adapted one."""
    targets = ("query", "key", "value", "output", "in", "out") + ("gate",) * (kind == "encoder_decoder")
    section, model, params = build(kind, lora=R, lora_alpha=7.0, lora_targets=targets)
    draw, flat = np.random.default_rng(1), flatten_dict(params, sep="/")
    flat = {
        name: jnp.float32(draw.normal(size=leaf.shape) * 0.3) if "/lora_" in name else leaf
        for name, leaf in flat.items()
    }
    read = merge_lora(section, lambda path: np.asarray(flat[path]))
    plain = models.build(without_lora(section))
    merged = unflatten_dict({name: read(name) for name in flat if "/lora_" not in name}, sep="/")
    adapted = hidden(model, unflatten_dict(flat, sep="/"))
    np.testing.assert_allclose(hidden(plain, merged), adapted, atol=1e-5)
    assert np.abs(adapted - hidden(model, params)).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_adapter_counts_and_start(kind):
    _, base, params = build(kind)
    _, model, adapted = build(kind, adapter=A)
    branches = {"encoder": 2, "encoder_decoder": 5 * L}.get(kind, 2 * L)
    assert count(adapted) - count(params) == branches * (2 * D * A + D + A)  # section 2.1 of the paper
    # Nearly the identity: W_up W_down x has a deviation of some sqrt(D A) 1e-4 of x.
    difference = np.abs(hidden(model, adapted) - hidden(base, params)).max()
    assert 0 < difference < 0.02
