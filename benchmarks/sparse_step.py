"""Sparse against dense attention: time, memory, growth with length, and the whole training step.

    python -m benchmarks.sparse_step [--quick] [--format=json] [--plot=FILE.svg]

1. One attention, forward and backward, 2 heads of 64, float32 (bfloat16 on a GPU), at 12,288 tokens: fixed and strided
   against `jax.nn.dot_product_attention` and against our dense backend with O(T) memory. Memory is the compiled
   program's temporaries.
2. Lengths up to 32,768 with stride sqrt(T), causal and bidirectional: the exponent of growth in time and memory.
3. The training step at 12,288 tokens: the enwik8 recipe on a GPU, 2 layers of width 128 on a CPU. Child et al. 2019,
   table 2, report 1.31, 0.55 and 0.35 s for dense, fixed and strided.
"""

import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report, steps
from configs import sparse_transformer
from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from pretrain.distributed.init import keep_freed_memory
from pretrain.step.train_spec import TrainSpec

HEADS, SIZE = 2, 64
ACCELERATED = jax.default_backend() != "cpu"
PATTERNS = ("strided_128", "fixed_128_8", "fixed_128_32")


def ours(word, path="auto", causal=True):
    """Our attention with a pattern."""
    mask = Mask(causal=causal, pattern=parse_pattern(word))
    return lambda query, key, value: attend(query, key, value, mask, backend=path)


def compile_both(attention, length):
    """(function that runs forward and backward and waits, bytes of temporaries)."""
    rng = np.random.default_rng(0)
    dtype = jnp.bfloat16 if ACCELERATED else jnp.float32
    arrays = [jnp.asarray(rng.normal(size=(1, length, HEADS, SIZE)), dtype) for _ in range(4)]

    def both(query, key, value, gradient):
        out, pull = jax.vjp(attention, query, key, value)
        return out, pull(gradient)

    program = jax.jit(both).lower(*arrays).compile()
    return lambda: jax.block_until_ready(program(*arrays)), program.memory_analysis().temp_size_in_bytes


def compare(length, rounds):
    """Fixed and strided against dense, in time and memory, at one length."""
    candidates = {word: ours(word) for word in PATTERNS}
    candidates["dense, O(T) memory"] = ours("dense", "chunked")
    candidates["jax.nn"] = lambda query, key, value: jax.nn.dot_product_attention(query, key, value, is_causal=True)
    if ACCELERATED:
        candidates["dense, cuDNN"] = ours("dense", "cudnn")
    programs = {name: compile_both(attention, length) for name, attention in candidates.items()}
    times = {name: [] for name in programs}
    for round in range(rounds):
        for name, (run, _) in programs.items():
            # Each pattern runs once untimed before it is timed: after the gigabytes of `jax.nn` it would otherwise pay
            # for page faults.
            if round == 0 or name in PATTERNS:
                run()
            times[name].append(report.seconds(run))
    rows = []
    for name, (_, memory) in programs.items():
        rows.append(report.Result(f"attention {length}, {name}", statistics.median(times[name]), "s"))
        rows.append(report.Result(f"attention {length}, {name}, memory", memory / 1e6, "MB"))
    for name in PATTERNS:
        for peer, target in (("jax.nn", 50), ("dense, O(T) memory", 8)):
            rows.append(
                report.compare(f"speed-up {length}, {name}", times[name], times[peer], against=peer, target=target)
            )
        less = programs["jax.nn"][1] / programs[name][1]
        rows.append(report.Result(f"memory {length}, {name}", programs[name][1] / 1e6, "MB", "jax.nn", less, 20))
    return rows


def exponent(x, y) -> float:
    """Slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth(lengths, rounds):
    """Growth with length at stride sqrt(T): results, and {pattern: (lengths, seconds)}."""
    rows, curves = [], {}
    for name, form, causal in (
        ("strided", "strided_{}", True),
        ("fixed", "fixed_{}_8", True),
        ("strided both ways", "strided_{}", False),
    ):
        programs = {T: compile_both(ours(form.format(round(T**0.5 / 8) * 8), causal=causal), T) for T in lengths}
        times = report.interleave({T: run for T, (run, _) in programs.items()}, rounds)
        seconds = [statistics.median(times[T]) for T in lengths]
        memory = [programs[T][1] for T in lengths]
        curves[f"{name}: T^{exponent(lengths, seconds):.2f}"] = lengths, seconds
        for T, second, size in zip(lengths, seconds, memory, strict=True):
            rows.append(report.Result(f"ladder, {name}, {T}", second, f"s, {size / 1e6:.3g} MB"))
        rows.append(report.Result(f"exponent of time, {name}", exponent(lengths, seconds), "", target=1.6))
        rows.append(report.Result(f"exponent of memory, {name}", exponent(lengths, memory), "", target=1.6))
    return rows, curves


def training_step(attention, length):
    """Function that makes one update of the enwik8 recipe with an attention pattern and waits."""
    config = sparse_transformer.get_config("enwik8")
    config.model.update(attention=(attention,), context=length, position_axes=(length // 128, 128))
    if not ACCELERATED:
        config.model.update(layers=2, width=128, heads=2, ff=512, dtype="float32", attention_path="auto")
    config.data.length, config.mesh.data = length, 1
    config.train.update(batch_size=1)
    spec = TrainSpec.build(config, jax.devices()[:1])
    return steps.updates(spec, steps.random_batch(spec, 1, length), 1)


def compare_steps(length, rounds):
    """The training step: fixed and strided against dense."""
    words = {"dense": "dense", "fixed": "fixed_128_32_by_head", "strided": "strided_128"}
    times = report.interleave({name: training_step(word, length) for name, word in words.items()}, rounds)
    rows = [report.Result(f"step {length}, dense", statistics.median(times["dense"]), "s")]
    for name, target in (("fixed", 1.31 / 0.55), ("strided", 1.31 / 0.35)):
        rows.append(report.compare(f"step {length}, {name}", times[name], times["dense"], "dense", target=target))
    return rows


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--plot", type=report.new_file, default="", help="file for a log-log plot of time over length")
    args = parser.parse_args()
    keep_freed_memory()
    length, rounds, top = (1024, 5, 12) if args.quick else (12_288, 5, 15)
    settings = {"length": length, "heads": HEADS, "size": SIZE, "patterns": PATTERNS}
    report.show(compare(length, rounds), args, settings)
    rows, curves = growth([2**k for k in range(10, top + 1)], rounds)
    report.show(rows, args, settings)
    if args.plot:
        report.plot(args.plot, curves, "tokens", "seconds", log="xy")
    report.show(compare_steps(length, rounds), args, settings)


if __name__ == "__main__":
    main()
