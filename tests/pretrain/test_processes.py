"""Several real processes over loopback train as one does, and each takes over where the other stopped."""

import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from runs import ROOT, assert_same_leaves, command, environment, leaves, train


def launch(workdir, text, processes=2, **overrides):
    """The command line of the same run in several processes of one device each."""
    arguments = command(workdir, text, **overrides)[3:]
    flags = ["--processes", str(processes), "--devices", "1", "--logs", f"{workdir}-logs"]
    return [sys.executable, "-m", "launch.local", *flags, "--", *arguments]


def finish(line):
    return subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)


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


def test_sigterm_stops_all_after_the_same_update(tmp_path, text):
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
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 75, out
    saved = [p.name for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()]
    assert len(saved) == 1
    resumed = shutil.copytree(workdir, tmp_path / "again")
    done = train(resumed, text, train__steps=int(saved[0]), checkpoint__every=4000, evaluate__every=0)
    assert done.returncode == 0, done.stderr
    assert f"restored checkpoint {saved[0]}" in done.stderr
    assert_same_leaves(leaves(workdir, int(saved[0])), leaves(resumed, int(saved[0])))
