"""What can be wrong with a recipe is said in one sentence that names file, key or line, and what helps."""

import json
import sys

import pytest

from configs import common
from pretrain import config as configs
from pretrain import elsewhere
from pretrain.cli import main
from pretrain.config import every_key
from pretrain.errors import UserError

START = "from configs import common\n\n\ndef get_config(variant=''):\n    config = common.base()\n"


@pytest.fixture
def sentence(tmp_path, capsys):
    """Describes the recipe that is `START`, `lines` and `return config`, or `source` alone; returns the sentence."""

    def run(lines="", source=None, overrides=()):
        recipe = tmp_path / "mine.py"
        body = "".join(f"    {line}\n" for line in lines.split("\n"))
        content = source if source is not None else f"{START}{body}    return config\n"
        recipe.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = main(["describe", f"--config={recipe}", *overrides])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "") and err.count("\n") == 1, err
        return err.replace(str(tmp_path), "").strip()

    return run


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("config.train.stepz = 3", "/mine.py: there is no config key config.train.stepz, did you mean 'steps'?"),
        ("config.modell = common.decoder()", "there is no config key config.modell, did you mean 'model'?"),
        ("config.model.update(widht=3)", "there is no config key config.model.widht, did you mean 'width'?"),
        ("config.evaluate.model.update(memory=3)", "there is no config key config.evaluate.model.memory"),
        ("config.train.me = config", "there is no config key config.train.me"),
        ("config.model = config.data", "there is no config key config.model."),
        ("del config.train.steps", "lacks config.train.steps; start the recipe from configs.common.base()"),
        ("config.train.steps = 1e4", "line 6, fails with TypeError: Could not override field 'steps'"),
        ("config.train.steps = 'many'", "line 6, fails with TypeError: Could not override field 'steps'"),
        ("config.train.steps = 0", "config.train.steps = 0; it must be at least 1"),
        ("config.model.kind = 'recurent'", "config.model.kind is 'recurent', did you mean 'recurrent'?"),
        (
            "config.model.kind = 'recurrent'",
            "/mine.py: config.model.kind is 'recurrent', but its other keys are those of kind 'decoder';",
        ),
        (
            "config.model = common.recurrent(); config.model.kv_heads = 2",
            "/mine.py, whose config.model.kind is 'recurrent': there is no config key config.model.kv_heads",
        ),
        (
            "return None",
            "/mine.py is no recipe: its get_config returns None, not a config that can be changed; start from",
        ),
        ("return {'a': 3}", "its get_config returns {'a': 3}, not a config that can be changed; start from"),
        (
            "from ml_collections import FrozenConfigDict; return FrozenConfigDict(config)",
            "its get_config returns a FrozenConfigDict, not a config that can be changed; start",
        ),
        (
            "from ml_collections import FrozenConfigDict; config.train = FrozenConfigDict(config.train)",
            "config.train is a FrozenConfigDict, which is not a section that can be changed; write",
        ),
        ("config.train.steps = None", "config.train.steps is None, which is not an int; write for example 100"),
        (
            "from ml_collections import config_dict; config.train.steps = config_dict.required_placeholder(int)",
            "/mine.py leaves config.train.steps open; give it by --config.train.steps=VALUE",
        ),
        ("1 / 0", "/mine.py, line 6, fails with ZeroDivisionError: division by zero; correct the recipe"),
        ("raise SystemExit(0)", "line 6, fails with SystemExit: 0"),
    ],
)
def test_recipes_that_cannot_be(sentence, lines, words):
    assert words in sentence(lines)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def get_config(:\n", "/mine.py, line 1, fails with SyntaxError: invalid syntax; correct the recipe"),
        ("import nothing_of_that_name\n", "line 1, fails with ModuleNotFoundError: No module named"),
        (
            START.replace("variant=''", "variant"),
            "the get_config of /mine.py needs a variant; write --config=/mine.py:VAR",
        ),
        ("get_config = 3\n", "/mine.py is no recipe: it has no function get_config(variant)"),
        ("", "/mine.py is no recipe: it has no function get_config(variant)"),
        (b"\x00\xff\xfe", "/mine.py"),
    ],
)
def test_files_that_are_no_recipes(sentence, source, words):
    assert words in sentence(source=source)


def test_a_recipe_without_variants(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(START.replace("variant=''", "") + "    return config\n")
    assert configs.load(str(recipe)).train.steps
    with pytest.raises(UserError, match=r"mine\.py has no variants, since its get_config takes none; leave out :small"):
        configs.load(f"{recipe}:small")


def test_what_a_recipe_leaves_open_is_given_and_what_follows_from_it_follows(tmp_path):
    recipe = tmp_path / "mine.py"
    lines = "open = config_dict.placeholder(int)", "config.train.steps = open", "config.schedule.warmup = open // 10"
    lines += ("config.schedule.peak = config_dict.required_placeholder(float)", "return config")
    recipe.write_text("from ml_collections import config_dict\n" + START + "".join(f"    {line}\n" for line in lines))
    config = configs.load(str(recipe), [("schedule.peak", "1e-3"), ("train.steps", "500")])
    assert (config.train.steps, config.schedule.warmup, config.schedule.peak) == (500, 50, 1e-3)
    with pytest.raises(UserError, match=r"leaves config\.schedule\.peak open"):
        configs.load(str(recipe), [("train.steps", "500")])


def test_what_is_computed_from_what_is_given(tmp_path):
    recipe = tmp_path / "mine.py"
    lines = "open = config_dict.placeholder(int)", "config.train.steps = open", "config.train.batch_size = 100 // open"
    recipe.write_text(
        "from ml_collections import config_dict\n"
        + START
        + "".join(f"    {line}\n" for line in (*lines, "return config"))
    )
    assert configs.load(str(recipe), [("train.steps", "50")]).train.batch_size == 2
    with pytest.raises(UserError, match=r"mine\.py.* fails with ZeroDivisionError: .*; correct the recipe"):
        configs.load(str(recipe), [("train.steps", "0")])


def test_a_decorated_recipe(tmp_path):
    """Which says of itself that it is called as what it wraps."""
    recipe = tmp_path / "mine.py"
    source = START.replace("variant=''", "variant") + "    config.name = variant\n    return config\n\n\n"
    wrapped = "@functools.wraps(get_config)\ndef small():\n    return wrapped('s')\n\n\n"
    recipe.write_text(f"import functools\n{source}wrapped = get_config\n\n\n{wrapped}get_config = small\n")
    assert configs.load(str(recipe)).name == "s"


def test_a_recipe_imports_what_lies_beside_it_and_is_blamed_by_its_line(tmp_path, monkeypatch):
    """Named from the folder that it lies in, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "helper_of_mine.py").write_text("STEPS = 7\n")
    recipe = tmp_path / "mine.py"
    recipe.write_text(f"from helper_of_mine import STEPS\n{START}    config.train.steps = STEPS\n    return config\n")
    assert configs.load("mine.py").train.steps == 7
    assert str(tmp_path) not in sys.path
    recipe.write_text(f"{START}    config.train.steps = '60'\n    return config\n")
    with pytest.raises(UserError, match=r"^mine\.py, line 6, fails with TypeError"):
        configs.load("mine.py")
    (tmp_path / "broken_of_mine.py").write_text("\n\n\nwhat else is this\n")
    recipe.write_text("import broken_of_mine\n")
    with pytest.raises(UserError, match=r"^mine\.py, line 1, fails with SyntaxError: .*\(broken_of_mine\.py, line 4\)"):
        configs.load("mine.py")


def test_an_impossible_number_of_a_recipe_may_be_overridden(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(f"{START}    config.train.steps = 0\n    return config\n")
    assert configs.load(str(recipe), [("train.steps", "5")]).train.steps == 5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpt2:small", "there is no recipe gpt2, did you mean --config=configs/gpt2.py:small?"),
        ("gpt2", "did you mean --config=configs/gpt2.py?"),
        ("configs/gpt2:xl", "did you mean --config=configs/gpt2.py:xl?"),
        ("gtp3.py:small", "did you mean --config=configs/gpt3.py:small?"),
        ("nothing/of/that.name", "choose one of: configs/albert.py, configs/bart.py, configs/bert.py"),
        ("README.md", "--config=README.md is no Python file; give a recipe, such as configs/quickstart.py"),
        ("docs", "--config=docs is no Python file"),
    ],
)
def test_a_near_recipe_is_offered(spec, words):
    with pytest.raises(UserError) as error:
        configs.load(spec)
    assert words in str(error.value)


def test_what_a_run_wrote_down_is_no_recipe(tmp_path):
    configs.save(common.base(), str(tmp_path))
    with pytest.raises(UserError, match=f"not a recipe; go on with that run with --workdir={tmp_path} and no --config"):
        configs.load(f"{tmp_path}/config.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config["train"].update(stepz=3), "config.json: there is no config key config.train.stepz"),
        (lambda config: config.pop("seed"), "config.json lacks config.seed; restore the file, or use the version"),
        (lambda config: config["train"].update(steps="3"), "config.train.steps is '3', which is not an int"),
        (lambda config: config["optimizer"].update(b2=1.5), "config.optimizer.b2 = 1.5; it must be from 0 to 0.99"),
        (
            lambda config: config.update(train=3),
            "config.train is 3, which is not a section that can be changed; write its",
        ),
    ],
)
def test_a_work_folder_whose_config_was_changed(tmp_path, change, words):
    config = common.base().to_dict()
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as error:
        configs.saved(str(tmp_path))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"is not readable JSON .*"),
        ("\ufeff{}", r"is not readable JSON .*"),
        ("[1, 2]", r"holds no config, but \[1, 2\]"),
        ("null", r"holds no config, but null"),
    ],
)
def test_a_work_folder_whose_config_is_no_config(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=rf"config\.json {words}; restore it or choose another --workdir"):
        configs.saved(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("schedule.peak", 0.5, "{}, undo the change, or begin at update 0 with train --fresh=NAME, which keeps "),
        ("train.batch_size", 2, "{}, undo the change, or begin at update 0 with train --fresh=NAME, which keeps "),
        ("data.train", "stdlib", "{}, or undo the change"),
        ("tokenizer.kind", "symbols", ", or undo the change"),
    ],
)
def test_a_run_whose_config_is_changed_is_told_how_to_keep_its_weights(whole, key, value, remedy):
    config = configs.saved(str(whole))
    with config.unlocked():
        config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError) as refused:
        configs.check_same_run(str(whole), config)
    kept = f", with --config.train.start_from={whole} to begin with its weights"
    assert f"; choose another --workdir{remedy.format(kept)}" in str(refused.value)


def test_names_of_other_codebases_stand_for_keys_that_there_are():
    assert {*elsewhere.KEYS.values()} <= {*every_key()}
    answered = {*elsewhere.KEYS, *elsewhere.OF_CONFIGS}.union(*elsewhere.ANSWERS.values())
    assert not {f"{section}.{name}" for name in answered for section in ("train", "model")} & {*every_key()}
    assert not {*elsewhere.KEYS} & {*elsewhere.OF_CONFIGS}
