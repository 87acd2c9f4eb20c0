"""Restoring a work folder for evaluation and generation, through the commands themselves."""

import gzip
import json

import pytest
from runs import train_here

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.cli import main
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


def test_stride_scores_every_token_once(pretrain, whole):
    disjoint, best = (pretrain("evaluate", f"--workdir={whole}", f"--step={step}")[0] for step in ("latest", "best"))
    assert best["loss"] <= disjoint["loss"]
    by_keys = pretrain("evaluate", f"--workdir={whole}", "--config.evaluate.length=32", "--config.evaluate.stride=8")
    # A flag's stride counts, not the config's, which these windows would be too short for.
    by_flags = pretrain("evaluate", f"--workdir={whole}", "--length=32", "--stride=8", "--config.evaluate.stride=48")
    assert by_keys[0]["loss"] == by_flags[0]["loss"] != disjoint["loss"]
    assert by_keys[0]["tokens"] == disjoint["tokens"]


@pytest.mark.slow
def test_a_model_that_reads_longer_rows_when_it_scores(pretrain, text, tmp_path, signals, capsys):
    """By config.evaluate.model, as in validation during training."""
    longer = {"model__positions": "rotary", "evaluate__length": 128, "evaluate__model__context": 128}
    assert train_here(tmp_path, text, train__steps=1, schedule__warmup=0, **longer) == 0
    capsys.readouterr()
    assert pretrain("evaluate", f"--workdir={tmp_path}")[0]["loss"] > 0
    assert main(["evaluate", f"--workdir={tmp_path}", "--length=129"]) == 2


def test_generate_with_and_without_the_cache(pretrain, whole):
    common = ["generate", f"--workdir={whole}", "--prompt=def f(", "--prompt=x", "--max_tokens=12", "--temperature=0"]
    cached, uncached = pretrain(*common), pretrain(*common, "--nocached")
    assert [r["text"] for r in cached] == [r["text"] for r in uncached]
    for a, b in zip(cached, uncached, strict=True):
        assert a["log_probability"] == pytest.approx(b["log_probability"], abs=1e-4)
        assert a["tokens"] <= 12
    assert [r["prompt"] for r in cached] == ["def f(", "x"]


def test_beams_find_a_likelier_continuation_than_greed(pretrain, whole):
    common = ["generate", f"--workdir={whole}", "--prompt=import ", "--max_tokens=6"]
    (greedy,), (beam,) = pretrain(*common, "--temperature=0"), pretrain(*common, "--beams=8", "--length_penalty=0")
    assert beam["log_probability"] >= greedy["log_probability"] - 1e-5


def test_prepare_says_what_is_there(pretrain, text, tmp_path):
    keys = ["--config.tokenizer.kind=bytes", f"--config.data.train=text:{text}/*.py", "--config.model.vocab_size=257"]
    rows = pretrain("prepare", "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}", *keys)
    assert {row["split"] for row in rows} == {"train", "validation"}
    assert all(row["tokens"] > row["bytes"] > 0 for row in rows)


def test_goodput_of_a_run(pretrain, whole, capsys):
    (found,) = pretrain("goodput", f"--workdir={whole}")
    assert (found["starts"], found["updates"], found["made_again"]) == (1, 24, 0)
    spent = found["seconds"]
    assert 0 < spent["step"] < found["total"] == pytest.approx(sum(spent.values()))
    assert all(spent[name] > 0 for name in ("compile", "save", "evaluate", "start", "other"))
    assert found["goodput"] == spent["step"] / found["total"]
    assert main(["goodput", f"--workdir={whole}"]) == 0
    assert "24 updates, in 0:0" in capsys.readouterr().out


def test_help_and_version(capsys):
    for words, expected in ((["--help"], "goodput"), (["train", "--help"], "--fresh"), (["--version"], "longhaul ")):
        assert main(words) == 0
        assert expected in capsys.readouterr().out
