"""Replaced tokens (Clark et al. 2020, section 2): some are masked, and what a generator writes takes their place.

Which tokens it changed the train step alone can know, which samples from the generator; here are the masks.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from input_pipeline.batch_spec import INTEGER, REAL, TRUTH, Feature, by_row, by_token
from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.mlm import FRAMING
from input_pipeline.corruption.rng import numbers, uniform
from input_pipeline.errors import DataError
from input_pipeline.packing.nsp_pairs import RawPairs
from input_pipeline.packing.raw import Raw
from input_pipeline.tokenizers.base import Tokenizer

PLACES, FATE, DRAW = range(3)  # what is drawn
SCORED = ("all", "masked")


def most(length: int, share: float) -> int:
    """N, the slots of a row of `length`: its share of them, and half a hundredth more (the released code)."""
    return int((share + 0.005) * length)


class Replaced(Objective):
    """Batches of `tokens`, some of them masked, and `originals` [B, T], the text itself.

    `slots` [B, N] are the places that were drawn, some of them more than once, with their `targets` and `weights`
    [B, N]; `chosen` [B, T] says the same by token. `token_weights` [B, T] are the tokens that the discriminator is
    scored on. `types` [B, T] are 1 in the second segment of a row that has two. What is drawn in the step follows from
    `draw` [B].
    """

    layouts = ("packed", "concat", "halves")
    special = ("mask",)

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section = section
        if section["scored"] not in SCORED:
            raise DataError(f"objective.scored is '{section['scored']}'; choose one of: {', '.join(SCORED)}")
        if tokenizer:
            self.mask = tokenizer.special["mask"]
            self.kept = np.zeros(tokenizer.vocab_size, bool)  # ids that are never drawn
            self.kept[[tokenizer.special[name] for name in (*FRAMING, "mask") if name in tokenizer.special]] = True

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        features = dict.fromkeys(
            ("tokens", "originals", "types", "segments", "positions"), by_token(batch_size, length)
        )
        slot = Feature((batch_size, max(1, most(length, self.section["share"]))), INTEGER, ("batch", None))
        features |= {"slots": slot, "targets": slot, "weights": slot._replace(dtype=REAL)}
        features |= {"chosen": by_token(batch_size, length, TRUTH), "draw": by_row(batch_size)}
        return features | {"token_weights": by_token(batch_size, length, REAL)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw | RawPairs, keys: np.ndarray) -> None:
        places, used = self.places(keys, raw, batch["slots"].shape[1])
        masked = self.hidden(keys, places, used)
        rows = np.arange(len(keys))[:, None]
        tokens, chosen = raw.ids.copy(), np.zeros(raw.ids.shape, bool)
        tokens[np.nonzero(masked)[0], places[masked]] = self.mask
        chosen[np.nonzero(used)[0], places[used]] = True
        batch["tokens"][slots], batch["originals"][slots] = tokens, raw.ids
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        batch["types"][slots] = raw.types if isinstance(raw, RawPairs) else 0
        batch["slots"][slots], batch["targets"][slots] = places, raw.ids[rows, places]
        batch["weights"][slots] = used & raw.scored[rows, places]
        batch["chosen"][slots] = chosen
        scored = raw.scored & (raw.segments > 0)
        batch["token_weights"][slots] = scored & chosen if self.section["scored"] == "masked" else scored
        batch["draw"][slots] = (numbers(keys, DRAW, 1)[:, 0] >> np.uint64(33)).astype(np.int32)

    def prompts(self, texts: Sequence[str]) -> NoReturn:
        """Errors: DataError, since tokens are told from those that follow them too."""
        raise DataError(
            "objective.kind = replaced tells replaced tokens and does not go on with a text; train with one that "
            "writes, such as causal"
        )

    def places(self, keys: np.ndarray, raw: Raw, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(places, which are used) of `count` slots a row: int64 and bool [n, count].

        Each is drawn uniformly of the places that may be, whichever the others are; as many are used as are a share of
        the row's tokens, special ones counted, at least one. An unused slot is at place 0.
        """
        there = raw.segments > 0
        candidates = there & ~self.kept[raw.ids]
        number = candidates.sum(1)
        sizes = np.maximum(1, np.minimum(count, np.rint(self.section["share"] * there.sum(1)))).astype(np.int64)
        used = (np.arange(count) < sizes[:, None]) & (number > 0)[:, None]
        rank = (uniform(keys, PLACES, count) * number[:, None]).astype(np.int64)
        order = np.argsort(~candidates, axis=1, kind="stable")  # the candidates' places come first, in order
        return np.where(used, np.take_along_axis(order, rank, axis=1), 0), used

    def hidden(self, keys: np.ndarray, places: np.ndarray, used: np.ndarray) -> np.ndarray:
        """The used slots that the mask stands for, each by a draw of its own: bool [n, N].

        A place drawn twice is masked where either says so.
        """
        return used & (uniform(keys, FATE, places.shape[1]) < self.section["masked"])
