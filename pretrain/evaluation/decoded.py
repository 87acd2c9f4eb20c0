"""What a model writes for the tasks of a split against what it should: a task is a source of pairs of texts.

It is written greedily, or searched with the beams of config.evaluate.beams.

Measures take all that was written for a task, so that one of a whole corpus is as good as a mean over examples. Which
ones there are is the objective's to say (`decoded`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from configs import common
from input_pipeline.batching.tasks import Task
from input_pipeline.errors import DataError
from pretrain import config as configs
from pretrain.decoding.beam_search import NOTHING, beam_search, check_penalty
from pretrain.decoding.sampling import greedy
from pretrain.errors import UserError
from pretrain.losses import compute_terms


class Written(NamedTuple):
    """What a model wrote, and what it should have: ids without the end token, and their text."""

    ids: np.ndarray
    ended: bool  # whether the end token came within as many tokens as were allowed
    text: str
    target: np.ndarray
    reference: str
    original: str  # the reference as it lies in the data, where the tokenizer may write it otherwise


def exact_match(written: Sequence[Written]) -> float:
    """The share whose text is the reference."""
    return float(np.mean([one.ended and one.text == one.reference for one in written]))


def sequence_accuracy(written: Sequence[Written]) -> float:
    """The share whose ids are the target's, all of them.

    It is what teacher forcing gives too: greedy decoding writes a target just where each of its tokens is the likeliest
    one behind those before it.
    """
    return float(np.mean([one.ended and np.array_equal(one.ids, one.target) for one in written]))


def bleu(written: Sequence[Written]) -> float:
    """BLEU of the whole corpus (Papineni et al. 2002), from 0 to 100, as sacrebleu has it: cased, in its own tokens."""
    return sacrebleu().corpus_bleu([one.text for one in written], [[one.original for one in written]]).score


def sacrebleu():
    """The package. Errors: UserError where it is not installed."""
    try:
        import sacrebleu
    except ImportError:
        raise UserError(
            "BLEU of what is decoded needs the package sacrebleu; in the clone, pip install -e '.[bleu]', or decode 0 "
            "examples"
        ) from None
    return sacrebleu


MEASURES = {"exact_match": exact_match, "sequence_accuracy": sequence_accuracy, "bleu": bleu}
KEYS = ("beams", "length_penalty", "stopping", "beyond")  # of config.evaluate: how what is decoded is searched for


def tasks(run, split: str, *, decode: int | None) -> dict[str, Task]:
    """The tasks of a split, by their sources: the first `decode` examples of each, None for all that there are.

    Errors: UserError where some are asked for and there are none, where the config says how to decode and its objective
    decodes nothing, where a device has not the memory to decode, or where BLEU needs text that is not there.
    """
    config, spec = run.config, run.spec
    _check_keys(config, run.spec.objective.decode_metrics)
    found = {}
    if run.spec.objective.decode_metrics and decode != 0:
        length, size = configs.scored_length(config), config.evaluate.batch_size
        rows = spec.rows(spec.layout.filled(size))
        found = run.corpus.tasks(split, length=length, batch_size=size, rows=rows, limit=decode or 0)
    if decode and not found:
        raise UserError(
            f"{decode} examples of each task are to be decoded, and split '{split}' has no source of two fields that "
            f"config.objective.kind = {config.objective.kind} decodes, such as jsonl:FILES?fields=inputs,targets; give "
            "one, or decode 0 examples"
        )
    if found:
        if config.evaluate.beams > 1:
            check_penalty(config.evaluate.length_penalty, "gnmt", run.spec.eval_model.context)
        if "bleu" in run.spec.objective.decode_metrics:
            sacrebleu()
        _check_originals(run, found)
    return found


def decoded(run, params, found: dict[str, Task], cut: Callable[[], bool], report: Callable[[str], None]):
    """The figures of each task, under its source, and over the examples of all of them: ({task: figures}, figures).

    params: as the spec evaluates them. A task's figures are the terms of its examples, each alone in its row; what
    the objective measures on decoded targets; how many tokens, without the end, were written and should have been in
    the mean; and the number of examples. None once `cut`, which is asked after every batch, says to stop.
    """
    spec, objective = run.spec, run.spec.objective
    each, everything = {}, []
    whole = spec.to_global(params)
    for name, task in found.items():
        report(f"decoding {task.examples:,} examples of {name}")
        sums, written, originals = [], [], iter(task.originals()) if _rewritten(run) else None
        for batch, targets in task.batches():
            size = spec.layout.filled(task.batching.batch_size)
            result, _ = spec.eval_step(params, spec.put(batch, size), spec.init_recurrent_state(size))
            sums.append(result)
            written += _compared(_write(run, whole, batch, size), targets, originals, run.corpus.tokenizer)
            if cut():
                return None
        total = jax.tree.map(lambda *values: math.fsum(map(float, values)), *sums)
        each[name] = compute_terms(objective, total["sums"], total["counts"]) | _figures(objective, written)
        everything += written
    return each, _figures(objective, everything)


def _figures(objective, written: Sequence[Written]) -> dict:
    return {name: MEASURES[name](written) for name in objective.decode_metrics} | {
        "written_length": float(np.mean([len(one.ids) for one in written])),
        "target_length": float(np.mean([len(one.target) for one in written])),
        "examples": len(written),
    }


def _write(run, params, batch, size: int) -> np.ndarray:
    """The ids that the model writes for all rows of a batch, int32 [size, at most `_room`], NOTHING behind the last."""
    tokenizer, layout, evaluate = run.corpus.tokenizer, run.spec.layout, run.config.evaluate
    tokens, source = run.spec.objective.prompts(batch)
    most = _room(run, batch)
    limits = np.full(len(tokens), most, np.int32)
    if evaluate.beyond:
        limits = np.minimum(limits, (source["input_segments"] > 0).sum(1) + evaluate.beyond).astype(np.int32)
    given = {"tokens": tokens, "there": batch["weights"].any(axis=1), "limits": limits} | source
    axes = {name: ("batch", *[None] * (array.ndim - 1)) for name, array in given.items()}
    given = layout.put(given, axes, size)
    searched = {name: evaluate[name] for name in ("beams", "length_penalty", "stopping")}
    write = functools.partial(beam_search, **searched) if evaluate.beams > 1 else greedy
    with layout.scope():
        ids = write(
            run.spec.eval_model,
            params,
            given["tokens"],
            {name: given[name] for name in source},
            given["there"],
            given["limits"],
            max_tokens=most,
            end_id=tokenizer.special["end"],
            vocabulary=tokenizer.vocab_size,
        )
    return np.asarray(ids)


def _room(run, batch) -> int:
    """How many tokens are written for a row at most."""
    if beyond := run.config.evaluate.beyond:
        return min(run.spec.eval_model.context, batch["inputs"].shape[1] + beyond)
    return batch["targets"].shape[1]


def _compared(rows: np.ndarray, targets: Sequence[np.ndarray], originals, tokenizer) -> list[Written]:
    """The first rows of what was written, one for each target; `originals` None means that they are the references."""
    found = []
    for row, target in zip(rows, targets, strict=False):  # padding follows
        ids = row[row != NOTHING]
        ended = len(ids) > 0 and ids[-1] == tokenizer.special["end"]  # a search over no numbers writes nothing
        ids = ids[:-1] if ended else ids
        reference = tokenizer.decode(target)
        original = next(originals) if originals else reference
        found.append(Written(ids, bool(ended), tokenizer.decode(ids), target, reference, original))
    return found


def _rewritten(run) -> bool:
    """Whether BLEU is measured, of a reference that is not what the tokenizer makes of its ids."""
    return "bleu" in run.spec.objective.decode_metrics and run.corpus.tokenizer.byte_lengths is None


def _check_originals(run, found: dict[str, Task]) -> None:
    """Raises UserError where references are to be had from the data alone, and are not there."""
    try:
        for task in found.values() if _rewritten(run) else ():
            task.originals()
    except DataError as error:
        raise UserError(
            f"BLEU compares with the text itself, which the tokenizer rewrites, and {error}, or decode 0 examples"
        ) from None


def _check_keys(config, measures: Sequence[str]) -> None:
    """Raises UserError where keys say how to decode, and the objective has no `measures` of what is decoded."""
    usual = common.base()["evaluate"]
    changed = [name for name in KEYS if config.evaluate[name] != usual[name]]
    if changed and not measures:
        key = changed[0]
        raise UserError(
            f"config.evaluate.{key} = {config.evaluate[key]} is of targets that are decoded, and config.objective.kind "
            f"= {config.objective.kind} decodes none; set it to {usual[key]}"
        )
