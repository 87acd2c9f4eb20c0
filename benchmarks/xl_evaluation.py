"""Transformer-XL's evaluation speed: with memory, against recomputing a sliding window for every token.

    python -m benchmarks.xl_evaluation [--quick] [--format=json]

The enwik8 recipe's network (12 layers of width 512), batch 1. At attention length L, a window of L tokens scores its
last token; with memory, a segment of L tokens attends to the hidden states of the L before (section 3.2), so that
every token sees exactly L keys. Dai et al. 2019, table 9, report 363, 773, 1,409 and 1,874 times as fast at L = 800,
1,800, 2,800 and 3,800 on one GPU.
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


def build(length: int, changes: dict):
    """Two functions: score one token by a window, and `length` tokens with memory."""
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

    _, carried = segment(params, tokens, targets, nn.unbox(recurrent.init_memory(1)))
    return (
        lambda: jax.block_until_ready(last_token(params, tokens, targets)),
        lambda: jax.block_until_ready(segment(params, tokens, targets, carried)),
    )


def main():
    args = report.arguments(__doc__).parse_args()
    keep_freed_memory()
    changes = {"dtype": "float32"} if jax.default_backend() == "cpu" else {}
    changes |= {"layers": 2} if args.quick else {}
    rows, table = [], {100: None, 200: None} if args.quick else PAPER
    for length, paper in table.items():
        window, segment = build(length, changes)
        times = report.interleave({"window": window, "memory": segment}, rounds=5)
        per_token = [seconds / length for seconds in times["memory"]]
        name = f"a token at attention length {length}"
        rows += [
            report.Result(f"{name}, by a window", statistics.median(times["window"]) * 1e3, "ms"),
            report.compare(
                f"{name}, with memory", per_token, times["window"], "a window", target=paper, unit="ms", scale=1e3
            ),
        ]
    report.show(rows, args, {"recipe": "transformer_xl:enwik8", "changes": changes, "lengths": list(table)})


if __name__ == "__main__":
    main()
