"""Texts to score, as ids: a continuation behind its context, a whole text, and windows of a long one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from input_pipeline import corruption
from input_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import UserError
from pretrain.scoring.cached_likelihood import CachedLikelihood
from pretrain.scoring.likelihood import PackedLikelihood, Row, Scored
from pretrain.scoring.pseudo import PseudoLikelihood, predicts_masked


class Request(NamedTuple):
    """The likelihood of `continuation` behind `context`; an empty context is the start of a text."""

    context: str
    continuation: str


@dataclass
class Scorer:
    """Scores texts with one checkpoint; how depends on the model alone.

    Decoders read context and continuation as one text; encoder-decoders read the context in the encoder; encoders mask
    one token of the continuation after the other (pseudo-likelihood, Salazar et al. 2020).
    begins: put the start or end token in front of every context, as in training, not only of empty ones.
    cut: requests so far whose context was cut at its beginning.
    """

    tokenizer: Tokenizer
    score_rows: Callable[[Sequence[Sequence[Row]]], list[list[Scored]]]
    start: int | None = None
    begins: bool = False
    masked: bool = False
    prompts: Callable | None = None  # of an encoder-decoder's objective
    front: Sequence[int] = ()  # ids between the decoder's first one and a text
    context: int = 0
    reserved: int = 0  # places of a row's special tokens
    cut: int = 0

    @staticmethod
    def build(model, params, layout, tokenizer, config, *, begins=False, within_word=False, tokens=0) -> "Scorer":
        """The scorer of a model; batches hold `tokens` tokens, 0 for the default.

        within_word: of masked models, mask the pieces behind a scored one in its word, too. Errors: UserError for
        models that give no likelihood.
        """
        single, pair = config.tokenizer.single, config.tokenizer.pair
        frame = corruption.Frame(single, pair, tokenizer.special)
        options = {"tokens": tokens} if tokens else {}
        common = {"tokenizer": tokenizer, "context": model.context}
        # The heads of classes and tags give no likelihood of a text.
        likelihood = model.has_token_head
        if likelihood and "inputs" in model.inputs:
            objective = corruption.build(config.objective.to_dict(), tokenizer, frame)
            rows = CachedLikelihood(model, params, layout, lambda texts: objective.prompts(texts).source, **options)
            return Scorer(score_rows=rows, prompts=objective.prompts, front=objective.target_front, **common)
        if likelihood and model.causal:
            # Tokenizers such as Llama's write a token in front of every text.
            begins = begins or (bool(single) and frame.before > 0)
            start = tokenizer.special.get("start", tokenizer.end_id)
            kind = PackedLikelihood if model.has_branches else CachedLikelihood
            return Scorer(score_rows=kind(model, params, layout, **options), start=start, begins=begins, **common)
        if predicts_masked(model, tokenizer):
            rows = PseudoLikelihood(model, params, layout, frame, tokenizer, within_word=within_word, **options)
            return Scorer(score_rows=rows, masked=True, reserved=frame.size(1), **common)
        raise UserError("--workdir: gives no likelihood of texts. Name a decoder, encoder-decoder or masked model.")

    @property
    def reads_source(self) -> bool:
        """Whether contexts are read by an encoder."""
        return self.prompts is not None

    def row(self, request: Request) -> Row:
        """A request as ids. Errors: UserError for an empty continuation, of encoder-decoders for an empty context."""
        context, continuation = request
        if self.reads_source and not context.strip():
            raise UserError(f"no context of '{continuation[:40]}': the encoder needs a text. Give it one.")
        if not continuation.strip():
            raise UserError(f"an empty continuation of '{context[-40:]}'. Give it a text.")
        if self.reads_source:
            (begun,), _, _ = self.prompts([context])
            # The decoder writes the answer alone, so no blank separates it.
            ids = self.tokenizer.encode(continuation.lstrip())
            begun = [*begun, *self.front]
            return Row(np.concatenate([begun, ids]).astype(np.int32), len(begun), context)
        # Blanks at the end of the context belong to the continuation, as tokenizers join them with the next word.
        bare = context.rstrip()
        whole, known = self.tokenizer.encode(context + continuation), self.tokenizer.encode(bare)
        # A piece that spans both, as in phrases, belongs to the continuation.
        same = whole[: len(known)] == known[: len(whole)]
        before = len(same) if same.all() else int(np.argmin(same))
        first = [self.start_id()] if not self.masked and (self.begins or not before) else []
        row = Row(np.concatenate([first, whole]).astype(np.int32), len(first) + before)
        self.cut += len(row.ids) > self.context - self.reserved + (not self.masked)
        return row

    def prompt(self, context: str, room: int) -> np.ndarray:
        """The ids of a context that a decoder continues, the last `room` of them. Errors: as `start_id`."""
        ids = self.tokenizer.encode(context)
        first = [self.start_id()] if self.begins or not len(ids) else []
        self.cut += len(first) + len(ids) > room
        return np.concatenate([first, ids]).astype(np.int32)[-room:]

    def windows(self, text: str) -> list[Row]:
        """Rows that score every token of a text once: the last has a full context, the others begin with one token.

        These are the windows of lm-evaluation-harness's rolling likelihood. Errors: UserError for encoder-decoders,
        which read a context first.
        """
        first = [] if self.masked else [self.start_id()]
        ids = np.concatenate([first, self.tokenizer.encode(text)]).astype(np.int32)
        # `known` tokens are read and not scored: the one before the window's first.
        known, size, rows = len(first), self.context - self.reserved, []
        for begin in range(known, len(ids), size):
            end = min(begin + size, len(ids))
            rows.append(Row(ids[max(0, end - size - known) : end], begin - max(0, end - size - known)))
        return rows

    def start_id(self) -> int:
        """The token in front of a text. Errors: UserError for encoder-decoders, and where the tokenizer has none."""
        if self.start is None:
            raise UserError("--workdir: scores no text without a context. Give each one a context.")
        return self.start

    def score(self, groups: Sequence[Sequence[Request]]) -> list[list[Scored]]:
        """The scores of requests; those of a group share what their contexts have in common."""
        return self.score_rows([[self.row(request) for request in group] for group in groups])
