"""Restoring a work folder for evaluation and generation, through the commands themselves."""

import gzip
import io
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from runs import train_here

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.cli import main
from pretrain.metrics.tables import show
from pretrain.workdir import Workdir


@pytest.fixture
def pretrain(capsys, monkeypatch):
    """Runs a command in this process (eight devices) and returns what it prints, as JSON lines."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")

    def run(*arguments):
        assert main([*map(str, arguments), "--format=json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_evaluate_prints_its_scores(pretrain, whole):
    (row,) = pretrain("evaluate", f"--workdir={whole}", "--word_level", "--gzip", "--xz")
    assert row["step"] == 24
    assert 1 < row["loss"] < 6
    assert row["perplexity"] == pytest.approx(2.718281828 ** row["loss"], rel=1e-6)
    # One byte is one token here, but for the separators, whose loss is counted and whose bytes are not.
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / 0.6931471806, rel=0.01)
    assert row["word_perplexity"] > row["perplexity"]
    assert 0.5 < row["xz_bits_per_byte"] < row["gzip_bits_per_byte"] < 8
    assert row["tokens_per_second"] > 0


def test_one_batch_has_a_speed_too(pretrain, whole):
    """Which counts what the model reads, not what is scored: of these windows all but the first score 16 of 64."""
    (row,) = pretrain("evaluate", f"--workdir={whole}", "--batches=1", "--stride=16")
    assert row["tokens_per_second"] > 0


def test_any_text_is_scored_and_leaves_nothing_in_the_work_folder(pretrain, whole, text, tmp_path):
    held = tmp_path / "held.txt.gz"
    config = configs.saved(str(whole))
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    corpus = pipeline.prepare(*sections, Workdir(whole).folders, report=print)
    held.write_bytes(gzip.compress(corpus.raw_bytes("validation")))
    before = sorted(path for path in whole.rglob("*"))
    options = ("--word_level", "--gzip", "--length=32", "--stride=16")
    (split,) = pretrain("evaluate", f"--workdir={whole}", *options)
    (given,) = pretrain("evaluate", f"--workdir={whole}", f"--data=text:{held}", *options)
    assert sorted(path for path in whole.rglob("*")) == before
    assert given["split"] == f"text:{held}"
    documents = corpus.summary()[1]["documents"]
    assert given["tokens"] == split["tokens"] - documents + 1  # one separator before each document
    assert given["loss"] == pytest.approx(split["loss"], rel=0.02)
    assert given["gzip_bits_per_byte"] == split["gzip_bits_per_byte"]


def test_a_run_whose_text_is_gone_scores_any_text(pretrain, whole, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(whole, moved)
    shutil.rmtree(moved / "data")
    (row,) = pretrain("evaluate", f"--workdir={moved}", f"--data=text:{__file__}")
    assert row["tokens"] == 1 + os.path.getsize(__file__)


def test_compressors_read_their_text_before_anything_is_scored(whole, text, monkeypatch, capsys):
    monkeypatch.setattr("pretrain.commands.evaluate.score", lambda *given, **options: pytest.fail("scored already"))
    away = text.rename(f"{text}-away")
    try:
        assert main(["evaluate", f"--workdir={whole}", "--gzip"]) == 2
    finally:
        away.rename(text)
    assert "matches no file" in capsys.readouterr().err


def test_any_number_of_devices_restores_the_same(pretrain, run_pretrain, whole):
    (eight,) = pretrain("evaluate", f"--workdir={whole}")
    alone = run_pretrain("evaluate", f"--workdir={whole}", "--format=json", devices=1)
    assert alone.rc == 0, alone.stderr
    one = json.loads(alone.stdout)
    assert one["tokens"] == eight["tokens"]
    assert one["loss"] == pytest.approx(eight["loss"], rel=1e-6)


@pytest.mark.slow
def test_a_mesh_that_does_not_fit_the_devices_here_is_no_matter_to_evaluation(run_pretrain, whole, tmp_path):
    """Trained over two devices, scored on three, which divide no number of rows that training has."""
    shutil.copytree(whole, tmp_path / "two")
    path = tmp_path / "two" / "config.json"
    config = json.loads(path.read_text())
    config["mesh"] |= {"data": 1, "fsdp": 2}
    path.write_text(json.dumps(config))
    scores = {}
    for workdir, devices in ((whole, 1), (tmp_path / "two", 1), (tmp_path / "two", 3)):
        done = run_pretrain("evaluate", f"--workdir={workdir}", "--format=json", devices=devices)
        assert done.rc == 0, done.stderr
        assert ("the run's mesh does not fit the" in done.stderr) == (workdir != whole)
        scores[workdir, devices] = json.loads(done.stdout)
    (expected, *others) = scores.values()
    for other in others:
        assert other["tokens"] == expected["tokens"]
        assert other["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_sliding_windows_score_every_token_once(pretrain, whole):
    (disjoint,) = pretrain("evaluate", f"--workdir={whole}")
    (sliding,) = pretrain("evaluate", f"--workdir={whole}", "--stride=16")
    assert sliding["tokens"] == disjoint["tokens"]
    assert sliding["loss"] != disjoint["loss"]


def test_keys_of_evaluation_can_be_changed(pretrain, whole):
    changed = pretrain("evaluate", f"--workdir={whole}", "--config.evaluate.length=32", "--config.evaluate.stride=8")
    # A flag's stride counts, not the config's, which these windows would be too short for.
    flags = "--length=32", "--stride=8", "--config.evaluate.stride=48"
    (by_flags,) = pretrain("evaluate", f"--workdir={whole}", *flags)
    assert changed[0]["loss"] == by_flags["loss"]


def test_a_model_that_reads_longer_rows_when_it_scores(pretrain, text, tmp_path, signals, capsys):
    """By config.evaluate.model, as it was validated; longer ones are told by the name that they were given."""
    longer = {"model__positions": "rotary", "evaluate__length": 128, "evaluate__model__context": 128}
    assert train_here(tmp_path, text, train__steps=1, schedule__warmup=0, **longer) == 0
    capsys.readouterr()
    assert pretrain("evaluate", f"--workdir={tmp_path}")[0]["loss"] > 0
    for given, told in (
        ("--length=129", "--length=129"),
        ("--config.evaluate.length=130", "config.evaluate.length = 130"),
    ):
        assert main(["evaluate", f"--workdir={tmp_path}", given]) == 2
        said = capsys.readouterr().err
        assert f"{told} is longer than the model's config.evaluate.model.context = 128 positions; lower" in said


def test_steps_can_be_chosen(pretrain, whole):
    losses = {step: pretrain("evaluate", f"--workdir={whole}", f"--step={step}")[0] for step in ("8", "best", "latest")}
    assert losses["8"]["step"] == 8
    assert losses["best"]["loss"] <= losses["8"]["loss"]
    assert losses["latest"]["step"] == 24


def test_a_terminal_sees_the_text_as_it_comes(pretrain, whole, monkeypatch):
    options = ["generate", f"--workdir={whole}", "--prompt=def é(", "--max_tokens=30", "--seed=3"]
    (row,) = pretrain(*options)

    class Terminal(io.StringIO):
        """Keeps what it held at each flush."""

        def __init__(self):
            super().__init__()
            self.seen = []

        def isatty(self):
            return True

        def flush(self):
            self.seen.append(self.getvalue())

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(options) == 0
    assert terminal.seen[0] == "def é("
    assert len(set(terminal.seen)) > 10
    assert terminal.getvalue() == row["prompt"] + row["text"] + "\n"


def test_text_may_go_nowhere(whole, monkeypatch, capsys):
    """Where standard output is closed Python has none."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["generate", f"--workdir={whole}", "--prompt=a", "--max_tokens=1"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_text_that_ends_at_once_is_told_of(whole, monkeypatch, capsys):
    end = pipeline.open_tokenizer(Workdir(str(whole)).folders.tokenizer).end_id
    written = [(np.array(ids, np.int32), -1.0) for ids in ([end], [65, end])]
    monkeypatch.setattr("pretrain.commands.generate.generate", lambda *_, **__: written)
    assert main(["generate", f"--workdir={whole}", "--prompt=a", "--prompt=b"]) == 0
    said = capsys.readouterr()
    assert said.out == "a\n\nbA\n"
    told = [line for line in said.err.splitlines() if "at once" in line]
    assert told == ["the model ended its text at once behind the prompt 'a'"]


def test_generate_with_and_without_the_cache(pretrain, whole):
    common = ["generate", f"--workdir={whole}", "--prompt=def f(", "--prompt=x", "--max_tokens=12", "--temperature=0"]
    cached, again, uncached = pretrain(*common), pretrain(*common), pretrain(*common, "--nocached")
    assert cached == again
    assert [r["text"] for r in cached] == [r["text"] for r in uncached]
    for a, b in zip(cached, uncached, strict=True):
        assert a["log_probability"] == pytest.approx(b["log_probability"], abs=1e-4)
        assert a["tokens"] <= 12
    assert [r["prompt"] for r in cached] == ["def f(", "x"]


def test_beams_find_a_likelier_continuation_than_greed(pretrain, whole):
    common = ["generate", f"--workdir={whole}", "--prompt=import ", "--max_tokens=6"]
    (greedy,), (beam,) = pretrain(*common, "--temperature=0"), pretrain(*common, "--beams=8", "--length_penalty=0")
    assert beam["log_probability"] >= greedy["log_probability"] - 1e-5


def test_sampling_depends_on_the_seed_alone(pretrain, whole):
    def sample(seed):
        return pretrain("generate", f"--workdir={whole}", "--max_tokens=20", f"--seed={seed}")[0]["text"]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_prepare_says_what_is_there(pretrain, text, tmp_path):
    keys = ["--config.tokenizer.kind=bytes", f"--config.data.train=text:{text}/*.py", "--config.model.vocab_size=257"]
    rows = pretrain("prepare", "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}", *keys)
    assert {row["split"] for row in rows} == {"train", "validation"}
    assert all(row["tokens"] > row["bytes"] > 0 for row in rows)


@pytest.mark.slow
def test_what_is_prepared_waits_for_a_command_with_the_folder_alone(pretrain, text, tmp_path, signals, capsys):
    """And any other config may still be trained there, whose tokenizer it is: no update of the first one was made."""
    keys = ["--config.tokenizer.kind=bytes", f"--config.data.train=text:{text}/*.py", "--config.model.vocab_size=257"]
    pretrain("prepare", "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}", *keys)
    assert pretrain("describe", f"--workdir={tmp_path}")[0]["name"] == "quickstart-tiny"
    assert pretrain("prepare", f"--workdir={tmp_path}")
    assert train_here(tmp_path, text, train__steps=1, schedule__warmup=0, model__width=8) == 0
    assert configs.saved(str(tmp_path)).model.width == 8
    assert main(["prepare", "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}", *keys]) == 2
    assert "belongs to a run of another config, which differs in" in capsys.readouterr().err
    assert configs.saved(str(tmp_path)).model.width == 8
    assert pretrain("prepare", f"--workdir={tmp_path}")


@pytest.mark.slow
def test_a_config_that_was_edited_by_hand_is_no_other_run(text, tmp_path, signals, capsys):
    sizes = {"tokenizer__kind": "bytes", "model__vocab_size": 257, "schedule__warmup": 0}
    assert train_here(tmp_path, text, train__steps=1, **sizes) == 0
    file = Workdir(str(tmp_path)).config
    written = json.loads(file.read_text())
    edited = json.loads(file.read_text())
    edited["seed"], edited["schedule"]["peak"], edited["train"]["steps"] = 7, 0.5, 2  # the last may be another
    file.write_text(json.dumps(edited))
    assert main(["train", f"--workdir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert (
        "config.json is not the config that the run's checkpoints were made with: it differs in schedule.peak (" in said
    )
    assert "; seed (" in said and "0.5 here" in said and "train.steps" not in said
    written["train"]["steps"] = 2
    file.write_text(json.dumps(written))
    assert main(["train", f"--workdir={tmp_path}"]) == 0


def test_the_title_of_scores_breaks_no_name(capsys):
    title = f"checkpoint 1 on text:/{'books/' * 30}*.txt"
    show(title, ("measure", "value"), [["loss", 1.0]])
    assert title in capsys.readouterr().out.splitlines()


def test_describe_knows_the_config_of_a_run(pretrain, whole):
    by_recipe = pretrain("describe", "--config=configs/quickstart.py:tiny")
    (run,) = pretrain("describe", f"--workdir={whole}")
    assert by_recipe != [run] and run["bytes"]["parameters"] == 4 * run["parameters"]
    (longer,) = pretrain("describe", f"--workdir={whole}", "--config.train.batch_size=16")
    assert longer["tokens_per_step"] == 2 * run["tokens_per_step"]


def test_goodput_of_a_run(pretrain, whole, capsys):
    (found,) = pretrain("goodput", f"--workdir={whole}")
    assert (found["starts"], found["updates"], found["made_again"]) == (1, 24, 0)
    spent = found["seconds"]
    assert 0 < spent["step"] < found["total"] == pytest.approx(sum(spent.values()))
    assert all(spent[name] > 0 for name in ("compile", "save", "evaluate", "start", "other"))
    assert found["goodput"] == spent["step"] / found["total"]
    assert main(["goodput", f"--workdir={whole}"]) == 0
    assert "24 updates, in 0:0" in capsys.readouterr().out


def test_no_goodput_of_what_is_no_run(tmp_path, capsys):
    assert main(["goodput", f"--workdir={tmp_path}"]) == 2
    assert "has no goodput.jsonl, which `pretrain train` writes" in capsys.readouterr().err


def test_help_of_every_command(capsys):
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in ("train", "evaluate", "generate", "describe", "goodput", "prepare"):
        assert name in overview
        assert main([name, "--help"]) == 0
        assert "--" in capsys.readouterr().out


def test_versions(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"longhaul [\d.]+, jax [\d.]+\n", capsys.readouterr().out)


@pytest.mark.slow
def test_words_go_on_after_a_space(pretrain, text, tmp_path, signals, monkeypatch, capsys):
    sizes = {"tokenizer__vocab_size": 257, "train__steps": 1, "schedule__warmup": 1, "checkpoint__every": 1}
    assert train_here(tmp_path / "run", text, tokenizer__kind="words", **sizes) == 0
    capsys.readouterr()
    options = ["generate", f"--workdir={tmp_path / 'run'}", "--prompt=the", "--max_tokens=8", "--seed=3"]
    (row,) = pretrain(*options)
    assert row["text"][0] == " " and len(row["text"].split()) > 3
    assert main(options) == 0
    assert capsys.readouterr().out == f"the{row['text']}\n"
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(options) == 0
    assert terminal.getvalue() == f"the{row['text']}\n"
    assert main(["evaluate", f"--workdir={tmp_path / 'run'}", "--xz"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pretrain: --xz gives bits of a byte beside the model's, of which there are none here")
