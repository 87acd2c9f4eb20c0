"""A checkpoint belongs to the text, tokenizer and config that it was made with."""

import json
import shutil

import pytest
from runs import command, files, train_here

from pretrain.cli import main

TRAINED = {
    "tokenizer.kind": "sentencepiece",
    "tokenizer.vocab_size": 400,
    "model.vocab_size": 400,
    "tokenizer.train_bytes": 50_000,
}


@pytest.fixture
def own(text, tmp_path):
    """A copy of the text that a test may change."""
    return shutil.copytree(text, tmp_path / "own")


@pytest.fixture
def run(capsys):
    def run(workdir, text, *flags, **overrides):
        code = train_here(workdir, text, *flags, **{"train__steps": 17} | overrides)
        return code, capsys.readouterr().err

    return run


@pytest.mark.slow
def test_other_text_is_refused(run, own, tmp_path):
    workdir = tmp_path / "run"
    assert run(workdir, own, train__steps=6)[0] == 0
    shutil.rmtree(workdir / "data")
    code, err = run(workdir, own, train__steps=7)  # the same text, tokenized again
    assert code == 0 and "restored checkpoint 6" in err, err

    shutil.rmtree(workdir / "data")
    first = sorted(own.iterdir())[0]
    first.write_text(first.read_text() + "another line\n")
    before = files(workdir)
    code, err = run(workdir, own, train__steps=8)
    assert code == 2 and "another text" in err and "--fresh=NAME" in err
    assert files(workdir) == before
    assert main(["evaluate", f"--workdir={workdir}", "--batches=1"]) == 0  # scores any text


@pytest.mark.slow
def test_other_tokenizer_is_refused(run, own, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(workdir, own, train__steps=6, **TRAINED)[0] == 0
    shutil.rmtree(workdir / "tokenizer")
    shutil.rmtree(workdir / "data")
    before = files(workdir)
    for path in own.iterdir():
        path.write_text(path.read_text().upper())
    assert main(["prepare", *command(workdir, own, **TRAINED)[4:]]) == 0
    capsys.readouterr()
    code, err = run(workdir, own, train__steps=7, **TRAINED)
    assert code == 2 and "another tokenizer" in err
    assert main(["generate", f"--workdir={workdir}", "--prompt=a"]) == 2
    assert "another tokenizer" in capsys.readouterr().err
    assert files(workdir) == before


def test_missing_config_is_refused(copy, run, text):
    workdir = copy(4)
    seed = json.loads((workdir / "config.json").read_text())["seed"]
    (workdir / "config.json").unlink()
    before = files(workdir)
    code, err = run(workdir, text, seed=7)
    assert code == 2 and "config.json" in err
    assert files(workdir) == before
    code, err = run(workdir, text, "--fresh=first", seed=7)
    assert code == 0 and "restored" not in err, err
    assert seed != json.loads((workdir / "config.json").read_text())["seed"]
