"""Attention and training steps compiled for absent TPUs: memory, operations, kernels.

    python -m benchmarks.tpu_compile [--topologies v5e:2x2,v5p:2x2x1] [--only WORDS] [--quick] [--format=json]

Needs the extra `plan` (libtpu), but no TPU. An attention has 1 row and 8 heads of 64 in bfloat16, forward and backward
on one chip, with the backend that `auto` picks there. A step is a recipe's at full size, one row per chip. Programs
named `pod` are small and for four chips (`benchmarks.pods`).

Memory is bytes per chip: temporaries and arguments (of a step: the train state). Operations are XLA's count, which
counts a loop's body once and a kernel as nothing, so only programs with neither are compared with
`pretrain.costs.flops` (causal). A ratio above 1 is recomputation, and blocks beyond the pattern.
"""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # do not ask a metadata server about a TPU
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # compilers may run side by side

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
KERNEL = "tpu_custom_call"  # a Pallas kernel in a compiled program


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
    """(one attention, forward and backward, lowered for one device; FLOPs of its pattern).

    It is causal, unless it attends to a `source` of another length.
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
    """(a recipe's training step, lowered for all devices with one row each; its FLOPs)."""
    rows = len(devices)
    config.mesh.data, config.train.batch_size, config.train.accumulate = rows, rows, 1
    spec = TrainSpec.build(config, devices)
    lowered = spec.lower_train_step(rows, config.data.length)
    length = config.data.length
    return lowered, rows * length * flops_per_token(spec, length)["causal"] if expected else None


def strided_layer(devices):
    """The step of the enwik8 recipe with one strided layer, without a loop, so that XLA's count is complete."""
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
    """Absent devices of a topology; cached, since JAX traces a function again for a new mesh."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def results(name: str, topology: str) -> list[report.Result]:
    """Results of a program, compiled for a topology such as v5e:2x2; bytes are per chip, FLOPs of all chips."""
    devices = devices_of(topology)
    lowered, expected = PROGRAMS[name](devices)
    program = lowered.compile()
    memory, name = program.memory_analysis(), f"{name}, {topology}"
    flops = {"step": len(devices), "pod": pods.CHIPS}.get(name.split()[0], 1) * program.cost_analysis()["flops"]
    against = ("pretrain.costs.flops", flops / expected) if expected else ()
    return [
        report.Result(f"{name}, temporaries", memory.temp_size_in_bytes, "B"),
        report.Result(f"{name}, arguments", memory.argument_size_in_bytes, "B"),
        report.Result(f"{name}, operations", flops, "FLOP", *against),
        report.Result(f"{name}, kernels", program.as_text().count(f'custom_call_target="{KERNEL}"'), ""),
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--topologies", default="v5e:2x2,v5p:2x2x1", help="libtpu's names, joined by commas")
    parser.add_argument("--only", default="", help="names of programs, joined by semicolons")
    args = parser.parse_args()
    names = args.only.split(";") if args.only else QUICK if args.quick else PROGRAMS
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"--only={';'.join(unknown)} is unknown; choose from: {'; '.join(PROGRAMS)}")
    if importlib.util.find_spec("libtpu") is None:
        print("skipped: compiling for TPUs needs libtpu; pip install -e '.[plan]'", file=sys.stderr)
        return
    rows = [row for topology in args.topologies.split(",") for name in names for row in results(name, topology)]
    report.show(rows, args, list(names))


if __name__ == "__main__":
    main()
