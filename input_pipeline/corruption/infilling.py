"""Text infilling and kin (Lewis et al. 2019, section 2.2): an encoder reads noised text, a decoder writes the original.

Sentences are permuted, then one mask replaces each span of words (or tokens are masked or deleted). Both texts stand
between the classifier and the end token, and the decoder begins with the end token. With language codes (Liu et al.
2020, mBART) there is no classifier: the source ends with the end token and its code, and the decoder begins with it.

Noise functions take rows of texts of different lengths, flush left: ids int32 [n, R] and `inside` bool [n, R].
"""

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from input_pipeline.corruption.rng import sort_keys, subset, uniform
from input_pipeline.corruption.seq2seq import DECODER, ENCODER, Seq2Seq
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw
from input_pipeline.tokenizers.base import Tokenizer

# Independent streams of random numbers, one per purpose.
ORDER, CHOSEN, LENGTHS, STARTS, REPLACED, REPLACEMENT, INSERTED, TURNED, TURN, MOVED = range(16, 26)


class Infilling(Seq2Seq):
    """BART's denoising: `noise` is infilling, masking or deletion; both sides of a row have the same size."""

    kind = "denoising"
    layouts = ("concat",)
    drops_end_tokens = True
    uses_text_pairs = False
    special = ("end", "mask", "classifier")
    choices: ClassVar = {"noise": ("infilling", "masking", "deletion")}

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.section, self.language_codes = section, tuple(section["languages"])
        if self.language_codes:
            self.special = ("end", "mask", *self.language_codes)
        super().__init__(section, tokenizer)
        self.needs_words = "noise=infilling" if section["noise"] == "infilling" else ""
        if not tokenizer:
            return
        self.mask_id = tokenizer.special["mask"]
        self.gaps = {"<mask>": self.mask_id}
        self.front = [] if self.language_codes else [tokenizer.special["classifier"]]
        self.code_ids = np.array([tokenizer.special[code] for code in self.language_codes], np.int32)
        stops = stop_ids(tokenizer, section["stop"]) if section["permutation"] else []
        if section["permutation"] and not stops:
            raise DataError(
                f"objective.stop={section['stop']!r}: the tokenizer has no such token. Set another, or "
                "objective.permutation=0."
            )
        self.stops = np.zeros(tokenizer.vocab_size, bool)
        self.stops[stops] = True

    def raw_length(self, length: int) -> int:
        return length - 2  # without classifier and end token, or end token and language code

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: Raw, keys: np.ndarray) -> None:
        inside = raw.segments > 0
        has_text = inside.any(1)
        noised, left = self.corrupt(keys, raw.ids, inside)
        end = np.full((len(inside), 1), self.end_id, np.int32)
        # A row has one language; its padding has language 0, so the maximum is the row's.
        codes = self.code_ids[raw.languages.max(1)][:, None] if self.language_codes else end[:, :0]
        back = np.concatenate([end, codes], axis=1)
        self._frame(batch, slots, ENCODER, noised, left, has_text=has_text, back=back)
        used = self._frame(batch, slots, DECODER, raw.ids, inside, has_text=has_text, back=end)
        # Tokens are scored as the raw row says; classifier and end token in every row that scores anything.
        weights, first = np.tile(raw.scored.any(1)[:, None], used.shape[1]), len(self.front)
        weights[:, first : first + inside.shape[1]] &= raw.scored | ~inside
        batch["weights"][slots] = weights & used
        self.shift(batch, slots, codes if self.language_codes else None)

    def corrupt(self, keys: np.ndarray, ids: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Noised texts as the encoder reads them: ids int32 [n, R], and whether each place is used, bool [n, R]."""
        section = self.section
        if section["permutation"]:
            sentences = number_sentences(self.stops[ids], inside)
            order = permute_sentences(keys, sentences, inside, section["permutation"])
            ids = np.take_along_axis(ids, order, axis=1)
        text = self.noise(keys, ids, inside)
        if section["rotation"]:
            text = rotate(keys, text, section["rotation"])
        return write_masks(keys, text, self.mask_id, self.tokenizer.vocab_size, section["random"]), text.inside

    def noise(self, keys: np.ndarray, ids: np.ndarray, inside: np.ndarray) -> "Noised":
        """Texts with a share of their words or tokens hidden or deleted."""
        section, share = self.section, self.section["share"]
        if section["noise"] == "infilling":
            begins = self.word_starts(ids)
            return infill(keys, ids, inside, begins, share, section["mean_span"])
        return {"masking": mask_tokens, "deletion": delete_tokens}[section["noise"]](keys, ids, inside, share)

    def count_predicted(self, batch: Mapping[str, np.ndarray]) -> tuple[float, float, int]:
        """Tokens that the encoder does not read, of the targets noised once more: their number is drawn for any key."""
        # Without what frames the text: ids before it, and one behind it.
        first = len(self.front)
        ids, inside = batch["targets"][:, first:-1], batch["segments"][:, first + 1 :] > 0
        text = self.noise(np.arange(len(inside)), ids, inside)
        tokens, kept = np.count_nonzero(inside), np.count_nonzero(text.inside & ~text.hidden)
        return tokens - kept, self.section["share"] * tokens, tokens

    def _frame(self, batch, slots, side, ids, inside, *, has_text: np.ndarray, back: np.ndarray) -> np.ndarray:
        """Writes texts between `front` and `back` (int32 [n, k]); returns the used places, bool [n, T].

        has_text: bool [n], rows to frame, even if noise has deleted all of their text.
        """
        first = len(self.front)
        size = first + inside.sum(1)
        framed = np.zeros((len(ids), ids.shape[1] + 2), np.int32)
        framed[:, first : first + ids.shape[1]] = ids * inside
        framed[:, :first] = self.front
        np.put_along_axis(framed, size[:, None] + np.arange(back.shape[1]), back, axis=1)
        used = (np.arange(framed.shape[1]) < size[:, None] + back.shape[1]) & has_text[:, None]
        self.write(batch, slots, side, framed, used)
        return used

    @property
    def target_front(self) -> list[int]:
        return self.front

    def encode_prompt(self, text: str) -> tuple[int, list[int]]:
        """With language codes a text begins with its code and a space."""
        if not self.language_codes:
            return self.start_id, [*self.front, *self.encode_gaps(text), self.end_id]
        code, _, text = text.partition(" ")
        if code not in self.language_codes:
            choices = ", ".join(self.language_codes)
            raise DataError(f"--prompt={code[:20]!r}: begins with no language code. Begin with one of: {choices}.")
        code_id = int(self.code_ids[self.language_codes.index(code)])
        return code_id, [*self.encode_gaps(text), self.end_id, code_id]


def stop_ids(tokenizer: Tokenizer, stop: str) -> list[int]:
    """Ids that end a sentence: `stop` (its last piece), and all that decode to it but for white space."""
    # Within a text " ." or "▁." may be another piece than "." alone.
    alone = [i for i in tokenizer.encode(stop)[-1:].tolist() if i != tokenizer.special.get("unknown")]
    bare = stop.strip()
    return sorted({*alone, *(i for i in range(tokenizer.vocab_size) if bare and tokenizer.decode([i]).strip() == bare)})


class Noised(NamedTuple):
    """Noised texts; where `hidden`, `write_masks` sets the id: the mask's or a random one."""

    ids: np.ndarray  # int32 [n, R]
    inside: np.ndarray  # bool [n, R]
    hidden: np.ndarray  # bool [n, R]


def number_sentences(stops: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The sentence, from 0, of each token: int64 [n, R]; the first of several stops in a row ends it."""
    ends = stops & inside
    ends[:, 1:] &= ~stops[:, :-1]
    return np.cumsum(ends, axis=1) - ends


def permute_sentences(keys: np.ndarray, sentences: np.ndarray, inside: np.ndarray, share: float) -> np.ndarray:
    """Places of texts with a share of their sentences, rounded up, in random order: int64 [n, R]."""
    rows, most = np.arange(len(keys))[:, None], int(sentences.max(initial=0, where=inside)) + 1
    number = np.where(inside, sentences, -1).max(1) + 1
    among = np.arange(most) < number[:, None]
    moved = subset(keys, MOVED, among, np.ceil(share * number).astype(np.int64)) if share < 1 else among
    drawn = np.argsort(sort_keys(keys, ORDER, moved), axis=1, kind="stable")[np.arange(most) < moved.sum(1)[:, None]]
    # The k-th of the moved sentences in random order goes to the k-th place that a moved sentence leaves.
    rank, (row, vacated) = np.tile(np.arange(most), (len(keys), 1)), np.nonzero(moved)
    rank[row, drawn] = vacated
    # Tokens are sorted by (new rank of their sentence, old place); padding gets the highest rank and stays.
    width = inside.shape[1]
    order = np.where(inside, rank[rows, np.minimum(sentences, most - 1)], most) * width + np.arange(width)
    return np.argsort(order, axis=1)


def poisson(chances: np.ndarray, mean: float, most: int) -> np.ndarray:
    """Poisson numbers, int64, by inversion of uniform ones in [0, 1); `most` for any above it."""
    # 20 standard deviations above the mean the remaining probability is below float64's resolution.
    count = np.arange(int(min(mean + 20 * mean**0.5 + 20, most + 1)))
    logs = count * np.log(mean) - mean - np.cumsum(np.log(np.maximum(count, 1)))
    return np.searchsorted(np.cumsum(np.exp(logs))[:-1], chances, side="right")


def draw_span_lengths(keys: np.ndarray, budget: np.ndarray, mean: float) -> np.ndarray:
    """Words of each span, int64 [n, M]: Poisson until they sum to `budget` (int64 [n]), the last one cut; then -1."""
    most = int(budget.max(initial=0))
    # So many draws sum to less than `most` with a probability of 1e-24.
    number = math.ceil((most + 14 * most**0.5 + 100) / mean)
    # Lengths beyond the budget are drawn too and cut off afterwards, which needs no loop.
    drawn = poisson(uniform(keys, LENGTHS, number), mean, most)
    before = np.cumsum(drawn, axis=1) - drawn
    return np.where(before < budget[:, None], np.minimum(drawn, budget[:, None] - before), -1)


def infill(keys: np.ndarray, ids: np.ndarray, inside: np.ndarray, begins: np.ndarray, share: float, mean: float):
    """`Noised` texts with one hidden place for each span of words; spans cover a share of all words, rounded up.

    begins: bool [n, R], whether a word begins. Spans begin at different words and may overlap: one that begins inside
    another vanishes. A span of 0 words is a hidden place inserted anywhere, as long as the row has room.
    """
    # The first token begins a word whatever it is; tokens behind it without a beginning belong to its word.
    begins = begins & inside
    begins[:, 0] = inside[:, 0]
    word = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
    words = begins.sum(1)
    spans = draw_span_lengths(keys, np.ceil(share * words).astype(np.int64), mean)
    starts, covered = place_spans(keys, spans, words)
    rows = np.arange(len(keys))[:, None]
    first, gone = starts[rows, word] & ~covered[rows, word], covered[rows, word]
    # The first token of a span's first word holds the mask; that word's other tokens go with the rest of the span.
    hidden = inside & begins & first
    kept = inside & ~gone & (hidden | ~first)
    more = np.minimum((spans == 0).sum(1), ids.shape[1] - kept.sum(1))
    return insert_hidden(keys, Noised(*(_flush_left(field, kept) for field in (ids, inside, hidden))), more)


def place_spans(keys: np.ndarray, spans: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(words at which a span begins, words behind the first of any span): bool [n, W] each.

    spans: int64 [n, M] words of each span, of which those below 1 are skipped. words: int64 [n].
    """
    most = max(int(words.max(initial=0)), 1)
    order = np.argsort(sort_keys(keys, STARTS, np.arange(most) < words[:, None]), axis=1)
    sizes = np.take_along_axis(spans, np.argsort(spans <= 0, axis=1, kind="stable"), axis=1)[:, :most]
    order = order[:, : sizes.shape[1]]
    row, column = np.nonzero(sizes > 0)
    start, size = order[row, column], sizes[row, column]
    # Overlapping stretches are united by a difference array: +1 behind the start, -1 at the end, summed up.
    starts, change = np.zeros((len(keys), most), bool), np.zeros((len(keys), most + 1), np.int64)
    starts[row, start] = True
    np.add.at(change, (row, start + 1), 1)
    np.add.at(change, (row, np.minimum(start + size, most)), -1)
    return starts, np.cumsum(change, axis=1)[:, :most] > 0


def insert_hidden(keys: np.ndarray, text: Noised, number: np.ndarray) -> Noised:
    """The texts with `number` (int64 [n]) more hidden tokens each, at random places."""
    # Places of new tokens are drawn in the longer text; old tokens fill the other places in order.
    width, size = text.ids.shape[1], text.inside.sum(1)
    inside = np.arange(width) < (size + number)[:, None]
    new = subset(keys, INSERTED, inside, number) if number.any() else np.zeros_like(inside)
    old = inside & ~new
    ids, hidden = np.zeros_like(text.ids), new.copy()
    ids[old], hidden[old] = text.ids[text.inside], text.hidden[text.inside]
    return Noised(ids, inside, hidden)


def mask_tokens(keys: np.ndarray, ids: np.ndarray, inside: np.ndarray, share: float) -> Noised:
    """Texts with a share of the tokens hidden, rounded up, each on its own."""
    return Noised(ids, inside, subset(keys, CHOSEN, inside, np.ceil(share * inside.sum(1)).astype(np.int64)))


def delete_tokens(keys: np.ndarray, ids: np.ndarray, inside: np.ndarray, share: float) -> Noised:
    """Texts without a share of the tokens, rounded up."""
    kept = inside & ~mask_tokens(keys, ids, inside, share).hidden
    return Noised(_flush_left(ids, kept), _flush_left(inside, kept), np.zeros_like(inside))


def rotate(keys: np.ndarray, text: Noised, share: float) -> Noised:
    """A share of the texts rotated to begin at a uniformly random token."""
    size = text.inside.sum(1)
    # Two draws: how far a text turns, and whether it does. Padding stays behind.
    turn = np.floor(uniform(keys, TURN, 1)[:, 0] * size).astype(np.int64) * (uniform(keys, TURNED, 1)[:, 0] < share)
    place = np.arange(text.ids.shape[1])
    source = np.where(text.inside, (place + turn[:, None]) % np.maximum(size, 1)[:, None], place)
    return Noised(*(np.take_along_axis(field, source, axis=1) for field in text))


def write_masks(keys: np.ndarray, text: Noised, mask_id: int, vocab_size: int, random: float) -> np.ndarray:
    """Ids of noised texts, int32 [n, R]: hidden places hold random tokens in a share `random`, else the mask."""
    width = text.ids.shape[1]
    other = (uniform(keys, REPLACEMENT, width) * vocab_size).astype(np.int32)
    hides = np.where(uniform(keys, REPLACED, width) < random, other, np.int32(mask_id))
    return np.where(text.hidden, hides, text.ids)


def _flush_left(field: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The `kept` entries of each row moved to its front; zeros behind."""
    packed = np.zeros_like(field)
    packed[np.arange(field.shape[1]) < kept.sum(1)[:, None]] = field[kept]
    return packed
