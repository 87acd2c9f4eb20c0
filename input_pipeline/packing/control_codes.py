"""Rows that begin with the control code of their source (Keskar et al. 2019, section 3)."""

from collections.abc import Iterable

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing.raw import Raw, RawRows
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers.base import Tokenizer


def check(sources: Iterable[Source], tokenizer: Tokenizer) -> None:
    """Raises DataError where a model could not tell the control code of a source from another code, or from any."""
    known = {}
    for source in sources:
        ids = tuple(tokenizer.encode(source.code).tolist()) if source.code else ()
        if tokenizer.special.get("unknown") in ids:
            raise DataError(
                f"'{source.spec}' has the control code '{source.code}', which the tokenizer reads as its unknown token"
                "; choose one of words that it knows"
            )
        same = known.setdefault(ids, source)
        if ids and same.code != source.code:
            raise DataError(
                f"'{source.spec}' has the control code '{source.code}', which for the tokenizer is the same as "
                f"'{same.code}' of '{same.spec}'; choose another, or give both sources one code"
            )


def code_ids(code: str, spec: str, tokenizer: Tokenizer, most: int) -> np.ndarray:
    """The ids of the control code of the source `spec`, at most so many: int32 [C], none where there is no code."""
    ids = tokenizer.encode(code) if code else np.zeros(0, np.int32)
    if code and not 0 < len(ids) <= most:
        raise DataError(
            f"'{spec}' has the control code '{code}', which is {len(ids)} tokens; a row has room for one at least and "
            f"{most} at most, so choose another, or raise {LENGTH}"
        )
    return ids


def without(texts: Iterable[str], codes: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Those of `texts` whose ids begin with the ids of none of the control `codes`."""
    known = [tokenizer.encode(code).tolist() for code in codes]

    def begins(ids: list[int]) -> bool:
        return any(ids[: len(code)] == code for code in known)

    return [text for text in texts if not begins(tokenizer.encode(text).tolist())]


class Coded:
    """`rows` of one stretch of text each, behind the ids `code` (int32 [C]), which are of the row's one document.

    scored: whether what follows the code counts as what follows the row's other ids does; in evaluation it does not,
    since the text before has it scored.
    """

    def __init__(self, rows: RawRows, code: np.ndarray, scored: bool):
        self.rows, self.code, self.scored = rows, code, scored

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Raw:
        """Rows `rows` (int64 [n]), each longer by the code."""
        raw = self.rows.read(rows)
        there = raw.segments[:, :1] > 0
        code = self.code * there
        segments = np.concatenate([there * np.ones_like(code), raw.segments], axis=1)
        return Raw(
            ids=np.concatenate([code, raw.ids], axis=1),
            following=np.concatenate([code[:, 1:], raw.ids[:, :1], raw.following], axis=1),
            segments=segments,
            positions=np.arange(segments.shape[1], dtype=np.int32) * (segments > 0),
            scored=np.concatenate([np.broadcast_to(there & self.scored, code.shape), raw.scored], axis=1),
        )
