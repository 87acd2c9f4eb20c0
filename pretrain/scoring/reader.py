"""Texts as rows of a model, for what is read of its inside: hidden states and attention."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn

from input_pipeline.corruption.examples import Frame
from input_pipeline.examples.batches import bucket_lengths
from input_pipeline.packing.documents import best_fit
from input_pipeline.tokenizers.base import Tokenizer
from models.attention.patterns import Dense, Local, parse_pattern
from pretrain.errors import UserError
from pretrain.losses.examples import for_both_stacks
from pretrain.parallel.mesh import Layout
from pretrain.scoring.likelihood import even_rows, packed_length

STACKS = ("encoder", "decoder")
PACKED = 128  # tokens of a row that texts share, unless one is longer
Text = str | Sequence[str]  # or its words


class Row(NamedTuple):
    """A text as the model reads it, special tokens included.

    ids, types: int32 [T]. spans: the characters that each token came from, int32 [T, 2]; special tokens have none.
    words: the characters of each word, int32 [W, 2]. cut: whether the text is longer than the row.
    """

    ids: np.ndarray
    types: np.ndarray
    spans: np.ndarray
    words: np.ndarray
    cut: bool

    def tokens_of_words(self) -> list[np.ndarray]:
        """For each word the places of its tokens; none for a word that is cut off."""
        # Special tokens and those of white space alone came from no character.
        places = np.flatnonzero(self.spans[:, 1] > self.spans[:, 0])
        starts, ends = self.spans[places].T
        first = np.searchsorted(ends, self.words[:, 0], side="right")
        last = np.searchsorted(starts, self.words[:, 1], side="left")
        return [places[a:b] for a, b in zip(first, last, strict=True)]


class Batch(NamedTuple):
    """Texts in rows of B x T tokens; numbers [n]: which ones. N >= n is the same in all batches of a call.

    features: inputs of the model by name, int32 [B, T]. owners: the text of each token, int32 [B, T], N for padding.
    firsts, lasts: places of each text's first and last token in B x T, int32 [N].
    """

    numbers: list[int]
    features: dict[str, np.ndarray]
    owners: np.ndarray
    firsts: np.ndarray
    lasts: np.ndarray


@dataclass(frozen=True)
class Reader:
    """A model with its parameters, its tokenizer, and the special tokens around a text that tasks use, too.

    Encoder-decoders read a text in both stacks, as in tasks: the decoder's is shifted right and begins with its last
    token (`for_both_stacks`).
    """

    model: nn.Module
    variables: Mapping
    tokenizer: Tokenizer
    frame: Frame
    layout: Layout

    def rows(self, texts: Sequence[Text], length: int = 0, spans: bool = False) -> list[Row]:
        """The row of each text, of at most `length` tokens (0: the context); `spans` also locates tokens and words.

        Errors: UserError for a text without a token, or a length above the context.
        """
        if length > self.model.context:
            raise UserError(f"length={length}: longer than the context, {self.model.context} tokens. Lower it.")
        length = length or self.model.context
        words = [None if isinstance(text, str) else list(text) for text in texts]
        whole = [text if own is None else " ".join(own) for text, own in zip(texts, words, strict=True)]
        located = [self.tokenizer.encode_with_offsets(text) for text in whole] if spans else []
        encoded = [one[0] for one in located] or self.tokenizer.encode_all(whole)
        rows = []
        for number, ids in enumerate(encoded):
            row = np.zeros((2, min(length, len(ids) + self.frame.size(1))), np.int32)
            # The text is cut, not the special tokens around it.
            used = self.frame.fill([ids], *row)
            if not used:
                raise UserError(f"text {number + 1}: has no token. Remove it.")
            found = np.zeros((used, 2), np.int32)
            if spans:
                (kept,) = self.frame.sizes([ids], length)
                found[self.frame.before :][:kept] = np.stack(located[number][1:], axis=1)[:kept]
            marks = _word_spans(whole[number], words[number]) if spans else np.zeros((0, 2), np.int32)
            rows.append(Row(*row[:, :used], found, marks, len(ids) + self.frame.size(1) > length))
        return rows

    def batches(self, rows: Sequence[Row], size: int) -> Iterator[Batch]:
        """Batches of up to `size` rows, rounded up to the devices.

        Texts share rows if the model has segments and positions to keep them apart: one program, hardly any padding.
        Else each has a row, and those of a batch have about one length.
        """
        lengths = [len(row.ids) for row in rows]
        if self._packs:
            length = packed_length(max(lengths), min(PACKED, sum(lengths)), self.model.context)
            bins = best_fit(lengths, length)
            per_batch = even_rows(self.layout, len(bins), size)
        else:
            bins = [[number] for number in np.argsort(lengths, kind="stable").tolist()]
            per_batch = self.layout.filled(min(size, len(bins)))
        # All batches have as many rows and texts, so that each length is compiled once.
        cut = [bins[first : first + per_batch] for first in range(0, len(bins), per_batch)]
        most = 2 ** (max(sum(map(len, some)) for some in cut) - 1).bit_length()
        buckets = bucket_lengths((), self.model.context)
        for some in cut:
            if not self._packs:
                length = next(one for one in buckets if one >= max(lengths[number] for (number,) in some))
            features = {name: np.zeros((per_batch, length), np.int32) for name in ("tokens", "types", "positions")}
            features |= {"segments": np.zeros((per_batch, length), np.int32)}
            owners, ends, numbers = np.full((per_batch, length), most, np.int32), np.zeros((2, most), np.int32), []
            for slot, texts in enumerate(some):
                begin = 0
                for segment, number in enumerate(texts, 1):
                    row, end = rows[number], begin + lengths[number]
                    values = row.ids, row.types, np.arange(end - begin), segment
                    for name, one in zip(("tokens", "types", "positions", "segments"), values, strict=True):
                        features[name][slot, begin:end] = one
                    owners[slot, begin:end] = len(numbers)
                    ends[:, len(numbers)] = slot * length + begin, slot * length + end - 1
                    numbers.append(number)
                    begin = end
            yield Batch(numbers, features, owners, *ends)

    @property
    def _packs(self) -> bool:
        """Whether texts may share rows: patterns that count columns from the row's beginning see others there."""
        patterns = map(parse_pattern, getattr(self.model, "attention", ()))
        separable = all(isinstance(one, Dense | Local) for one in patterns)
        return separable and not self.has_two_stacks and {"segments", "positions"} <= {*self.model.inputs}

    def stack(self, given: str) -> str:
        """The stack to read: "encoder" or "decoder" of encoder-decoders, by default the encoder; else "".

        Errors: UserError for a stack that the model has not.
        """
        choices = STACKS if self.has_two_stacks else ()
        if given and given not in choices:
            raise UserError(f"stack={given}: the model has {' and '.join(choices) or 'one stack'}. Choose from that.")
        return given or "encoder" * self.has_two_stacks

    @property
    def has_two_stacks(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return "inputs" in self.model.inputs


def inputs_of(model: nn.Module, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The inputs of a model for a batch of `Reader.batches`."""
    batch = for_both_stacks(batch) if "inputs" in model.inputs else batch
    inputs = {name: batch[name] for name in model.inputs if name in batch}
    # RoBERTa's table of types has one row, XLNet's classifier type 2.
    if rows := model.input_limits.get("types"):
        inputs["types"] = jax.numpy.minimum(inputs["types"], rows - 1)
    return inputs


def _word_spans(text: str, words: Sequence[str] | None) -> np.ndarray:
    """The characters of each word of a text, int32 [W, 2]: those between white space, or `words` joined by spaces."""
    if words is None:
        return np.array([match.span() for match in re.finditer(r"\S+", text)], np.int32).reshape(-1, 2)
    # A space follows each word.
    ends = np.array([*itertools.accumulate(len(word) + 1 for word in words)], np.int32) - 1
    return np.stack([ends - [len(word) for word in words], ends], axis=1).astype(np.int32).reshape(-1, 2)
