"""One writer at a time in a work folder."""

import os
import subprocess
import sys
import threading
import time

import pytest
from runs import ROOT

from pretrain.distributed.lock import hold_workdir, read_holder
from pretrain.errors import UserError
from pretrain.workdir import Workdir

HOLD = """
import sys, time
from pretrain.distributed.lock import hold_workdir
with hold_workdir(sys.argv[1], "train", print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder `tmp_path / "run"`."""
    line = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_lock_names_the_holder(holder, tmp_path):
    with (
        pytest.raises(UserError, match=f"in use by `pretrain train` on .*, process {holder.pid}, since"),
        hold_workdir(str(tmp_path / "run"), "prepare", print, queue=True),
    ):
        pass


def test_lock_of_a_killed_process(holder, tmp_path):
    holder.kill()
    holder.wait()
    with hold_workdir(str(tmp_path / "run"), "train", print):
        assert read_holder(Workdir(str(tmp_path / "run")))["process"] == os.getpid()


def test_lock_queue(tmp_path):
    workdir, order, reports = str(tmp_path), [], []

    def wait():
        with hold_workdir(workdir, "prepare", reports.append, queue=True):
            order.append("second")

    with hold_workdir(workdir, "prepare", print):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and len(reports) == 1


def test_lock_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError), hold_workdir(str(tmp_path / "file" / "run"), "train", print):
        pass
