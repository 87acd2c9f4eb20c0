"""Transformer-XL's evaluation speed: with memory, against recomputing a sliding window for every token.

    python -m benchmarks.xl_evaluation [--quick] [--format=json]

The enwik8 recipe's network (12 layers of width 512), the same parameters both ways, batch 1. With an attention length
of L, the vanilla way runs a window of L tokens to score its last one. The way of section 3.2 runs a segment of L tokens
with the hidden states of the L before: every token sees exactly L keys, and its cost is a share of the segment's.
Dai et al. 2019, table 9, report 363, 773, 1,409 and 1,874 times at L = 800, 1,800, 2,800 and 3,800 on one GPU.
"""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import models
from benchmarks import report
from configs import transformer_xl
from pretrain.distributed.init import keep_freed_memory

PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def losses(model, params, hidden, targets):
    """Negative log-likelihood of each target."""
    log_probs = jax.nn.log_softmax(model.apply(params, hidden, method="logits"))
    return -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]


def both_ways(length: int, changes: dict):
    """Two functions that wait for what they compute: score one token by a window, and `length` tokens with memory."""
    fields = transformer_xl.get_config("enwik8").model.to_dict() | changes | {"memory": length, "clamp": 0}
    window = models.build(fields)
    recurrent = models.build(fields | {"same_length": True})
    rng = np.random.default_rng(0)
    tokens, targets = (jnp.asarray(rng.integers(0, fields["vocab_size"], (1, length)), jnp.int32) for _ in range(2))
    params = jax.jit(window.init)(jax.random.key(0), tokens[:, :1])

    @jax.jit
    def last_token(params, tokens, targets):
        hidden = window.apply(params, tokens).hidden
        return losses(window, params, hidden[:, -1:], targets[:, -1:])

    @jax.jit
    def segment(params, tokens, targets, carried):
        output = recurrent.apply(params, tokens, carried=carried)
        return losses(recurrent, params, output.hidden, targets), output.carried

    _, carried = segment(params, tokens, targets, nn.unbox(recurrent.start(1)))
    return (
        lambda: jax.block_until_ready(last_token(params, tokens, targets)),
        lambda: jax.block_until_ready(segment(params, tokens, targets, carried)),
    )


def main():
    args = report.arguments(__doc__.split("\n")[0]).parse_args()
    keep_freed_memory()
    changes = {"dtype": "float32"} if jax.default_backend() == "cpu" else {}
    table = {100: 0.0, 200: 0.0} if args.quick else PAPER
    if args.quick:
        changes["layers"] = 2
    rows = []
    for length, paper in table.items():
        window, segment = both_ways(length, changes)
        times = report.interleaved({"window": window, "memory": segment}, rounds=5)
        a_token = [seconds / length for seconds in times["memory"]]
        median, spread = report.ratio(a_token, times["window"])
        label = f"a token at attention length {length}"
        rows.append(report.Result(f"{label}, by a window", statistics.median(times["window"]) * 1e3, "ms"))
        rows.append(
            report.Result(
                f"{label}, with memory",
                statistics.median(a_token) * 1e3,
                "ms",
                "a window",
                median,
                paper or None,
                spread,
            )
        )
    report.show(rows, args, {"recipe": "transformer_xl:enwik8", "changes": changes, "lengths": list(table)})


if __name__ == "__main__":
    main()
