"""Interface of the corruption half of an objective."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from input_pipeline.batch_spec import INTEGER, REAL, Feature
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw
from input_pipeline.tokenizers.word_starts import WordStarts


class Prompts(NamedTuple):
    """Start of decoding for some texts.

    begun: first ids of the decoder, int32 [T], one array per text.
    source: other inputs of the model by name, one row per text.
    continued: whether the model continues the prompt itself.
    """

    begun: list[np.ndarray]
    source: Mapping[str, np.ndarray]
    continued: bool


class Objective:
    """Corruption of raw rows into features; subclasses override what differs from one plain text per row.

    layouts: values of `data.layout` that the objective supports
    special: names of the special ids that it writes
    choices: values of its settings that are names
    drops_end_tokens: windows are cut from text without end tokens
    uses_text_pairs: documents of two fields are (source, target) pairs
    two_segments: rows of layout stream end with two segments (XLNet)
    min_raw_length: fewest ids of text in a row
    needs_words: the setting, if any, for which the tokenizer must mark where words begin; `word_starts` finds them
    needs_token_counts: `set_token_counts` must be called before `fill`
    language_codes: ids' names that end a source and begin a target (mBART)
    """

    kind: str
    layouts: tuple[str, ...]
    special: tuple[str, ...] = ()
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    drops_end_tokens = False
    uses_text_pairs = False
    two_segments = False
    min_raw_length = 1
    needs_words = ""
    word_starts: WordStarts | None = None
    needs_token_counts = False
    language_codes: tuple[str, ...] = ()

    def raw_length(self, length: int) -> int:
        """Ids of text, R, that make a row of `length` tokens."""
        return length

    def check_length(self, length: int) -> None:
        """Raises DataError if rows of `length` cannot hold what the settings ask for."""

    def check_sentinels(self, length: int, sentinels: int) -> None:
        """Raises DataError if a row of `length` needs more than `sentinels` sentinel ids."""

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        """Features of a batch of `batch_size` rows of `length` tokens, by name."""

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        """Writes raw rows into rows `slots` (int64 [n]) of a batch.

        keys: int64 [n], the only source of randomness. In training a key hashes the seed and the example's number, in
        evaluation the row alone.
        """

    def count_predicted(self, batch: Mapping[str, np.ndarray]) -> tuple[float, float, int] | None:
        """(tokens that a batch predicts, that the settings ask for, all); None if what is predicted is not drawn."""

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """Start of decoding for `texts`. Errors: DataError if the objective trains no generation."""
        raise DataError(f"objective.kind={self.kind}: cannot generate text. Train with causal or spans.")


def slot_features(batch_size: int, number: int) -> dict[str, Feature]:
    """Features of `number` predicted places per row: `slots`, the places, their `targets` and `weights`."""
    slot = Feature((batch_size, number), INTEGER, ("batch", None))
    return {"slots": slot, "targets": slot, "weights": slot._replace(dtype=REAL)}


def fill_slots(batch: Mapping, slots: np.ndarray, chosen: np.ndarray, ids: np.ndarray, scored: np.ndarray) -> None:
    """Writes `slots`, `targets` and `weights` of the `chosen` places (bool [n, R]) into rows `slots` of a batch."""
    # Boolean indexing reads row by row, so the k-th chosen place of a row lands in its k-th slot.
    used = np.arange(batch["slots"].shape[1]) < chosen.sum(1)[:, None]
    for name, values in (("slots", np.nonzero(chosen)[1]), ("targets", ids[chosen]), ("weights", scored[chosen])):
        listed = np.zeros(used.shape, batch[name].dtype)
        listed[used] = values
        batch[name][slots] = listed
