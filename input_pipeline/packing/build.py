"""Rows of a run's text under its layout and objective, for training and for evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.packing import concat, documents, full_sentences, languages, nsp_pairs, seq2seq
from input_pipeline.packing.concat import BareStream, EvalWindows, RawRows
from input_pipeline.packing.electra_segments import Halves, plan_halves
from input_pipeline.packing.index_cache import IndexCache
from input_pipeline.packing.xlnet_segments import Segments, plan_sentence_ends
from input_pipeline.splits import Part
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class RowBuilder:
    """Builds rows from parts of a split; `data` is the section of the config."""

    data: Mapping
    objective: object  # corruption.base.Objective
    tokenizer: Tokenizer
    cache: IndexCache

    def training(self, part: Part) -> RawRows:
        """Training rows of a source. Errors: DataError if it has none."""
        length, layout, name = self.data["length"], self.data["layout"], f"'{part.source.spec}'"
        raw_length = self.objective.raw_length(length)
        # Documents are held out by hash: of a source of few documents all may be.
        if not part.stream.tokens:
            raise DataError(f"data.holdout={part.holdout:g}: nothing of {name} is left to train on. Lower it.")
        if self.has_pairs(part):
            rows = self.pairs(part, length)
        elif layout == "concat":
            code = self._code(part, raw_length)
            raw_length -= len(code)
            rows = concat.Windows(self._text(part.stream), raw_length, raw_length)
            rows = concat.Coded(rows, code, scored=True) if len(code) else rows
        else:
            rows = self._planned(part.stream, layout, raw_length, name, training=True)
        if not len(rows):
            raise DataError(
                f"data.length={length}: {name} has {part.stream.tokens} tokens, too few for one row. "
                "Lower it or add text."
            )
        return languages.mark_language(rows, part.source, self.data["languages"])

    def evaluation(
        self, split: str, stream: Stream, parts: Sequence[Part], *, layout: str, length: int, overlap: int
    ) -> list[RawRows]:
        """Rows that score each token of a split once: of each part, or of all parts as one `stream`.

        Each window but the first begins with `overlap` tokens of context that are not scored.
        """
        raw_length = self.objective.raw_length(length)
        # Sources are read one by one if their rows differ: by code, kind of text or language. Otherwise windows run
        # across sources, so that only the first window of a split lacks context.
        if any(part.source.code for part in parts):
            return [self._coded_windows(part, raw_length, overlap) for part in parts]
        per_part = self.objective.uses_text_pairs or self.objective.drops_end_tokens or self.data["languages"]
        if per_part:
            return [self._evaluation_part(part, layout, length, overlap) for part in parts]
        if layout == "concat":
            targets = concat.count_targets(stream, self.tokenizer).tokens
            return [EvalWindows(stream, targets, raw_length, raw_length - overlap)]
        return [self._planned(stream, layout, raw_length, f"split {split}", training=False)]

    def _evaluation_part(self, part: Part, layout: str, length: int, overlap: int) -> RawRows:
        """Evaluation rows of a part, which may be text, pairs of texts or of one language."""
        if self.has_pairs(part):
            return self.pairs(part, length)
        raw_length = self.objective.raw_length(length)
        if layout == "concat":
            text = self._text(part.stream)
            rows = EvalWindows(text, text.tokens, raw_length, raw_length - overlap)
        else:
            rows = self._planned(part.stream, layout, raw_length, f"'{part.source.spec}'", training=False)
        return languages.mark_language(rows, part.source, self.data["languages"])

    def _coded_windows(self, part: Part, length: int, overlap: int) -> RawRows:
        """Evaluation rows of a part behind its control code, whose own targets are not scored."""
        code = self._code(part, length)
        targets, room = concat.count_targets(part.stream, self.tokenizer).tokens, length - len(code)
        return concat.Coded(EvalWindows(part.stream, targets, room, min(length - overlap, room)), code, scored=False)

    def has_text_pairs(self, stream: Stream) -> bool:
        """Whether documents are (source, target) pairs for an encoder and a decoder."""
        fields = any(shard.layout.fields for shard in stream.shards)
        return self.data["layout"] == "texts" or (self.objective.uses_text_pairs and fields)

    def has_pairs(self, part: Part) -> bool:
        """Whether documents are two texts each: (source, target) pairs, or translations that share a row."""
        return self.has_text_pairs(part.stream) or bool(self.data["languages"] and part.source.fields)

    def pairs(self, part: Part, length: int) -> seq2seq.Texts | languages.Translations:
        """Rows of both texts of documents."""
        end = self.tokenizer.special["end"]
        if self.has_text_pairs(part.stream):
            lengths = length, self.objective.target_length(length)
            return seq2seq.Texts(part.stream, seq2seq.plan(part.stream, lengths, self.cache), lengths, end)
        plan = languages.plan(part.stream, length, self.cache)
        numbers = languages.number_languages(part.source, self.data["languages"])
        return languages.Translations(part.stream, plan, length, end, numbers)

    def segments(self, stream: Stream, length: int) -> Segments:
        """Rows that end with two segments, of whole sentences if the store has their ends."""
        self.objective.check_length(length)
        plan = plan_sentence_ends(stream, self.cache) if self.data["sentences"] else None
        return Segments(stream, plan, length, self.objective.reuse, self.objective.framing)

    def _code(self, part: Part, length: int) -> np.ndarray:
        most = length - self.objective.min_raw_length
        return concat.encode_code(part.source.code, f"'{part.source.spec}'", self.tokenizer, most)

    def _text(self, stream: Stream) -> Stream | BareStream:
        return BareStream(stream) if self.objective.drops_end_tokens else stream

    def _planned(self, stream: Stream, layout: str, length: int, name: str, training: bool) -> RawRows:
        """Rows of a layout that depends on documents or sentences."""
        special, objective = self.tokenizer.special, self.objective
        if layout == "document":
            return concat.document_windows(stream, length, name)
        if layout == "packed":
            return documents.Packed(stream, documents.plan(stream, length, self.cache), length)
        framing = special["classifier"], special["separator"]
        if layout == "sentences":
            plan = full_sentences.plan(stream, length, self.cache)
            return full_sentences.Sentences(stream, plan, length, special["end"], *framing)
        if layout == "halves":
            return Halves(stream, plan_halves(stream, length, self.cache), length, *framing)
        # BERT repeats the text with other pairs; evaluation scores one pass.
        passes = objective.passes if training else 1
        plan = nsp_pairs.plan(stream, length, objective.short_pairs, passes, objective.swapped_pairs, self.cache)
        return nsp_pairs.Pairs(stream, plan, length, *framing)


def count_examples(rows: RawRows) -> int:
    """Examples in `rows`, by which sources are mixed: pairs of texts, else rows."""
    is_pairs = isinstance(rows, seq2seq.Texts | languages.Translations)
    return len(rows.plan.documents) if is_pairs else len(rows)
