"""What Transformer-XL's memory costs in training, against dense layers with the same attention span.

    python -m benchmarks.xl_training [--quick] [--format=json]

Forward and backward through layers of the enwik8 recipe's size (width 512, 8 heads of 64, T = M = 512): segments of T
tokens with a memory of M, against a GPT-style decoder's rows of T + M tokens with causal attention, as many tokens in
all. Both see up to T + M keys. `per token` is the ratio of times at equal numbers of tokens; the target is 1.25.
"""

import statistics

import jax
import jax.numpy as jnp
import numpy as np

import models
from benchmarks import report
from configs import common, transformer_xl


def gradient(model, params, tokens, direction, **inputs):
    """A function that computes the gradient of all parameters along one direction of the hidden states, and waits."""

    @jax.jit
    def run(params, tokens, direction, inputs):
        return jax.grad(lambda p: jnp.vdot(model.apply(p, tokens, **inputs).hidden.astype(jnp.float32), direction))(
            params
        )

    return lambda: jax.block_until_ready(run(params, tokens, direction, inputs))


def candidates(length: int, lanes: int, layers: int, dtype: str):
    """{name: function that works through lanes * length tokens}."""
    shared = {"layers": layers, "dtype": dtype, "vocab_size": 256}
    recurrent = transformer_xl.get_config("enwik8").model.to_dict()
    recurrent |= shared | {"memory": length, "dropout": 0.0}
    dense = common.decoder().to_dict() | shared | {"context": 2 * length, "attention_bias": False}
    dense |= {name: recurrent[name] for name in ("width", "heads", "ff", "activation")}
    rng = np.random.default_rng(0)
    runs = {}
    for name, fields, shape in (
        ("transformer_xl", recurrent, (lanes, length)),
        ("decoder", dense, (lanes // 2, 2 * length)),
    ):
        model = models.build(name, fields)
        tokens = jnp.asarray(rng.integers(0, 256, shape), jnp.int32)
        direction = jnp.asarray(rng.normal(size=(*shape, fields["width"])), jnp.float32)
        params = jax.jit(model.init)(jax.random.key(0), tokens[:, :1])
        inputs = {}
        if name == "transformer_xl":
            memory = model.init_memory(lanes)
            hidden = jnp.asarray(rng.normal(size=memory.hidden.shape), memory.hidden.dtype)
            inputs["memory"] = memory.replace(hidden=hidden, held=jnp.full_like(memory.held, length))
        runs[name] = gradient(model, params, tokens, direction, **inputs)
    return runs


def main():
    args = report.arguments(__doc__.split("\n")[0]).parse_args()
    length, lanes, layers = (128, 4, 1) if args.quick else (512, 8, 4)
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    times = report.interleaved(candidates(length, lanes, layers, dtype), rounds=7)
    cost, spread = report.ratio(times["decoder"], times["transformer_xl"])
    a_token = {name: statistics.median(seconds) / (lanes * length) * 1e6 for name, seconds in times.items()}
    rows = [
        report.Result(f"decoder, rows of {2 * length}, a token", a_token["decoder"], "us"),
        report.Result(
            f"Transformer-XL, T = M = {length}, a token",
            *(a_token["transformer_xl"], "us", "the decoder's time", cost, 1.25, spread),
        ),
    ]
    report.show(rows, args, {"length": length, "lanes": lanes, "layers": layers, "dtype": dtype})


if __name__ == "__main__":
    main()
