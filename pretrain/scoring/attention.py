"""Attention probabilities of texts, by layer and head, from the reference backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from models.attention.backend import REFERENCE, Backend, attention_weights
from models.attention.patterns import parse_pattern, per_head
from pretrain.errors import UserError
from pretrain.scoring.reader import Reader, inputs_of

KINDS = ("self", "encoder", "decoder", "cross")


@dataclass(frozen=True)
class Attention:
    """Attention of the tokens of a text.

    weights: float32 [L, N, T, S] by kind; a query's sum to 1. Kinds are "self", or of encoder-decoders "encoder",
        "decoder" and "cross", from the decoder's tokens to the encoder's.
    tokens: the text of each token by stack: "self", or "encoder" and "decoder". cut: whether the text was too long.
    """

    weights: Mapping[str, np.ndarray]
    tokens: Mapping[str, list[str]]
    cut: bool = field(default=False, compare=False)

    def sides(self, kind: str) -> tuple[list[str], list[str]]:
        """(tokens that attend, tokens that they attend to)."""
        query, key = ("decoder", "encoder") if kind == "cross" else (kind, kind)
        return self.tokens[query], self.tokens[key]

    def entropy(self, kind: str) -> np.ndarray:
        """Nats [L, N], a mean over the queries: 0 for heads that attend to one token."""
        weights = self.weights[kind].astype(np.float64)
        return -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=-1).mean(axis=-1)

    def distance(self, kind: str) -> np.ndarray:
        """Tokens [L, N] from query to key, weighted, a mean over the queries (Vig and Belinkov 2019, section 4.4)."""
        weights = self.weights[kind].astype(np.float64)
        T, S = weights.shape[2:]
        apart = np.abs(np.arange(T)[:, None] - np.arange(S)[None])
        return np.sum(weights * apart, axis=-1).mean(axis=-1)


def attention(
    reader: Reader, params, texts: Sequence[str], targets: Sequence[str] | None, objective, length: int = 0
) -> list[Attention]:
    """The attention in each of `texts`. `params` are whole on one device; other arguments as of `Run.attention`."""
    if targets is not None and not reader.has_two_stacks:
        raise UserError("targets: the model has no decoder beside its encoder. Leave them out.")
    found = []
    for number, (text, row) in enumerate(zip(texts, reader.rows(texts, length, spans=True), strict=True)):
        pieces = [text[start:end] for start, end in row.spans]
        first, second = (row.ids, pieces), (np.roll(row.ids, 1), pieces[-1:] + pieces[:-1])
        types, cut = row.types, row.cut
        if targets is not None:
            begun, source, _ = objective.prompts([text])
            answer = [*objective.target_front, *reader.tokenizer.encode(targets[number])]
            limit = length or reader.model.context
            read, written = source["inputs"][0], np.concatenate([begun[0], answer]).astype(np.int32)
            cut = max(len(read), len(written)) > limit
            # Without the characters of each token: a prompt may have sentinels in the place of gaps.
            first, second = ((ids[:limit], [""] * len(ids[:limit])) for ids in (read, written))
            types = np.zeros_like(first[0])
        sides = {"encoder": first, "decoder": second} if reader.has_two_stacks else {"self": first}
        names = {side: _names(reader.tokenizer, *one) for side, one in sides.items()}
        if reader.has_two_stacks:
            inputs = {"inputs": first[0][None], "tokens": second[0][None]}
        else:
            batch = {"tokens": first[0], "types": types, "segments": np.ones_like(types)}
            batch["positions"] = np.arange(len(types), dtype=np.int32)
            inputs = inputs_of(reader.model, {name: values[None] for name, values in batch.items()})
        weights = record_weights(reader.model, params, inputs)
        weights = {kind: np.asarray(weights[kind]) for kind in KINDS if kind in weights}
        found.append(Attention(weights, names, cut))
    return found


@partial(jax.jit, static_argnames="model")
def record_weights(model, params, inputs: Mapping) -> dict[str, jax.Array]:
    """Probabilities [L, N, T, S] of one row by kind."""
    calls = []

    def record(query, key, value, mask, bias, dropout, scale):
        calls.append(attention_weights(query, key, mask, bias, scale)[0])
        return REFERENCE.run(query, key, value, mask, bias, dropout, scale)

    # Unrolled, so that what one layer records is not inside of a loop.
    recording = Backend("recording", record, lambda request: None)
    model.clone(attention_path=recording, scan=False, remat="none").apply({"params": params}, **inputs)
    layers, calls = [], iter(calls)
    for first in calls:
        groups = [first]
        # Heads of different patterns are called apart.
        while sum(map(len, groups)) < model.heads:
            groups.append(next(calls))
        if len(groups) > 1:
            patterns = per_head(parse_pattern(model.attention[len(layers) % len(model.attention)]), model.heads)
            order = [n for one in dict.fromkeys(patterns) for n, other in enumerate(patterns) if other == one]
            layers.append(jnp.concatenate(groups)[np.argsort(order)])
        else:
            layers.append(first)
    if "inputs" not in model.inputs:
        return {"self": jnp.stack(layers)}
    # The encoder's layers come first; then each of the decoder attends to itself and to the encoder.
    encoder, decoder = layers[: model.layers], layers[model.layers :]
    return {
        name: jnp.stack(one)
        for name, one in zip(("encoder", "decoder", "cross"), (encoder, decoder[::2], decoder[1::2]), strict=True)
    }


def _names(tokenizer, ids: np.ndarray, pieces: Sequence[str]) -> list[str]:
    """Names of tokens: its characters, the id's text, the name of a special id, or its number."""
    special = {number: f"<{name}>" for name, number in tokenizer.special.items()}
    return [
        piece or special.get(int(one)) or tokenizer.decode([one]) or f"<{one}>"
        for one, piece in zip(ids, pieces, strict=True)
    ]
