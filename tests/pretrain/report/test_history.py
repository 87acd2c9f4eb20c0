"""Records of runs, against the files of an old run and against arithmetic."""

import json
import os
import shutil
import socket
import time

import pytest

from pretrain.cli import main
from pretrain.report.history import find_runs
from pretrain.workdir import Workdir
from tests.conftest import ROOT

OLD = ROOT / "tests" / "goldens" / "old_run"


@pytest.fixture
def run(tmp_path):
    """A copy of an old run, two levels below `tmp_path`."""
    return Workdir(shutil.copytree(OLD / "gpt", tmp_path / "group" / "a"))


def table(capsys, *words):
    assert main(["runs", *map(str, words), "--format=json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_runs_lists_what_the_files_hold(run, tmp_path, capsys):
    shutil.copytree(OLD / "gpt", run.earlier / "first")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    rows = table(capsys, tmp_path)
    assert [row["run"] for row in rows] == [str(run.path), str(run.earlier / "first")]
    last = json.loads((run.metrics / "train.jsonl").read_text().splitlines()[-1])
    best = min(json.loads(line)["loss"] for line in (run.metrics / "validation.jsonl").read_text().splitlines())
    assert (rows[0]["step"], rows[0]["loss"], rows[0]["best_validation"]) == (4, last["loss"], best)
    assert rows[0]["state"] == "finished"
    assert rows[0]["seen"] == json.loads(run.goodput.read_text().splitlines()[-1])["time"]
    assert main(["runs", str(tmp_path)]) == 0
    assert "4/4" in capsys.readouterr().out


def test_rows_of_csv_equal_those_of_jsonl(run):
    (history,) = find_runs(run.name)
    before = history.rows("train")
    (run.metrics / "train.jsonl").unlink()
    assert history.rows("train") == before


def test_speed_is_tokens_over_time_of_steps_and_data(run):
    (history,) = find_runs(run.name)
    tokens = history.config["train.batch_size"] * history.config["data.length"]
    seconds = [{"step": float(step), "data": step / 4, "save": 7.0 * step} for step in range(3)]
    rows = [{"time": 5.0 + n, "update": 10 * n, "seconds": one} for n, one in enumerate(seconds)]
    run.goodput.write_text("".join(json.dumps(row) + "\n" for row in ({"began": 0.0, "time": 4.0}, *rows)))
    assert history.speeds() == [(20, pytest.approx(10 * tokens / 1.25))]


@pytest.mark.parametrize(
    ("holder", "state"),
    [({"process": os.getpid()}, "running"), ({"process": 2**22 + 1}, "stopped"), ({"host": "b"}, "stopped")],
)
def test_state_of_a_run_that_is_not_finished(run, capsys, holder, state):
    config = json.loads(run.config.read_text())
    config["train"]["steps"] = 100
    run.config.write_text(json.dumps(config))
    note = {"command": "train", "host": socket.gethostname(), "process": 1, "since": ""} | holder
    (run.path / "lock.json").write_text(json.dumps(note))
    assert table(capsys, run.path)[0]["state"] == state
    if "host" in holder:
        with run.goodput.open("a") as file:
            file.write(json.dumps({"time": time.time(), "update": 4, "seconds": {"step": 1.0, "data": 0.0}}) + "\n")
        assert table(capsys, run.path)[0]["state"] == "running"
