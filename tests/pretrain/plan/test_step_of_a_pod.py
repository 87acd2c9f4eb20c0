"""What 64 TPUs that are not there tell each other in a step of GPT-3 6.7B and 13B, four layers, read off its program.

tests/pretrain/step/test_step_collectives.py reads small programs for CPUs; a TPU's compiler splits and schedules
otherwise.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'"),
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).resolve().parents[3]
LAYERS, VOCABULARY, CHIPS, LENGTH = 4, 50_257, 64, 2048
WIDTHS = {"6.7b": 4096, "13b": 5120}
NARROW, WIDE = 2, 4  # bytes of a number, in bfloat16 and float32
INVOLUNTARY = "Involuntary full rematerialization"  # what XLA says of an array that every device gets whole, and cuts

STEP = """
import dataclasses, json, sys
from pretrain import config as configs
from pretrain.plan import hlo, step, topology
from pretrain.plan.collectives import collectives

recipe, *words = sys.argv[1:]
config = configs.load(recipe, [word.split("=") for word in words])
spec = step.prepare(config, topology.parse("v5e:8x8"))
program = hlo.read(spec.lower_train_step(config.train.batch_size, config.data.length).compile().as_text())
begun = [of for of in program.computations.values() if any("AsyncCollectiveStart" in one.attributes for one in of)]
print(json.dumps({
    "collectives": [dataclasses.asdict(one) for one in collectives(program, spec.layout.mesh.shape)],
    "begun": sum(one.opcode == "all-gather" for of in begun for one in of),
}))
"""

# Every device gets the whole of an array that is split along two axes over a mesh, and is to be split along the third
# over all of it (jax-ml/jax#21562).
CLUMSY = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from pretrain.plan import topology

mesh = jax.make_mesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=topology.parse("v5e:2x4").devices())
before = NamedSharding(mesh, PartitionSpec("y", None, "x"))
after = NamedSharding(mesh, PartitionSpec(None, ("x", "y"), None))
array = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32, sharding=before)
jax.jit(jnp.sin, out_shardings=after).lower(array).compile()
"""


def compiled(script, logs, *arguments):
    """(what a script prints, the compiler's own log of what it compiled)."""
    logs.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # those are the tests' own
    environment |= {"JAX_PLATFORMS": "cpu", "TPU_LOG_DIR": str(logs), "TPU_MIN_LOG_LEVEL": "1"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [path.read_text(errors="replace") for path in sorted(logs.iterdir()) if not path.is_symlink()]
    return done.stdout, "".join([done.stderr, *written])


@dataclasses.dataclass(frozen=True)
class Step:
    """What is read off a program, and the compiler's log."""

    width: int
    collectives: list[dict]
    begun: int  # gathers that are asynchronous
    log: str

    @property
    def kernels(self) -> list[int]:
        """Sizes in a layer: query, key, value, output; in and out of feed-forward."""
        return [self.width**2] * 4 + [4 * self.width**2] * 2

    def of(self, kind: str, *, every_layer: bool) -> list[dict]:
        """The collectives of one kind, in the loop over layers or outside."""
        found = [one for one in self.collectives if one["kind"] == kind]
        assert {one["times"] for one in found} <= {1, LAYERS} and all(one["axes"] == ["fsdp"] for one in found)
        return [one for one in found if one["times"] == (LAYERS if every_layer else 1)]

    def gathered(self, *, backward: bool) -> list[int]:
        """Bytes of what is gathered in every layer, the least first."""
        found = self.of("all-gather", every_layer=True)
        assert {one["devices"] for one in found} == {CHIPS}
        return sorted(one["bytes"] for one in found if ("transpose(" in one["source"]) == backward)


@pytest.fixture(scope="module", params=["13b", pytest.param("6.7b", marks=pytest.mark.slow)])
def step(request, tmp_path_factory):
    """Of a row of 2,048 tokens a chip, all of which are in fsdp."""
    keys = {"mesh.data": 1, "mesh.fsdp": CHIPS, "model.layers": LAYERS, "train.batch_size": CHIPS}
    words = [f"{key}={value}" for key, value in keys.items()]
    recipe = f"configs/gpt3.py:{request.param}"
    said, log = compiled(STEP, tmp_path_factory.mktemp("step") / "logs", recipe, *words, "train.accumulate=1")
    return Step(WIDTHS[request.param], log=log, **json.loads(said.splitlines()[-1]))


def test_a_layers_kernels_are_gathered_once_each_way(step):
    """Backward those of query, key and value too, which the layer needs when it is computed again and long after."""
    for backward in (False, True):
        assert step.gathered(backward=backward) == [size * NARROW for size in step.kernels]


def test_they_are_gathered_while_something_is_computed(step):
    """But for the first of each pass, which nothing comes before."""
    assert step.begun >= 2 * len(step.kernels) - 2


def test_a_layers_gradients_are_scattered(step):
    """All of each along one direction of the pod, and along the other the eighth that is left."""
    along = 8
    scattered = [(one["devices"], one["bytes"]) for one in step.of("reduce-scatter", every_layer=True)]
    whole = sorted(bytes for _, bytes in scattered if bytes >= min(step.kernels) * WIDE)
    assert {devices for devices, _ in scattered} == {along}
    assert len(whole) == len(step.kernels)
    for found, size in zip(whole, step.kernels, strict=True):
        assert size * WIDE <= found < 1.02 * size * WIDE  # what does not divide evenly over its tiles is padded
    # libtpu 0.0.42 all-reduces some of the eighths instead.
    reduced = [one["bytes"] for one in step.of("all-reduce", every_layer=True)]
    two = max(step.kernels) + min(step.kernels)  # that one instruction may reduce
    assert max(reduced) <= two * WIDE / along
    assert sum(reduced) < 0.1 * sum(step.kernels) * WIDE


def test_the_vocabulary_is_told_once(step):
    """Its table, and its gradient; nothing has an entry for each token of the batch and id, and most has much less."""
    table = VOCABULARY * step.width * NARROW
    outside = [one for one in step.collectives if one["times"] == 1]
    assert [one["bytes"] for one in step.of("all-gather", every_layer=False)] == [table]
    heavy = sorted((one["kind"], one["bytes"]) for one in outside if one["bytes"] > LENGTH * step.width * NARROW)
    assert heavy == [("all-gather", table), ("all-reduce", table)]


def test_nothing_is_rematerialized_involuntarily(step, tmp_path):
    assert INVOLUNTARY in compiled(CLUMSY, tmp_path / "logs")[1]  # said where it happens
    assert INVOLUNTARY not in step.log
