"""The same numbers as Hugging Face's XLNet on random weights: two streams, an order, memory, segments; gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tables

import models
from configs.common import two_stream
from models.transformer.memory import Memory

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

L, D, N, F, V, B, T, K, M, REUSE = 3, 26, 13, 37, 41, 3, 11, 4, 7, 5
FIELDS = {"layers": L, "width": D, "heads": N, "ff": F, "vocab_size": V, "context": T, "memory": M, "reuse": REUSE}
FIELDS |= {"dropout": 0.0, "dropout_attention": 0.0, "activation": "gelu_erf", "dtype": "float32"}


def ours_from_theirs(tensors):
    """Our parameters from theirs, or gradients from gradients."""
    fields = two_stream()
    fields.update(FIELDS)
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    return tables.ours("xlnet", fields.to_dict(), arrays)


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    sizes = {"n_layer": L, "d_model": D, "n_head": N, "d_inner": F, "vocab_size": V, "mem_len": M, "reuse_len": REUSE}
    model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes, dropout=0.0))
    with torch.no_grad():
        for parameter in model.parameters():  # wide enough for attention to be sharp, and biases to count
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model.eval()


@pytest.fixture(scope="module")
def given():
    """Rows with an order, in which places are free, functional, or targets; four of these are asked for."""
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.permutation(T) - 2 for _ in range(B)]).clip(-1)
    targets = ranks >= 0
    for row in targets:
        row[rng.choice(np.flatnonzero(row), 2, replace=False)] = False
    slots = np.stack([np.sort(rng.choice(np.flatnonzero(row), K, replace=False)) for row in targets])
    tokens, types = rng.integers(0, V, (B, T)), rng.integers(0, 3, (B, T))
    memory = rng.standard_normal((L, B, M, D)).astype(np.float32)
    return {"tokens": tokens, "types": types, "ranks": ranks, "slots": slots, "targets": targets, "memory": memory}


def build():
    fields = two_stream()
    fields.update(FIELDS)
    return models.build(fields.to_dict())


def asked(model, given):
    own = given["ranks"] + ~given["targets"]
    hidden = (own[:, :, None] <= given["ranks"][:, None]) & (given["ranks"][:, None] >= 0)
    mapping = np.arange(T) == given["slots"][..., None]
    return model(
        torch.tensor(given["tokens"]),
        token_type_ids=torch.tensor(given["types"]),
        perm_mask=torch.tensor(hidden, dtype=torch.float32),
        target_mapping=torch.tensor(mapping, dtype=torch.float32),
        mems=list(torch.tensor(given["memory"].swapaxes(1, 2))),
        labels=torch.tensor(np.take_along_axis(given["tokens"], given["slots"], 1)),
        use_mems=True,
        output_hidden_states=True,
    )


def answered(params, given, **more):
    """(loss, (logits, hidden states, memory)) of ours."""
    model, memory = build(), jnp.asarray(given["memory"])
    carried = {"attention": Memory(memory, jnp.full(memory.shape[1:2], M, jnp.int32))}
    inputs = {name: jnp.asarray(given[name]) for name in ("tokens", "types", "ranks", "slots")}
    output = model.apply(params, **inputs, **more, carried=carried)
    logits = model.apply(params, output.hidden, method="logits")
    targets = jnp.take_along_axis(inputs["tokens"], inputs["slots"], axis=1)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    return loss, (logits, output.hidden, output.carried["attention"].hidden)


def test_two_streams_with_memory(theirs, given):
    theirs.zero_grad()
    output = asked(theirs, given)
    output.loss.backward()
    params = {"params": jax.tree.map(jnp.asarray, ours_from_theirs(dict(theirs.named_parameters())))}
    (loss, (logits, hidden, memory)), gradient = jax.jit(
        jax.value_and_grad(lambda params: answered(params, given), has_aux=True)
    )(params)
    np.testing.assert_allclose(logits, output.logits.detach().numpy(), atol=1e-4, rtol=0)
    np.testing.assert_allclose(hidden, output.hidden_states[-1].detach().numpy(), atol=1e-4, rtol=0)
    np.testing.assert_allclose(loss, output.loss.item(), atol=1e-5, rtol=0)
    remembered = np.stack([layer.numpy() for layer in output.mems]).swapaxes(1, 2)
    np.testing.assert_allclose(memory, remembered, atol=1e-4, rtol=0)
    expected = ours_from_theirs({name: parameter.grad for name, parameter in theirs.named_parameters()})
    compared = jax.tree_util.tree_map_with_path(
        lambda path, a, b: (jax.tree_util.keystr(path), np.linalg.norm(a - b) / np.linalg.norm(b)),
        gradient["params"],
        expected,
    )
    for name, difference in jax.tree.leaves(compared, is_leaf=lambda node: isinstance(node, tuple)):
        assert difference < 1e-3, name


def test_rows_that_are_read_backwards(theirs, given):
    """There the second half of a batch is; here a row says so."""
    two = {name: values[:, :2] if name == "memory" else values[:2] for name, values in given.items()}
    theirs.transformer.bi_data = True
    try:
        with torch.no_grad():
            expected = asked(theirs, two).logits.numpy()
    finally:
        theirs.transformer.bi_data = False
    params = {"params": jax.tree.map(jnp.asarray, ours_from_theirs(dict(theirs.named_parameters())))}
    _, (found, _, _) = answered(params, two, backward=jnp.array([False, True]))
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_the_content_stream_alone(theirs, given):
    """As it is fine-tuned: no order, no memory, padding before the text."""
    params = {"params": jax.tree.map(jnp.asarray, ours_from_theirs(dict(theirs.named_parameters())))}
    there = np.arange(T) >= np.array([[0], [3], [5]])
    with torch.no_grad():
        output = theirs(
            torch.tensor(given["tokens"]),
            token_type_ids=torch.tensor(given["types"]),
            attention_mask=torch.tensor(there, dtype=torch.float32),
        )
    model, inputs = build(), {name: jnp.asarray(given[name]) for name in ("tokens", "types")}
    hidden = model.apply(params, **inputs, segments=jnp.asarray(there, jnp.int32)).hidden
    logits = np.asarray(model.apply(params, hidden, method="logits"))
    np.testing.assert_allclose(logits[there], output.logits.numpy()[there], atol=1e-4, rtol=0)
