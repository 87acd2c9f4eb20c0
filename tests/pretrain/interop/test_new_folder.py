"""Folders that are made whole or not at all, in the places that a user may name."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import hub
import numpy as np
import pytest
from runs import ROOT
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pretrain.errors import UserError
from pretrain.interop import hf_export, hf_import
from pretrain.interop.new_folder import check_free, new_folder


def test_places_that_a_new_folder_cannot_take(tmp_path, monkeypatch):
    """A link to an empty folder, or to none yet, is followed; where somebody stands is not replaced."""
    folder = hub.make(tmp_path / "theirs", "gpt2")
    (tmp_path / "empty").mkdir()
    for name, place in (("link", "empty"), ("dangling", "later")):
        (tmp_path / name).symlink_to(tmp_path / place)
        hf_import.import_folder(str(folder), str(tmp_path / name))
        hf_export.export_folder(str(tmp_path / place), str(tmp_path / f"of {name}"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=r"\. is where this was started, .* name a new one in it"):
        hf_import.import_folder(str(folder), ".")


def test_names_that_no_folder_gets(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"is no name in UTF-8, .* choose another folder"):
        check_free(tmp_path / "b\udcff")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="x cannot be made"), new_folder(Path("x")):
        pass


def test_others_may_read_what_a_library_keeps_for_its_user(tmp_path):
    """safetensors makes its files with mode 0600."""
    mask = os.umask(0o027)
    try:
        with new_folder(tmp_path / "made") as partial:
            save_file({"x": np.zeros(1, np.float32)}, partial / "weights")
            (partial / "team").mkdir()
            (partial / "team").chmod(0o2700)
            (partial / "script").touch(0o777)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "made" / "team").stat().st_mode) == 0o2750
    assert stat.S_IMODE((tmp_path / "made" / "script").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "made" / "weights").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o750


WAITS = """
import sys, time
from pathlib import Path
from pretrain.interop.new_folder import new_folder
from pretrain.distributed.shutdown import shutdown
shutdown.listen()
with new_folder(Path(sys.argv[1])) as partial:
    (partial / "weights").touch()
    print("there", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_where_a_signal_ends_it(tmp_path, number):
    command = [sys.executable, "-c", WAITS, str(tmp_path / "made")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 75 and said.count("\n") == 1
    assert not [*tmp_path.iterdir()]


ENDS = """
import os, signal, sys, time
from pathlib import Path
from pretrain.interop.new_folder import new_folder
from pretrain.distributed.shutdown import shutdown
shutdown.listen()
with new_folder(Path(sys.argv[1])) as partial:
    for number in range(300):
        (partial / str(number)).touch()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(float(sys.argv[2]))
    (partial / "more").mkdir(parents=True, exist_ok=True)
time.sleep(60)
"""


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.003, 0.01, 0.03])
def test_what_is_being_removed_gets_no_name(tmp_path, pause):
    """While the signal's thread removes it, the main one goes on; an empty folder once had the final name."""
    command = [sys.executable, "-c", ENDS, str(tmp_path / "made"), str(pause)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 75 and done.stderr.count("\n") == 1
    assert len([*tmp_path.rglob("*")]) in (0, 302)  # nothing, or all of it


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path)], ids=["file", "link to itself"])
def test_a_file_that_takes_the_name_meanwhile(tmp_path, make):
    with pytest.raises(UserError, match="late is there already"), new_folder(tmp_path / "late"):
        make(tmp_path / "late")


def test_a_name_that_is_taken_meanwhile(tmp_path):
    with pytest.raises(UserError, match="late is there already"), new_folder(tmp_path / "late") as partial:
        (partial / "ours").touch()
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["late", "theirs"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("RESOURCE_EXHAUSTED: Error writing [os_error_code='28' source locations='a.cc:1']"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_is_full(tmp_path, error):
    said = "new cannot be written .*No space left on device.*; make room or choose another"
    with pytest.raises(UserError, match=said), new_folder(tmp_path / "new"):
        raise error
    assert not [*tmp_path.iterdir()]
