"""The original Transformer against PyTorch's own module: norms behind the residual, on random weights of odd sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs import transformer

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

V, D, N, F, L, READ, WRITTEN = 37, 24, 3, 29, 2, 11, 7


def ours():
    """Its fields; PyTorch's module has biases everywhere, and a norm behind each stack."""
    section = transformer.get_config("base").model
    section.update(vocab_size=V, context=16, layers=L, width=D, heads=N, head_size=D // N, ff=F, dtype="float32")
    section.update(attention_bias=True, final_norm=True, norm_epsilon=1e-5)
    return models.build(section.to_dict())


def theirs():
    torch.manual_seed(0)
    module = torch.nn.Transformer(D, N, L, L, F, dropout=0.0, batch_first=True).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def params_of(module, table):
    """Our tree of their tensors."""
    given = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}

    def attention(name):
        parts = zip(("query", "key", "value"), np.split(given[f"{name}.in_proj_weight"], 3), strict=True)
        biases = np.split(given[f"{name}.in_proj_bias"], 3)
        split = {
            part: {"kernel": weight.T.reshape(D, N, -1), "bias": bias.reshape(N, -1)}
            for (part, weight), bias in zip(parts, biases, strict=True)
        }
        out = {"kernel": given[f"{name}.out_proj.weight"].T.reshape(N, -1, D), "bias": given[f"{name}.out_proj.bias"]}
        return split | {"output": out}

    def linear(name):
        return {"kernel": given[f"{name}.weight"].T, "bias": given[f"{name}.bias"]}

    def norm(name):
        return {"scale": given[f"{name}.weight"], "bias": given[f"{name}.bias"]}

    def layer(side, number):
        name, cross = f"{side}.layers.{number}", side == "decoder"
        found = {"attention": attention(f"{name}.self_attn"), "attention_norm": norm(f"{name}.norm1")}
        if cross:
            found |= {"cross_attention": attention(f"{name}.multihead_attn")}
            found |= {"cross_attention_norm": norm(f"{name}.norm2")}
        found["feed_forward"] = {"in": linear(f"{name}.linear1"), "out": linear(f"{name}.linear2")}
        return found | {"feed_forward_norm": norm(f"{name}.norm{2 + cross}")}

    sides = {}
    for side in ("encoder", "decoder"):
        layers = [layer(side, number) for number in range(L)]
        sides[side] = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
        sides[f"{side}_norm"] = norm(f"{side}.norm")
    return sides | {"tokens": table}


def test_hidden_states_and_logits():
    model, module = ours(), theirs()
    draw = np.random.default_rng(0)
    table = (0.3 * draw.standard_normal((V, D))).astype(np.float32)
    inputs, tokens = draw.integers(0, V, (2, READ)), draw.integers(0, V, (2, WRITTEN))
    there = np.arange(READ)[None] < np.array([[READ], [6]])
    params = params_of(module, table)
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example())["params"], jax.random.key(0)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)

    def embedded(ids):
        place, pair = np.arange(ids.shape[1])[:, None], np.arange(0, D, 2)[None]
        angle = place / 10_000 ** (pair / D)
        added = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(ids.shape[1], D)
        return torch.tensor(table[ids] * D**0.5 + added, dtype=torch.float32)

    causal = torch.nn.Transformer.generate_square_subsequent_mask(WRITTEN)
    gone = torch.tensor(~there)
    with torch.no_grad():
        expected = module(
            embedded(inputs),
            embedded(tokens),
            tgt_mask=causal,
            src_key_padding_mask=gone,
            memory_key_padding_mask=gone,
        ).numpy()
    given = {"inputs": inputs, "input_segments": there.astype(np.int32)}
    hidden = model.apply({"params": params}, tokens, **given).hidden
    np.testing.assert_allclose(hidden, expected, atol=1e-4)
    logits = model.apply({"params": params}, hidden, method="logits")
    np.testing.assert_allclose(logits, expected @ table.T, atol=1e-4)
