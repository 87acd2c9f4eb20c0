"""Attention and whole training steps compiled for TPUs that are not there: their memory and their operations.

    python -m benchmarks.tpu_compile [--topologies v5e:2x2,v5p:2x2x1] [--only WORDS] [--quick] [--format=json]

Needs the extra `plan` (libtpu), no TPU. One attention has 1 row, 8 heads of 64, bfloat16, is compiled forward and
backward for one chip, and takes the path that `auto` would take there. A step is a recipe's at its full size, one row
for each chip of the topology. What starts with `pod` is small and for four chips (`benchmarks.pods`).

Memory is bytes of one chip: the program's temporaries, and what it is given (of a step: the train state). Operations
are XLA's own count, which takes the body of a loop once and a kernel for nothing; so only programs that have neither
are set against `pretrain.costs.flops`, convention `causal`. Above 1 is what blocks compute beyond the pattern and what
the backward pass computes again.
"""

import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no TPU to be asked about itself
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nor one to be kept from others: compilers may run side by side

import jax
import jax.numpy as jnp

from benchmarks import pods, report
from configs import sparse_transformer, transformer_xl
from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.attention.relative import attend_relative
from pretrain.costs.flops import TRAIN, flops_per_token, keys_per_query
from pretrain.step.train_spec import TrainSpec

HEADS, SIZE, LONG = 8, 64, 12_288
KERNEL = "tpu_custom_call"  # what a Pallas kernel is called in a compiled program


@dataclass(frozen=True)
class Compiled:
    """What a program compiled for one topology says of itself; bytes are of one chip, FLOPs of all."""

    name: str
    topology: str
    temporary_bytes: int
    argument_bytes: int
    flops: float  # as XLA counts them
    expected_flops: float | None  # as we do; None where XLA's count leaves something out
    kernels: int
    seconds: float  # of compiling


def attention(
    word: str,
    T: int,
    devices,
    *,
    size=SIZE,
    memory=0,
    source=0,
    documents=False,
    relative=False,
    path="auto",
    expected=False,
):
    """One attention, forward and backward, lowered for the first of `devices`; and the FLOPs that its pattern needs.

    It is causal unless it looks at a `source` of so many tokens, whose documents are its own.
    """
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:1])
    alone = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def array(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=alone)

    S = source or memory + T
    mask = Mask(causal=not source, pattern=parse_pattern(word), memory=memory)
    if documents:
        mask = mask.replace(query_segments=array(1, T, dtype=jnp.int32))
    if source:
        mask = mask.replace(key_segments=array(1, S, dtype=jnp.int32))
    query, key = array(1, T, HEADS, size), array(1, S, HEADS, size)
    inputs = [query, key, key]
    if relative:
        inputs += [array(S, HEADS, SIZE), array(HEADS, SIZE), array(HEADS, SIZE)]

    def both(mask, inputs, gradient):
        run = attend_relative if relative else attend
        out, pull = jax.vjp(lambda *inputs: run(*inputs, mask, backend=path), *inputs)
        return out, pull(gradient)

    with jax.set_mesh(mesh):
        lowered = jax.jit(both).lower(mask, inputs, query)
    flops = TRAIN * 4 * T * HEADS * SIZE * keys_per_query(word, HEADS, T, "causal") if expected else None
    return lowered, flops


def step(config, devices, *, expected=False):
    """A recipe's training step, lowered for a mesh of all `devices`, one row each; and the FLOPs that it needs."""
    rows = len(devices)
    config.mesh.data, config.train.batch_size, config.train.accumulate = rows, rows, 1
    spec = TrainSpec.build(config, devices)
    lowered = spec.lower_train_step(rows, config.data.length)
    if not expected:
        return lowered, None
    length = config.data.length
    return lowered, rows * length * flops_per_token(spec, length)["causal"]


def strided_layer(devices):
    """The step of the enwik8 recipe with one strided layer: without a loop, so that XLA counts all that it does."""
    config = sparse_transformer.get_config("enwik8")
    config.model.update(layers=1, scan=False, attention=("strided_128",))
    return step(config, devices, expected=True)


PROGRAMS: dict[str, Callable] = {
    "dense": partial(attention, "dense", LONG),
    "dense, documents": partial(attention, "dense", LONG, documents=True),
    "dense, heads of 80, 1,000 tokens": partial(attention, "dense", 1000, size=80),
    "source of documents": partial(attention, "dense", LONG, source=LONG, documents=True),
    "source of documents, 512 to 114 tokens": partial(attention, "dense", 114, source=512, documents=True),
    "local_256": partial(attention, "local_256", LONG),
    "memory 2,048": partial(attention, "dense", 2048, memory=2048),
    "relative, memory 512": partial(attention, "dense", 512, memory=512, relative=True),
    "dense, xla": partial(attention, "dense", LONG, path="xla"),
    "dense, xla, 512 tokens": partial(attention, "dense", 512, path="xla", expected=True),
    "strided_128": partial(attention, "strided_128", LONG, expected=True),
    "fixed_128_32": partial(attention, "fixed_128_32", LONG),
    "step strided, 1 layer": strided_layer,
    "step sparse_transformer:enwik8": lambda devices: step(sparse_transformer.get_config("enwik8"), devices),
    "step transformer_xl:enwik8": lambda devices: step(transformer_xl.get_config("enwik8"), devices),
    **pods.PROGRAMS,
}
QUICK = ("dense", "strided_128", "relative, memory 512")


@functools.cache
def devices_of(topology: str):
    """Its absent devices, made once: a function that is traced for a mesh of them is not traced anew for its like."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def compiled(name: str, topology: str) -> Compiled:
    """The program called `name`, compiled for `topology`, such as v5e:2x2."""
    devices = devices_of(topology)
    lowered, expected = PROGRAMS[name](devices)
    start = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    chips = {"step": len(devices), "pod": pods.CHIPS}.get(name.split()[0], 1)
    return Compiled(
        name=name,
        topology=topology,
        temporary_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        flops=chips * program.cost_analysis()["flops"],
        expected_flops=expected,
        kernels=program.as_text().count(f'custom_call_target="{KERNEL}"'),
        seconds=seconds,
    )


def results(one: Compiled) -> list[report.Result]:
    """The figures of one program."""
    name = f"{one.name}, {one.topology}"
    ratio = one.expected_flops and one.flops / one.expected_flops
    return [
        report.Result(f"{name}, temporaries", one.temporary_bytes, "B"),
        report.Result(f"{name}, arguments", one.argument_bytes, "B"),
        report.Result(f"{name}, operations", one.flops, "FLOP", "pretrain.costs.flops" if ratio else "", ratio),
        report.Result(f"{name}, kernels", one.kernels, ""),
    ]


def row(one: Compiled) -> str:
    """The same as a line of the table."""
    ratio = f"{one.flops / one.expected_flops:.2f}" if one.expected_flops else ""
    memory = f"{one.temporary_bytes / 1e6:>11,.1f} {one.argument_bytes / 1e6:>12,.1f}"
    return f"{one.name:<44} {one.topology:<9} {memory} {one.flops / 1e9:>9,.1f} {ratio:>5} {one.kernels:>8}"


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--topologies", default="v5e:2x2,v5p:2x2x1", help="of libtpu's names, joined by commas")
    parser.add_argument("--only", default="", help="the program of this name alone; several are joined by semicolons")
    args = parser.parse_args()
    names = args.only.split(";") if args.only else QUICK if args.quick else PROGRAMS
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"--only={';'.join(unknown)} is unknown; choose from: {'; '.join(PROGRAMS)}")
    if importlib.util.find_spec("libtpu") is None:
        print("left out: compiling for TPUs needs libtpu; pip install -e '.[plan]'", file=sys.stderr)
        return
    found = []
    if args.format == "table":
        print(f"{'program':<44} {'topology':<9} temporaries arguments MB     GFLOP ratio  kernels")
    for topology in args.topologies.split(","):
        for name in names:
            found.append(compiled(name, topology))
            if args.format == "table":
                print(row(found[-1]), flush=True)
    if args.format == "json" or args.out:
        report.show([result for one in found for result in results(one)], args, list(names))


if __name__ == "__main__":
    main()
