"""Causal language modelling: each token is predicted from those before it."""

from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_token
from input_pipeline.corruption.base import Objective, Prompts
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw
from input_pipeline.tokenizers.base import Tokenizer


class CausalLM(Objective):
    """Features `targets` [B, T], the next token at each position, and `weights` [B, T], 1 where it is scored."""

    kind = "causal"
    layouts = ("concat", "packed", "stream", "document")

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.coded, self.tokenizer = section["coded"], tokenizer
        self.start_id = tokenizer.special.get("start") if tokenizer and not self.coded else None

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        tokens = by_token(batch_size, length)
        features = dict.fromkeys(("tokens", "targets", "segments", "positions"), tokens)
        return features | {"weights": by_token(batch_size, length, REAL)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        # `following` holds the next id even across the end of a row, so no position of the text is lost.
        batch["tokens"][slots], batch["targets"][slots] = raw.ids, raw.following
        if self.start_id is not None:
            # Llama's texts end with one id, the target, and the next begins with another, the input.
            batch["tokens"][slots] = np.where(raw.ids == self.tokenizer.end_id, self.start_id, raw.ids)
        batch["segments"][slots], batch["positions"][slots] = raw.segments, raw.positions
        batch["weights"][slots] = raw.scored

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """Texts after the start or end token, as rows begin; with control codes (CTRL) each begins with its own."""
        end = None if self.coded else self.tokenizer.special.get("start", self.tokenizer.end_id)
        if end is None and not all(texts):
            why = "texts begin with a control code" if self.coded else "the tokenizer has no end token to begin with"
            raise DataError(f"the prompt is empty, but {why}. Give --prompt.")
        start = [] if end is None else [end]
        ids = [np.concatenate([start, self.tokenizer.encode(text)]).astype(np.int32) for text in texts]
        return Prompts(ids, {}, continued=True)
