"""Objectives of an encoder and a decoder: what they share, and translation (Vaswani et al. 2017)."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.batch_spec import REAL, Feature, by_token
from input_pipeline.corruption.base import Objective, Prompts
from input_pipeline.errors import DataError
from input_pipeline.packing.seq2seq import RawTexts
from input_pipeline.tokenizers.base import Tokenizer

# Names of ids, segments and positions of the encoder's text and of the decoder's.
ENCODER = ("inputs", "input_segments", "input_positions")
DECODER = ("targets", "segments", "positions")


class Seq2Seq(Objective):
    """Features `inputs` [B, T] of the encoder; `tokens`, `targets` and `weights` [B, T'] of the decoder.

    Each side has segments and positions. The decoder reads the special id `start`, then its own targets.
    gaps: words of a prompt that mark missing text, such as <mask>, and their ids.
    """

    uses_text_pairs = True
    special = ("end",)
    start = "end"

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.tokenizer, self.gaps = tokenizer, {}
        if tokenizer:
            self.start_id, self.end_id = tokenizer.special[self.start], tokenizer.special["end"]

    def target_length(self, length: int) -> int:
        """T', tokens of a row's targets, for inputs of `length` tokens."""
        return length

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        encoder = dict.fromkeys(ENCODER, by_token(batch_size, length))
        length = self.target_length(length)
        decoder = dict.fromkeys(("tokens", *DECODER), by_token(batch_size, length))
        return encoder | decoder | {"weights": by_token(batch_size, length, REAL)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: RawTexts, keys: np.ndarray) -> None:
        """Writes rows of (source, target) pairs; all of the targets is scored."""
        for name, values in raw._asdict().items():
            batch[name][slots] = values
        batch["weights"][slots] = raw.segments > 0
        self.shift(batch, slots)

    @staticmethod
    def write(batch: Mapping, slots: np.ndarray, side: Sequence[str], ids: np.ndarray, used: np.ndarray) -> None:
        """Writes one text per row of ENCODER or DECODER: ids int32 [n, T] at the `used` places, bool [n, T]."""
        values = ids * used, used, np.arange(used.shape[1], dtype=np.int32) * used
        for name, rows in zip(side, values, strict=True):
            batch[name][slots] = rows

    def shift(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, start: np.ndarray | None = None) -> None:
        """Writes `tokens`: the targets shifted right by one, each text behind its start id.

        start: int [n, 1], one id per row; None: `start_id` for all.
        """
        targets, first = batch["targets"][slots], batch["positions"][slots] == 0
        # `roll` brings the last target of the text before to the first place of the next one; `first` replaces it.
        tokens = np.where(first, self.start_id if start is None else start, np.roll(targets, 1, axis=1))
        batch["tokens"][slots] = tokens * (batch["segments"][slots] > 0)

    @property
    def target_front(self) -> list[int]:
        """Ids that all targets begin with, behind the decoder's first id."""
        return []

    def prompts(self, texts: Sequence[str]) -> Prompts:
        """Texts as the encoder reads them; the decoder begins with the start id. Errors: DataError for empty text."""
        starts, ids = zip(*map(self.encode_prompt, texts), strict=True)
        used = np.arange(max(map(len, ids)))[None] < np.array([[len(row)] for row in ids])
        inputs = np.zeros(used.shape, np.int32)
        inputs[used] = np.concatenate(ids)
        source = {"inputs": inputs, "input_segments": used.astype(np.int32)}
        return Prompts([np.array([start], np.int32) for start in starts], source, continued=False)

    def encode_prompt(self, text: str) -> tuple[int, list[int]]:
        """(first id of the decoder, ids of a text as the encoder reads them)."""
        return self.start_id, [*self.encode_gaps(text), self.end_id]

    def encode_gaps(self, text: str) -> np.ndarray:
        """Ids of a text with gaps."""
        if not text:
            raise DataError("--prompt is empty, but the encoder needs a text. Give one.")
        if not self.gaps:
            return self.tokenizer.encode(text)
        unknown = [word for word in re.findall(r"<extra_id_\d+>", text) if word not in self.gaps]
        if unknown and "<extra_id_0>" in self.gaps:
            raise DataError(f"--prompt: {unknown[0]} is none of the {len(self.gaps)} sentinels, numbered from 0.")
        *parts, last = re.split(f"({'|'.join(map(re.escape, self.gaps))})", text)  # texts and gaps alternate
        # A space before a gap belongs to the missing word, as tokenizers attach it.
        ids = [[self.gaps[part]] if part in self.gaps else self.tokenizer.encode(part.rstrip()) for part in parts]
        return np.concatenate([*ids, self.tokenizer.encode(last)]).astype(np.int32)


class Translation(Seq2Seq):
    """Rows of as many (source, target) pairs as fit on both sides, which have one length."""

    kind = "translation"
    layouts = ("texts",)
    min_raw_length = 2  # a token and the end token
