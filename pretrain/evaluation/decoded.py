"""Measures of decoded targets: BLEU, exact match, sequence accuracy.

A task is a source of text pairs. Targets are decoded greedily, or by beam search with config.evaluate.beams. The
objective names its measures (`decoded`), each computed over all examples of a task.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from input_pipeline.batching.eval import Task
from input_pipeline.examples.corpus import ExampleEvaluation
from pretrain import config as configs
from pretrain.decoding.beam_search import NOTHING, decode
from pretrain.errors import UserError
from pretrain.losses import compute_terms
from pretrain.tasks.metrics import texts


class Written(NamedTuple):
    """One decoded text and its reference: ids without the end token, and their text."""

    ids: np.ndarray
    ended: bool  # the end token came within the limit
    text: str
    target: np.ndarray
    reference: str
    original: str  # the reference in the data, before the tokenizer normalises it


def exact_match(written: Sequence[Written]) -> float:
    """Share of texts equal to the reference."""
    return float(np.mean([one.ended and one.text == one.reference for one in written]))


def sequence_accuracy(written: Sequence[Written]) -> float:
    """Share of id sequences equal to the target.

    It equals teacher-forced sequence accuracy: greedy decoding writes a target exactly if each of its tokens is the
    likeliest after those before it.
    """
    return float(np.mean([one.ended and np.array_equal(one.ids, one.target) for one in written]))


def bleu(written: Sequence[Written]) -> float:
    """Corpus BLEU (Papineni et al. 2002), 0 to 100, as sacrebleu computes it: cased, its own tokenizer."""
    return texts.sacrebleu_score("bleu", [one.text for one in written], [[one.original] for one in written])


MEASURES = {"exact_match": exact_match, "sequence_accuracy": sequence_accuracy, "bleu": bleu}
KEYS = ("beams", "length_penalty", "stopping", "beyond")  # keys of config.evaluate for decoding


def tasks(run, split: str, *, decode: int | None) -> dict[str, Task]:
    """Tasks of a split by source: the first `decode` examples of each, None for all.

    Errors: UserError where none exist but some are asked for, DataError where BLEU lacks the original text.
    """
    measures, found = run.spec.objective.decode_metrics, {}
    if measures and decode != 0:
        length, size = configs.scored_length(run.config), run.config.evaluate.batch_size
        rows = run.spec.layout.rows(run.spec.layout.filled(size))
        found = run.corpus.tasks(split, length=length, batch_size=size, rows=rows, limit=decode or 0)
    if decode and not found:
        raise UserError(
            f"--decode={decode}: split {split} has no text pairs. Give some, such as jsonl:FILES?fields=inputs,targets."
        )
    if found and "bleu" in measures:
        texts.package("sacrebleu", f"config.objective.kind={run.config.objective.kind}")
    # Before the hours of training, not after: a missing text raises here.
    for task in found.values() if _rewritten(run) else ():
        task.originals()
    return found


def decoded(run, params, found: dict[str, Task], cut: Callable[[], bool], report: Callable[[str], None]):
    """({task: figures}, figures over all examples), or None once `cut` returns True after a batch.

    Figures are the objective's terms with one example per row, its decoded measures, mean lengths of decoded and target
    ids without the end token, and the number of examples. params: as the spec evaluates them.
    """
    spec, objective = run.spec, run.spec.objective
    each, everything = {}, []
    # Decoding compiles one program for all tasks: parameters keep their sharding.
    whole = spec.to_global(params)
    for name, task in found.items():
        report(f"decoding {task.examples:,} examples of {name}")
        sums, written, originals = [], [], iter(task.originals()) if _rewritten(run) else None
        for batch, targets in task.batches():
            size = spec.layout.filled(task.context.batch_size)
            result, _ = spec.eval_step(params, spec.put(batch, size), spec.init_recurrent_state(spec.eval_model, size))
            sums.append({name: result[name] for name in ("sums", "counts")})
            written += _compared(_write(run, whole, batch, size), targets, originals, run.corpus.tokenizer)
            if cut():
                return None
        # Sums in float64 on the host, then one division: the measures are of the corpus, not means over batches.
        total = jax.tree.map(lambda *values: math.fsum(map(float, values)), *sums)
        each[name] = compute_terms(objective, total["sums"], total["counts"]) | _figures(objective, written)
        everything += written
    return each, _figures(objective, everything)


def answers(run, params, data: ExampleEvaluation, cut: Callable[[], bool]) -> list[dict[str, np.ndarray]] | None:
    """What is decoded for each batch of a task: its rows under "ids", as `_write` has them; None as `decoded`."""
    whole, found = run.spec.to_global(params), []
    # A second pass: so tokens per second are those of scoring, and one program runs at a time.
    for batch in data.batches():
        found.append({"ids": _write(run, whole, batch, run.spec.layout.filled(run.config.evaluate.batch_size))})
        if cut():
            return None
    return found


def _figures(objective, written: Sequence[Written]) -> dict:
    return {name: MEASURES[name](written) for name in objective.decode_metrics} | {
        "written_length": float(np.mean([len(one.ids) for one in written])),
        "target_length": float(np.mean([len(one.target) for one in written])),
        "examples": len(written),
    }


def _write(run, params, batch, size: int) -> np.ndarray:
    """Decodes all rows of a batch: int32 [size, most], NOTHING after the end."""
    tokenizer, layout, evaluate = run.corpus.tokenizer, run.spec.layout, run.config.evaluate
    tokens, lengths, source = run.spec.objective.prompts(batch)
    most = run.spec.objective.most_written or batch["targets"].shape[1]
    if evaluate.beyond:
        most = min(run.spec.eval_model.context, batch["inputs"].shape[1] + evaluate.beyond)
    limits = np.full(len(tokens), most, np.int32)
    if evaluate.beyond:  # one shape for the program, a limit for each row
        limits = np.minimum(limits, (source["input_segments"] > 0).sum(1) + evaluate.beyond).astype(np.int32)
    there = (batch["segments"] > 0).any(axis=1)
    given = {"tokens": tokens, "lengths": lengths, "there": there, "limits": limits} | source
    # Rows are sharded over all axes of the batch, tokens of a row never.
    axes = {name: ("batch", *[None] * (array.ndim - 1)) for name, array in given.items()}
    given = layout.put(given, axes, size)
    with layout.scope():
        ids = decode(
            run.spec.eval_model,
            params,
            given["tokens"],
            given["lengths"],
            {name: given[name] for name in source},
            given["there"],
            given["limits"],
            beams=evaluate.beams,
            length_penalty=evaluate.length_penalty,
            stopping=evaluate.stopping,
            max_tokens=most,
            end_id=tokenizer.special["end"],
            vocabulary=tokenizer.vocab_size,
        )
    return np.asarray(ids)


def _compared(rows: np.ndarray, targets: Sequence[np.ndarray], originals, tokenizer) -> list[Written]:
    """Decoded rows next to their targets; `originals` None means that the references are the originals."""
    found = []
    for row, target in zip(rows, targets, strict=False):  # the rest is padding
        ids = row[row != NOTHING]
        ended = len(ids) > 0 and ids[-1] == tokenizer.special["end"]  # a search over NaN writes nothing
        ids = ids[:-1] if ended else ids
        reference = tokenizer.decode(target)
        original = next(originals) if originals else reference
        found.append(Written(ids, bool(ended), tokenizer.decode(ids), target, reference, original))
    return found


def _rewritten(run) -> bool:
    """Whether BLEU needs the original text because the tokenizer normalises it."""
    return "bleu" in run.spec.objective.decode_metrics and run.corpus.tokenizer.byte_lengths is None
