"""Masked language modelling (Devlin et al. 2018, section 3.1): some tokens are hidden and predicted.

Rows of sentence pairs also carry the label of next-sentence prediction (BERT) or sentence order (ALBERT).
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_row, by_token
from input_pipeline.corruption import rng
from input_pipeline.corruption.base import Objective, fill_slots, slot_features
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw
from input_pipeline.packing.nsp_pairs import LEAST
from input_pipeline.tokenizers.base import Tokenizer

PLACES, FATE, REPLACEMENT, NUMBER, NGRAM = range(5)  # independent streams of random numbers
FRAMING = ("classifier", "separator", "end", "pad")  # special ids that candidates of kind "text" exclude


class MaskedLM(Objective):
    """Features `slots` [B, K], the places of predicted tokens in order, their `targets` and `weights` [B, K].

    K = min(`max_predictions`, T). Rows of pairs add `types` [B, T], 1 in the second segment and its separator, and
    `next` [B], 1 if the second segment does not follow the first, with `next_weights` [B].
    """

    kind = "masked"
    # With and without next_sentence; an instance supports one of the two groups.
    layouts = ("pairs", "concat", "packed", "sentences")
    choices: ClassVar = {
        "rounding": ("nearest", "random", "coins"),
        "candidates": ("text", "any", "after_first"),
        "replacements": ("any", "text"),
    }

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section = section
        self.has_pairs, self.swapped_pairs = section["next_sentence"], section["swapped_pairs"]
        self.short_pairs, self.passes = section["short_pairs"], section["passes"]
        self.max_predictions = section["max_predictions"]
        self.special = ("mask", "classifier", "separator") if self.has_pairs else ("mask",)
        self.layouts = ("pairs",) if self.has_pairs else ("concat", "packed", "sentences")
        self.min_raw_length = LEAST if self.has_pairs else 1
        self.needs_token_counts = section["smoothing"] > 0
        self.needs_words = "whole_words=True" if section["whole_words"] else ""
        words, coins, pairs = section["whole_words"], section["rounding"] == "coins", self.has_pairs
        for name, fits, remedy in (
            ("ngrams", words or section["ngrams"] == 1, "objective.whole_words=True"),
            ("swapped_pairs", pairs or not self.swapped_pairs, "objective.next_sentence=True"),
            ("languages", not (pairs and section["languages"]), "objective.next_sentence=False"),
            ("smoothing", not (section["smoothing"] and (words or coins)), "whole_words=False and no rounding=coins"),
        ):
            if not fits:
                raise DataError(f"objective.{name}={section[name]} needs {remedy}. Change one of them.")
        if not tokenizer:
            return
        self.mask_id, self.vocab_size = tokenizer.special["mask"], tokenizer.vocab_size
        self.framing = np.zeros(tokenizer.vocab_size, bool)
        self.framing[[tokenizer.special[name] for name in FRAMING if name in tokenizer.special]] = True
        self.is_text = np.ones(tokenizer.vocab_size, bool)
        self.is_text[[*tokenizer.special.values(), *tokenizer.sentinels]] = False
        self.text_ids = np.flatnonzero(self.is_text)

    def set_token_counts(self, counts: np.ndarray) -> None:
        """Takes the count of each id in the training text, int64 [V] (Sanh et al. 2019, the released code).

        Tokens are chosen in proportion to count**-smoothing, special ids never.
        """
        self.preference = np.where(self.is_text, np.maximum(counts, 1.0) ** -self.section["smoothing"], 0.0)

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        features = dict.fromkeys(("tokens", "segments", "positions"), by_token(batch_size, length))
        features |= slot_features(batch_size, min(self.max_predictions, length))
        if self.section["languages"]:
            features["languages"] = by_token(batch_size, length)
        if self.has_pairs:
            features["types"] = by_token(batch_size, length)
            features |= {"next": by_row(batch_size), "next_weights": by_row(batch_size, REAL)}
        return features

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        if self.section["masks"]:
            # Static masking: the key is one of `masks` that belong to the row's content, in every epoch.
            keys = rng.content_keys(keys, raw.ids, self.section["masks"])
        chosen = self.choose(keys, raw)
        batch["tokens"][slots] = self.hide(keys, raw.ids, chosen)
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        fill_slots(batch, slots, chosen, raw.ids, raw.scored)
        if self.section["languages"]:
            batch["languages"][slots] = raw.languages
        if self.has_pairs:
            batch["types"][slots], batch["next"][slots] = raw.types, raw.is_random
            batch["next_weights"][slots] = raw.scored.any(1)

    def choose(self, keys: np.ndarray, raw: Raw) -> np.ndarray:
        """Places of the predicted tokens, bool [n, R]."""
        inside, section = raw.segments > 0, self.section
        candidates = inside
        if section["candidates"] == "text":
            candidates = inside & ~self.framing[raw.ids]
        elif section["candidates"] == "after_first":
            candidates = inside & (np.diff(raw.segments, axis=1, prepend=0) == 0)
        sizes = np.minimum(self.max_predictions, self.count(keys, inside.sum(1), candidates)).astype(np.int64)
        if self.needs_token_counts:
            return choose_weighted(keys, candidates * self.preference[raw.ids], sizes)
        if not section["whole_words"]:
            return rng.subset(keys, PLACES, candidates, sizes)
        words = number_words(candidates, self.word_starts(raw.ids) | (raw.positions == 0))
        return choose_ngrams(keys, words, sizes, section["ngrams"])

    def count(self, keys: np.ndarray, lengths: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Predictions of rows of `lengths` tokens, of which some are `candidates` (bool [n, R]): [n]."""
        share, rounding = self.section["share"], self.section["rounding"]
        if rounding == "coins":
            # One coin per candidate (Lample and Conneau 2019). Only the number is drawn here: given it, all choices of
            # tokens are equally likely.
            heads = (rng.uniform(keys, NUMBER, candidates.shape[1]) < share) & candidates
            return np.count_nonzero(heads, axis=1)
        # As in the releases, the share is of all tokens of the row, special ones included.
        if rounding == "random":  # up or down, so that its mean is exact (Liu et al. 2019, the released code)
            return np.floor(share * lengths + rng.uniform(keys, NUMBER, 1)[:, 0])
        return np.maximum(1, np.rint(share * lengths))  # halves to even

    def count_predicted(self, batch: Mapping[str, np.ndarray]) -> tuple[float, float, int]:
        lengths = np.count_nonzero(batch["segments"], axis=1)
        least = np.minimum(lengths, self.section["rounding"] == "nearest")  # which predicts at least one
        asked = np.minimum(self.max_predictions, np.maximum(least, self.section["share"] * lengths))
        return np.count_nonzero(batch["weights"]), asked.sum(), lengths.sum()

    def hide(self, keys: np.ndarray, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """`ids` [n, R] with the `chosen` ones replaced, each on its own: by the mask, a random id, or itself."""
        fate = rng.uniform(keys, FATE, ids.shape[1])
        number = len(self.text_ids) if self.section["replacements"] == "text" else self.vocab_size
        random = (rng.uniform(keys, REPLACEMENT, ids.shape[1]) * number).astype(np.int32)
        if self.section["replacements"] == "text":
            random = self.text_ids[random].astype(np.int32)
        # One draw decides between the three: BERT's 0.8 mask, 0.1 random and 0.1 kept are stretches of [0, 1).
        masked, replaced = self.section["masked"], self.section["masked"] + self.section["random"]
        hidden = np.where(fate < masked, self.mask_id, np.where(fate < replaced, random, ids))
        return np.where(chosen, hidden, ids)


def choose_weighted(keys: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`sizes` places of each row, drawn without replacement in proportion to `weights` (float [n, R]): bool [n, R].

    Places of weight 0 are never drawn.
    """
    # Exponential races: the place with rate w arrives first with probability w / sum(w), and so on without replacement
    # (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
    positive = weights > 0
    times = -np.log1p(-rng.uniform(keys, PLACES, weights.shape[1])) / np.where(positive, weights, 1.0)
    order = np.argsort(np.where(positive, times, np.inf), axis=1, kind="stable")
    sizes = np.minimum(sizes, np.count_nonzero(positive, axis=1))
    chosen = np.zeros(weights.shape, bool)
    np.put_along_axis(chosen, order, np.arange(weights.shape[1]) < sizes[:, None], axis=1)
    return chosen


def number_words(candidates: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The word, from 0, of each of the `candidates` (bool [n, R]), -1 elsewhere: int64 [n, R].

    A word is a candidate that begins one (or is the first) and the candidates after it that do not.
    """
    # The first candidate begins a word even if its id continues one from the row before, as in BERT's release.
    first = candidates & (np.cumsum(candidates, axis=1) == 1)
    return np.where(candidates, np.cumsum(candidates & (begins | first), axis=1) - 1, -1)


def choose_ngrams(keys: np.ndarray, words: np.ndarray, sizes: np.ndarray, longest: int) -> np.ndarray:
    """N-grams of words from random words on, each chosen if it fits: bool [n, R] (Lan et al. 2019, section 4.1).

    words: int64 [n, R], the word of each token, -1 for none. n has probability proportional to 1/n, up to `longest`.
    An n-gram that does not fit into what is left of `sizes` tokens loses words until it does; one that overlaps a
    chosen word is skipped (the released code). With `longest` 1 this is whole-word masking of BERT's released code.
    """
    rows, most = np.arange(len(keys)), words.max(initial=-1) + 1
    lengths = np.zeros((len(keys), most + 1), np.int64)  # tokens of each word
    np.add.at(lengths, (rows[:, None], words), 1)  # index -1 collects tokens of no word
    lengths = lengths[:, :most]
    order = np.argsort(rng.sort_keys(keys, PLACES, lengths > 0), axis=1)
    cumulative = np.cumsum(1 / np.arange(1, longest + 1))
    drawn = 1 + np.searchsorted(cumulative / cumulative[-1], rng.uniform(keys, NGRAM, most), "right")  # n at each word
    # before[r, w]: tokens of row r before word w. Words beyond the last one have no tokens, so that n-grams at the end
    # of the text may index past it.
    before = np.pad(np.pad(np.cumsum(lengths, axis=1), ((0, 0), (1, 0))), ((0, 0), (0, longest)), mode="edge")
    chosen = np.zeros((len(keys), most + longest + 1), bool)  # the last column is word -1
    left = sizes.copy()
    # All rows advance together, one word each: as many steps as words in the longest row, not as tokens in a batch.
    for word in order.T:
        if not left.any():
            break
        exists = lengths[rows, word] > 0
        begin, number = before[rows, word], np.zeros(len(keys), np.int64)
        # The longest n that was drawn or is shorter, and whose tokens fit.
        for n in range(1, longest + 1):
            number = np.where(exists & (n <= drawn[rows, word]) & (before[rows, word + n] - begin <= left), n, number)
        # An n-gram is taken only if none of its words is chosen yet.
        free = number > 0
        for n in range(longest):
            free &= (n >= number) | ~chosen[rows, word + n]
        for n in range(longest):
            chosen[rows, word + n] |= free & (n < number)
        left -= (before[rows, word + number] - begin) * free
    chosen[:, -1] = False
    return chosen[rows[:, None], words]
