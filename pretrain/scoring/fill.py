"""Gaps in a text: the likeliest pieces of masked models, and what encoder-decoders write."""

import math
import re
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.decoding.forward import decoding_model
from pretrain.decoding.sampling import generate
from pretrain.errors import UserError
from pretrain.scoring.likelihood import put_rows
from pretrain.scoring.pseudo import masked_logits, predicts_masked

MASKS = re.compile(r"\[MASK\]|<mask>")  # either spelling serves every model
SENTINEL = re.compile(r"<extra_id_\d+>")
BEAMS = 4  # of encoder-decoders


class Filled(NamedTuple):
    """A candidate for a gap, and its probability."""

    text: str
    probability: float


def fill(run, text: str, top: int = 5) -> list[list[Filled]]:
    """For each gap of a text what it may hold, the likeliest first.

    Gaps are [MASK] or <mask>, or T5's <extra_id_0>, <extra_id_1>. A masked model gives the `top` likeliest pieces of
    each gap, with all gaps masked. An encoder-decoder writes one text for each gap, by beam search, with the
    probability of all it writes; BART writes the whole text. Errors: UserError for texts without gaps and other
    models, ModelError for too long texts, DataError for gaps that T5 does not know.
    """
    if not (MASKS.search(text) or SENTINEL.search(text)):
        raise UserError(f"--text='{text}': has no gap. Write [MASK], or <extra_id_0> for T5.")
    if "inputs" in run.model.inputs and run.model.has_token_head:
        return fill_by_writing(run, text)
    if not predicts_masked(run.model, run.tokenizer):
        raise UserError("--workdir: fills no gaps. Name a masked model, T5 or BART.")
    return fill_masks(run, text, top)


def fill_masks(run, text: str, top: int) -> list[list[Filled]]:
    """The likeliest pieces of each mask."""
    tokenizer, model = run.tokenizer, decoding_model(run.model)
    *parts, last = MASKS.split(text)
    mask = [tokenizer.special["mask"]]
    # A space before a gap belongs to the missing word, as tokenizers attach it.
    ids = [part for one in parts for part in (tokenizer.encode(one.rstrip()), mask)]
    ids = np.concatenate([*ids, tokenizer.encode(last)]).astype(np.int32)
    length = len(ids) + run.frame.size(1)
    rows = run.spec.layout.filled(1)
    tokens, types = np.zeros((2, rows, length), np.int32)
    for row in range(rows):
        run.frame.fill([ids], tokens[row], types[row])
    places = np.flatnonzero(tokens[0] == mask[0]).astype(np.int32)
    inputs = {"tokens": tokens, "types": types, "segments": np.ones_like(tokens)}
    inputs = {name: inputs[name] for name in model.inputs if name in inputs}
    with run.spec.scope():
        found = np.asarray(_probabilities(model, run.variables, put_rows(run.spec.layout, inputs), places))
    found = found[:, : tokenizer.vocab_size]  # padded tables have rows without a token
    best = np.argsort(-found, axis=1, kind="stable")[:, :top]
    return [
        [Filled(tokenizer.decode([i]).strip() or f"<{i}>", float(row[i])) for i in some]
        for row, some in zip(found, best, strict=True)
    ]


@partial(jax.jit, static_argnames="model")
def _probabilities(model, params, inputs, places):
    """Probabilities [n, V] at `places` of the first row, on every device."""
    hidden, logits = masked_logits(model, params, inputs)
    return jax.lax.with_sharding_constraint(jax.nn.softmax(logits(hidden[0][places])), PartitionSpec())


def fill_by_writing(run, text: str) -> list[list[Filled]]:
    """Texts that an encoder-decoder writes for the gaps."""
    tokenizer = run.tokenizer
    if tokenizer.sentinels and not SENTINEL.search(text):
        number = iter(range(len(tokenizer.sentinels)))
        text = MASKS.sub(lambda match: f"<extra_id_{next(number)}>", text)
    begun, source, _ = run.prompts([MASKS.sub("<mask>", text)])
    options = {"end_id": tokenizer.end_id, "vocabulary": tokenizer.vocab_size, "source": source}
    ((ids, nats),) = generate(run.model, run.local_params, begun, temperature=0, beams=BEAMS, **options)
    probability = math.exp(nats)
    if not SENTINEL.search(text):
        return [[Filled(tokenizer.decode(ids).strip(), probability)]]
    parts: list[list[int]] = []
    for one in ids.tolist():
        if one in tokenizer.sentinels:
            parts.append([])
        elif one != tokenizer.end_id and parts:
            parts[-1].append(one)
    gaps = len(SENTINEL.findall(text))
    written = [tokenizer.decode(part).strip() for part in parts[:gaps]]
    return [[Filled(one, probability)] for one in written + [""] * (gaps - len(written))]
