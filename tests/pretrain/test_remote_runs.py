"""A work folder in an object store: the run is that of a disk, leaf for leaf, through cuts, kills and damage."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest
from runs import ROOT, assert_same_leaves, command, environment, launched, leaves, train, train_here

from input_pipeline import io
from input_pipeline.remote import at
from pretrain.cli import main
from pretrain.distributed.lock import hold_workdir
from pretrain.errors import UserError
from pretrain.workdir import COMMITTED, Workdir
from tests.object_store import UPLOADS
from tests.object_store_away import way

pytestmark = UPLOADS
STEPS = {"train__steps": 8, "schedule__decay_steps": 8}


@pytest.fixture
def run(bucket):
    """The name of a work folder."""
    return f"{bucket}/run"


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory, text):
    workdir = tmp_path_factory.mktemp("disk") / "run"
    assert train_here(workdir, text, **STEPS) == 0
    return workdir


def fetched(run: str, folder):
    """A copy of a run's folder on a disk."""
    for path in at(run).rglob("*"):
        to = folder / str(path.relative_to(at(run)))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    return folder


def assert_same_run(run, on_disk, tmp_path, splits=("train", "validation")):
    copied = fetched(run, tmp_path / "copied")
    assert_same_leaves(leaves(copied, 8), leaves(on_disk, 8))
    for name in (f"{split}{suffix}" for split in splits for suffix in (".csv", ".jsonl")):
        assert (copied / "metrics" / name).read_bytes() == (on_disk / "metrics" / name).read_bytes()


def test_a_run_is_cut_and_goes_on(run, text, on_disk, tmp_path, capsys):
    assert train_here(run, text, train__steps=4, schedule__decay_steps=8) == 0
    assert Workdir(run).steps() == [4]
    assert train_here(run, text, **STEPS) == 0
    assert "restored checkpoint 4" in capsys.readouterr().err
    assert Workdir(run).steps() == [4, 8]
    assert_same_run(run, on_disk, tmp_path, splits=["train"])  # its first half was validated too
    assert not (at(run) / "lock").exists()
    for arguments in (["evaluate", "--format=json"], ["generate", "--prompt=a", "--max_tokens=2"], ["goodput"]):
        capsys.readouterr()
        assert main([*arguments, f"--workdir={run}"]) == 0
        assert capsys.readouterr().out
    # What was copied to a disk is a run there.
    assert main(["evaluate", "--format=json", f"--workdir={tmp_path / 'copied'}"]) == 0


def test_what_is_half_written_or_damaged_is_not_gone_on_from(run, text, on_disk, tmp_path, capsys):
    assert train_here(run, text, **STEPS) == 0
    here = Workdir(run)
    half = here.checkpoint(12)
    (half / "state" / "manifest.ocdbt").write_bytes(b"as a killed process leaves it")
    largest = max(here.checkpoint(8).rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    assert here.steps() == [4, 8] and here.unfinished() == [half]
    assert main(["evaluate", f"--workdir={run}"]) == 2
    assert "checkpoint 8 is damaged" in capsys.readouterr().err
    assert train_here(run, text, **STEPS) == 0
    said = capsys.readouterr().err
    assert "checkpoint 8 cannot be used" in said and "restored checkpoint 4" in said
    assert not half.exists() and (here.broken / "8" / COMMITTED).is_file()
    assert here.steps() == [4, 8]
    assert_same_run(run, on_disk, tmp_path)


def test_old_checkpoints_are_deleted(run, text):
    assert train_here(run, text, checkpoint__keep=1, checkpoint__keep_best="false", **STEPS) == 0
    assert [path.name for path in Workdir(run).checkpoints.iterdir()] == ["8"]


def test_one_writer_at_a_time(run, monkeypatch):
    monkeypatch.setattr(io, "STALE", 1.0)
    monkeypatch.setattr(io, "BEAT", 0.2)
    match = "in use by `pretrain train` on"
    with hold_workdir(run, "train", print), pytest.raises(UserError, match=match), hold_workdir(run, "train", print):
        pass
    assert not Workdir(run).lock.exists()
    Workdir(run).lock.create(b"{}")  # by a host that was lost
    with hold_workdir(run, "train", print):
        pass


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fresh=one"], "--fresh=one"),
        (["--config.log.profile=(2, 3)"], "config.log.profile"),
        (["--config.distill.teacher=runs/x"], "config.distill.teacher"),
    ],
)
def test_what_cannot_be_done_there_is_refused(run, text, capsys, flags, said):
    assert train_here(run, text, *flags) == 2
    assert said in capsys.readouterr().err
    assert not at(run).exists()


def test_an_import_is_made_on_a_disk(run, capsys, tmp_path):
    assert main(["import", f"--folder={tmp_path}", f"--workdir={run}"]) == 2
    assert f"--workdir={run} is in an object store, and has to be on a disk" in capsys.readouterr().err


def test_a_bucket_that_is_not_there(run, store, text, capsys):
    name = f"{store.scheme}://no-such-bucket/run"
    assert train_here(name, text) == 2
    assert f"cannot be written ({name}/lock: there is no such bucket)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_goes_on(run, text, on_disk, tmp_path):
    """Killed with -9 as soon as the first checkpoint is being written, and again later."""
    for wanted in ("checkpoints/4/state", f"checkpoints/4/{COMMITTED}"):
        process = subprocess.Popen(command(run, text, **STEPS), cwd=ROOT, env=environment(8), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 200
        while not (at(run) / wanted).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = train(run, text, devices=8, **STEPS)
    assert done.returncode == 0, done.stderr
    assert_same_run(run, on_disk, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["step 3/", "step 5/"])  # before a save, and while one is in the background
def test_a_store_that_is_away_for_half_a_minute_costs_nothing(run, store, text, on_disk, tmp_path, moment):
    with way(store.port) as there, open(tmp_path / "said", "w+") as said:
        ports = f":{store.port}", f":{there.port}"
        variables = environment(8) | {name: value.replace(*ports) for name, value in store.environment.items()}
        process = subprocess.Popen(command(run, text, **STEPS), cwd=ROOT, env=variables, stderr=said)
        deadline = time.monotonic() + 200
        while moment not in (tmp_path / "said").read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, (tmp_path / "said").read_text()
        there.cut()
        time.sleep(30)
        there.mend()
        assert process.wait(200) == 0, (tmp_path / "said").read_text()
    assert_same_run(run, on_disk, tmp_path)


@pytest.mark.slow
def test_several_processes_and_then_one(run, text, tmp_path):
    """Two processes write one checkpoint, each its own arrays; one process reads it into another mesh."""
    told = {"mesh__data": 1, "mesh__fsdp": 4, **STEPS}
    program = command(run, text, **told | {"train__steps": 4})[3:]
    done = subprocess.run(
        launched(tmp_path / "logs", *program, devices=2), cwd=ROOT, env=os.environ | environment(2), timeout=300
    )
    assert done.returncode == 0
    alone = tmp_path / "alone"
    assert train(alone, text, devices=4, **told).returncode == 0
    assert train(run, text, devices=4, **told).returncode == 0
    there, here = leaves(fetched(run, tmp_path / "copied"), 8), leaves(alone, 8)
    assert there.keys() == here.keys()
    for name, leaf in here.items():
        np.testing.assert_allclose(there[name], leaf, atol=1e-4, err_msg=name)  # two processes sum in another order
