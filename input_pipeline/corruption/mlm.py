"""Masked language modelling (Devlin et al. 2018, section 3.1): some tokens of a text are hidden, and predicted.

Of pairs of segments it is also told whether the second follows the first in the text.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_row, by_token
from input_pipeline.corruption import mask_selection, rng
from input_pipeline.corruption.base import Objective
from input_pipeline.errors import DataError
from input_pipeline.packing.nsp_pairs import FRAME, LEAST, RawPairs
from input_pipeline.packing.raw import Raw
from input_pipeline.tokenizers.base import Tokenizer

FRAMING = ("classifier", "separator", "end", "pad")  # what is never predicted, where only text is
CANDIDATES = ("text", "any", "after_first")
REPLACEMENTS = ("any", "text")


class Masked(Objective):
    """Batches of `slots` [B, K], the places of predicted tokens, in order, with their `targets` and `weights` [B, K].

    K is `max_predictions`, or the row's length where that is less.
    Of pairs also `types`, 1 for the second segment and what ends it, and `next` [B], 1 where that does not follow the
    first, with `next_weights` [B].
    """

    layouts = ("pairs", "concat", "packed", "sentences")  # of one the first, with next_sentence, or others, without

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section, self.pairs, self.most = section, section["next_sentence"], section["max_predictions"]
        self.short_pairs, self.passes, self.swapped_pairs = (
            section[n] for n in ("short_pairs", "passes", "swapped_pairs")
        )
        self.special = ("mask", "classifier", "separator") if self.pairs else ("mask",)
        self.layouts = ("pairs",) if self.pairs else ("concat", "packed", "sentences")
        self.least = LEAST if self.pairs else 1
        if section["masked"] + section["random"] > 1:
            raise DataError(
                f"objective.masked = {section['masked']} and objective.random = {section['random']} are shares of the "
                "predicted tokens that add up to more than 1; lower one"
            )
        choices = ("rounding", mask_selection.ROUNDING), ("candidates", CANDIDATES), ("replacements", REPLACEMENTS)
        for name, known in choices:
            if section[name] not in known:
                raise DataError(f"objective.{name} is '{section[name]}'; choose one of: {', '.join(known)}")
        if section["ngrams"] > 1 and not section["whole_words"]:
            raise DataError(
                f"objective.ngrams = {section['ngrams']} are of whole words; set objective.whole_words to True, or "
                "objective.ngrams to 1"
            )
        if self.swapped_pairs and not self.pairs:
            raise DataError(
                "objective.swapped_pairs = True says what pairs are, and objective.next_sentence = False has none; set "
                "the one to False or the other to True"
            )
        if section["languages"] and self.pairs:
            raise DataError(
                "objective.languages = True says of which language rows of one text are, and objective.next_sentence = "
                "True makes pairs; set one of them to False"
            )
        if section["smoothing"] and (section["whole_words"] or section["rounding"] == "coins"):
            raise DataError(
                f"objective.smoothing = {section['smoothing']} weighs tokens one by one; set it to 0, or "
                "objective.whole_words to False and objective.rounding to nearest or random"
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
            apart = np.zeros(tokenizer.vocab_size, bool)
            apart[[*tokenizer.special.values(), *tokenizer.sentinels]] = True
            self.is_text, self.text = ~apart, np.flatnonzero(~apart)

    def check(self, length: int) -> None:
        """Raises DataError where a run of words is longer than a row."""
        room = length - FRAME if self.pairs else length
        if self.section["ngrams"] > room:
            raise DataError(
                f"objective.ngrams = {self.section['ngrams']} words are more than a row of {length} tokens has room "
                f"for, {room}; lower it to at most that, or raise the row's length"
            )

    @property
    def counted(self) -> bool:
        """Whether rarer tokens are predicted more often than others (Sanh et al. 2019, in the released code)."""
        return self.section["smoothing"] > 0

    def weigh(self, counts: np.ndarray) -> None:
        """Takes how often each id is in the text, int64 [V]. What stands for no text is never predicted."""
        self.preference = np.where(self.is_text, np.maximum(counts, 1.0) ** -self.section["smoothing"], 0.0)

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        features = dict.fromkeys(("tokens", "segments", "positions"), by_token(batch_size, length))
        slot = Feature((batch_size, min(self.most, length)), np.dtype(np.int32), ("batch", None))
        features |= {"slots": slot, "targets": slot, "weights": slot._replace(dtype=REAL)}
        if self.section["languages"]:
            features["languages"] = by_token(batch_size, length)
        if self.pairs:
            features["types"] = by_token(batch_size, length)
            features |= {"next": by_row(batch_size), "next_weights": by_row(batch_size, REAL)}
        return features

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawPairs, keys: np.ndarray) -> None:
        if self.section["masks"]:
            keys = rng.of_content(keys, raw.ids, self.section["masks"])
        chosen = self.choose(keys, raw)
        _, places = np.nonzero(chosen)
        batch["tokens"][slots] = self.hide(keys, raw.ids, chosen)
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        there = np.arange(batch["slots"].shape[1]) < chosen.sum(1)[:, None]
        for name, values in (("slots", places), ("targets", raw.ids[chosen]), ("weights", raw.scored[chosen])):
            listed = np.zeros(there.shape, batch[name].dtype)
            listed[there] = values
            batch[name][slots] = listed
        if self.section["languages"]:
            batch["languages"][slots] = raw.languages
        if self.pairs:
            batch["types"][slots], batch["next"][slots] = raw.types, raw.is_random
            batch["next_weights"][slots] = raw.scored.any(1)

    def prompts(self, texts: Sequence[str]) -> NoReturn:
        """Errors: DataError, since every token is predicted from those that follow it too."""
        raise DataError(
            "objective.kind = masked fills in hidden tokens and does not go on with a text; train with one that "
            "writes, such as causal"
        )

    def choose(self, keys: np.ndarray, raw: Raw | RawPairs) -> np.ndarray:
        """The tokens to be predicted, bool [n, R]. Their number counts special ones too, where no coins are tossed."""
        there, section = raw.segments > 0, self.section
        candidates, bounds = there, (section["share"], self.most)
        if section["candidates"] == "text":
            candidates = there & ~self.framing[raw.ids]
        elif section["candidates"] == "after_first":
            candidates = there & (np.diff(raw.segments, axis=1, prepend=0) == 0)
        if section["rounding"] == "coins":
            sizes = mask_selection.tossed_predictions(keys, candidates, *bounds)
        elif section["rounding"] == "random":
            sizes = mask_selection.drawn_predictions(keys, there.sum(1), *bounds)
        else:
            sizes = mask_selection.predictions(there.sum(1), *bounds)
        if self.counted:
            return mask_selection.weighted(keys, candidates * self.preference[raw.ids], sizes)
        if not section["whole_words"]:
            return rng.subset(keys, mask_selection.PLACES, candidates, sizes)
        words = mask_selection.words(candidates, ~self.continues[raw.ids] | (raw.positions == 0))
        if section["ngrams"] > 1:
            return mask_selection.ngrams(keys, words, sizes, section["ngrams"])
        return mask_selection.whole_words(keys, words, sizes)

    def hide(self, keys: np.ndarray, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """`ids` with the `chosen` ones hidden, each by a draw of its own: the mask, a random id, or what it is."""
        fate = rng.uniform(keys, mask_selection.FATE, ids.shape[1])
        number = len(self.text) if self.section["replacements"] == "text" else self.vocab_size
        random = (rng.uniform(keys, mask_selection.REPLACEMENT, ids.shape[1]) * number).astype(np.int32)
        if self.section["replacements"] == "text":
            random = self.text[random].astype(np.int32)
        masked, replaced = self.section["masked"], self.section["masked"] + self.section["random"]
        hidden = np.where(fate < masked, self.mask, np.where(fate < replaced, random, ids))
        return np.where(chosen, hidden, ids)
