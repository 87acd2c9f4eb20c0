"""Masked language modelling (Devlin et al. 2018, section 3.1): some tokens of a text are hidden, and predicted.

Of pairs of segments it is also told whether the second follows the first in the text.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.features import REAL, Feature, by_row, by_token
from input_pipeline.layouts.pairs import LEAST, RawPairs
from input_pipeline.layouts.raw import Raw
from input_pipeline.objectives.draws import ranked, subset, uniform
from input_pipeline.tokenizers.tokenizer import Tokenizer

PLACES, FATE, REPLACEMENT = range(3)  # what is drawn
FRAMING = ("classifier", "separator", "end", "pad")  # what is never predicted


def predictions(lengths: np.ndarray, share: float, most: int) -> np.ndarray:
    """How many tokens of texts of so many are predicted: a share, at least one; halves are rounded to even."""
    return np.minimum(most, np.maximum(1, np.rint(share * lengths))).astype(np.int64)


def words(candidates: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The word, from 0, that each of the `candidates` (bool [n, R]) belongs to; -1 elsewhere. int64 [n, R].

    A word is a candidate that begins one, or is the first, and those after it that do not.
    """
    first = candidates & (np.cumsum(candidates, axis=1) == 1)
    return np.where(candidates, np.cumsum(candidates & (begins | first), axis=1) - 1, -1)


def whole_words(keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Words in random order, each taken if it fits into what is left of `sizes` (int64 [n]): bool [n, R] of tokens."""
    rows, most = np.arange(len(keys)), words.max(initial=-1) + 1
    lengths = np.zeros((len(keys), most + 1), np.int64)
    np.add.at(lengths, (rows[:, None], words), 1)  # those of no word in the last column
    lengths = lengths[:, :most]
    order = np.argsort(ranked(keys, PLACES, lengths > 0), axis=1)
    taken = np.zeros((len(keys), most + 1), bool)
    left = sizes.copy()
    for word in order.T:
        if not left.any():
            break
        size = lengths[rows, word]
        fits = (size > 0) & (size <= left)
        taken[rows, word] = fits
        left -= size * fits
    return taken[rows[:, None], words]


class Masked:
    """Batches of `slots` [B, K], the places of predicted tokens, in order, with their `targets` and `weights` [B, K].

    Of pairs also `types`, 1 for the second segment and what ends it, and `next` [B], 1 where that is a random one, with
    `next_weights` [B].
    """

    layouts = ("pairs", "concat", "packed")  # of one it is the first, with next_sentence, or the others, without
    bare = False
    two_texts = False

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section, self.pairs, self.most = section, section["next_sentence"], section["max_predictions"]
        self.short_pairs, self.passes = section["short_pairs"], section["passes"]
        self.special = ("mask", "classifier", "separator") if self.pairs else ("mask",)
        self.layouts = ("pairs",) if self.pairs else ("concat", "packed")
        self.least = LEAST if self.pairs else 1
        if section["masked"] + section["random"] > 1:
            raise DataError(
                f"objective.masked = {section['masked']} and objective.random = {section['random']} are shares of the "
                "predicted tokens that add up to more than 1; lower one"
            )
        if section["whole_words"] and tokenizer and tokenizer.continues is None:
            raise DataError(
                "objective.whole_words needs to know which ids go on with a word, and this tokenizer does not say; set "
                "it to False, or use a tokenizer of kind wordpiece"
            )
        if tokenizer:
            self.mask, self.vocab_size = tokenizer.special["mask"], tokenizer.vocab_size
            self.framing = np.zeros(tokenizer.vocab_size, bool)
            self.framing[[tokenizer.special[name] for name in FRAMING if name in tokenizer.special]] = True
            self.continues = tokenizer.continues

    def raw_length(self, length: int) -> int:
        return length

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        features = dict.fromkeys(("tokens", "segments", "positions"), by_token(batch_size, length))
        slot = Feature((batch_size, self.most), np.dtype(np.int32), ("batch", None))
        features |= {"slots": slot, "targets": slot, "weights": slot._replace(dtype=REAL)}
        if self.pairs:
            features["types"] = by_token(batch_size, length)
            features |= {"next": by_row(batch_size), "next_weights": by_row(batch_size, REAL)}
        return features

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawPairs, keys: np.ndarray) -> None:
        chosen = self.choose(keys, raw)
        _, places = np.nonzero(chosen)
        batch["tokens"][slots] = self.hide(keys, raw.ids, chosen)
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        there = np.arange(self.most) < chosen.sum(1)[:, None]
        for name, values in (("slots", places), ("targets", raw.ids[chosen]), ("weights", raw.scored[chosen])):
            listed = np.zeros(there.shape, batch[name].dtype)
            listed[there] = values
            batch[name][slots] = listed
        if self.pairs:
            batch["types"][slots], batch["next"][slots] = raw.types, raw.is_random
            batch["next_weights"][slots] = raw.scored.any(1)

    def prompts(self, texts: Sequence[str]) -> NoReturn:
        """Errors: DataError, since every token is predicted from those that follow it too."""
        raise DataError(
            "objective.kind = masked fills in hidden tokens and does not go on with a text; train with causal or spans"
        )

    def choose(self, keys: np.ndarray, raw: Raw | RawPairs) -> np.ndarray:
        """The tokens to be predicted, bool [n, R]: never special ones, which the number of them counts all the same."""
        there = raw.segments > 0
        sizes = predictions(there.sum(1), self.section["share"], self.most)
        candidates = there & ~self.framing[raw.ids]
        if not self.section["whole_words"]:
            return subset(keys, PLACES, candidates, sizes)
        begins = ~self.continues[raw.ids] | (raw.positions == 0)
        return whole_words(keys, words(candidates, begins), sizes)

    def hide(self, keys: np.ndarray, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """`ids` with the `chosen` ones hidden, each by a draw of its own: the mask, a random id, or what it is."""
        fate = uniform(keys, FATE, ids.shape[1])
        random = (uniform(keys, REPLACEMENT, ids.shape[1]) * self.vocab_size).astype(np.int32)
        masked, replaced = self.section["masked"], self.section["masked"] + self.section["random"]
        hidden = np.where(fate < masked, self.mask, np.where(fate < replaced, random, ids))
        return np.where(chosen, hidden, ids)
