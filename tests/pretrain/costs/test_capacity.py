"""A run that cannot fit is refused in one sentence before anything is allocated; one that fits is not."""

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.cli import main
from pretrain.commands import describe
from pretrain.config import load
from pretrain.costs import capacity
from pretrain.errors import UserError
from pretrain.step.train_spec import TrainSpec

TINY = "configs/quickstart.py:tiny"
GIGABYTE = 10**9


def built(spec=TINY, **overrides):
    config = load(spec, [(key.replace("__", "."), str(value)) for key, value in overrides.items()])
    return TrainSpec.build(config), config


@pytest.fixture
def machine(monkeypatch):
    """Pretends that this host has so many bytes free."""
    return lambda free: monkeypatch.setattr(capacity, "free_memory", lambda: free)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.vocab_size=2000000000", "optimiser state (of which tokens, 2,000,000,000 x 64, is the largest)"),
        ("model.width=10000000", "make the model smaller or split it over more devices with config.mesh.fsdp"),
        ("train.batch_size=1000000000", "lower config.train.batch_size"),
        ("evaluate.batch_size=1000000000", "evaluation needs at least "),
        ("data.prefetch=2000000000", "of it for batches, and "),
    ],
)
def test_what_would_take_the_machines_memory(change, words, capsys, tmp_path):
    began = time.monotonic()
    code = main(["train", f"--config={TINY}", f"--workdir={tmp_path}/run", f"--config.{change}"])
    message = capsys.readouterr().err
    assert code == 2 and message.count("\n") == 1
    assert words in message
    assert time.monotonic() - began < 60 and not (tmp_path / "run").exists()


def test_the_floor_of_training(machine, monkeypatch):
    """Eight devices of one host hold a copy each: parameters, gradients and Adam's two moments in float32."""
    monkeypatch.setattr(capacity, "DOUBT", 0)
    spec, config = built(optimizer__name="adamw", mesh__data=8)
    count = sum(leaf.size for leaf in jax.tree.leaves(spec.checkpoint_shapes(8).params))
    inputs = 2 * 8 * 64 * 64 * 4  # layers, rows, tokens, width: all eight rows, a device each
    batches = 8 * 64 * 5 * 4 * (config.data.prefetch + 2)
    floor = 8 * 4 * 4 * count + inputs + batches
    machine(floor + 8 * 100)  # and some counters
    capacity.check_training(spec, config)
    machine(floor - 1)
    with pytest.raises(UserError, match=r"training needs at least .* on this machine, .* of it for "):
        capacity.check_training(spec, config)


def test_activations_that_a_host_has_not_the_memory_for(machine):
    """Of what the compiler says, where the layers' inputs leave a doubt; a step that is cut in parts needs less."""
    rows = {"train__batch_size": 512}
    machine(2 * GIGABYTE)
    capacity.check_training(*built(**rows))
    machine(0.2 * GIGABYTE)
    with pytest.raises(UserError, match=r"a training step needs \S+B on this machine, .* for activations, .*; lower"):
        capacity.check_training(*built(**rows))
    capacity.check_training(*built(train__accumulate=32, **rows))


def test_a_smaller_batch_is_advised_only_where_it_helps(machine):
    """Of 1,000 rows the inputs of two layers take twice as much as eight copies of the state; of one row nothing."""
    run = built(train__batch_size=1000)
    machine(20 * 10**6)
    with pytest.raises(UserError, match=r"of it for the layers' inputs, .*; lower config.train.batch_size or raise"):
        capacity.check_training(*run)
    machine(10**6)
    with pytest.raises(UserError, match=r"of it for parameters, .* config.mesh.fsdp, 3 or more with as much mem"):
        capacity.check_training(*run)


def test_what_is_split_is_counted_once(machine, monkeypatch):
    """Sixteen bytes a parameter, on eight devices whole and then in eighths."""
    monkeypatch.setattr(capacity, "DOUBT", 0)
    spec, config = built(optimizer__name="adamw")
    count = sum(leaf.size for leaf in jax.tree.leaves(spec.checkpoint_shapes(8).params))
    machine(4 * 16 * count)
    with pytest.raises(UserError):
        capacity.check_training(spec, config)
    capacity.check_training(*built(optimizer__name="adamw", mesh__data=1, mesh__fsdp=8))


@pytest.mark.parametrize(("check", "tables"), [(capacity.check_training, 16), (capacity.check_evaluation, 4)])
def test_a_table_that_does_not_divide_is_counted_as_it_is_at_rest(machine, check, tables):
    """A prime number of rows over eight devices: an eighth of the padded table each. A checkpoint has it whole."""
    rows, width = 1_000_003, 60  # neither of which eight divides
    spec, config = built(
        model__vocab_size=rows, model__width=width, model__heads=8, model__head_size=8, mesh__data=1, mesh__tensor=8
    )
    machine(tables * rows * width * 4)  # eight devices of one host: whole on each, it alone would be twice as much
    check(spec, config)


def test_recurrent_memory_counts(machine):
    spec, huge = "configs/transformer_xl.py:tiny", {"evaluate__model__memory": 100_000_000}
    spec, config = built(spec, **huge)
    machine(GIGABYTE)
    capacity.check_training(spec, config)
    with pytest.raises(UserError, match=r"of it for recurrent memory, and 1.00GB are there"):
        capacity.check_evaluation(spec, config)
    spec, config = built(spec, model__memory=100_000_000)
    with pytest.raises(UserError, match=r"lower config.model.memory or config.train.batch_size"):
        capacity.check_training(spec, config)


def test_a_device_with_memory_of_its_own(monkeypatch):
    """On a GPU or TPU the device's limit counts, and the host holds batches alone."""
    spec, config = built()
    state, layout = spec.padded_shapes(8), spec.layout
    stats = {"bytes_limit": 1000}
    device = SimpleNamespace(platform="gpu", process_index=0, memory_stats=lambda: stats)
    mesh = SimpleNamespace(devices=SimpleNamespace(flat=[device]), shape=layout.mesh.shape)
    monkeypatch.setattr(spec, "layout", SimpleNamespace(mesh=mesh, batch_shards=layout.batch_shards))
    monkeypatch.setattr(spec, "resting_shapes", lambda *_: state)
    with pytest.raises(UserError, match=r"training needs at least .* on each device, .* and 1\.00kB are there"):
        capacity.check_training(spec, config)
    stats["bytes_limit"] = GIGABYTE
    capacity.check_training(spec, config)


def test_decoding_has_a_floor_too(machine):
    """Keys and values in float32: 2 x 2 layers x 4 rows x 64 tokens x 64 numbers, and 4 x 512 logits."""
    model = built()[0].spec.model
    machine(4 * (2 * 2 * 4 * 64 * 64 + 4 * 512) + 100)
    carried = jax.eval_shape(lambda: model.start_decoding(2, 64))
    here = jax.local_devices()[:1], "lower it"
    capacity.check_decoding(model, carried, 2, 2, *here)
    with pytest.raises(UserError, match=r"of it for keys and values .*; lower it"):
        capacity.check_decoding(model, carried, 2, 3, *here)


@pytest.mark.parametrize("allocate", [lambda: jnp.zeros(10**14, jnp.int8), lambda: np.zeros(10**15)])
def test_what_runs_out_of_memory_all_the_same(allocate, monkeypatch, capsys):
    monkeypatch.setattr(describe, "run", lambda *_: allocate().block_until_ready())
    assert main(["describe"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("pretrain: out of memory (") and message.endswith("with config.mesh.fsdp\n")
    assert "of evaluate: --batch_size" in message and message.count("\n") == 1


@pytest.mark.parametrize("names", [("memory.max", "memory.current"), ("limit_in_bytes", "usage_in_bytes")])
def test_what_is_left_of_a_containers_memory_counts(tmp_path, monkeypatch, names):
    """Files that the kernel has cached are dropped when memory is asked for, so they are left too."""
    limit, used = (tmp_path / name for name in names)
    monkeypatch.setattr(capacity, "CONTAINER", ((str(tmp_path), *names), (f"{tmp_path}/none", *names)))
    free = capacity.free_memory()
    limit.write_text("max\n")
    assert capacity.free_memory() == pytest.approx(free, rel=0.5)
    limit.write_text("1048576\n")
    used.write_text("600000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 120000\nactive_file 80000\n")
    assert capacity.free_memory() == 1048576 - 400000
    used.write_text("2000000\n")
    assert capacity.free_memory() == 0
