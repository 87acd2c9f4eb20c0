"""`train.start_from`: a new run begins with another's weights, as far as names and shapes agree."""

import json
import shutil

import numpy as np
import pytest
from runs import leaves, train_here

from configs.common import MODELS
from pretrain.checkpoints import init_from, param_compat
from pretrain.errors import UserError

# A learning rate of 0: what the first checkpoint holds is what the run began with.
STILL = {"train__steps": 1, "schedule__peak": 0.0, "schedule__warmup": 0, "evaluate__every": 0, "train__batch_size": 8}


@pytest.fixture
def start(text, tmp_path, signals, capsys):
    """Begins a run of one update that changes nothing; gives exit code, what was said, and its parameters if any."""

    def start(named, workdir=None, **overrides):
        workdir = workdir or tmp_path / "new"
        code = train_here(workdir, text, **STILL | {"train__start_from": named} | overrides)
        return code, capsys.readouterr().err, params(workdir, 1) if code == 0 else None

    return start


def params(workdir, step):
    return {name: leaf for name, leaf in leaves(workdir, step).items() if name.startswith("['params']")}


def assert_same(here, there, names):
    assert names
    for name in names:
        np.testing.assert_array_equal(here[name], there[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "step", "options"),
    [
        ("", 24, {}),
        ("@12", 12, {"mesh__data": 1, "mesh__fsdp": 8}),  # 257 rows of tokens over 8 devices are padded at rest
        pytest.param("@latest", 24, {"train__backend": "pmap"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_begins_with_the_weights_of_another(whole, start, tmp_path, which, step, options):
    code, said, began = start(f"{whole}{which}", **options)
    assert code == 0, said
    there = params(whole, step)
    assert began.keys() == there.keys()
    assert_same(began, there, there)
    count = len(there)
    assert f"took {count} of {count} parameters (100.0% of the numbers) from checkpoint {step} in {whole}" in said
    kept = json.loads((tmp_path / "new" / "config.json").read_text())
    assert kept["train"]["start_from"] == f"{whole}{which}"
    assert leaves(tmp_path / "new", 1)["['step']"] == 1


def test_the_best_checkpoint(whole, start):
    losses = {}
    for path in (whole / "checkpoints").glob("*/metrics/metrics"):
        losses[int(path.parents[1].name)] = json.loads(path.read_text())["loss"]
    code, said, began = start(f"{whole}@best")
    assert code == 0, said
    there = params(whole, min(losses, key=losses.get))
    assert_same(began, there, there)


@pytest.mark.slow
def test_what_is_not_taken_is_named(whole, start, tmp_path):
    code, said, began = start(str(whole), model__vocab_size=300, model__positions="none", model__tied_head="false")
    assert code == 0, said
    there = params(whole, 24)
    assert "; of another shape: tokens ([257, 16] there, [300, 16] here); new here: head" in said
    assert said.rstrip().splitlines()[0] and "left there: positions" in said
    assert "differs in positions ('learned' there, 'none' here), tied_head (True there, False here): the para" in said
    common = [name for name in began if name in there and began[name].shape == there[name].shape]
    assert f"took {len(common)} of {len(began)} parameters (" in said
    assert_same(began, there, common)
    shutil.rmtree(tmp_path / "new")
    code, _, initial = start("", model__vocab_size=300, model__positions="none", model__tied_head="false")
    assert_same(began, initial, [name for name in began if name not in common])


@pytest.mark.slow
def test_a_model_in_which_parameters_mean_something_else_is_named(whole, start):
    """Names and shapes are the same; what sizes, starts, runs, drops or sees otherwise is not named."""
    plain = {"init_std": 0.01, "dropout_ff": 0.1, "scan": False, "remat": "full", "attention_path": "xla"}
    there = json.loads((whole / "config.json").read_text())["model"]
    code, said, _ = start(str(whole), model__activation="relu", **{f"model__{key}": plain[key] for key in plain})
    assert code == 0, said
    took = next(line for line in said.splitlines() if "took " in line)
    assert "(100.0% of the numbers)" in took
    one = f"; config.model differs in activation ({there['activation']!r} there, 'relu' here): the parameters may mean"
    assert took.endswith(f"{one} something else")


def test_layers_that_share_parameters_are_told_apart_by_no_shape():
    alone, shared = {"layers": 2, "groups": 0, "width": 8}, {"layers": 6, "groups": 2, "width": 9}
    assert param_compat.unlike(alone, shared) == {"layers": "2 there, 6 here", "groups": "0 there, 2 here"}
    assert param_compat.unlike(alone, alone | {"layers": 4}) == {}


def test_every_field_of_a_model_is_a_size_or_means_something():
    """What is not known of a new field is named, so that nobody takes it for nothing."""
    named = {name for declared in MODELS.values() for name in declared() if param_compat.says_what(name)}
    told = "kind activation norm norm_epsilon final_norm_epsilon placement positions position_offset bidirectional"
    told += " scale_embedding scale_scores scale_head start_row attention_bias ff_bias tied_head head_bias final_norm"
    told += " embedding_norm clamp max_distance tied_words shared_projections shared_biases project_always head"
    assert named == {*told.split(), "head_transform", "zero_padding"}


def test_other_positions_are_refused(whole):
    """A table of as many rows, of which others are never used."""
    there = json.loads((whole / "config.json").read_text())["model"] | {"position_offset": 0}
    here = there | {"context": there["context"] - 2, "position_offset": 2}
    norm = {"final_norm": {"scale": np.zeros(there["width"])}}
    table = {"positions": np.zeros((there["context"], there["width"]))}
    other = init_from.Weights("x", whole / "checkpoints" / "24", whole / "tokenizer", there)
    other.check(norm | table, there | {"activation": "relu"})
    with pytest.raises(UserError, match=r"x: config.model.position_offset is another \(0 there, 2 here\), by which"):
        other.check(norm | table, here)
    other.check(norm, here)


@pytest.mark.slow
def test_a_run_that_goes_on_needs_the_other_no_more(copy, start, text, tmp_path, capsys):
    other = copy(24)
    assert start(str(other))[0] == 0
    shutil.rmtree(other)
    code = train_here(tmp_path / "new", text, **STILL | {"train__start_from": str(other), "train__steps": 2})
    said = capsys.readouterr().err
    assert code == 0, said
    assert "restored checkpoint 1" in said and "took" not in said


@pytest.mark.parametrize(
    ("named", "options", "words"),
    [
        ("{whole}", {"model__width": 48, "model__ff": 96}, "not one of its "),
        ("{whole}", {"tokenizer__sentinels": 2, "model__vocab_size": 259}, "it was trained with another tokenizer ("),
        ("{whole}@13", {}, "there is no such checkpoint; choose one of: {whole}@latest, {whole}@best, {whole}@4, "),
        ("{whole}x", {}, "there is no checkpoint in {whole}x/checkpoints; give the folder of a run"),
        ("{new}", {}, "that is the folder of this run itself; give another --workdir"),
    ],
)
def test_what_cannot_be_begun_with_is_refused(whole, start, tmp_path, named, options, words):
    places = {"whole": whole, "new": tmp_path / "new"}
    code, said, _ = start(named.format(**places), **options)
    assert code == 2
    last = said.splitlines()[-1]
    assert last.startswith(f"pretrain: config.train.start_from = {named.format(**places)}: {words.format(**places)}")
    assert not (tmp_path / "new" / "checkpoints").exists() and not (tmp_path / "new" / "data").exists()


def test_what_is_no_run_says_how_one_is_made(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = start("runs/bert:mini_stdlib")[1].splitlines()[-1]
    assert said.endswith(", or make it first: `pretrain train --config=configs/bert.py:mini_stdlib`")
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "is a model of Hugging Face's library; `pretrain import --folder=gpt2" in start("gpt2")[1].splitlines()[-1]


@pytest.mark.parametrize("config", ["null", "5", "[1]", '"text"'])
def test_a_folder_with_json_that_is_no_config_is_no_run(start, tmp_path, config):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(config)
    code, said, _ = start(str(other))
    assert code == 2 and said.splitlines()[-1].startswith(f"pretrain: config.train.start_from = {other}: ")


def test_weights_that_their_own_run_deletes_meanwhile_are_told_as_such(copy, start, monkeypatch):
    other, check = copy(24), init_from.Weights.check

    def checked(self, *arguments):
        check(self, *arguments)
        shutil.rmtree(self.folder)

    monkeypatch.setattr(init_from.Weights, "check", checked)
    code, said, _ = start(str(other))
    assert code == 2 and "by moving" not in said
    assert f"checkpoint 24 is no longer in {other}/checkpoints; nothing was changed: start the same command" in said


def test_damaged_weights_are_refused(copy, start):
    other = copy(24)
    largest = max((other / "checkpoints/24/state").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    code, said, _ = start(str(other))
    assert code == 2 and "checkpoint 24 is damaged (" in said and "name another, as FOLDER@STEP" in said
