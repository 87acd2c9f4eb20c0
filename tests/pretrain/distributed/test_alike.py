"""Processes of one run that were not started alike stop at the start, all with the same sentence."""

import re
import shutil
import sys
import time

import pytest
from runs import command, ends, pair

from pretrain import config as configs
from pretrain.cli import main
from pretrain.distributed import program
from pretrain.distributed.shutdown import MISTAKE


def sentence(processes):
    """The sentence that both say last, of processes that end soon and with the code of a user's mistake."""
    began = time.monotonic()
    ended = ends(processes, timeout=90)
    assert [code for code, _, _ in ended] == [MISTAKE, MISTAKE], ended
    assert time.monotonic() - began < 60  # starting takes most of it, on a busy machine
    assert "Traceback" not in str(ended)
    # One may have heard the other's words before it found its own.
    said = {re.sub(r"^pretrain: (process \d: )?", "", err.splitlines()[-1]) for _, _, err in ended}
    assert len(said) == 1
    return said.pop()


def test_training_with_other_keys_and_flags_stops_all_and_writes_nothing(tmp_path, text):
    """The second process once made a model of its own, and both went on."""
    own = (
        [f"--config.data.store={tmp_path}/here", "--config.data.workers=1"],
        ["--config.seed=2", "--config.schedule.peak=0.5", "--config.model.dropout_residual=0.0", "--fresh=again"],
    )
    said = sentence(pair(*command(tmp_path / "run", text), own=own))
    assert "config.seed is 0 in process 0 and 2 in process 1" in said
    assert "config.schedule.peak is 0.003 in process 0 and 0.5 in process 1" in said
    assert "config.model.dropout_residual is 0.1 in process 0 and 0.0 in process 1" in said
    assert "--fresh is '' in process 0 and 'again' in process 1" in said
    assert "start all of them with the same command" in said
    assert "config.data" not in said  # where a host keeps the tokenised text, and how it reads that, is its own affair
    assert not (tmp_path / "run").exists() and not (tmp_path / "here").exists()


@pytest.mark.slow
def test_another_work_folder_stops_all(tmp_path, text):
    """Each once wrote its half of every checkpoint into a folder of its own."""
    line, elsewhere = command(tmp_path / "run", text), f"--workdir={tmp_path}/other"
    said = sentence(pair(*line, own=([], [elsewhere])))
    assert f"process 1 does not find in {elsewhere} what process 0 writes in its own" in said
    assert not (tmp_path / "run").exists() and not (tmp_path / "other").exists()


def test_evaluating_otherwise_stops_all(tmp_path):
    configs.save(configs.load("configs/quickstart.py:tiny"), str(tmp_path))
    own = (["--stride=8", "--step=4"], ["--config.evaluate.length=16"])
    said = sentence(pair(sys.executable, "-m", "pretrain", "evaluate", f"--workdir={tmp_path}", own=own))
    assert "--stride is 8 in process 0 and 0 in process 1" in said
    assert "--step is '4' in process 0 and 'latest' in process 1" in said
    assert "config.evaluate.length is 0 in process 0 and 16 in process 1" in said


@pytest.mark.slow
def test_other_text_of_the_same_name_stops_all(tmp_path, text):
    """As where each host has a disk of its own, and one of them what was made of an older copy."""
    own, stores = shutil.copytree(text, tmp_path / "own"), (tmp_path / "new", tmp_path / "old")
    line = command(tmp_path / "run", own)
    for store in stores:
        (own / "more.py").write_text(f"store = '{store}'\n" * 100)
        assert main(["prepare", *line[4:], f"--config.data.store={store}"]) == 0
    shutil.rmtree(own)
    said = sentence(pair(*line, own=[[f"--config.data.store={store}"] for store in stores]))
    assert re.search(r"the text of train is '\w+' in process 0 and '\w+' in process 1", said)
    assert "let all of them read the same text" in said
    assert "the tokenizer" not in said
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_another_program_stops_all(tmp_path, text):
    """With parameters split, each once updated its own by its own code, and what came of it was nobody's."""
    variables = ({}, {"JAX_DEFAULT_PRNG_IMPL": "rbg", "JAX_ENABLE_X64": "1"})
    said = sentence(pair(*command(tmp_path / "run", text), variables=variables))
    assert "jax_enable_x64 is False in process 0 and True in process 1; jax_default_prng_impl is" in said
    assert said.endswith("install the same version on all hosts, and set the same variables")
    assert not (tmp_path / "run").exists()


def test_another_number_of_processes_stops_all(tmp_path, text):
    """JAX meets as many as process 0 was told of; whoever else comes is left out."""
    ended = ends(pair(*command(tmp_path / "run", text), variables=({}, {"LONGHAUL_PROCESSES": "3"})))
    assert ended[0][0] == MISTAKE
    for _, _, said in ended:  # the second waits for a third to leave with, until JAX ends it
        assert "LONGHAUL_PROCESSES is '2' in process 0 and '3' in process 1; install the same version" in said
    assert not (tmp_path / "run").exists()


def test_the_code_of_a_program_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "ROOT", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ".#a.py").symlink_to("nobody@nowhere.1234")  # as an editor leaves it
    told = []
    for text in ("a = 1", "a = 2"):
        (tmp_path / "models" / "a.py").write_text(text)
        told.append(program.told())
    assert [name for name in told[0] if told[0][name] != told[1][name]] == ["the code of longhaul"]


def test_hosts_with_more_devices_than_others_stop_all(tmp_path, text):
    variables = tuple({"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"} for count in (1, 3))
    said = sentence(pair(*command(tmp_path / "run", text), variables=variables))
    assert "process 0 has 1 devices and process 1 has 3, and all must have as many" in said
