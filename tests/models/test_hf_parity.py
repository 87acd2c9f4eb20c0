"""Live parity with Hugging Face on random weights of odd sizes: states, logits, loss, every gradient, an AdamW step.

Theirs computes in float64, ours in float32. `tests/pretrain/interop` has answers of more families, without gradients.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.traverse_util import unflatten_dict

import models
from configs import common
from models.transformer.cache import Memory
from pretrain.decoding.sampling import generate
from pretrain.interop import families

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

DRAW = functools.partial(np.random.default_rng, 0)
NLL = optax.softmax_cross_entropy_with_integer_labels


@pytest.fixture(autouse=True)
def torch_seed():
    torch.manual_seed(0)


@dataclasses.dataclass
class Case:
    """One family: our model section, their model, and the same question to both."""

    family: str
    section: dict
    module: "torch.nn.Module"
    ask: Callable  # module -> {"loss": tensor, name: tensor}
    answer: Callable  # (model, params) -> (loss, {name: array})
    dtype: str = "float64"
    rounding: float = 3e-6  # of gradients, as a share of the largest

    def __post_init__(self):
        self.module = self.module.to(getattr(torch, self.dtype)).eval()
        with torch.no_grad():  # wide enough for attention to be sharp, and for biases and gains to count
            for parameter in self.module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))

    def tree(self, tensors) -> dict:
        """Our parameters from theirs, or gradients from gradients."""
        table = families.weight_map(families.FAMILIES[self.family], self.section)
        arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        assert table.shapes() == {name: array.shape for name, array in arrays.items()}
        sources = table.arrays(arrays.__getitem__)
        return unflatten_dict({path: jnp.float32(source.make()) for path, source in sources.items()}, sep="/")


def section(kind, **sizes):
    fields = {**getattr(common, kind)().to_dict(), "dtype": "float32", **sizes}
    return fields | {name: 0.0 for name in fields if name.startswith("dropout")}


def gpt2():
    fields = section("decoder", layers=3, width=20, heads=4, ff=36, vocab_size=61, context=24)
    sizes = {"n_layer": 3, "n_embd": 20, "n_head": 4, "n_inner": 36, "vocab_size": 61, "n_positions": 24}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = DRAW().integers(0, 61, (2, 17))

    def ask(module):
        output = module(torch.tensor(tokens), labels=torch.tensor(tokens))
        return {"loss": output.loss, "logits": output.logits}

    def answer(model, params):
        logits = model.apply(params, model.apply(params, tokens).hidden, method="logits")
        return NLL(logits[:, :-1], tokens[:, 1:]).mean(), {"logits": logits}

    return Case("gpt2", fields, transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates)), ask, answer)


def bert(activation="gelu_erf", name="gelu"):
    sizes = {"vocab_size": 61, "context": 17, "types": 2, "layers": 2, "width": 15, "heads": 3, "ff": 29}
    words = ("vocab_size", "max_position_embeddings", "type_vocab_size", "num_hidden_layers", "hidden_size")
    words += ("num_attention_heads", "intermediate_size")
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(**dict(zip(words, sizes.values(), strict=True)), **rates, hidden_act=name)
    real = np.arange(13)[None] < np.array([[13], [9], [5]])
    tokens, targets = DRAW().integers(0, 61, (2, *real.shape))
    types, masked = real & (np.arange(13) >= np.array([[6], [5], [2]])), real & (DRAW().random(real.shape) < 0.4)
    follows = np.array([0, 1, 1])

    def ask(module):
        output = module(
            torch.tensor(tokens),
            attention_mask=torch.tensor(real.astype(int)),
            token_type_ids=torch.tensor(types.astype(int)),
            labels=torch.tensor(np.where(masked, targets, -100)),
            next_sentence_label=torch.tensor(follows),
            output_hidden_states=True,
        )
        rows = {"hidden": output.hidden_states[-1][real], "logits": output.prediction_logits[real]}
        return {"loss": output.loss, "pairs": output.seq_relationship_logits, **rows}

    def answer(model, params):
        hidden = model.apply(params, tokens, types=types.astype(int), segments=real.astype(int)).hidden
        logits = model.apply(params, hidden, method="logits")
        pairs = model.apply(params, hidden, method="pair_logits")
        loss = (NLL(logits, targets) * masked).sum() / masked.sum() + NLL(pairs, follows).mean()
        return loss, {"hidden": hidden[real], "logits": logits[real], "pairs": pairs}

    fields = section("encoder", **sizes, activation=activation)
    return Case("bert", fields, transformers.BertForPreTraining(config), ask, answer)


def t5(gated=False):
    """Theirs reads two examples as padded rows, ours as one packed row."""
    sizes = {"d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_heads": 3, "vocab_size": 61}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.0}
    sizes |= {"feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": not gated}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    module = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ids))
    if gated:  # the class ties its head whatever the config says, but for the scaling; the checkpoints have their own
        module.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn(61, 24))
    fields = section("encoder_decoder", layers=2, width=24, heads=3, head_size=10, ff=40, vocab_size=61, context=64)
    fields |= {"buckets": 8, "max_distance": 20, "tied_head": not gated}
    fields |= {"activation": "gated_gelu_tanh" if gated else "relu"}
    inputs, targets = t5_rows()
    real, scored = inputs > 0, targets > 0
    shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]  # from the start token
    numbers = np.arange(1, 3)[:, None]  # segment of each example
    row = {"inputs": inputs[real], "tokens": shifted[scored]}
    row |= {"input_segments": (real * numbers)[real], "segments": (scored * numbers)[scored]}
    row = {name: np.pad(array, (0, 3))[None] for name, array in row.items()}
    length = scored.sum()

    def ask(module):
        labels = torch.tensor(np.where(scored, targets, -100))
        output = module(
            torch.tensor(inputs), attention_mask=torch.tensor(real), labels=labels, output_hidden_states=True
        )
        rows = {"hidden": output.decoder_hidden_states[-1][scored], "logits": output.logits[scored]}
        return {"loss": output.loss, "encoded": output.encoder_last_hidden_state[real], **rows}

    def answer(model, params):
        encoded = model.apply(params, row["inputs"], row["input_segments"], method="encode")
        hidden = model.apply(params, **row).hidden
        logits = model.apply(params, hidden, method="logits")[0, :length]
        found = {"hidden": hidden[0, :length], "logits": logits, "encoded": encoded[0, : real.sum()]}
        return NLL(logits, targets[scored]).mean(), found

    # Its scores are not divided by sqrt(H), so their softmax is the sharpest.
    return Case("t5", fields, module, ask, answer, rounding=1e-5)


def t5_rows():
    """Inputs and targets of two examples, padded with 0."""
    inputs, targets = DRAW().integers(2, 61, (2, 25)), DRAW().integers(2, 61, (2, 14))
    return inputs * (np.arange(25) < [[19], [23]]), targets * (np.arange(14) < [[7], [12]])


def xlnet(backward=False):
    """Two streams, an order, memory and segments; `backward`: the second row is read in reverse."""
    L, B, T, K, M, D = 3, 2, 11, 4, 7, 26
    sizes = {"n_layer": L, "d_model": D, "n_head": 13, "d_inner": 37, "vocab_size": 41, "mem_len": M, "reuse_len": 5}
    module = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes, dropout=0.0, bi_data=backward))
    fields = section("two_stream", layers=L, width=D, heads=13, ff=37, vocab_size=41, context=T, memory=M, reuse=5)
    fields |= {"activation": "gelu_erf"}
    rng = DRAW()
    ranks = np.stack([rng.permutation(T) - 2 for _ in range(B)]).clip(-1)
    targets = ranks >= 0
    for row in targets:  # two places of the order are seen, but not asked for
        row[rng.choice(np.flatnonzero(row), 2, replace=False)] = False
    slots = np.stack([np.sort(rng.choice(np.flatnonzero(row), K, replace=False)) for row in targets])
    tokens, types = rng.integers(0, 41, (B, T)), rng.integers(0, 3, (B, T))
    memory, labels = rng.standard_normal((L, B, M, D)).astype(np.float32), np.take_along_axis(tokens, slots, 1)
    hides = ((ranks + ~targets)[:, :, None] <= ranks[:, None]) & (ranks[:, None] >= 0)

    def ask(module):
        output = module(
            torch.tensor(tokens),
            token_type_ids=torch.tensor(types),
            perm_mask=torch.tensor(hides, dtype=torch.float32),
            target_mapping=torch.tensor(np.arange(T) == slots[..., None], dtype=torch.float32),
            mems=list(torch.tensor(memory.swapaxes(1, 2))),
            labels=torch.tensor(labels),
            use_mems=True,
            output_hidden_states=True,
        )
        found = {"loss": output.loss, "logits": output.logits, "hidden": output.hidden_states[-1]}
        return found | {"memory": torch.stack(output.mems).swapaxes(1, 2)}

    def answer(model, params):
        inputs = {"types": types, "ranks": jnp.int32(ranks), "slots": slots}
        if backward:
            inputs["backward"] = jnp.array([False, True])
        carried = {"attention": Memory(memory, jnp.full(B, M, jnp.int32))}
        output = model.apply(params, tokens, **inputs, carried=carried)
        logits = model.apply(params, output.hidden, method="logits")
        found = {"logits": logits, "hidden": output.hidden, "memory": output.carried["attention"].hidden}
        return NLL(logits, labels).mean(), found

    # Their distances are float32 whatever the weights are.
    return Case("xlnet", fields, module, ask, answer, "float32")


CASES = {
    "gpt2": gpt2,
    "bert": bert,
    "bert, gelu_tanh": functools.partial(bert, "gelu_tanh", "gelu_new"),
    "t5": t5,
    "t5 v1.1": functools.partial(t5, gated=True),
    "xlnet": xlnet,
    "xlnet, backward": functools.partial(xlnet, backward=True),
}
SLOW = ("bert, gelu_tanh", "t5", "xlnet, backward")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_model_equals_hugging_faces(name):
    case = CASES[name]()
    roundings = 1 if case.dtype == "float64" else 5
    model, theirs = models.build(case.section), dict(case.module.named_parameters())
    params = case.tree(theirs)
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example())["params"], jax.random.key(0)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)

    @jax.jit
    def run(params):
        return jax.value_and_grad(lambda params: case.answer(model, {"params": params}), has_aux=True)(params)

    (loss, found), gradient = run(params)
    expected = case.ask(case.module)
    expected["loss"].backward()
    for what, array in found.items():  # of order 1 to 10
        np.testing.assert_allclose(
            array, expected[what].detach().numpy(), rtol=1e-5, atol=max(2e-5, roundings * 1e-5), err_msg=what
        )
    np.testing.assert_allclose(loss, expected["loss"].item(), rtol=1e-5)
    gradients = case.tree({name: parameter.grad for name, parameter in theirs.items()})
    # Some gradients (the key's bias) are 0 but for rounding, so the scale is that of the whole tree.
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=roundings * case.rounding * scale),
        gradient,
        gradients,
    )

    torch.optim.AdamW(case.module.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1).step()
    adamw = optax.adamw(1e-2, eps=1e-4, weight_decay=0.1)
    updates, _ = adamw.update(gradient, adamw.init(params), params)
    (next_loss, _), _ = run(optax.apply_updates(params, updates))
    np.testing.assert_allclose(next_loss, case.ask(case.module)["loss"].item(), rtol=1e-5)
    assert abs(next_loss - loss) > 0.1


def test_xlnet_content_stream_equals_hugging_faces():
    """As it is fine-tuned: no order, no memory, padding before the text."""
    case = xlnet()
    params = {"params": case.tree(dict(case.module.named_parameters()))}
    model, (tokens, types) = models.build(case.section), DRAW().integers(0, 3, (2, 3, 11))
    real = np.arange(11) >= np.array([[0], [3], [5]])
    with torch.no_grad():
        mask = torch.tensor(real, dtype=torch.float32)
        expected = case.module(torch.tensor(tokens), token_type_ids=torch.tensor(types), attention_mask=mask).logits
    hidden = model.apply(params, tokens, types=types, segments=real.astype(int)).hidden
    logits = np.asarray(model.apply(params, hidden, method="logits"))
    np.testing.assert_allclose(logits[real], expected.numpy()[real], rtol=1e-5, atol=1e-4)


def test_t5_greedy_text_equals_hugging_faces():
    case, (inputs, _) = t5(gated=True), t5_rows()
    mask = inputs > 0
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": 17}
    expected = case.module.generate(torch.tensor(inputs), attention_mask=torch.tensor(mask), **options)
    params = case.tree(dict(case.module.named_parameters()))
    source = {"inputs": inputs.astype(np.int32), "input_segments": mask.astype(np.int32)}
    options = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "beams": 1, "length_penalty": 0.0, "seed": 0}
    start = [np.array([0], np.int32)] * 2
    own = models.build(case.section), params, start
    texts = generate(*own, max_tokens=17, end_id=1, vocabulary=61, source=source, **options)
    for (ids, _), row in zip(texts, expected.numpy()[:, 1:], strict=True):
        np.testing.assert_array_equal(ids, row[: len(ids)])
        assert len(ids) == 17 or ids[-1] == 1
