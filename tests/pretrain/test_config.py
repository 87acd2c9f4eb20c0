"""Configs: recipes, variants, overrides, and the copy in a work folder."""

import json

import pytest

from configs import common
from pretrain import config as configs
from pretrain.changes import check_same_run
from pretrain.errors import UserError

START = "from configs import common\n\n\ndef get_config(variant='none'):\n    config = common.base()\n"
OWN_TEXT = ("data.train", "text:/books/*.txt")


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe of the given lines and returns its path."""

    def write(*lines):
        path = tmp_path / "mine.py"
        path.write_text(START + "".join(f"    {line}\n" for line in (*lines, "return config")))
        return str(path)

    return write


def test_override_has_the_type_of_its_key(recipe):
    overrides = [("name", "1e3"), ("train.steps", "1e3"), ("schedule.peak", "1"), ("model.scan", "false")]
    config = configs.load(
        recipe(), [*overrides, ("model.attention", "('dense', 'local_8')"), ("log.profile", "(1, 2)")]
    )
    assert (config.name, config.train.steps, config.schedule.peak, config.model.scan) == ("1e3", 1000, 1.0, False)
    assert (config.model.attention, config.log.profile) == (("dense", "local_8"), (1, 2))
    assert config.is_locked


def test_override_of_a_partial_section_starts_from_the_model(recipe):
    config = configs.load(recipe(), [("evaluate.model.context", "64")])
    assert config.evaluate.model.to_dict() == {"context": 64} and config.model.context == 1024


def test_override_replaces_an_invalid_number_of_the_recipe(recipe):
    path = recipe("config.train.steps = 0")
    assert configs.load(path, [("train.steps", "5")]).train.steps == 5
    with pytest.raises(UserError):
        configs.load(path)


def test_variant_reaches_the_recipe(recipe):
    path = recipe("config.name = variant")
    assert (configs.load(path).name, configs.load(f"{path}:small").name) == ("none", "small")


def test_placeholder_takes_an_override(recipe):
    path = recipe(
        "from ml_collections import config_dict",
        "steps = config_dict.placeholder(int)",
        "config.train.steps = steps",
        "config.schedule.warmup = steps // 10",
    )
    config = configs.load(path, [("train.steps", "500")])
    assert (config.train.steps, config.schedule.warmup) == (500, 50)
    with pytest.raises(UserError):
        configs.load(path)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("config.modell = common.decoder()", "config.modell"),
        ("config.model.update(widht=3)", "config.model.widht"),
        ("del config.train.steps", "config.train.steps"),
        ("config.train.steps = 'many'", "line 6"),
        ("config.model.kind = 'recurent'", "config.model.kind"),
        ("config.model.kind = 'recurrent'", "config.model."),
        ("1 / 0", "line 6: ZeroDivisionError"),
    ],
)
def test_recipe_mistake_names_key_or_line(recipe, line, key):
    with pytest.raises(UserError, match=key):
        configs.load(recipe(line))


def test_other_text_drops_the_recipes_validation_text():
    messages, given = [], [("data.validation", "text:/other.txt"), ("data.weights", "(1.0,)")]
    config = configs.load("configs/transformer_xl.py:wt103", [OWN_TEXT], messages.append)
    assert (config.data.train, config.data.validation, config.data.test) == (OWN_TEXT[1], "", "")
    assert len(messages) == 1 and "data.validation" in messages[0]
    assert configs.load("configs/gpt3.py:small", [OWN_TEXT]).data.weights == ()
    for order in ([OWN_TEXT, *given], [*given, OWN_TEXT]):
        data = configs.load("configs/gpt3.py:small", order, messages.append).data
        assert (data.validation, data.weights) == ("text:/other.txt", (1.0,))
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda config: config["train"].update(stepz=3), "config.train.stepz"),
        (lambda config: config.pop("seed"), "config.seed"),
        (lambda config: config["train"].update(steps="3"), "config.train.steps"),
        (lambda config: config["optimizer"].update(b2=1.5), "config.optimizer.b2"),
    ],
)
def test_saved_config_that_was_edited(tmp_path, change, key):
    config = common.base().to_dict()
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=key):
        configs.saved(str(tmp_path))


def test_saved_config_older_than_a_key(tmp_path):
    config = configs.load("configs/bert.py:mini_stdlib")
    older = config.to_dict()
    for key in configs.YOUNGER:
        section, name = key.split(".")
        older[section].pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert configs.saved(str(tmp_path)) == config


def test_saved_config_equals_the_loaded_one(tmp_path):
    config = configs.load("configs/quickstart.py:tiny")
    configs.save(config, str(tmp_path))
    assert configs.saved(str(tmp_path)) == config


def test_run_may_change_how_it_runs_but_not_what_it_learns(whole):
    config = configs.saved(str(whole))
    with config.unlocked():
        config.update_from_flattened_dict({"train.steps": 99, "mesh.data": 2, "model.dropout_residual": 0.0})
    check_same_run(str(whole), config)
    with config.unlocked():
        config.schedule.peak = 0.5
    with pytest.raises(UserError):
        check_same_run(str(whole), config)


def test_task_without_a_run_has_a_small_encoder(tmp_path):
    said = []
    config = configs.load("configs/tasks.py:sst2", [("model.layers", "2")], said.append)
    assert (config.model.kind, config.model.layers, config.model.width) == ("encoder", 2, 256) and "scratch" in said[0]
    assert config.tokenizer.kind == "wordpiece" and config.tokenizer.vocab_size == config.model.vocab_size
    recipe = "from configs import tasks\n\ndef get_config():\n    config = tasks.get_config()\n"
    (tmp_path / "own.py").write_text(recipe + "    config.tokenizer.kind = 'bytes'\n    return config\n")
    assert configs.load(str(tmp_path / "own.py")).tokenizer.kind == "bytes"
