"""Scores of a model on a split: sums over all batches, divided once."""

import hashlib
import json
import math
import time
from collections.abc import Callable

import jax

from input_pipeline.batching.eval import Evaluation
from input_pipeline.pipeline import Corpus
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.evaluation.decoded import KEYS, answers, decoded, tasks
from pretrain.losses import compute_terms
from pretrain.tasks.predictions import predictions

VALIDATION = "validation"  # the evaluation of `config.evaluate`, and its split


def scoring_pass(run, split: str, *, batches: int = 0) -> Evaluation:
    """The batches of `score`. Errors: DataError for impossible options."""
    config = run.config
    length, size = configs.scored_length(config), config.evaluate.batch_size
    stride = config.evaluate.stride or length
    rows = run.spec.layout.rows(run.spec.layout.filled(size))  # rows from `size` on are padding
    return run.corpus.evaluation(split, length=length, stride=stride, batch_size=size, rows=rows, limit=batches)


def selected(config) -> tuple[str, str]:
    """(name, term) of the evaluation that selects the best checkpoint."""
    name, _, term = config.checkpoint.best.partition("/")
    return name, config.objective.selects if term == "loss" else term


def describe_loss(config, loss: float) -> str:
    """The loss of a checkpoint in words; that of an accuracy or a metric is 1 less it."""
    name, term = selected(config)
    metrics = config.objective.metrics if "metrics" in config.objective else ()
    if term.endswith("accuracy") or term in metrics:
        return f"{name} {format_measure(term, 1 - loss)}"
    return f"{name} {format_measure(term, loss)}"


def split_of(config, name: str) -> tuple[str, int]:
    """(split, number of batches or 0 for all) that the evaluation of a name reads."""
    if name == VALIDATION:
        return VALIDATION, config.evaluate.batches
    options = config.evaluations[name]
    return (name if options.data else VALIDATION), options.batches


def measure(config, corpus: Corpus) -> str:
    """Digest of everything besides parameters that a validation loss depends on: only equal digests are compared.

    It covers `config.evaluate` without its schedule and decoding, the selecting term, and the text.
    """
    name, term = selected(config)
    split, batches = split_of(config, name)
    text = corpus.identity(split) if split in corpus.splits else ""  # of a run with other evaluations
    settings = config.evaluate.to_dict() | {"every": None, "batches": batches, "text": text}
    for name in ("decode", *KEYS):
        del settings[name]
    settings["selects"] = term
    # Resolved, so that 0 and an equal length have one digest.
    settings["length"] = configs.scored_length(config)
    settings["stride"] = config.evaluate.stride or settings["length"]
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def format_measure(name: str, value: float) -> str:
    """A measure for a log line: "loss 1.2345", "1.8000 bits per byte", "nsp accuracy 61.0 %"."""
    words = name.replace("_", " ")
    if name.startswith("bits_"):
        return f"{value:.4f} {words}"
    if name == "bleu":
        return f"BLEU {value:.1f}"
    if name.endswith(("accuracy", "exact_match")):
        return f"{words} {100 * value:.1f} %"
    if name == "perplexity":
        return f"{words} {value:.2f}" if value < 1e9 else f"{words} {value:.3g}"
    return f"{words} {value:.4f}"


def score(
    run,
    params,
    split: str,
    *,
    batches: int = 0,
    timed: bool = False,
    decode: int | None = 0,
    unlabelled: bool = False,
    cut: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda message: None,
):
    """Scores of `params` on `split`: every term of the objective, its `summarize`, and the `scope` of batches.

    Every token is read once. With config.evaluate.stride below the length, windows overlap and each token is scored
    with at least length - stride tokens of context. `batches` limits the pass; 0 means the whole split. `timed` adds
    `tokens_per_second`, padding excluded. `decode` adds measures of decoded targets (`pretrain.evaluation.decoded`) on
    that many examples per source, None for all. `unlabelled` examples of a task are predicted where none has a label,
    without terms. `cut` is called after each batch; if it returns True, the result is None. Errors: UserError where no
    token is scored, or where there is nothing to decode.
    """
    config, spec = run.config, run.spec
    to_decode = tasks(run, split, decode=decode)
    data = scoring_pass(run, split, batches=batches)
    size = spec.layout.filled(config.evaluate.batch_size)
    # Recurrent memory passes from batch to batch, lane by lane, as in training.
    carried = spec.init_recurrent_state(spec.eval_model, size)
    sums, outputs, started = [], [], None
    for batch in data.batches():
        batch = spec.put(batch, size)
        if timed and started is None:  # one extra batch, so that compilation is not timed
            jax.block_until_ready(spec.eval_step(params, batch, carried))
            started = time.perf_counter()
        result, carried = spec.eval_step(params, batch, carried)
        outputs.append(result.pop("outputs"))
        sums.append(result)
        if len(sums) > 1:
            jax.block_until_ready(sums[-2])  # at most one batch is queued on the device
        if cut():
            return None
    # math.fsum on the host: a float32 sum over millions of tokens would lose the last digits.
    total = jax.tree.map(lambda *values: math.fsum(map(float, values)), *sums)
    objective, scores = run.spec.objective, {"scope": data.scope}
    if any(total["counts"].values()):
        terms = compute_terms(objective, total["sums"], total["counts"])
        scores |= terms | objective.summarize(terms, total, data)
    elif not objective.metrics:
        raise UserError(f"split {split}: no token to score. Give it more text.")
    elif not unlabelled:
        raise UserError(f"split {split}: no example has a label. Set --predictions=FILE to predict them.")
    if timed:
        scores["tokens_per_second"] = total["read"] / (time.perf_counter() - started)
    if objective.writes:
        report(f"decoding {len(data.order):,} examples")
        outputs = answers(run, params, data, cut)
        if outputs is None:
            return None
    if objective.metrics:
        scores["predictions"] = predictions(config.objective, data, outputs)
        scores |= scores["predictions"].measures()
    if not to_decode:
        return scores
    found = decoded(run, params, to_decode, cut, report)
    return None if found is None else scores | found[1] | {"tasks": found[0]}
