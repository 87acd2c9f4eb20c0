"""`describe` on every recipe and variant: right to the integer where it can be checked, and quick."""

import json
import math

import jax
import pytest
from every_recipe import MOSTLY, config_of

import models
from configs.common import base, recurrent
from pretrain.commands import describe as described
from pretrain.config import load, saved
from pretrain.step.train_step import init_params

SIDES = "encoder", "decoder"


@pytest.mark.parametrize(("name", "variant"), MOSTLY)
def test_every_recipe_and_variant(name, variant):
    facts = described.describe(config_of(name, variant))
    assert facts["parameters"] == sum(module["parameters"] for module in facts["modules"].values())
    assert 0 < facts["parameters_without_embeddings"] < facts["parameters"]
    assert facts["flops_per_token"]["causal"] <= facts["flops_per_token"]["full"]
    # A matrix costs a multiply-add of each of its numbers, three times: FLOPs exceed 6 per such parameter, less the
    # biases and gains (well under 2 %), and attention and logits come on top. Of two stacks a token passes one.
    modules = facts["modules"].items()
    stacks = [sum(part["parameters"] for name, part in modules if name.startswith(f"{side}/")) for side in SIDES]
    passed = min(stacks) or facts["parameters_without_embeddings"]
    assert facts["flops_per_token"]["causal"] > 5.8 * passed
    assert facts["bytes"]["total"] == sum(size for part, size in facts["bytes"].items() if part != "total")
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("sizes", "devices", "multiples", "share"),
    [
        ({}, 1, True, 1),
        ({"fsdp": 8}, 8, True, 8),
        ({"data": 2, "fsdp": 4, "sequence": 2}, 16, False, 4),
        ({"data": 1, "fsdp": -1}, 1, True, 1),
    ],
)
def test_the_devices_that_a_mesh_needs(sizes, devices, multiples, share):
    """None of them is there: this has more than the tests' eight."""
    config = tiny()
    config.mesh.update(sizes)
    facts = described.describe(config)
    assert facts["mesh"]["devices"] == devices and facts["mesh"]["multiples"] == multiples
    whole = facts["bytes"]["parameters"]
    assert whole / share <= facts["mesh"]["bytes_per_device"] < whole / share + 4 * 50 * 16 + 2000  # biases are whole


def test_the_largest_recipe_on_the_pod_that_it_is_meant_for():
    config = load("configs/gpt3.py:175b")
    config.mesh.update(data=1, fsdp=64, tensor=8)
    assert described.describe(config)["mesh"]["devices"] == 512
    assert config.evaluate.batch_size % 64 == 0  # no device evaluates padding


def tiny(**train):
    config = base()
    config.model.update(dict(vocab_size=50, context=16, layers=2, width=16, heads=2, ff=32))
    config.tokenizer.vocab_size = 50
    config.data.length = 16
    config.train.update(train)
    return config


@pytest.mark.parametrize(("fsdp", "feed_forward"), [(4, "biases"), (8, "all")])
def test_what_fsdp_leaves_whole_is_named(fsdp, feed_forward):
    """A width of 410 divides by 2 alone, a feed-forward of 2,100 by 4 too; the words are padded to any multiple."""
    config = load("configs/transformer_xl.py:wt103")
    config.mesh.update(data=1, fsdp=fsdp)
    config.train.batch_size = config.evaluate.batch_size = 64
    whole = described.describe(config)["mesh"]["whole"]
    layers, width, ff = 4 * 16, 410, 2100  # bytes of a float32 in each of 16 layers
    assert whole["layers/attention"] == layers * 5 * width * width
    assert whole["layers/attention_norm"] == layers * 2 * width
    matrices = 0 if feed_forward == "biases" else 2 * width * ff + ff
    assert whole["layers/feed_forward"] == layers * (width + matrices)
    assert whole["vocabulary"] < 10_000  # of 440 million


def test_equals_what_is_allocated():
    config = tiny()
    model = models.build(config.model.to_dict())
    real = jax.tree.leaves(jax.jit(lambda rng: init_params(model, rng))(jax.random.key(0)))
    facts = described.describe(config)
    assert facts["parameters"] == sum(leaf.size for leaf in real)
    assert facts["bytes"]["parameters"] == sum(leaf.nbytes for leaf in real) == facts["bytes"]["gradients"]
    assert facts["modules"]["tokens"] == {"parameters": 50 * 16, "bytes": 4 * 50 * 16}
    assert facts["parameters_without_embeddings"] == facts["parameters"] - 50 * 16 - 16 * 16


def test_factorised_positions_are_looked_up_too():
    facts = described.describe(load("configs/sparse_transformer.py:cifar10"))
    tables = [facts["modules"][name]["parameters"] for name in ("tokens", *(f"positions_{axis}" for axis in range(3)))]
    assert facts["parameters_without_embeddings"] == facts["parameters"] - sum(tables)


def test_adam_keeps_two_numbers_for_each_parameter():
    facts = described.describe(tiny())
    extra = facts["bytes"]["optimizer"] - 2 * facts["bytes"]["parameters"]
    assert 0 < extra <= 64  # counters of updates


def test_accumulated_gradients_are_float32():
    config = tiny(accumulate=2)
    config.model.param_dtype = "bfloat16"
    facts = described.describe(config)
    assert facts["bytes"]["gradients"] == 2 * facts["bytes"]["parameters"] == 4 * facts["parameters"]


def test_step_is_all_its_tokens():
    facts = described.describe(tiny(batch_size=6))
    assert facts["tokens_per_step"] == 6 * 16
    assert facts["flops_per_step"]["full"] == 96 * facts["flops_per_token"]["full"]


def test_prints_tables_and_json(capsys):
    described.report(tiny(), "table")
    shown = capsys.readouterr().out
    facts = described.describe(tiny())
    for expected in ("layers/attention", f"{facts['parameters']:,}", "a token forward: logits", "optimizer"):
        assert expected in shown
    described.report(tiny(), "json")
    assert json.loads(capsys.readouterr().out) == facts
    assert math.isfinite(facts["flops_per_step"]["causal"])


def test_predictions_beyond_a_row_cost_no_more_than_all_of_its_tokens():
    config = load("configs/roberta.py:mini_stdlib")
    config.objective.max_predictions = config.data.length
    every = described.describe(config)["flops_per_token"]
    config.objective.max_predictions = 100_000
    assert described.describe(config)["flops_per_token"] == every


def test_recurrent_memory_is_part_of_the_state():
    config = tiny(batch_size=6)
    assert described.describe(config)["bytes"]["recurrent_memory"] == 0
    config.data.layout = "stream"
    config.model = recurrent()
    config.model.update(vocab_size=50, layers=2, width=16, heads=2, ff=32, memory=12)
    hidden = 2 * 6 * 12 * 16 * 2  # layers, rows, positions, width, bytes of a bfloat16
    held = 6 * 4  # an int32 of each row
    assert described.describe(config)["bytes"]["recurrent_memory"] == hidden + held


def test_a_teacher_is_held_besides(capsys):
    """DistilBERT's of one layer learns from a BERT of two, which nothing trains."""
    config = load("configs/distilbert.py:mini_stdlib")
    facts = described.describe(config)
    teacher = models.build(config.model.to_dict() | config.distill.model.to_dict())
    shapes = jax.eval_shape(lambda key: init_params(teacher, key), jax.random.key(0))
    assert facts["bytes"]["teacher"] == 4 * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert facts["bytes"]["teacher"] > facts["bytes"]["parameters"]
    assert facts["bytes"]["total"] == sum(size for part, size in facts["bytes"].items() if part != "total")
    described.report(config, "table")
    assert "teacher" in capsys.readouterr().out.partition("training state")[2]
    assert "teacher" not in described.describe(tiny())["bytes"]


def test_describe_run(whole, capsys):
    """The newest checkpoint's step, and its loss as the checkpoint has it."""
    found = described.describe(saved(str(whole)), str(whole))["run"]
    kept = json.loads((whole / "checkpoints" / "24" / "metrics" / "metrics").read_text())
    assert (found["step"], found["loss"]) == (24, kept["loss"])
    described.report(saved(str(whole)), "table", str(whole))
    assert f"run: step 24/24, validation loss {kept['loss']:.4f}, saved 20" in capsys.readouterr().out


def test_describe_devices_needed():
    """175 billion parameters with two moments in float32: 12 bytes each, and the gradients within a step."""
    facts = described.describe(load("configs/gpt3.py:175b"))
    for name, memory in (("v5p", 95.74 * 2**30), ("h100", 60e9)):
        assert facts["needs"][name] == -(-facts["bytes"]["total"] // memory)
    assert facts["needs"]["h100"] >= 35


@pytest.mark.parametrize(("short", "name"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_dtype_short_name(short, name):
    assert load("configs/gpt2.py:small", [("model.dtype", short)]).model.dtype == name
