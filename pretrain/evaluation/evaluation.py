"""Scoring a model on a split: sums over all batches, divided once."""

import hashlib
import json
import math
import time
from collections.abc import Callable

import jax

from input_pipeline.batches.evaluation import Evaluation
from pretrain.assemble import Assembly
from pretrain.errors import UserError


def bits_name(config) -> str:
    """What bits are counted per, by the literature's name."""
    return "bits_per_dim" if config.data.image else "bits_per_byte"


def scoring_pass(
    run: Assembly, split: str, *, length: int = 0, stride: int = 0, batch_size: int = 0, batches: int = 0
) -> Evaluation:
    """The batches that `score` goes through; the options are its own. Errors: DataError for what cannot be."""
    config = run.config
    length, size = length or config.evaluate.length or config.data.length, batch_size or config.evaluate.batch_size
    stride = stride or config.evaluate.stride or length
    rows = run.engine.rows(run.engine.layout.filled(size))  # rows beyond `size` are padding
    return run.corpus.evaluation(split, length=length, stride=stride, batch_size=size, rows=rows, limit=batches)


def measure(run: Assembly) -> str:
    """What a validation loss of training depends on beside the parameters, hashed: only like losses are compared.

    That is `config.evaluate`, but for when it is done, and the text.
    """
    settings = run.config.evaluate.to_dict() | {"every": None, "text": run.corpus.stream("validation").identity}
    settings["length"] = run.config.evaluate.length or run.config.data.length
    settings["stride"] = run.config.evaluate.stride or settings["length"]
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def score(
    run: Assembly,
    params,
    split: str,
    *,
    batch_size: int = 0,
    timed: bool = False,
    cut: Callable[[], bool] = lambda: False,
    **options,
):
    """The scores of `params` on `split`: loss (nats a token), perplexity, bits, tokens, nll, bytes, words.

    Every token of the split is scored once. With `stride` below `length`, windows overlap and a token is
    scored with at least length - stride tokens before it, where the split has them; 0 means disjoint
    windows. `batches` cuts the split short; 0 means all. Zeros elsewhere mean the config's value.
    `words` is the split's number of whitespace-separated words and line ends, where all of it was scored. The bits are
    `bits_per_byte` of text, None where the tokenizer rewrites text, so that part of a split has no known number of
    bytes; and `bits_per_dim` of images, a dimension being one colour of one pixel, which is a byte too.
    `timed` adds `tokens_per_second`, of the tokens that the model reads, padding left out.
    `cut` is asked after every batch whether to stop there; there are no scores then, but None.
    Errors: UserError where not one token is scored.
    """
    config, engine = run.config, run.engine
    size = batch_size or config.evaluate.batch_size
    data = scoring_pass(run, split, batch_size=size, **options)
    size = engine.layout.filled(size)
    memory = engine.init_memory(size)
    sums, started = [], None
    for batch in data.batches():
        batch = engine.put(batch, size)
        if timed and started is None:  # once more than is scored, to compile: that time is not the model's
            jax.block_until_ready(engine.evaluate(params, batch, memory))
            started = time.perf_counter()
        result, memory = engine.evaluate(params, batch, memory)
        sums.append(result)
        if len(sums) > 1:
            jax.block_until_ready(sums[-2])  # one batch is queued at most: more would pile up on the device
        if cut():
            return None
    nll, tokens, read = (math.fsum(float(s[name]) for s in sums) for name in ("nll", "tokens", "read"))
    if not tokens:
        raise UserError(f"split '{split}' has no token that the model could be scored on; give it more text")
    loss = nll / tokens
    scores = {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        bits_name(config): nll / math.log(2) / data.bytes if data.bytes else None,
        "tokens": int(tokens),
        "nll": nll,
        "bytes": data.bytes,
        "words": data.words,
    }
    return scores | ({"tokens_per_second": read / (time.perf_counter() - started)} if timed else {})
