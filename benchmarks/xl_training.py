"""The cost of Transformer-XL's memory in training, against dense layers with the same attention span.

    python -m benchmarks.xl_training [--quick] [--format=json]

Forward and backward through layers of the enwik8 recipe's size (width 512, 8 heads of 64, T = M = 512), with the same
number of tokens:

    transformer_xl  segments of T tokens, each with a memory of M
    dense           the same layers without relative scores: T queries over T + M keys
    decoder         a GPT-style decoder, rows of T + M tokens

The target is 1.25 times the time of dense layers. A decoder's queries see half of their row on average and no state
is computed twice, so the memory itself has a price there.
"""

import statistics
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import models
from benchmarks import report
from configs import common, transformer_xl
from models.attention import attend
from pretrain.distributed.init import keep_freed_memory


def gradient(model, params, tokens, direction, **inputs):
    """Function that computes the gradient of all parameters along one direction of the hidden states, and waits."""

    @jax.jit
    def run(params, tokens, direction, inputs):
        return jax.grad(lambda p: jnp.vdot(model.apply(p, tokens, **inputs).hidden.astype(jnp.float32), direction))(
            params
        )

    program = run.lower(params, tokens, direction, inputs).compile()
    return lambda: jax.block_until_ready(program(params, tokens, direction, inputs))


def attend_content(query, key, value, distance_keys, content_bias, position_bias, mask, bias=None, **options):
    """`attend_relative` without its distance terms."""
    return attend(query, key, value, mask, **options)


def candidates(length: int, lanes: int, layers: int, dtype: str):
    """{name: function that processes lanes * length tokens}."""
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
        model = models.build(fields)
        tokens = jnp.asarray(rng.integers(0, 256, shape), jnp.int32)
        direction = jnp.asarray(rng.normal(size=(*shape, fields["width"])), jnp.float32)
        params = jax.jit(model.init)(jax.random.key(0), tokens[:, :1])
        inputs = {}
        if name == "transformer_xl":
            memory = nn.unbox(model.init_memory(lanes))["attention"]
            hidden = jnp.asarray(rng.normal(size=memory.hidden.shape), memory.hidden.dtype)
            inputs["carried"] = {"attention": memory.replace(hidden=hidden, held=jnp.full_like(memory.held, length))}
        runs[name] = gradient(model, params, tokens, direction, **inputs)
        if name == "transformer_xl":
            with mock.patch("models.transformer.relative_attention.attend_relative", attend_content):
                runs["dense"] = gradient(model, params, tokens, direction, **inputs)
    return runs


def main():
    args = report.arguments(__doc__).parse_args()
    keep_freed_memory()
    length, lanes, layers = (128, 4, 1) if args.quick else (512, 8, 4)
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    times = report.interleave(candidates(length, lanes, layers, dtype), rounds=7)
    per_token = {name: statistics.median(seconds) / (lanes * length) * 1e6 for name, seconds in times.items()}
    rows = [
        report.Result(f"decoder, rows of {2 * length}, a token", per_token["decoder"], "us"),
        report.Result(f"dense layers, {length} queries over {2 * length} keys, a token", per_token["dense"], "us"),
    ]
    for peer, target in (("dense", 1.25), ("decoder", None)):
        name, value = f"Transformer-XL, T = M = {length}, a token", per_token["transformer_xl"]
        # Inverted: how many times as long, not as fast.
        pair = times[peer], times["transformer_xl"]
        rows.append(report.compare(name, *pair, f"{peer}'s time", value=value, unit="us", target=target))
    report.show(rows, args, {"length": length, "lanes": lanes, "layers": layers, "dtype": dtype})


if __name__ == "__main__":
    main()
