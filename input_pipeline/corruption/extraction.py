"""Extracted answers: a question and overlapping windows of the text that holds its answer.

Rows are framed as pairs, `[CLS] question [SEP] window [SEP]`. A window without the answer, and a question without one,
point to the token that stands for the row (Devlin et al. 2018, section 4.3).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from input_pipeline.batch_spec import INTEGER, Feature, by_row, by_token
from input_pipeline.corruption.examples import UNLABELLED, Example, Labelled, text_of, value_at
from input_pipeline.errors import DataError

NOWHERE, OUTSIDE, INSIDE = (
    UNLABELLED - 1,
    0,
    1,
)  # targets: an answer that its text does not hold, and answers of windows
FIRST_TOKEN = 2  # place in an example's last part: the window's first token in the text
READ, BEGINS = 1, 2  # in the feature `context`: tokens of the window, and those that may begin an answer


class Extraction(Labelled):
    """The part of a text that answers a question: `labels` [B, 2] are the first and the last token of the answer.

    An example is a window. Its parts: ids of the question, ids of the window, and (first and last token of the answer
    in the window, or -1; the window's first token in the text; the first token that may begin an answer, and the end
    of these). Feature `context` [B, T] is READ or BEGINS at tokens of the window.
    """

    kind = "extraction"
    labelled = "answers"
    windows = True
    _last: tuple[str, tuple] = ("", ())

    def check(self) -> None:
        if len(self.section["texts"]) != 2:
            raise DataError(f"objective.texts={tuple(self.section['texts'])}: name two fields, question and text.")
        if self.frame is None:  # shapes alone are asked for
            return
        stride, question, length = self.section["stride"], self.section["question"], self.frame.length
        room = length - self.frame.size(2) - question
        if room < 1:
            raise DataError(f"data.length={length}: no room beside objective.question={question}. Change one of them.")
        if stride > room:
            raise DataError(f"objective.stride={stride}: exceeds the {room} tokens of text in a window. Lower it.")
        if all(name in ("$A", "$B") for name in self.frame.names[1]):
            raise DataError("tokenizer.pair: needs a special token, to which windows without an answer point. Add one.")

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        marks = {"labels": Feature((batch_size, 2), INTEGER, ("batch", None)), "context": by_token(batch_size, length)}
        return super().features(batch_size, length) | marks | {"nowhere": by_row(batch_size)}

    def read(self, record: Mapping) -> list[Example]:
        question, text = self.texts(record)
        # A long question is cut at its end, as in BERT's released code.
        asked = self.tokenizer.encode(question)[: self.section["question"]]
        ids, starts, ends = self.encode(text)
        if not len(asked) or not len(ids):
            raise DataError(f"fields {' and '.join(self.section['texts'])}: one has no token. Remove the record.")
        target, first, last = self.place(text, answers_of(record, self.section["answers"]), starts, ends)
        room = self.frame.length - self.frame.size(2) - len(asked)
        begins = np.arange(0, max(len(ids) - room, 0) + self.section["stride"], self.section["stride"])
        stops = np.minimum(begins + room, len(ids))
        examples = []
        for begin, stop, (best, best_end) in zip(begins, stops, widest_context(begins, stops), strict=True):
            inside = target == INSIDE and begin <= first and last < stop
            span = (first - begin, last - begin) if inside else (-1, -1)
            window = np.array([*span, begin, best - begin, best_end - begin], np.int32)
            length = len(asked) + stop - begin + self.frame.size(2)
            of_window = OUTSIDE if target == INSIDE and not inside else target
            examples.append(Example((asked, ids[begin:stop], window), float(of_window), int(length)))
        return examples

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`encode_with_offsets` of a text; that of the last text is kept, since questions on one text are in a row."""
        if self._last[0] != text:
            self._last = text, self.tokenizer.encode_with_offsets(text)
        return self._last[1]

    def place(self, text: str, answers: Sequence | None, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int, int]:
        """(target, first and last token) of the first of the answers, (text, place) each."""
        if not answers:
            return (OUTSIDE if answers is not None and self.section["no_answer"] else UNLABELLED), -1, -1
        # Training learns the first answer; metrics compare with all.
        answer, begin = answers[0]
        inside = np.flatnonzero((ends > begin) & (starts < begin + len(answer)) & (ends > starts))
        if not answer or begin < 0 or text[begin : begin + len(answer)] != answer or not len(inside):
            return NOWHERE, -1, -1
        return INSIDE, int(inside[0]), int(inside[-1])

    def notes(self, table) -> Iterator[str]:
        """Warnings about the questions of a split."""
        total = len(np.unique(table.numbers))
        found = {target: np.unique(table.numbers[table.targets == target]) for target in (NOWHERE, UNLABELLED)}
        if len(some := found[NOWHERE]):
            record = table.record(int(some[0]))
            name = record.get("id") or text_of(record, self.section["texts"][0])
            yield f"{len(some):,} of {total:,} answers are not in their text and are left out, the first of {name}"
        if len(some := found[UNLABELLED]):
            yield f"{len(some):,} of {total:,} questions have no answer and are left out (see objective.no_answer)"

    def write(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, examples: Sequence[Example]) -> None:
        for slot, example in zip(slots.tolist(), examples, strict=True):
            question, ids, (first, last, _, best, best_end) = example.parts
            self.write_row(batch, slot, [question, ids])
            used = int(batch["segments"][slot].sum())
            begin, size = self.window(example, batch["tokens"].shape[1])
            batch["context"][slot, begin : begin + size] = READ
            batch["context"][slot, begin + best : begin + min(best_end, size)] = BEGINS
            nowhere = batch["nowhere"][slot] = 0 if self.frame.is_first_special else used - 1
            labels = (begin + first, begin + last) if 0 <= first <= last < size else (nowhere, nowhere)
            batch["labels"][slot], batch["weights"][slot] = labels, example.target >= OUTSIDE

    def window(self, example: Example, length: int) -> tuple[int, int]:
        """(first token of the window in a row of `length`, tokens of the window in it)."""
        sizes = self.frame.sizes(example.parts[:2], length)
        return self.frame.names[1].index("$B") - 1 + sizes[0], sizes[1]


def widest_context(begins: np.ndarray, stops: np.ndarray) -> Iterator[tuple[int, int]]:
    """For each window, the stretch of tokens of which it has the most on both sides, of all windows.

    An answer begins there, so that no two windows give the same one (the released code of BERT).
    """
    places = np.arange(stops[-1])
    context = np.minimum(places - begins[:, None], stops[:, None] - 1 - places).astype(np.float64)
    # The longer window where context is equal, else the first.
    best = np.argmax(np.where(context < 0, -1, context + 0.01 * (stops - begins)[:, None]), axis=0)
    for window in range(len(begins)):
        inside = np.flatnonzero(best == window)
        yield (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (int(begins[window]),) * 2


def answers_of(record: Mapping, field: str) -> list[tuple[str, int]] | None:
    """(text, its first character) of each answer at a field, of SQuAD's forms; None if there is no such field."""
    try:
        found = value_at(record, field, Mapping | list | tuple | np.ndarray)
    except DataError:
        return None
    try:
        # As on the Hugging Face Hub and in TFDS, or as in SQuAD's files.
        if isinstance(found, Mapping):
            pairs = list(zip(found.get("text", ()), found.get("answer_start", ()), strict=True))
        else:
            pairs = [(one["text"], one["answer_start"]) for one in found]
        return [(text.decode() if isinstance(text, bytes) else str(text), int(place)) for text, place in pairs]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"field '{field}': needs text and answer_start of each answer. Name another.") from None
