"""`train.start_from`: a new run starts from another's parameters, matched by name and shape."""

import shutil

import numpy as np
import pytest
from runs import leaves, train_here

from configs.common import MODELS
from pretrain import config as configs
from pretrain.checkpoints import init_from
from pretrain.cli import main
from pretrain.errors import UserError

# With a learning rate of 0 the first checkpoint holds the initial parameters.
STILL = {"train__steps": 1, "schedule__peak": 0.0, "schedule__warmup": 0, "schedule__decay_steps": 2}
STILL |= {"evaluate__every": 0, "train__batch_size": 8}


@pytest.fixture
def start(text, tmp_path, signals, capsys):
    """Makes one update without effect; returns exit code, standard error, and the parameters if there are any."""

    def start(name, **overrides):
        code = train_here(tmp_path / "new", text, **STILL | {"train__start_from": name} | overrides)
        return code, capsys.readouterr().err, params(tmp_path / "new", 1) if code == 0 else None

    return start


def params(workdir, step):
    return {name: leaf for name, leaf in leaves(workdir, step).items() if name.startswith("['params']")}


def assert_same(here, there, names):
    assert names
    for name in names:
        np.testing.assert_array_equal(here[name], there[name], err_msg=name)


@pytest.mark.parametrize(
    ("word", "step", "options"),
    [
        ("@12", 12, {}),
        pytest.param("", 24, {"mesh__data": 1, "mesh__fsdp": 8}, marks=pytest.mark.slow),  # pads 257 rows of tokens
        pytest.param("@latest", 24, {"train__backend": "pmap"}, marks=pytest.mark.slow),
    ],
)
def test_start_from(copy, start, text, tmp_path, capsys, word, step, options):
    other = copy(24)
    there = params(other, step)
    code, err, initial = start(f"{other}{word}", **options)
    assert code == 0, err
    assert initial.keys() == there.keys()
    assert_same(initial, there, there)
    assert f"loaded {len(there)} of {len(there)} parameters (100.0% of the values)" in err
    shutil.rmtree(other)  # a run that continues does not need it
    options |= STILL | {"train__start_from": f"{other}{word}", "train__steps": 2}
    assert train_here(tmp_path / "new", text, **options) == 0
    assert "restored checkpoint 1" in capsys.readouterr().err


def test_start_from_another_model(whole, start, tmp_path):
    changes = {"model__vocab_size": 300, "model__positions": "none", "model__tied_head": "false"}
    code, err, initial = start(str(whole), **changes)
    assert code == 0, err
    there = params(whole, 24)
    assert "other shape: tokens ([257, 16] there, [300, 16] here); initialised from the seed: head" in err
    assert "left out: positions" in err and "warning: config.model differs in positions" in err
    common = [name for name in initial if name in there and initial[name].shape == there[name].shape]
    assert_same(initial, there, common)
    shutil.rmtree(tmp_path / "new")
    _, _, own = start("", **changes)
    assert_same(initial, own, [name for name in initial if name not in common])


RECIPE = """
from configs import common

def get_config(variant=""):
    config = common.base()
    config.name = "on top"
    config.model = {"": {}, "none": None, "wet": dict(dropout_embedding=0.25), "typo": dict(dropot=0.1)}[variant]
    config.data.update(length=16, layout="packed")
    return config
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.py").write_text(RECIPE)
    return str(tmp_path / "recipe.py")


def test_model_section_of_another_run(copy, text, recipe, tmp_path, signals, capsys, monkeypatch):
    """Model and tokenizer of the other run, with the recipe's keys and the command's; complete without it."""
    other, new = copy(24), str(tmp_path / "new")
    keys = {"data.train": f"text:{text}/*.py", "train.batch_size": 8, "schedule.warmup": 0, "log.tensorboard": "false"}
    keys |= {"evaluate.every": 0, "data.holdout": 0, "model.dropout_residual": 0.5, "train.start_from": f"{other}@12"}

    def run(recipe, steps):
        flags = [f"--config.{key}={value}" for key, value in {**keys, "train.steps": steps}.items()]
        return main(["train", f"--config={recipe}", f"--workdir={new}", *flags])

    assert run(f"{recipe}:wet", 1) == 0
    assert "(100.0% of the values) from checkpoint 12" in capsys.readouterr().err
    here, there = configs.saved(new), configs.saved(str(other))
    assert here.model.to_dict() == there.model.to_dict() | {"dropout_embedding": 0.25, "dropout_residual": 0.5}
    assert here.tokenizer == there.tokenizer and here.data.layout == "packed"
    shutil.rmtree(other)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "on top").symlink_to(new)  # the folder of a command without --workdir
    assert configs.load(recipe, [("train.start_from", f"{other}@12")]).model.dropout_embedding == 0.25
    assert run(f"{recipe}:wet", 2) == 0 and f"config.tokenizer from {new}" in capsys.readouterr().err
    assert main(["describe", f"--workdir={new}"]) == 0


@pytest.mark.parametrize(
    ("variant", "key"), [("", "train.start_from"), ("none", "train.start_from"), ("typo", "dropot")]
)
def test_model_section_mistakes(whole, recipe, variant, key):
    with pytest.raises(UserError, match=key):
        configs.load(f"{recipe}:{variant}", [("train.start_from", str(whole))] if variant == "typo" else [])


def test_named_tokenizer_stays(whole, recipe):
    """Only a recipe without a model and without a tokenizer's path takes the tokenizer."""
    from_run = [("train.start_from", str(whole))]
    assert configs.load(recipe, from_run).tokenizer.kind == "bytes"
    assert configs.load(recipe, [*from_run, ("tokenizer.path", "x.model")]).tokenizer.kind == "sentencepiece"
    assert configs.load("configs/quickstart.py", from_run).tokenizer.kind == "sentencepiece"


def test_compare_models_of_shared_layers():
    """Their number does not show in shapes."""
    alone, shared = {"layers": 2, "groups": 0, "width": 8}, {"layers": 6, "groups": 2, "width": 9}
    assert init_from.compare_models(alone, shared).keys() == {"layers", "groups"}
    assert init_from.compare_models(alone, alone | {"layers": 4}) == {}


def test_changes_meaning_of_every_field():
    """A new field counts as one that changes the meaning, so that nobody overlooks it."""
    fields = {name for declared in MODELS.values() for name in declared() if init_from.changes_meaning(name)}
    expected = "kind activation norm norm_epsilon final_norm_epsilon placement positions position_offset bidirectional"
    expected += " scale_embedding scale_scores scale_head start_row attention_bias ff_bias tied_head head_bias"
    expected += " final_norm embedding_norm clamp max_distance tied_words shared_projections shared_biases"
    expected += " norm_offset output_bias qk_norm rope_theta rope_scaling"
    assert fields == {*expected.split(), "project_always", "head", "head_transform", "zero_padding"}


def test_position_offset_is_refused(whole):
    there = {"width": 16, "context": 32, "position_offset": 0, "activation": "gelu"}
    here = there | {"context": 30, "position_offset": 2}
    shapes = {"positions": params(whole, 24)["['params']['positions']"]}
    other = init_from.Weights("x", whole / "checkpoints" / "24", whole / "tokenizer", there)
    other.check(shapes, there | {"activation": "relu"})
    with pytest.raises(UserError):
        other.check(shapes, here)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("{whole}", {"model__width": 48, "model__ff": 96}),
        ("{whole}", {"tokenizer__sentinels": 2, "model__vocab_size": 259}),
        ("{whole}@13", {}),
        ("{whole}x", {}),
    ],
)
def test_start_from_mistakes(whole, start, tmp_path, name, options):
    code, err, _ = start(name.format(whole=whole, new=tmp_path / "new"), **options)
    assert code == 2 and "config.train.start_from=" in err.splitlines()[-1]
    assert not (tmp_path / "new" / "checkpoints").exists() and not (tmp_path / "new" / "data").exists()


def test_start_from_damaged_checkpoint(copy, start):
    other = copy(24)
    largest = max((other / "checkpoints/24/state").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    code, err, _ = start(str(other))
    assert code == 2 and "checkpoint 24 is damaged" in err
