"""The real program under `--restarts`: a process killed, another preempted, and the run ends as if nothing had been."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from standins import ROOT, finish, launcher, wait_for
from test_slurm_cluster import STEPS, arguments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from Linux's /proc"),
]


@pytest.mark.timeout(1500)
def test_a_killed_and_a_preempted_process_change_nothing(tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "pretrain"))
    from runs import assert_same_leaves, leaves

    (tmp_path / "text").mkdir()
    for number, path in enumerate(sorted((ROOT / "pretrain").rglob("*.py"))[:20]):
        shutil.copy(path, tmp_path / "text" / f"{number}.py")

    def start(workdir):
        options = ["--processes=2", "--devices=1", "--restarts=3", f"--logs={tmp_path}/logs-{workdir}"]
        program = [*arguments(tmp_path / workdir, tmp_path / "text"), "--config.checkpoint.every=20"]
        return launcher("local", *options, "--", *program)

    def processes(running):
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        return sorted(map(int, children))

    def step(number):
        return lambda: f"step {number}/" in (tmp_path / "logs-cut" / "process-0.log").read_text()

    running = start("cut")
    wait_for((tmp_path / "logs-cut" / "process-0.log").exists, seconds=60)
    wait_for(step(30), seconds=400)
    os.kill(processes(running)[1], signal.SIGKILL)
    wait_for(step(60), seconds=400)
    os.kill(processes(running)[1], signal.SIGTERM)
    code, out, err = finish(running, timeout=500)
    assert code == 0 and err.count("starting again") == 2, out + err
    assert "interrupted: saved checkpoint" in out
    code, out, err = finish(start("whole"), timeout=500)
    assert code == 0 and "starting again" not in err, out + err
    assert_same_leaves(leaves(tmp_path / "cut", STEPS), leaves(tmp_path / "whole", STEPS))
