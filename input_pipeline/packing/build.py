"""Rows of a run's text under its layout and objective, for training and for evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from input_pipeline.errors import DataError
from input_pipeline.packing import concat, seq2seq
from input_pipeline.packing.concat import BareStream, EvalWindows, RawRows
from input_pipeline.packing.documents import Packed
from input_pipeline.packing.electra_segments import Halves
from input_pipeline.packing.full_sentences import Sentences
from input_pipeline.packing.index_cache import IndexCache
from input_pipeline.packing.nsp_pairs import Pairs
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
        length, name, tokens = self.data["length"], f"'{part.source.spec}'", part.stream.tokens
        # Documents are held out by hash: of a source of few documents all may be.
        if not tokens:
            raise DataError(f"data.holdout={part.holdout:g}: leaves nothing of {name} to train on. Lower it.")
        rows = self._part_rows(part, self.data["layout"], length)
        if not len(rows):
            raise DataError(f"data.length={length}: {name} fills no row with {tokens} tokens. Lower it.")
        return rows

    def evaluation(
        self, stream: Stream, parts: Sequence[Part], *, layout: str, length: int, overlap: int
    ) -> list[RawRows]:
        """Rows that score each token of a split once: of each part, or of all parts as one `stream`.

        Each window but the first begins with `overlap` tokens of context that are not scored.
        """
        # Sources are read one by one if their rows differ: by code, kind of text or language. Otherwise windows run
        # across sources, so that only the first window of a split lacks context.
        per_part = self.objective.uses_text_pairs or self.objective.drops_end_tokens or self.data["languages"]
        if per_part or any(part.source.code for part in parts):
            return [self._part_rows(part, layout, length, overlap) for part in parts]
        return [self._stream_rows(stream, layout, self.objective.raw_length(length), overlap)]

    def _part_rows(self, part: Part, layout: str, length: int, overlap: int | None = None) -> RawRows:
        """Rows of a source, behind its control code or marked with its language; `overlap` is None in training."""
        # Documents of two texts: (source, target) pairs, or translations that share a row.
        if self.has_text_pairs(part.stream) or (self.data["languages"] and part.source.fields):
            return self.pairs(part, length)
        raw_length, names = self.objective.raw_length(length), list(self.data["languages"])
        code = self.tokenizer.encode(part.source.code) if part.source.code else ()
        if overlap is not None:
            overlap = max(overlap - len(code), 0)  # a code takes the place of context
        rows = self._stream_rows(part.stream, layout, raw_length - len(code), overlap)
        if len(code):
            return concat.Coded(rows, code, scored=overlap is None)
        return concat.Monolingual(rows, names.index(part.source.language)) if names else rows

    def _stream_rows(self, stream: Stream, layout: str, length: int, overlap: int | None) -> RawRows:
        """Rows of plain text of `length` ids; `overlap` is None in training."""
        special, objective, cache = self.tokenizer.special, self.objective, self.cache
        if layout == "concat":
            text = BareStream(stream) if objective.drops_end_tokens else stream
            if overlap is None:
                return concat.Windows(text, length, length)
            targets = text.tokens if text is not stream else concat.count_targets(stream, self.tokenizer).tokens
            return EvalWindows(text, targets, length, length - overlap)
        if layout == "document":
            return concat.document_windows(stream, length)
        if layout == "packed":
            return Packed(stream, length, cache)
        if layout in ("sentences", "halves"):
            return {"sentences": Sentences, "halves": Halves}[layout](stream, length, special, cache)
        # BERT repeats the text with other pairs; evaluation scores one pass.
        passes = objective.passes if overlap is None else 1
        return Pairs(stream, length, special, cache, objective.short_pairs, passes, objective.swapped_pairs)

    def has_text_pairs(self, stream: Stream) -> bool:
        """Whether documents are (source, target) pairs for an encoder and a decoder."""
        fields = any(shard.layout.fields for shard in stream.shards)
        return self.data["layout"] == "texts" or (self.objective.uses_text_pairs and fields)

    def pairs(self, part: Part, length: int) -> seq2seq.Texts | seq2seq.Translations:
        """Rows of both texts of documents."""
        stream, end = part.stream, self.tokenizer.special["end"]
        if self.has_text_pairs(stream):
            lengths = length, self.objective.target_length(length)
            return seq2seq.Texts(stream, seq2seq.plan(stream, lengths, self.cache), lengths, end)
        languages = tuple(map(list(self.data["languages"]).index, part.source.fields))
        return seq2seq.Translations(stream, seq2seq.plan(stream, (length,), self.cache), length, end, languages)

    def segments(self, stream: Stream, length: int) -> Segments:
        """Rows that end with two segments, of whole sentences if the store has their ends."""
        plan = plan_sentence_ends(stream, self.cache) if self.data["sentences"] else None
        return Segments(stream, plan, length, self.objective.reuse, self.objective.framing)


def count_examples(rows: RawRows) -> int:
    """Examples in `rows`, by which sources are mixed: pairs of texts, else rows."""
    is_pairs = isinstance(rows, seq2seq.Texts | seq2seq.Translations)
    return len(rows.plan.documents) if is_pairs else len(rows)
