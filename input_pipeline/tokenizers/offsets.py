"""Characters that tokens came from: half-open ranges of code points of the raw text.

Ranges leave out white space at both ends, as Transformers' do with `trim_offsets`: an answer is cut from the text from
the first token's start to the last one's end. A token of white space alone, and one that a tokenizer adds, such as a
space in front of the text, has an empty range. Tokens that are bytes of one character all have that character's range.
"""

from collections.abc import Iterable

import numpy as np

# Whether a code point is white space, as `str.isspace` has it; the last entry is that of all higher ones.
IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])


def of_bytes(text: str, lengths: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """(starts, ends) of tokens that are `lengths` UTF-8 bytes each and join to `text`, int32 [n]."""
    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    lengths = np.fromiter(lengths, np.int64)
    after = np.cumsum(lengths)
    assert lengths.sum() == len(data), "tokens do not join to the text"
    # The number of characters that begin in the first i bytes; bytes 10xxxxxx continue a character.
    begun = np.append(0, np.cumsum((data & 0xC0) != 0x80)).astype(np.int32)
    before = after - lengths
    starts = np.where(lengths > 0, begun[np.minimum(before + 1, len(data))] - 1, begun[before])
    return starts.astype(np.int32), begun[after]


def trim(text: str, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ranges without white space at either end."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    spaces, places = IS_SPACE[np.minimum(codes, len(IS_SPACE) - 1)], np.arange(len(codes) + 1, dtype=np.int32)
    # The first other character from each place on, and the end of the last one before it.
    following = np.minimum.accumulate(np.where(np.append(spaces, False), len(codes), places)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(np.append(False, spaces), 0, places))
    starts = np.minimum(following[starts], ends)
    return starts.astype(np.int32), np.maximum(preceding[ends], starts).astype(np.int32)
