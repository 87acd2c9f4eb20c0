"""What objectives of an encoder and a decoder share: a text that is read, and one that is written."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_token
from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.prompts import Prompts
from input_pipeline.errors import DataError
from input_pipeline.packing.seq2seq import RawTexts
from input_pipeline.tokenizers.base import Tokenizer


class Side(NamedTuple):
    """The names of the features of one of the two texts."""

    tokens: str
    segments: str
    positions: str


READ = Side("inputs", "input_segments", "input_positions")
WRITTEN = Side("targets", "segments", "positions")


class TwoTexts(Objective):
    """Batches of `inputs` [B, T], and of `tokens`, `targets` and `weights` [B, T'], which the decoder reads and writes.

    Each side has its segments and positions. The decoder reads `start`, one of `special`, and then what it wrote.
    gaps: words of a prompt that stand for what is left out there, and their ids.
    """

    two_texts = True
    special = ("end",)
    start = "end"

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.tokenizer, self.gaps = tokenizer, {}
        if tokenizer:
            self.start_id, self.end = tokenizer.special[self.start], tokenizer.special["end"]

    def target_length(self, length: int) -> int:
        """T', tokens of a row's targets, for inputs of `length`."""
        return length

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        read = dict.fromkeys(READ, by_token(batch_size, length))
        length = self.target_length(length)
        written = dict.fromkeys(("tokens", *WRITTEN), by_token(batch_size, length))
        return read | written | {"weights": by_token(batch_size, length, REAL)}

    def fill_texts(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: RawTexts) -> None:
        """Writes rows of pairs of texts, of which all that is written counts."""
        for name, values in raw._asdict().items():
            batch[name][slots] = values
        batch["weights"][slots] = raw.segments > 0
        self.shift(batch, slots)

    def shift(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, start: np.ndarray | None = None) -> None:
        """Lets the decoder read of each target the one before it, and the start before the first of a text.

        start: int [n, 1], of each row; None: the same for all.
        """
        targets, first = batch["targets"][slots], batch["positions"][slots] == 0
        tokens = np.where(first, self.start_id if start is None else start, np.roll(targets, 1, axis=1))
        batch["tokens"][slots] = tokens * (batch["segments"][slots] > 0)

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """What is written for texts that are read: they end as rows' do, and it begins with the start token.

        Errors: DataError where a text is empty, of which there is nothing to write.
        """
        if not all(texts):
            raise DataError("this model reads a text and writes another, and a prompt has no text; give --prompt")
        ids = [self.read(self._ids(text)) for text in texts]
        there = np.arange(max(map(len, ids)))[None] < np.array([[len(one)] for one in ids])
        inputs = np.zeros(there.shape, np.int32)
        inputs[there] = np.concatenate(ids)
        source = {"inputs": inputs, "input_segments": there.astype(np.int32)}
        return Prompts([np.array([self.start_id], np.int32) for _ in texts], source, continued=False)

    def _ids(self, text: str) -> np.ndarray:
        """The ids of a prompt with gaps. White space before one is a part of what is left out, as a word's own is."""
        if not self.gaps:
            return self.tokenizer.encode(text)
        numbered = [word for word in re.findall(r"<extra_id_\d+>", text) if word not in self.gaps]
        if numbered and "<extra_id_0>" in self.gaps:
            raise DataError(f"a prompt has the gap {numbered[0]}, and this model knows {len(self.gaps)}, from 0 on")
        *parts, last = re.split(f"({'|'.join(map(re.escape, self.gaps))})", text)  # a text and a gap in turn
        ids = [[self.gaps[part]] if part in self.gaps else self.tokenizer.encode(part.rstrip()) for part in parts]
        return np.concatenate([*ids, self.tokenizer.encode(last)]).astype(np.int32)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """A text's ids as an encoder reads them: with the end token."""
        return np.append(ids, self.end).astype(np.int32)
