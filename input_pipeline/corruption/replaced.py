"""Replaced-token detection (Clark et al. 2020, section 2): masks for a generator, whose samples replace tokens.

The train step samples from the generator, so only it knows which tokens have changed; this half draws the masks.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from input_pipeline.batch_spec import REAL, TRUTH, Feature, by_row, by_token
from input_pipeline.corruption.base import Objective, slot_features
from input_pipeline.corruption.mlm import FRAMING
from input_pipeline.corruption.rng import numbers, uniform
from input_pipeline.packing.concat import Raw
from input_pipeline.tokenizers.base import Tokenizer

PLACES, FATE, DRAW = range(3)  # purposes of draws


class ReplacedTokens(Objective):
    """Features `tokens` [B, T], some of them masked, and `originals` [B, T].

    slots, targets, weights [B, N]: drawn places, of which some coincide; `chosen` [B, T] marks the same by token.
    token_weights [B, T]: tokens that the discriminator is scored on. types [B, T]: 1 in the second segment, if any.
    draw [B]: seed of what the train step draws.
    """

    kind = "replaced"
    layouts = ("packed", "concat", "halves")
    special = ("mask",)
    choices: ClassVar = {"scored": ("all", "masked")}

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section = section
        if tokenizer:
            self.mask_id = tokenizer.special["mask"]
            self.never_drawn = np.zeros(tokenizer.vocab_size, bool)
            self.never_drawn[[tokenizer.special[n] for n in (*FRAMING, "mask") if n in tokenizer.special]] = True

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        names = ("tokens", "originals", "types", "segments", "positions")
        features = dict.fromkeys(names, by_token(batch_size, length))
        features |= slot_features(batch_size, max(1, count_slots(length, self.section["share"])))
        features |= {"chosen": by_token(batch_size, length, TRUTH), "draw": by_row(batch_size)}
        return features | {"token_weights": by_token(batch_size, length, REAL)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        places, used = self.draw_places(keys, raw, batch["slots"].shape[1])
        # Each slot has its own fate; a place drawn twice is masked if either slot masks it.
        masked = used & (uniform(keys, FATE, places.shape[1]) < self.section["masked"])
        rows = np.arange(len(keys))[:, None]
        tokens, chosen = raw.ids.copy(), np.zeros(raw.ids.shape, bool)
        tokens[np.nonzero(masked)[0], places[masked]] = self.mask_id
        chosen[np.nonzero(used)[0], places[used]] = True
        batch["tokens"][slots], batch["originals"][slots] = tokens, raw.ids
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        batch["types"][slots] = 0 if raw.types is None else raw.types
        batch["slots"][slots], batch["targets"][slots] = places, raw.ids[rows, places]
        batch["weights"][slots] = used & raw.scored[rows, places]
        batch["chosen"][slots] = chosen
        # The discriminator is scored on all real tokens, special ones too, or on drawn places only.
        scored = raw.scored & (raw.segments > 0)
        batch["token_weights"][slots] = scored & chosen if self.section["scored"] == "masked" else scored
        # The top 31 bits: a non-negative int32, as JAX folds it into its key.
        batch["draw"][slots] = (numbers(keys, DRAW, 1)[:, 0] >> np.uint64(33)).astype(np.int32)

    def count_predicted(self, batch: Mapping[str, np.ndarray]) -> tuple[float, float, int]:
        lengths = np.count_nonzero(batch["segments"], axis=1)
        asked = np.maximum(np.minimum(lengths, 1), self.section["share"] * lengths)
        return np.count_nonzero(batch["weights"]), asked.sum(), lengths.sum()

    def draw_places(self, keys: np.ndarray, raw: Raw, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(places, whether used) of `count` slots a row: int64 and bool [n, count]; unused slots are at place 0.

        Places are drawn with replacement from all but framing ids. The number used is a share of the row's tokens,
        special ones included, at least 1 (the released code).
        """
        inside = raw.segments > 0
        candidates = inside & ~self.never_drawn[raw.ids]
        number = candidates.sum(1)
        sizes = np.maximum(1, np.minimum(count, np.rint(self.section["share"] * inside.sum(1)))).astype(np.int64)
        used = (np.arange(count) < sizes[:, None]) & (number > 0)[:, None]
        # A stable sort brings the candidates' places to the front in order; the k-th of them is drawn.
        rank = (uniform(keys, PLACES, count) * number[:, None]).astype(np.int64)
        order = np.argsort(~candidates, axis=1, kind="stable")
        return np.where(used, np.take_along_axis(order, rank, axis=1), 0), used


def count_slots(length: int, share: float) -> int:
    """N, slots of a row of `length` tokens: the share plus half a percent (the released code)."""
    return int((share + 0.005) * length)
