"""Live parity with Hugging Face's T5: random weights of odd shapes, packed and padded, and greedy text."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tables
from flax import linen as nn

import models
from configs.common import encoder_decoder
from pretrain.decoding.sampling import generate

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = pytest.mark.oracle

L, D, N, H, F, V, BUCKETS, FARTHEST = 2, 24, 3, 10, 40, 61, 8, 20
VERSIONS = {"v1.0": ("relu", True), "v1.1": ("gated_gelu_tanh", False)}
FIRST, SECOND = (19, 7), (23, 12)  # inputs and targets of two examples


def theirs(version):
    gated = version == "v1.1"
    sizes = {"d_model": D, "d_kv": H, "d_ff": F, "num_layers": L, "num_heads": N, "vocab_size": V}
    sizes |= {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": FARTHEST}
    sizes |= {"feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": not gated}
    torch.manual_seed(0)
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ids, dropout_rate=0.0))
    if gated:  # the class ties its head whatever the config says, but for the scaling; the checkpoints have their own
        model.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn(V, D))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # so that attention is sharp, and norms' gains count
            parameter.add_((0.5 if "bias" in name else 0.1) * torch.randn_like(parameter))
    return model.eval()


def section(version):
    activation, tied_head = VERSIONS[version]
    fields = encoder_decoder()
    fields.update(layers=L, width=D, heads=N, head_size=H, ff=F, vocab_size=V, context=64, dtype="float32")
    fields.update(buckets=BUCKETS, max_distance=FARTHEST, activation=activation, tied_head=tied_head, dropout=0.0)
    return fields.to_dict()


def ours(version):
    return models.build(section(version))


def ours_from_theirs(tensors, version):
    """Our parameters from theirs, or gradients from gradients."""
    return tables.ours("t5", section(version), {name: tensor.detach().numpy() for name, tensor in tensors.items()})


def examples():
    """Two examples: (inputs, targets) each."""
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(2, V, length) for length in one) for one in (FIRST, SECOND)]


def apart():
    """The examples as they read them: a row each, padded."""
    rows = examples()
    inputs, targets = np.zeros((2, 25), int), np.full((2, 14), -100)
    for i, (source, target) in enumerate(rows):
        inputs[i, : len(source)], targets[i, : len(target)] = source, target
    return {name: torch.tensor(x) for name, x in (("input_ids", inputs), ("labels", targets))}, inputs > 0


def packed():
    """The same in one row, behind one another, padded; and where each token is of their [2, ...]."""
    row = {name: np.zeros((1, size), np.int32) for name, size in (("inputs", 47), ("input_segments", 47))}
    row |= {name: np.zeros((1, 23), np.int32) for name in ("tokens", "targets", "segments")}
    places, ends = {"inputs": [], "tokens": []}, [0, 0]
    for number, (source, target) in enumerate(examples()):
        at = [slice(end, end + len(one)) for end, one in zip(ends, (source, target), strict=True)]
        row["inputs"][0, at[0]], row["input_segments"][0, at[0]] = source, number + 1
        row["targets"][0, at[1]], row["segments"][0, at[1]] = target, number + 1
        row["tokens"][0, at[1]] = np.append(0, target[:-1])  # shifted right, from the start token
        ends = [one.stop for one in at]
        for name, one in zip(places, (source, target), strict=True):
            places[name] += [(number, i) for i in range(len(one))]
    return row, {name: tuple(np.array(pairs).T) for name, pairs in places.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_hidden_states_logits_loss_gradients_and_an_update(version):
    """In float64 there, float32 here."""
    reference, model = theirs(version).double(), ours(version)
    batch, there = apart()
    output = reference(**batch, attention_mask=torch.tensor(there), output_hidden_states=True)
    output.loss.backward()
    params = jax.tree.map(jnp.float32, ours_from_theirs(dict(reference.named_parameters()), version))
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    expected = ours_from_theirs(gradients, version)
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example())["params"], jax.random.key(0)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    row, places = packed()
    targets, scored = row.pop("targets"), row["segments"] > 0

    def loss(params):
        hidden = model.apply({"params": params}, **row).hidden
        logits = model.apply({"params": params}, hidden, method="logits")
        each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return jnp.sum(each * scored) / scored.sum(), (hidden, logits)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (ours_loss, (hidden, logits)), gradient = run(params)
    encoded = model.apply({"params": params}, row["inputs"], row["input_segments"], method="encode")
    for mine, whole, name in (
        (encoded, output.encoder_last_hidden_state, "inputs"),
        (hidden, output.decoder_hidden_states[-1], "tokens"),
        (logits, output.logits, "tokens"),
    ):
        whole = whole.detach().numpy()[places[name]]
        np.testing.assert_allclose(mine[0, : len(whole)], whole, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(ours_loss, output.loss.item(), rtol=1e-5)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max()),
        gradient,
        expected,
    )
    step = torch.optim.AdamW(reference.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)
    step.step()
    adamw = optax.adamw(1e-2, eps=1e-4, weight_decay=0.1)
    updates, _ = adamw.update(gradient, adamw.init(params), params)
    (next_loss, _), _ = run(optax.apply_updates(params, updates))
    theirs_next = reference(**batch, attention_mask=torch.tensor(there)).loss.item()
    assert abs(theirs_next - output.loss.item()) > 0.1
    np.testing.assert_allclose(next_loss, theirs_next, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_greedy_text(version):
    reference = theirs(version)
    batch, there = apart()
    expected = reference.generate(
        batch["input_ids"], attention_mask=torch.tensor(there), do_sample=False, num_beams=1, max_new_tokens=17
    )
    params = jax.tree.map(jnp.asarray, ours_from_theirs(dict(reference.named_parameters()), version))
    source = {"inputs": batch["input_ids"].numpy().astype(np.int32), "input_segments": there.astype(np.int32)}
    options = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "beams": 1, "length_penalty": 0.0, "seed": 0}
    start = [np.array([0], np.int32)] * 2
    texts = generate(*(ours(version), params, start), max_tokens=17, end_id=1, vocabulary=V, source=source, **options)
    for (ids, _), row in zip(texts, expected.numpy()[:, 1:], strict=True):
        np.testing.assert_array_equal(ids, row[: len(ids)])
        assert len(ids) == 17 or ids[-1] == 1
