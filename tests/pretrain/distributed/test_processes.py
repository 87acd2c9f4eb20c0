"""Several real processes over loopback train as one does, and each takes over where the other stopped."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import ROOT, assert_same_leaves, command, ends, environment, launched, leaves, pair, train

from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.distributed import lock


def launch(workdir, text, processes=2, **overrides):
    """The command line of the same run in several processes of one device each."""
    return launched(f"{workdir}-logs", *command(workdir, text, **overrides)[3:], processes=processes)


def finish(line, **more):
    env = environment() | more
    return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_processes_equal_one_and_take_turns_with_it(whole, tmp_path, text):
    """Two processes to update 12, one process with two devices from there; and the other way round."""
    ends = {}
    for first in ("two", "one"):
        workdir = tmp_path / first
        options = {"schedule__decay_steps": 24, "evaluate__every": 4}
        start = launch(workdir, text, train__steps=12, **options)
        goes_on = command(workdir, text, **options)
        if first == "one":
            start = command(workdir, text, train__steps=12, **options)
            goes_on = launch(workdir, text, **options)
        for line in (start, goes_on):
            done = finish(line)
            assert done.returncode == 0, done.stderr
        ends[first] = leaves(workdir)
        rows = (workdir / "metrics" / "train.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows] == ["step", *map(str, range(1, 25))]  # one writer, each row once
    for name, leaf in leaves(whole).items():
        for end in ends.values():
            np.testing.assert_allclose(end[name], leaf, atol=1e-4, err_msg=name)  # sums in another order


@pytest.mark.slow
def test_processes_come_and_go_and_layouts_change(tmp_path, text):
    """4 processes, then 2, then 8, each time split anew: the same batches and the same curve as one alone."""
    stages = [
        (4, 2, {"mesh__data": 1, "mesh__fsdp": 8}),
        (2, 2, {"mesh__data": 4}),
        (8, 1, {"mesh__data": 2, "mesh__tensor": 4}),
        (4, 1, {"mesh__data": 2, "mesh__fsdp": 2}),
    ]
    options = {"model__heads": 4, "schedule__decay_steps": 24, "evaluate__every": 0}
    alone = finish(command(tmp_path / "alone", text, **options))
    assert alone.returncode == 0, alone.stderr
    for stage, (processes, devices, mesh) in enumerate(stages):
        line = command(tmp_path / "run", text, train__steps=6 * (stage + 1), **options, **mesh)[3:]
        done = finish(launched(tmp_path / f"logs-{stage}", *line, processes=processes, devices=devices))
        assert done.returncode == 0, done.stdout + done.stderr
    curves = []
    for name in ("alone", "run"):
        rows = [row.split(",") for row in (tmp_path / name / "metrics" / "train.csv").read_text().splitlines()]
        assert [row[0] for row in rows] == ["step", *map(str, range(1, 25))]
        curves.append([float(row[1]) for row in rows[1:]])
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-4)  # another batch would differ in the first digits
    one, other = leaves(tmp_path / "alone"), leaves(tmp_path / "run")
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-4, err_msg=name)  # sums in another order


@pytest.mark.slow
def test_ctrl_c_stops_all_after_the_same_update(tmp_path, text):
    workdir = tmp_path / "run"
    process = subprocess.Popen(
        launch(workdir, text, train__steps=4000, checkpoint__every=4000, evaluate__every=0),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        if "step 5/" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 75, out
    saved = [p.name for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()]
    assert len(saved) == 1
    resumed = shutil.copytree(workdir, tmp_path / "again")
    done = train(resumed, text, train__steps=int(saved[0]), checkpoint__every=4000, evaluate__every=0)
    assert done.returncode == 0, done.stderr
    assert f"restored checkpoint {saved[0]}" in done.stderr
    assert_same_leaves(leaves(workdir, int(saved[0])), leaves(resumed, int(saved[0])))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from Linux's /proc")
def test_a_killed_reader_of_one_process_ends_both_with_everything_saved(tmp_path, text):
    workdir, options = tmp_path / "run", {"data__workers": 1, "checkpoint__every": 4000, "evaluate__every": 0}
    processes = pair(*command(workdir, text, train__steps=4000, **options))
    for line in processes[0].stderr:
        if "step 5/" in line:
            break
    threads = Path(f"/proc/{processes[1].pid}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    readers = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    assert readers
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
    (code, _, said), (own, _, why) = ends(processes)
    assert (code, own) == (75, 75), said + why
    assert "a process that reads the data was killed, perhaps for want of memory" in why
    (saved,) = [path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    assert f"interrupted: saved checkpoint {saved}" in said
    going_on = train(workdir, text, train__steps=int(saved), schedule__decay_steps=4000, **options)
    assert going_on.returncode == 0, going_on.stderr


@pytest.mark.slow
def test_generation_is_printed_once(whole, tmp_path):
    program = ["generate", f"--workdir={whole}", "--prompt=import", "--max_tokens=4", "--format=json"]
    done = finish(launched(tmp_path, *program))
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"prompt": "import"' in (tmp_path / "process-0.log").read_text()
    assert "import" not in (tmp_path / "process-1.log").read_text()


BLIND = """
import builtins, errno, os

def blind(file, *arguments, _open=builtins.open, **options):
    if os.environ["LONGHAUL_PROCESS"] == "1" and "/8/state/manifest.ocdbt" in str(file):
        number = int(os.environ["TEST_ERRNO"])
        raise OSError(number, os.strerror(number), str(file))
    return _open(file, *arguments, **options)

if "LONGHAUL_PROCESS" in os.environ:
    builtins.open = blind
"""


@pytest.mark.parametrize(
    ("number", "why"),
    [
        pytest.param(errno.EACCES, r"process 1: \S+/8/state/manifest.ocdbt: Permission denied", marks=pytest.mark.slow),
        (errno.ENOENT, r"process 1: state/manifest.ocdbt is missing; but process 0 finds these files whole"),
    ],
)
def test_a_file_that_one_process_cannot_read_stops_all(copy, tmp_path, text, number, why):
    """Each process once judged alone: one would have set checkpoint 8 aside and gone on from 4, the other from 8."""
    workdir = copy(8)
    (tmp_path / "sitecustomize.py").write_text(BLIND)  # which every Python runs when it starts
    before = sorted(p for p in (workdir / "checkpoints").rglob("*"))
    blinded = {"PYTHONPATH": str(tmp_path), "TEST_ERRNO": str(number)}
    done = finish(launch(workdir, text, train__steps=9), **blinded)
    said = [(tmp_path / "copy-logs" / f"process-{index}.log").read_text() for index in (0, 1)]
    assert done.returncode == 2, said
    assert re.search(f"checkpoint 8 cannot be read .{why}", said[0])
    assert re.search(f"checkpoint 8 cannot be read .{why}", said[1])
    assert sorted(p for p in (workdir / "checkpoints").rglob("*")) == before


@pytest.mark.slow
def test_all_processes_fall_back_to_the_same_checkpoint(copy, tmp_path, text):
    workdir = copy(8)
    manifest = workdir / "checkpoints" / "8" / "state" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    done = finish(launch(workdir, text, train__steps=5))
    assert done.returncode == 0, done.stdout
    assert "restored checkpoint 4; going on with update 5 of 5" in done.stdout
    assert (workdir / "checkpoints" / "broken" / "8").is_dir()


def test_several_processes_are_one_run_to_the_lock(tmp_path, text):
    """Process 0 alone takes it, and all stop where another run has it."""
    workdir = tmp_path / "run"
    with lock.held(str(workdir), "prepare", print):
        done = finish(launch(workdir, text))
    assert done.returncode == 2, done.stdout + done.stderr
    said = [(tmp_path / "run-logs" / f"process-{index}.log").read_text() for index in (0, 1)]
    assert all(f"is in use by `pretrain prepare` on {os.uname().nodename}, process {os.getpid()}," in s for s in said)


@pytest.mark.slow
def test_a_validation_cut_short_is_made_up_by_all_processes(copy, tmp_path, text):
    workdir = copy(8)
    shutil.rmtree(workdir / "checkpoints" / "8" / "metrics")
    (workdir / "metrics" / "validation.csv").unlink()
    record = workdir / "checkpoints" / "8" / "files.json"
    rows = json.loads(record.read_text())
    record.write_text(json.dumps({name: row for name, row in rows.items() if not name.startswith("metrics/")}))
    done = finish(launch(workdir, text, train__steps=9))
    assert done.returncode == 0, done.stdout
    scored = (workdir / "metrics" / "validation.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in scored] == ["8", "9"]
    assert sorted(Checkpoints(str(workdir)).losses()) == [8, 9]


@pytest.mark.slow
def test_each_process_has_a_trace_of_its_own(tmp_path, text):
    """On one host the files of both were called alike."""
    done = finish(
        launch(tmp_path / "run", text, train__steps=4, schedule__warmup=0, log__profile="(2,3)", evaluate__every=0)
    )
    assert done.returncode == 0, done.stderr
    for index in (0, 1):
        assert len([*(tmp_path / "run" / "profile" / str(index)).rglob("*.xplane.pb")]) == 1
