"""A checkpoint goes with the text, the tokenizer and the config that it was made with, and with no others."""

import json
import shutil
import sys

import pytest
from runs import command, ends, pair, train_here

from pretrain.cli import main
from pretrain.workdir import POSITION

TRAINED = {
    "tokenizer.kind": "sentencepiece",
    "tokenizer.vocab_size": 400,
    "model.vocab_size": 400,
    "tokenizer.train_bytes": 50_000,
}


def checkpoints(workdir):
    return files(workdir / "checkpoints")


def files(folder):
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def own(text, tmp_path):
    """A copy of the text that a test may change."""
    return shutil.copytree(text, tmp_path / "own")


@pytest.fixture
def run(capsys):
    def run(workdir, text, *flags, **overrides):
        code = train_here(workdir, text, *flags, **{"train__steps": 6} | overrides)
        return code, capsys.readouterr().err

    return run


@pytest.mark.slow
def test_other_text_is_refused_however_it_came_and_the_same_text_tokenised_again_is_not(run, own, tmp_path):
    workdir = tmp_path / "run"
    assert run(workdir, own)[0] == 0
    before = checkpoints(workdir)
    shutil.rmtree(workdir / "data")
    code, said = run(workdir, own, train__steps=7)
    assert code == 0, said
    assert "restored checkpoint 6" in said

    shutil.rmtree(workdir / "checkpoints" / "7")
    first = sorted(own.iterdir())[0]
    first.write_text(first.read_text() + "another line\n")
    for change in ({"data__store": tmp_path / "elsewhere"}, {}):
        if not change:
            shutil.rmtree(workdir / "data")
        code, said = run(workdir, own, train__steps=7, **change)
        assert code == 2, said
        assert "checkpoint 6 in" in said
        assert "was trained with another text" in said
        assert "--fresh=NAME" in said
        assert checkpoints(workdir) == before
    assert main(["evaluate", f"--workdir={workdir}", "--batches=1"]) == 0  # scores any text
    code, said = run(workdir, own, "--fresh=first", train__steps=7)
    assert code == 0, said
    assert "restored" not in said


@pytest.mark.slow
def test_another_tokenizer_is_refused_by_all_and_none_is_made_to_evaluate(run, own, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(workdir, own, **TRAINED)[0] == 0
    before = checkpoints(workdir)
    restoring = (["evaluate", f"--workdir={workdir}"], ["generate", f"--workdir={workdir}", "--prompt=a"])
    shutil.rmtree(workdir / "tokenizer")
    shutil.rmtree(workdir / "data")
    for arguments in restoring:
        assert main(arguments) == 2
        assert "no tokenizer" in capsys.readouterr().err
        assert not (workdir / "tokenizer").exists()

    held = files(workdir)
    code, said = run(workdir, own, train__steps=7, **TRAINED)
    assert code == 2
    assert "holds checkpoints without their tokenizer" in said
    assert files(workdir) == held  # once another tokenizer was made and left there before it was refused

    for path in own.iterdir():
        path.write_text(path.read_text().upper())
    assert main(["prepare", *command(workdir, own, **TRAINED)[4:]]) == 0
    capsys.readouterr()
    code, said = run(workdir, own, train__steps=7, **TRAINED)
    assert code == 2
    assert "checkpoint 6 in" in said
    assert "was trained with another tokenizer" in said
    for arguments in restoring:
        assert main(arguments) == 2
        assert "was trained with another tokenizer" in capsys.readouterr().err
    assert checkpoints(workdir) == before


@pytest.mark.parametrize("lost", ["missing", "a folder"])
def test_checkpoints_without_their_config_are_not_gone_on_from(copy, run, text, lost):
    """Another seed and another rate once went on from them without a word."""
    workdir = copy(4)
    written = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").unlink()
    if lost == "a folder":
        (workdir / "config.json").mkdir()
    before = checkpoints(workdir)
    code, said = run(workdir, text, seed=7, schedule__peak=0.001)
    assert code == 2
    assert "config.json" in said
    assert "restore" in said
    assert checkpoints(workdir) == before
    if lost == "missing":
        assert "holds checkpoints, but not the config.json" in said
        code, said = run(workdir, text, "--fresh=first", seed=7, schedule__peak=0.001)
        assert code == 0, said
        assert "restored" not in said
        assert written["seed"] != json.loads((workdir / "config.json").read_text())["seed"]


def test_what_one_process_alone_finds_of_a_checkpoint_all_are_told(copy, tmp_path):
    """Folders that are not shared: the other process once took what it was told for the answer to something else."""
    first, second = copy(8), tmp_path / "another"
    shutil.copytree(first, second)
    noted = second / "checkpoints" / "8" / POSITION
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"tokenizer": "of another"}))
    own = [[f"--workdir={folder}"] for folder in (first, second)]
    for code, _, err in ends(pair(sys.executable, "-m", "pretrain", "evaluate", "--batches=1", own=own)):
        assert code == 2 and "checkpoint 8 in" in err.splitlines()[-1], err
        assert "was trained with another tokenizer (fingerprint of another there" in err.splitlines()[-1]
