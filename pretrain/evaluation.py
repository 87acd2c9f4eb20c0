"""Scoring a model on a split: sums over all batches, divided once."""

import math
import time

import jax

from pretrain.assemble import Assembly


def bits_name(config) -> str:
    """What bits are counted per, by the literature's name."""
    return "bits_per_dim" if config.data.image else "bits_per_byte"


def score(
    run: Assembly, params, split: str, *, length: int = 0, stride: int = 0, batch_size: int = 0, batches: int = 0
):
    """The scores of `params` on `split`: loss (nats a token), perplexity, bits, tokens, tokens_per_second.

    Every token of the split is scored once. With `stride` below `length`, windows overlap and a token is
    scored with at least length - stride tokens before it, where the split has them; 0 means disjoint
    windows. `batches` cuts the split short; 0 means all. Zeros elsewhere mean the config's value.
    `words` is the split's number of whitespace-separated words and line ends, where all of it was scored. The bits are
    `bits_per_byte` of text, None where the tokenizer rewrites text, so that part of a split has no known number of
    bytes; and `bits_per_dim` of images, a dimension being one colour of one pixel, which is a byte too.
    """
    config, engine = run.config, run.engine
    length, size = length or config.evaluate.length or config.data.length, batch_size or config.evaluate.batch_size
    stride = stride or config.evaluate.stride or length
    data = run.corpus.evaluation(
        split, length=length, stride=stride, batch_size=size, rows=engine.rows(size), limit=batches
    )
    memory = engine.init_memory(size)
    sums, started = [], None
    for batch in data.batches():
        result, memory = engine.evaluate(params, engine.put(batch, size), memory)
        sums.append(result)
        if len(sums) > 1:
            jax.block_until_ready(sums[-2])  # one batch is queued at most: more would pile up on the device
        if started is None:  # the first batch compiles; its time is not the model's
            float(result["nll"])
            started = time.perf_counter()
    nll = math.fsum(float(s["nll"]) for s in sums)
    tokens = [float(s["tokens"]) for s in sums]
    elapsed = time.perf_counter() - started
    timed = sum(tokens[1:])
    loss = nll / sum(tokens)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        bits_name(config): nll / math.log(2) / data.bytes if data.bytes else None,
        "tokens": int(sum(tokens)),
        "tokens_per_second": timed / elapsed if timed else None,
        "nll": nll,
        "bytes": data.bytes,
        "words": data.words,
    }
