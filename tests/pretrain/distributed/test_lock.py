"""Two runs never share a work folder, and one that was killed is not in the way of the next."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from flickers import each_call_fails
from runs import ROOT, train_here

from pretrain.cli import main
from pretrain.distributed import lock
from pretrain.errors import UserError

HOLD = """
import sys, time
from pretrain.distributed import lock
lock.BEAT = 0.1
try:
    with lock.held(sys.argv[1], sys.argv[3], print):
        print("held", flush=True)
        time.sleep(float(sys.argv[2]))
except Exception as error:
    print(error, flush=True)
"""


def hold(workdir, seconds=60, command="train"):
    """A real process that holds `workdir`."""
    line = [sys.executable, "-c", HOLD, str(workdir), str(seconds), command]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def holder(workdir):
    process = hold(workdir)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def claim(workdir, said=None):
    with lock.held(str(workdir), "train", (said if said is not None else []).append):
        return json.loads((workdir / "lock").read_text())


def test_a_second_run_is_told_host_and_process_of_the_first(holder, workdir, text, capsys):
    before = sorted(workdir.rglob("*"))
    assert train_here(workdir, text) == 2
    said = capsys.readouterr().err
    assert f"is in use by `pretrain train` on {os.uname().nodename}, process {holder.pid}, since" in said
    assert main(["prepare", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}"]) == 2
    assert f"process {holder.pid}" in capsys.readouterr().err
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_killed_holder_is_noticed_at_once(holder, workdir, waited_for):
    holder.kill()
    if waited_for:
        holder.wait()
    else:  # a zombie: ended, but its parent has not asked
        while "State:\tZ" not in Path(f"/proc/{holder.pid}/status").read_text():
            time.sleep(0.01)
    began, said = time.monotonic(), []
    assert claim(workdir, said)["process"] == os.getpid()
    assert time.monotonic() - began < 1
    assert said == []


def test_a_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(workdir):
    mine = claim(workdir)
    (workdir / "lock").write_text(json.dumps(mine | {"started": mine["started"] - 1}))
    assert claim(workdir)["token"] != mine["token"]


def elsewhere(workdir):
    """Leaves the lock of a process on another machine, whose clock is an hour slow."""
    (workdir / "lock").write_text(json.dumps(claim(workdir) | {"host": "far", "place": "another boot", "process": 7}))
    os.utime(workdir / "lock", (time.time() - 3600, time.time() - 3600))


def test_a_holder_elsewhere_counts_as_dead_after_long_silence(workdir, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.5)
    elsewhere(workdir)
    said = []
    assert claim(workdir, said)["process"] == os.getpid()
    assert "`pretrain train` on far, process 7" in said[0]
    assert "waiting up to" in said[0]


def test_a_holder_elsewhere_that_shows_life_keeps_the_folder(workdir, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 20)
    elsewhere(workdir)
    slow = time.time() - 3599
    touch = threading.Timer(0.3, os.utime, (workdir / "lock", (slow, slow)))
    touch.start()
    began = time.monotonic()
    with pytest.raises(UserError, match="in use by `pretrain train` on far, process 7"):
        claim(workdir)
    assert time.monotonic() - began < 15
    touch.join()


def test_of_many_that_find_a_dead_holder_one_gets_the_folder(holder, workdir):
    holder.kill()
    holder.wait()
    contenders = [hold(workdir, 5) for _ in range(4)]
    ends = [next(line for line in process.stdout if line == "held\n" or "in use by" in line) for process in contenders]
    assert ends.count("held\n") == 1
    for process in contenders:
        process.kill()
        process.communicate()


def test_a_holder_that_was_taken_for_dead_stops_when_it_wakes(holder, workdir):
    other = json.loads((workdir / "lock").read_text()) | {"token": "another", "process": 12}
    (workdir / "lock").write_text(json.dumps(other))
    _, said = holder.communicate(timeout=30)
    assert holder.returncode == 2
    assert "process 12" in said
    assert json.loads((workdir / "lock").read_text()) == other


@pytest.mark.parametrize("another", [False, True])
def test_a_folder_that_is_moved_while_it_is_used_stops_its_holder(holder, workdir, another):
    """Which once ended well, with its last checkpoints in a folder made anew."""
    workdir.rename(workdir.with_name("moved"))
    if another:
        (workdir / "checkpoints").mkdir(parents=True)
    _, said = holder.communicate(timeout=30)
    assert holder.returncode == 2
    assert f"{workdir} has been moved or removed while this process used it; start" in said
    assert not (workdir / "lock").exists()


def test_a_folder_whose_place_a_copy_takes_stops_its_holder(holder, workdir):
    """The lock is in the copy too; what is written to open files is not."""
    shutil.copytree(workdir, workdir.with_name("copied"))
    workdir.rename(workdir.with_name("moved"))
    workdir.with_name("copied").rename(workdir)
    _, said = holder.communicate(timeout=30)
    assert holder.returncode == 2
    assert f"{workdir} has been moved or removed while this process used it; start" in said


def test_what_a_moved_folder_makes_fail_is_told_as_that(workdir):
    with pytest.raises(UserError, match="has been moved or removed"), lock.held(str(workdir), "train", print):
        workdir.rename(workdir.with_name("moved"))
        raise UserError("the token store is damaged")


def test_a_lock_that_links_to_nothing_is_named(workdir):
    (workdir / "lock").symlink_to("/nonexistent/lock")
    with pytest.raises(UserError, match="lock is a link to a file that is not there; remove it"):
        claim(workdir)


def test_a_run_whose_folder_is_moved_just_before_its_end_has_not_ended_well(workdir):
    with pytest.raises(UserError, match="has been moved or removed"), lock.held(str(workdir), "train", print):
        workdir.rename(workdir.with_name("moved"))


def test_a_copy_of_a_folder_in_use_is_not_in_use(holder, workdir, monkeypatch):
    monkeypatch.setattr(lock, "COPY", 1.0)
    copied = workdir.with_name("copied")
    shutil.copytree(workdir, copied)
    said = []
    assert claim(copied, said)["process"] == os.getpid()
    assert len(said) == 1 and "or is a copy of the folder that was; waiting up to 1 s" in said[0]
    with pytest.raises(UserError, match=f"in use by `pretrain train` on .*, process {holder.pid}"):
        claim(workdir)


def test_a_folder_in_use_that_its_file_system_numbers_anew_stays_in_use(workdir):
    (workdir / "lock").write_text(json.dumps(claim(workdir) | {"folder": [0, 0]}))
    touch = threading.Timer(0.3, os.utime, (workdir / "lock", (1, 1)))
    touch.start()
    with pytest.raises(UserError, match=f"in use by `pretrain train` on .*, process {os.getpid()}"):
        claim(workdir)
    touch.join()


def test_a_clean_end_leaves_no_lock_and_a_refusal_no_folder(tmp_path):
    assert claim_new(tmp_path / "new" / "run") == ["lock"]
    assert not (tmp_path / "new" / "run").exists()
    assert main(["prepare", "--config.data.layout=rows", f"--workdir={tmp_path / 'none'}"]) == 2
    assert not (tmp_path / "none").exists()


def claim_new(folder):
    with lock.held(str(folder), "train", print):
        return [p.name for p in folder.iterdir()]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x80", b"[" * 100_000])
def test_a_lock_that_no_run_wrote_is_watched_and_taken_over(workdir, monkeypatch, content):
    monkeypatch.setattr(lock, "PATIENCE", 0.5)
    (workdir / "lock").write_bytes(content)
    assert claim(workdir)["process"] == os.getpid()


def test_processes_that_prepare_wait_for_one_another(workdir):
    """As those of a launcher do: one works, and the others find all made."""
    first, said = hold(workdir, seconds=1, command="prepare"), []
    assert first.stdout.readline() == "held\n"
    with lock.held(str(workdir), "prepare", said.append, in_turn=True):
        assert first.wait(timeout=10) == 0
        assert json.loads((workdir / "lock").read_text())["process"] == os.getpid()
    assert len(said) == 1 and said[0].startswith("waiting for `pretrain prepare`")
    first.communicate()


def test_a_folder_that_is_away_is_not_another_one(tmp_path, monkeypatch):
    """Whichever call of the system fails."""
    with lock.held(str(tmp_path / "run"), "train", print):
        for failing in each_call_fails(monkeypatch, tmp_path / "run"):
            with failing:
                lock.check_shared(str(tmp_path / "run"))
