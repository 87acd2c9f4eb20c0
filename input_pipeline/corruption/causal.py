"""Causal language modelling: every token of the text is predicted from those before it."""

from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_token
from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.prompts import Prompts
from input_pipeline.errors import DataError
from input_pipeline.packing.raw import Raw
from input_pipeline.tokenizers.base import Tokenizer


class Causal(Objective):
    """Batches of `targets` [B, T], the token after each, and `weights` [B, T]: 1 where one counts, 0 elsewhere."""

    layouts = ("concat", "packed", "stream", "document")

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.coded, self.tokenizer = section["coded"], tokenizer

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        tokens = by_token(batch_size, length)
        features = dict.fromkeys(("tokens", "targets", "segments", "positions"), tokens)
        return features | {"weights": by_token(batch_size, length, REAL)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        batch["tokens"][slots], batch["targets"][slots] = raw.ids, raw.following
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        batch["weights"][slots] = raw.scored

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """Texts as rows begin: with a control code of their own, or after the end token, where there is one."""
        end = None if self.coded else self.tokenizer.end_id
        if self.coded and not all(texts):
            raise DataError(
                "this run's texts begin with control codes, of which data.train names the run's; give --prompt"
            )
        if end is None and not all(texts):
            raise DataError(
                "this run's tokenizer has no end token that a text could begin after; give --prompt, such as --prompt=a"
            )
        start = [] if end is None else [end]
        begun = [np.concatenate([start, self.tokenizer.encode(text)]).astype(np.int32) for text in texts]
        return Prompts(begun, {}, continued=True)
