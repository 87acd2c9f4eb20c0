"""The rows of a source's text in a layout: to be trained on, and to be scored."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.batching.eval_batches import Overlapping, predicted
from input_pipeline.errors import DataError, UnwritableError
from input_pipeline.packing import (
    documents,
    electra_segments,
    full_sentences,
    languages,
    nsp_pairs,
    seq2seq,
    xlnet_segments,
)
from input_pipeline.packing.concat import Bare, Packed, Windows, whole_documents
from input_pipeline.packing.control_codes import Coded, code_ids
from input_pipeline.packing.electra_segments import Halves
from input_pipeline.packing.full_sentences import Sentences
from input_pipeline.packing.languages import Translations
from input_pipeline.packing.nsp_pairs import Pairs
from input_pipeline.packing.raw import RawRows
from input_pipeline.packing.seq2seq import Texts
from input_pipeline.packing.xlnet_segments import Segments
from input_pipeline.splits import Part
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers.base import Tokenizer


class Plans:
    """Plans of rows, made once: evaluation asks each time, and each time files would be read to the end.

    They lie in `root`; in `scratch` where that is only read. `report` and `read_all` as `plans.kept` takes them.
    """

    def __init__(self, root: Path, scratch: Path | None, report: Callable[[str], None], read_all: bool):
        self._root, self._scratch, self._report, self._read_all, self._made = root, scratch, report, read_all, {}

    def __call__(self, plan: Callable, stream: Stream, *of: object, name: str = ""):
        """What `plan` makes of a stream and these; what is reported begins with the stream's `name`, if it has any."""
        key = plan, stream.identity, of
        how = (lambda said: self._report(f"{name}: {said}")) if name else self._report, self._read_all
        if key not in self._made:
            try:
                self._made[key] = plan(stream, *of, self._root, *how)
            except UnwritableError:
                if self._scratch is None:
                    raise
                self._made[key] = plan(stream, *of, self._scratch, *how)
        return self._made[key]


@dataclass(frozen=True)
class Rows:
    """How a run's text becomes rows, as its `data` section and its objective have it."""

    data: Mapping
    objective: object  # of input_pipeline.corruption
    tokenizer: Tokenizer
    plans: Plans

    def check(self, parts: Sequence[Part]) -> None:
        """Raises DataError where sources to be trained on, together, have not what their layout is made of."""
        if self.data["layout"] == "pairs" and not self.objective.swapped_pairs:
            nsp_pairs.check((part.stream for part in parts), self.objective.raw_length(self.data["length"]))

    def training(self, part: Part) -> RawRows:
        """The rows of a source to be trained on. Errors: DataError where there is not one."""
        length, layout, name = self.data["length"], self.data["layout"], f"'{part.source.spec}'"
        raw_length = self.objective.raw_length(length)
        if not part.stream.tokens:
            raise DataError(
                f"data.holdout = {part.holdout:g} holds out all of {name}, so that none is left to train on; give "
                "it more text, leave it out, set data.validation, or set data.holdout to 0"
            )
        if self.pairs_texts(part.stream):
            rows = self.both_texts(part, length)
        elif self._translates(part):
            rows = self._translations(part, length)
        elif layout == "concat":
            code = self._code(part, raw_length)
            raw_length -= len(code)
            rows = Windows(self._text(part.stream), raw_length, raw_length)
            rows = Coded(rows, code, scored=True) if len(code) else rows
        else:
            rows = self._planned(part.stream, layout, raw_length, name, training=True)
        if not len(rows) and self.of_two_texts(part):
            raise DataError(f"{name} has no pair of texts of which both have a token; give it such pairs")
        if not len(rows):
            raise DataError(
                f"'{part.source.spec}' has {part.stream.tokens} tokens to train on, too few for one row of "
                f"data.length = {self.data['length']}; lower it, or give more text and a new work folder"
            )
        return languages.told(rows, part.source, self.data["languages"])

    def scored(
        self, split: str, stream: Stream, parts: Sequence[Part], layout: str, length: int, overlap: int
    ) -> list[RawRows]:
        """The rows of `length` in which every token of a split is scored once, of each part or of all as one `stream`.

        Of windows each but the first has read `overlap` tokens before those that it scores.
        """
        raw_length = self.objective.raw_length(length)
        if any(part.source.code for part in parts):
            return [self._coded(part, raw_length, overlap) for part in parts]
        if self.objective.two_texts or self.objective.bare:
            return [self._either(part, length) for part in parts]
        if self.data["languages"]:
            return [self._told(part, layout, raw_length, overlap) for part in parts]
        if layout == "concat":
            targets = predicted(stream, self.tokenizer).tokens
            return [Overlapping(stream, targets, raw_length, raw_length - overlap)]
        return [self._planned(stream, layout, raw_length, f"split {split}", training=False)]

    def of_two_texts(self, part: Part) -> bool:
        """Whether the documents of a part are two texts each."""
        return self.pairs_texts(part.stream) or self._translates(part)

    def _translates(self, part: Part) -> bool:
        """Whether documents are two texts, one the translation of the other, for a task that is told languages."""
        return bool(self.data["languages"] and part.source.fields)

    def _translations(self, part: Part, length: int) -> Translations:
        """Rows of both texts of documents, one the translation of the other."""
        plan = self.plans(languages.plan, part.stream, length)
        numbers = languages.numbers(part.source, self.data["languages"])
        return Translations(part.stream, plan, length, self.tokenizer.special["end"], numbers)

    def _code(self, part: Part, length: int) -> np.ndarray:
        """The ids of a source's control code, int32 [C], before text in rows of `length`."""
        return code_ids(part.source.code, part.source.spec, self.tokenizer, length - self.objective.least)

    def _text(self, stream: Stream) -> Stream | Bare:
        """What windows are cut from."""
        return Bare(stream) if self.objective.bare else stream

    def pairs_texts(self, stream: Stream) -> bool:
        """Whether documents are made of a text that is read and one that is written, as of layout texts all are."""
        all_do = self.data["layout"] == "texts"
        return all_do or (self.objective.two_texts and any(shard.form.fields for shard in stream.shards))

    def both_texts(self, part: Part, length: int) -> Texts:
        """Rows of both texts of documents, of those that have both."""
        stream, lengths = part.stream, (length, self.objective.target_length(length))
        seq2seq.check_fields(stream.shards[0].form.fields, f"'{part.source.spec}'")
        plan = self.plans(seq2seq.plan, stream, lengths)
        return Texts(stream, plan, lengths, self.tokenizer.special["end"])

    def _planned(self, stream: Stream, layout: str, length: int, name: str, training: bool) -> RawRows:
        """The rows of a stream in a layout that looks at its documents; what is said gives the stream's `name`."""
        plans = functools.partial(self.plans, name=name)
        if layout == "document":
            return whole_documents(stream, length, name)
        if layout == "packed":
            return Packed(stream, plans(documents.plan, stream, length), length)
        special = self.tokenizer.special
        if layout == "sentences":
            plan = plans(full_sentences.plan, stream, length)
            return Sentences(stream, plan, length, *(special[name] for name in ("end", *full_sentences.SPECIAL)))
        if layout == "halves":
            plan = plans(electra_segments.plan, stream, length)
            return Halves(stream, plan, length, *(special[name] for name in electra_segments.SPECIAL))
        passes = self.objective.passes if training else 1
        how = self.objective.short_pairs, passes, self.objective.swapped_pairs
        plan = plans(nsp_pairs.plan, stream, length, *how)
        return Pairs(stream, plan, length, special["classifier"], special["separator"])

    def segments(self, stream: Stream, length: int) -> Segments:
        """The rows of a stream that end with two segments: of whole sentences, where it is known where those end."""
        self.objective.check(length)
        plan = None
        if self.data["sentences"]:
            plan = self.plans(xlnet_segments.plan, stream)
        return Segments(stream, plan, length, self.objective.reuse, self.objective.framing)

    def _coded(self, part: Part, length: int, overlap: int) -> RawRows:
        """The rows of a part of a split behind its control code, which itself is not scored."""
        code, stride = self._code(part, length), length - overlap
        length -= len(code)
        rows = Overlapping(part.stream, predicted(part.stream, self.tokenizer).tokens, length, min(stride, length))
        return Coded(rows, code, scored=False)

    def _told(self, part: Part, layout: str, length: int, overlap: int) -> RawRows:
        """The rows of a part of a split, which say of which language they are."""
        if self._translates(part):
            return self._translations(part, length)
        rows = Overlapping(part.stream, part.stream.counts.tokens, length, length - overlap)
        if layout != "concat":
            rows = self._planned(part.stream, layout, length, f"'{part.source.spec}'", training=False)
        return languages.told(rows, part.source, self.data["languages"])

    def _either(self, part: Part, length: int) -> RawRows:
        """The rows of a part of a split, of which each source may be of text or of pairs of texts."""
        if self.pairs_texts(part.stream):
            return self.both_texts(part, length)
        length, text = self.objective.raw_length(length), self._text(part.stream)
        rows = Overlapping(text, text.tokens, length, length)
        return languages.told(rows, part.source, self.data["languages"])


def examples(rows: RawRows) -> int:
    """How many examples `rows` hold, which is what sources are mixed by: pairs of texts, and of text rows."""
    return len(rows.plan.documents) if isinstance(rows, Texts | Translations) else len(rows)
