"""Pseudo-likelihood of masked models (Salazar et al. 2020): each scored token is masked alone, in a row of its own."""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from input_pipeline.examples.batches import bucket_lengths
from models.layers.logits import head_logits
from pretrain.decoding.forward import decoding_model
from pretrain.losses.mlm import Masked
from pretrain.scoring.likelihood import CHUNK, TOKENS, Row, Scored, batch_rows, by_group, put_rows, token_scores


class PseudoLikelihood:
    """Scores rows as `Likelihood` does; rows are texts without special tokens, which `frame` puts around them.

    within_word: mask the later tokens of the scored token's word too, so that its beginning is not given away (Kauf and
    Ivanova 2023).
    """

    def __init__(self, model, params, layout, frame, tokenizer, tokens: int = TOKENS, within_word: bool = False):
        self.model, self.params, self.layout = decoding_model(model), params, layout
        self.frame, self.tokens, self.within_word = frame, tokens, within_word
        self.mask, self.continues = tokenizer.special["mask"], tokenizer.continues
        self.lengths = bucket_lengths((), model.context)

    def __call__(self, groups: Sequence[Sequence[Row]]) -> list[list[Scored]]:
        """The scores of all rows, in order."""
        rows = [self.cut(row) for group in groups for row in group]
        # (row, place of the scored token), by length, so that batches have little padding.
        asked = [(number, place) for number, row in enumerate(rows) for place in range(row.start, len(row.ids))]
        asked.sort(key=lambda one: len(rows[one[0]].ids), reverse=True)
        log_probs = [np.zeros(len(row.ids) - row.start, np.float32) for row in rows]
        greedy = [np.zeros(len(row.ids) - row.start, bool) for row in rows]
        done = 0
        while done < len(asked):
            longest = len(rows[asked[done][0]].ids) + self.frame.size(1)
            length = next(size for size in self.lengths if size >= longest)
            some = asked[done : done + batch_rows(self.layout, self.tokens, length)]
            found = self._score_batch(rows, some, length)
            for (number, place), one_log_probs, one_greedy in zip(some, *found, strict=True):
                log_probs[number][place - rows[number].start] = one_log_probs
                greedy[number][place - rows[number].start] = one_greedy
            done += len(some)
        return by_group(groups, list(map(Scored, log_probs, greedy)))

    def cut(self, row: Row) -> Row:
        """The row without its first ids, where it has no room between its special tokens."""
        ids = row.ids[-(self.model.context - self.frame.size(1)) :]
        return row._replace(ids=ids, start=max(0, row.start - (len(row.ids) - len(ids))))

    def _score_batch(self, rows: Sequence[Row], some: Sequence[tuple[int, int]], length: int):
        """(log-probabilities, greedy) [n] of the scored tokens `some`."""
        size = batch_rows(self.layout, self.tokens, length)
        tokens, types = np.zeros((2, size, length), np.int32)
        segments = np.zeros((size, length), np.int32)
        segments[:, 0] = 1  # rows of padding read one token, so that no softmax is over nothing
        places, targets = np.zeros((2, -(-size // CHUNK) * CHUNK), np.int32)
        for slot, (number, place) in enumerate(some):
            ids = rows[number].ids
            used = self.frame.fill([ids], tokens[slot], types[slot])
            segments[slot, :used] = 1
            end = place + 1
            if self.within_word and self.continues is not None:
                while end < len(ids) and self.continues[ids[end]]:
                    end += 1
            before = self.frame.before
            tokens[slot, before + place : before + end] = self.mask
            places[slot], targets[slot] = slot * length + before + place, ids[place]
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
        inputs = {"tokens": tokens, "types": types, "segments": segments, "positions": positions}
        inputs = {name: inputs[name] for name in self.model.inputs if name in inputs}
        with self.layout.scope():
            rows = put_rows(self.layout, inputs)
            log_probs, greedy = _score(self.model, self.params, rows, places, targets, len(some))
        return np.asarray(log_probs)[: len(some)], np.asarray(greedy)[: len(some)]


def predicts_masked(model, tokenizer) -> bool:
    """Whether a model has a head for masked tokens, and its tokenizer the mask; of ELECTRA the generator alone has."""
    has_head = model.has_token_head and (not model.has_discriminator or bool(model.generator_size))
    return has_head and Masked.serves(model) and "mask" in tokenizer.special


def masked_logits(model, params, inputs):
    """(hidden states [B, T, D], a function from states [n, D] to logits [n, V]) of the masked model's head."""
    # ELECTRA's masked model is its generator.
    call, head = ("generate", "generator_inputs") if model.has_discriminator else (None, "head_inputs")
    tokens, others = inputs["tokens"], {name: array for name, array in inputs.items() if name != "tokens"}
    hidden = model.apply(params, tokens, method=call, **others).hidden
    return hidden, lambda states: head_logits(*model.apply(params, states, method=head))


@partial(jax.jit, static_argnames="model")
def _score(model, params, inputs, places, targets, count):
    """(log-probabilities, greedy) [n] of the first `count` `targets` at flat `places` of the rows."""
    hidden, logits = masked_logits(model, params, inputs)
    return token_scores(logits, hidden, places, targets, count)
