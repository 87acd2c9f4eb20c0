"""Mistakes that long context invites: each is one sentence with the remedy, exit code 2, and comes before training."""

import pytest

from pretrain.cli import main
from pretrain.config import load
from pretrain.step.train_spec import TrainSpec

SPARSE = "--config=configs/sparse_transformer.py:tiny"  # 2 layers, 4 heads, context 512 = 16 x 32
CTRL = "--config=configs/ctrl.py:mini_stdlib"  # positions without parameters
XLNET = "--config=configs/xlnet.py:mini_stdlib"
RECURRENT = "--config=configs/transformer_xl.py:tiny"  # vocabulary of 257, memory 64


@pytest.fixture
def sentence(capsys, tmp_path, text, monkeypatch):
    """`sentence(command, recipe, key=value)`: what the program says to a config that it must refuse."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")

    def run(command, recipe, keys, *flags):
        overrides = [f"--config.{key}={value}" for key, value in keys.items()]
        if command == "train":
            overrides += [f"--config.data.train=text:{text}/*.py", f"--workdir={tmp_path / 'run'}"]
        code = main([command, recipe, *overrides, *flags])
        message = capsys.readouterr().err.strip()
        assert code == 2, message
        assert message.startswith("pretrain: ")
        assert len(message.splitlines()) == 1
        return message

    return run


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model.attention": "('fixed_32_5_by_head',)"}, "needs 5 to divide 32 so that heads can take turns"),
        ({"model.attention": "('fixed_32_33',)"}, "33 summary columns in blocks of 32; use at most 32"),
        ({"model.attention": "('strided_24',)"}, "do not divide model.context=512; use a multiple of 24"),
        ({"model.attention": "('strided_1024',)"}, "use a multiple of 1024, or other blocks"),
        ({"model.attention": "('fixed_32_8', 'dense', 'dense')"}, "3 patterns to repeat over model.layers=2"),
        ({"model.attention": "(32,)"}, "model.attention holds 32; name patterns by words"),
        ({"model.attention": "('dense+local_4+column_4',)"}, "but there are 4 heads; use a multiple of 3"),
        ({"model.attention": "('strided_-4',)"}, "must be written strided_L with positive whole numbers"),
        ({"model.position_axes": "(16, 16)"}, "hold 256 positions, but model.context is 512; make them the same"),
        (
            {"model.position_axes": "(-16, -32)"},
            "config.model.position_axes = (-16, -32); it must be whole numbers, each at least 1",
        ),
        ({"model.position_axes": "(16.0, 32.0)"}, "it must be whole numbers, each at least 1"),
        ({"model.position_axes": "()"}, "give sizes, such as (32, 32, 3)"),
        (
            {"model.attention": "('dense',)", "model.attention_path": "sparse"},
            "because the pattern is dense; use auto or one of: xla, chunked, reference",
        ),
        ({"model.attention_path": "splash"}, "because it runs on TPUs and the platform is cpu"),
    ],
)
def test_patterns_that_cannot_be(sentence, keys, words):
    assert words in sentence("describe", SPARSE, keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model.cutoffs": "(20, 10)"}, "must rise strictly between 0 and model.vocab_size=257"),
        ({"model.cutoffs": "(20, 300)"}, "must rise strictly between 0 and model.vocab_size=257"),
        ({"model.cutoffs": "(-5, 10)"}, "config.model.cutoffs = (-5, 10); it must be whole numbers, each at least 1"),
        ({"model.cutoffs": "('a',)"}, "config.model.cutoffs = ('a',); it must be whole numbers, each at least 1"),
        ({"model.attention_path": "sparse"}, "because the pattern is dense"),
        ({"model.attention_path": "sparse", "model.positions": "rotary"}, "because the pattern is dense"),
        (
            {"model.positions": "learned"},
            "would have the same place (Dai et al. 2019, section 3.3); choose from: rel",
        ),
        ({"model.positions": "rotary", "evaluate.model.clamp": 32}, "set it to 0, in config.evaluate.model too"),
        (
            {"evaluate.model.positions": "rotary"},
            "config.evaluate.model changes the shapes of parameters by positions; evaluation",
        ),
        (
            {"model.clamp": 32, "evaluate.model.positions": "rotary", "evaluate.model.clamp": 0},
            "config.evaluate.model changes the shapes of parameters by",
        ),
        ({"evaluate.model.dtype": "float99"}, "with config.evaluate.model: model.dtype is 'float99', which is unknown"),
        ({"evaluate.model.memry": 64}, "no config key config.evaluate.model.memry, did you mean 'memory'?"),
        ({"evaluate.model.memory": "long"}, "config.evaluate.model.memory is 'long', which is not an int"),
    ],
)
def test_memories_that_cannot_be(sentence, keys, words):
    assert words in sentence("describe", RECURRENT, keys)


def test_evaluation_may_change_any_field_of_the_model():
    config = load("configs/quickstart.py:tiny", [("evaluate.model.attention_path", "chunked")])
    assert config.evaluate.model.to_dict() == {"attention_path": "chunked"}
    assert TrainSpec.build_abstract(config).eval_model.attention_path == "chunked"


def test_a_model_without_memory_is_evaluated_without(sentence):
    assert "no config key config.evaluate.model.memory" in sentence("describe", SPARSE, {"evaluate.model.memory": 64})


@pytest.mark.parametrize(
    ("recipe", "keys", "words"),
    [
        (RECURRENT, {"data.layout": "concat"}, "nothing to go on with; set --config.data.layout=stream"),
        (RECURRENT, {"data.layout": "packed"}, "nothing to go on with; set --config.data.layout=stream"),
        (RECURRENT, {"evaluate.model.memory": 0}, "config.evaluate.model.memory = 0; it must be at least 1"),
        (RECURRENT, {"evaluate.model.width": 32}, "config.evaluate.model changes the shapes of parameters"),
        (RECURRENT, {"evaluate.length": 9000}, "longer than the model's config.model.context = 8192"),
        (SPARSE, {"evaluate.length": 1024}, "longer than the model's config.model.context = 512"),
        (SPARSE, {"evaluate.stride": 513}, "evaluate.stride=513"),
        (SPARSE, {"data.length": 513}, "longer than the model's config.model.context = 512"),
        (CTRL, {"evaluate.model.context": 50}, "longer than the model's config.evaluate.model.context = 50"),
        (XLNET, {"evaluate.model.reuse": 16}, "config.evaluate.model.reuse = 16 positions of a row are remembered"),
    ],
)
def test_training_that_could_not_be_evaluated(sentence, recipe, keys, words):
    assert words in sentence("train", recipe, keys)
