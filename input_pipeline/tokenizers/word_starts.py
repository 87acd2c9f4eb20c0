"""Word starts: after a space and, in scripts written without spaces, at each letter."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np

# Code points of scripts without spaces: Line_Break ID, CJ and SA of Unicode's UAX #14, by the blocks of Blocks.txt.
# Ranges instead of `unicodedata.name`, since ideographs are added with each version of Unicode.
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x2FDF),  # radicals
    (0x3000, 0x312F),  # CJK punctuation, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo Extended, strokes, Katakana Phonetic Extensions
    (0x3400, 0x4DBF),  # CJK Unified Ideographs Extension A
    (0x4E00, 0x9FFF),  # CJK Unified Ideographs
    (0xA9E0, 0xA9FF),  # Myanmar Extended-B
    (0xAA60, 0xAADF),  # Myanmar Extended-A, Tai Viet
    (0xF900, 0xFAFF),  # CJK Compatibility Ideographs
    *((0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40)),  # full-width punctuation
    (0xFF5B, 0xFF9F),  # the same, half-width Katakana
    (0x11700, 0x1174F),  # Ahom
    (0x16FE0, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # Kana Extended and Supplement, Nushu
    (0x20000, 0x3FFFF),  # the planes of ideographs
)
MARKED = ((0x300, 0x1FFFF), (0xE0100, 0xE01EF))  # code points that are searched for marks
NONE, OTHER, APART = range(3)  # classes of characters; NONE: belongs to the character before it
CHARACTER = 3  # most pieces behind the one in which a character of four bytes begins


@functools.cache
def character_classes() -> np.ndarray:
    """The class of each code point, uint8: marks and modifier letters are NONE, letters without spaces APART."""
    classes = np.full(0x110000, OTHER, np.uint8)
    for first, last in WITHOUT_SPACES:
        classes[first : last + 1] = APART
    for first, last in MARKED:
        categories = [unicodedata.category(chr(code)) for code in range(first, last + 1)]
        classes[first : last + 1][[name[0] == "M" or name == "Lm" for name in categories]] = NONE
        # Numbers are words of several digits in all scripts.
        classes[first : last + 1][[name == "Nd" for name in categories]] = OTHER
    return classes


class WordStarts:
    """Finds word starts in rows of ids; tables of the vocabulary are made once.

    continues: whether an id continues a word by the tokenizer's own marks, bool [V].
    texts: UTF-8 bytes of each id without such marks, empty for special ids; ids beyond them are special. A character
    may begin in one id and end in another.
    """

    def __init__(self, continues: np.ndarray, texts: Sequence[bytes]):
        self.continues = continues
        size = len(continues)
        # Classes of the first character, if the id begins with one, and of the last that begins in it.
        self.first, self.last = np.full(size, OTHER, np.uint8), np.full(size, OTHER, np.uint8)
        # An unfinished last character: its bits so far, missing bytes, and whether the id begins with it.
        self.bits, self.missing = np.zeros(size, np.int32), np.zeros(size, np.int8)
        self.only = np.zeros(size, bool)
        # Bytes at an id's beginning that finish a character: their bits and number.
        self.rest, self.finishing = np.zeros(size, np.int32), np.zeros(size, np.int8)
        for i, text in enumerate(texts):
            if not text.isascii():
                self._describe(i, text)
        self.is_plain = (self.first == OTHER) & (self.last == OTHER) & (self.missing == 0)

    def _describe(self, i: int, text: bytes) -> None:
        classes = character_classes()
        begins = [place for place, byte in enumerate(text) if byte & 0xC0 != 0x80]  # others continue a character
        front = text[: begins[0] if begins else len(text)]
        self.rest[i], self.finishing[i] = _bits(front[:CHARACTER]), min(len(front), CHARACTER)
        end = len(text)
        if begins:
            last = text[begins[-1] :]
            # Two bytes reach U+07FF, below the scripts without spaces; 0xF8 and above begin no character.
            length = 3 if last[0] & 0xF0 == 0xE0 else 4 if last[0] & 0xF8 == 0xF0 else 0
            if len(last) < length:
                end = begins[-1]
                self.missing[i], self.only[i] = length - len(last), end == 0
                self.bits[i] = (last[0] & (0xFF >> (length + 1))) << 6 * (len(last) - 1) | _bits(last[1:])
        found = [classes[ord(letter)] for letter in text[len(front) : end].decode("utf-8", "replace")]
        self.first[i] = found[0] if found and not front else NONE
        self.last[i] = next((kind for kind in reversed(found) if kind), NONE)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Whether a word begins at each of `ids` (int32 [n, R]), in the order of the text: bool [n, R]."""
        starts = ~self.continues[ids]
        if self.is_plain[ids].all():
            return starts
        first, last = self.first[ids], self.last[ids]
        rows, places = np.nonzero(self.missing[ids])
        found, only = self._finish(ids, rows, places), self.only[ids[rows, places]]
        last[rows, places] = np.where(found, found, last[rows, places])
        first[rows[only], places[only]] = found[only]
        # The class before each id: that of the last id up to there in which a character begins.
        source = np.maximum.accumulate(np.where(last != NONE, np.arange(ids.shape[1]), 0), axis=1)
        before = np.take_along_axis(last, source, axis=1)[:, :-1]
        starts |= first == APART
        starts[:, 1:] |= (first[:, 1:] == OTHER) & (before == APART)
        return starts

    def _finish(self, ids: np.ndarray, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Classes of the characters that ids at these places leave unfinished: uint8 [n]."""
        bits, missing = self.bits[ids[rows, places]], self.missing[ids[rows, places]].copy()
        for ahead in range(1, CHARACTER + 1):
            behind = places + ahead < ids.shape[1]
            following = ids[rows, np.minimum(places + ahead, ids.shape[1] - 1)]
            number = self.finishing[following] * (behind & (missing > 0))
            number[number > missing] = 0  # no UTF-8
            bits = np.where(number, bits << 6 * number.astype(np.int32) | self.rest[following], bits)
            missing -= number
        whole = (missing == 0) & (bits < 0x110000)
        return np.where(whole, character_classes()[np.where(whole, bits, 0)], OTHER).astype(np.uint8)


def _bits(data: bytes) -> int:
    """The bits of up to three bytes that continue a character, six of each."""
    return functools.reduce(lambda bits, byte: bits << 6 | byte & 0x3F, data, 0)
