"""Which checkpoint of a run is exported: the last of a run at its end, or the one that is named."""

import shutil

import hub
import pytest
from runs import train_here
from test_card import GPT2

import pretrain
from pretrain.cli import main
from pretrain.errors import UserError


def test_a_run_that_is_not_at_its_end_is_exported_where_its_checkpoint_is_named(copy, tmp_path, capsys):
    workdir, folder = copy(8), tmp_path / "there"
    assert main(["export", f"--workdir={workdir}", f"--folder={folder}"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"pretrain: {workdir} is after 8 of 24 updates, and a run that is not at its end is exported only where its "
        "checkpoint is named: --step=8\n"
    )
    assert not folder.exists()
    assert main(["export", f"--workdir={workdir}", f"--folder={folder}", "--step=8"]) == 0
    assert "after 8 of 24 updates" in (folder / "README.md").read_text()
    assert main(["export", f"--workdir={workdir}", f"--folder={tmp_path}/mean", "--average=2"]) == 2
    assert "--step=8" in capsys.readouterr().err


def test_the_last_checkpoint_of_a_run_that_lost_it_is_not_taken_for_its_end(copy, tmp_path):
    with pytest.raises(UserError, match=r"is after 20 of 24 updates, .*: --step=20"):
        pretrain.to_huggingface(copy(20), tmp_path / "there")
    assert pretrain.to_huggingface(tmp_path / "copy", tmp_path / "there", step=20) == 20


def test_the_best_of_a_run_that_is_not_at_its_end(text, tmp_path):
    workdir, folder = tmp_path / "run", tmp_path / "there"
    small = GPT2 | {"evaluate.every": 2}
    assert train_here(workdir, text, recipe="configs/gpt2.py:small", small=small) == 0
    shutil.rmtree(workdir / "checkpoints" / "4")
    assert main(["export", f"--workdir={workdir}", f"--folder={folder}"]) == 2
    assert main(["export", f"--workdir={workdir}", f"--folder={folder}", "--step=best"]) == 0
    assert "after 2 of 4 updates" in (folder / "README.md").read_text()


def test_an_import_without_training_is_at_its_end(tmp_path):
    pretrain.from_huggingface(hub.make(tmp_path / "theirs", "gpt2"), tmp_path / "run")
    assert main(["export", f"--workdir={tmp_path}/run", f"--folder={tmp_path}/there"]) == 0
    assert "imported weights that no update of Longhaul has changed" in (tmp_path / "there/README.md").read_text()


def test_a_folder_without_a_checkpoint(copy, tmp_path, capsys):
    workdir = copy(4)
    shutil.rmtree(workdir / "checkpoints" / "4")
    assert main(["export", f"--workdir={workdir}", f"--folder={tmp_path}/there"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pretrain: there is no checkpoint in {workdir}/checkpoints; train first")
    assert not (tmp_path / "there").exists()
