"""Asks Hugging Face's BERT for the numbers that ours must give.

    python tests/models/goldens/make_bert.py [FILE]

writes FILE, by default bert.json beside this script, with any recent transformers and PyTorch. Weights and rows are
drawn by NumPy and everything is computed in float64, so that what a float32 model differs by is its own rounding. The
file holds a digest of each answer.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np

from configs.common import encoder
from pretrain.interop import families

ANSWERS = Path(__file__).with_name("bert.json")
ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}  # ours and theirs
SIZES = {  # the model's fields, as configs.common.encoder has them; primes where they can be
    "vocab_size": 61,
    "context": 17,
    "types": 2,
    "layers": 2,
    "width": 15,
    "heads": 3,
    "ff": 29,
    "norm_epsilon": 1e-12,
}
RATE, DECAY, EPSILON = 0.01, 0.1, 1e-6


def table():
    """The table of names on the model's parameters."""
    section = encoder()
    section.update(SIZES)
    return families.weight_map(families.FAMILIES["bert"], section.to_dict())


def weights(spread=0.3):
    """Parameters {path: array}; wide: near 0 attention is uniform and hides mistakes."""

    def draw(path, shape):
        middle = 1.0 if path.endswith("scale") else 0.0
        noise = np.random.default_rng(zlib.crc32(path.encode())).standard_normal(shape)
        return (middle + spread * noise).astype(np.float32)

    return {path: draw(path, leaf.shape) for path, leaf in table().leaves.items()}


def rows(fields):
    """Three rows of pairs: the features of a batch, with `targets` where `masked` is, and `next`."""
    rng, lengths, second = np.random.default_rng(0), np.array([13, 9, 5]), np.array([6, 5, 2])
    place = np.arange(lengths.max())[None]
    real = place < lengths[:, None]
    tokens, targets = rng.integers(0, fields["vocab_size"], (2, *real.shape))
    masked = real & (rng.random(real.shape) < 0.4)
    return {
        "tokens": np.where(real, tokens, 0),
        "types": np.where(real & (place >= second[:, None]), 1, 0),
        "segments": real.astype(np.int32),
        "targets": targets,
        "masked": masked,
        "next": np.array([0, 1, 1]),
    }


def ask(activation):
    """{what: array} of Hugging Face's model: hidden states after every layer, logits, losses, gradients, a step."""
    import torch
    import transformers

    batch, rates = rows(SIZES), dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {"vocab_size": "vocab_size", "context": "max_position_embeddings", "types": "type_vocab_size"}
    sizes |= {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}
    sizes |= {"ff": "intermediate_size", "norm_epsilon": "layer_norm_eps"}
    config = transformers.BertConfig(
        **{name: SIZES[own] for own, name in sizes.items()}, **rates, hidden_act=ACTIVATIONS[activation]
    )
    model = transformers.BertForPreTraining(config).double()
    names, drawn = table(), weights()
    given = dict(names.tensors(drawn.__getitem__))
    parameters = dict(model.named_parameters())
    assert given.keys() == parameters.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.tensor(np.ascontiguousarray(given[name])))

    def run():
        return model(
            torch.tensor(batch["tokens"]),
            attention_mask=torch.tensor(batch["segments"]),
            token_type_ids=torch.tensor(batch["types"]),
            labels=torch.tensor(np.where(batch["masked"], batch["targets"], -100)),
            next_sentence_label=torch.tensor(batch["next"]),
            output_hidden_states=True,
        )

    output = run()
    output.loss.backward()
    real = batch["segments"] != 0
    found = {f"hidden {layer}": x.detach().numpy()[real] for layer, x in enumerate(output.hidden_states) if layer}
    found["logits"] = output.prediction_logits.detach().numpy()[real]
    found["pair logits"] = output.seq_relationship_logits.detach().numpy()
    found["loss"] = output.loss.detach().numpy()
    gradients = names.arrays(lambda name: parameters[name].grad.numpy())
    found |= {f"gradient of {path}": array.make() for path, array in gradients.items()}
    torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPSILON, weight_decay=DECAY).step()
    found["next loss"] = run().loss.detach().numpy()
    return found


def digest(x):
    """Five numbers that stand for an array: its length, and the cosines of its angles to four drawn directions."""
    x = np.asarray(x, np.float64).reshape(-1)
    length = np.linalg.norm(x)
    directions = np.random.default_rng(x.size).standard_normal((4, x.size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return [float(length), *(directions @ x / max(length, 1e-300)).tolist()]


def main():
    answers = {name: {what: digest(x) for what, x in ask(name).items()} for name in ACTIVATIONS}
    Path(*sys.argv[1:2] or [ANSWERS]).write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
