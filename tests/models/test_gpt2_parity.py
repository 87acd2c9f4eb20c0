"""The same numbers as Hugging Face's GPT-2 on random weights: logits, loss and every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tables

from configs.common import decoder

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = pytest.mark.oracle

L, D, N, V = 3, 32, 4, 61
SIZES = {"layers": L, "width": D, "heads": N, "ff": 4 * D, "vocab_size": V, "context": 24}


def ours_from_theirs(tensors):
    """Our parameters from GPT-2's, or gradients from gradients."""
    fields = decoder()
    fields.update(SIZES)
    return tables.ours("gpt2", fields.to_dict(), {name: tensor.detach().numpy() for name, tensor in tensors.items()})


def test_logits_loss_and_gradients(small):
    torch.manual_seed(0)
    sizes = {"n_layer": L, "n_embd": D, "n_head": N, "vocab_size": V, "n_positions": 24}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts))
    with torch.no_grad():
        for parameter in theirs.parameters():  # wide enough for attention to be sharp, and biases to count
            parameter.add_(0.2 * torch.randn_like(parameter))
    tokens = np.random.default_rng(0).integers(0, V, (2, 17))
    output = theirs(torch.tensor(tokens), labels=torch.tensor(tokens))
    output.loss.backward()

    model, example = small(**SIZES)
    params = {"params": jax.tree.map(jnp.asarray, ours_from_theirs(dict(theirs.named_parameters())))}
    assert jax.tree.structure(params) == jax.tree.structure(example)

    @jax.jit
    def run(params):
        def loss(params):
            logits = model.apply(params, model.apply(params, tokens).hidden, method="logits")
            each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
            return each.mean(), logits

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, logits), gradient = run(params)
    # Two float32 programs: a few roundings apart
    np.testing.assert_allclose(logits, output.logits.detach().numpy(), atol=5e-5, rtol=1e-5)
    np.testing.assert_allclose(loss, output.loss.item(), rtol=1e-5)
    expected = ours_from_theirs({name: parameter.grad for name, parameter in theirs.named_parameters()})
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale),
        gradient["params"],
        expected,
    )
