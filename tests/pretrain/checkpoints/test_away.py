"""A work folder that is away for a while: saves that failed are made again, rows of metrics are written once."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from flickers import each_call_fails
from ml_collections import ConfigDict
from runs import ROOT, train_here

from benchmarks.faults import failing_folders
from input_pipeline import away as folders
from input_pipeline import pipeline
from input_pipeline.tokenizers import folder as tokenizers
from pretrain import config as configs
from pretrain.checkpoints import init_from, integrity, manager
from pretrain.cli import main, verdict
from pretrain.commands import shared
from pretrain.commands.arguments import Train
from pretrain.distributed.consensus import alike
from pretrain.errors import FaultError, UserError
from pretrain.metrics import writer
from pretrain.metrics.goodput import Goodput
from pretrain.training.loop import Loop
from pretrain.workdir import Workdir


@pytest.fixture
def away(monkeypatch):
    """`away(module, name, times)`: so many calls of the function fail as where a server is gone. Pauses are short."""
    monkeypatch.setattr(folders, "PAUSE", 0.01)

    def fail(module, name, times):
        own, left = getattr(module, name), [times]

        def failing(*arguments, **named):
            if left[0] > 0:
                left[0] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), "/shared/run")
            return own(*arguments, **named)

        monkeypatch.setattr(module, name, failing)

    return fail


def test_a_file_whose_server_goes_between_opening_and_reading_is_read_again(copy, monkeypatch, capsys):
    """The system's error of a file that is open names none; it was once taken for a bug, and ended each command."""
    monkeypatch.setattr(folders, "PAUSE", 0.001)
    workdir, own, failed = copy(8), Path.read_bytes, set()

    def read(path):
        if path.is_relative_to(workdir) and path not in failed:
            failed.add(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return own(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    for command, *flags in (["evaluate", "--batches=1"], ["generate", "--max_tokens=2"], ["goodput"]):
        assert main([command, f"--workdir={workdir}", *flags]) == 0, capsys.readouterr().err
    assert {"config.json", "made.json", "goodput.jsonl", "metadata", "files.json"} <= {path.name for path in failed}
    assert f"trying again for up to 180 s: [Errno {errno.ESTALE}] Stale file handle: " in capsys.readouterr().err


def test_whichever_look_at_what_is_made_fails_it_is_made_again(copy, monkeypatch):
    """Config, tokenizer and token store are there; the first look at each once ended the command with 69 at once."""
    workdir = copy(8)

    def opened():
        config = configs.saved(str(workdir))
        sections = (config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict())
        return pipeline.prepare(*sections, Workdir(workdir).folders, report=print).origin

    origin = opened()
    for fails in each_call_fails(monkeypatch, workdir):
        with fails:
            assert opened() == origin


def test_whichever_look_at_another_run_fails_it_is_made_again(copy, monkeypatch, tmp_path):
    """Of its weights and its tokenizer, and of the run to go on with; the first look at each ended a start with 69."""
    workdir = str(copy(8))
    tokenizer = Workdir(workdir).folders.tokenizer

    def looked():
        for path in (tokenizer, tokenizer / "made.json"):
            tokenizers.check(tmp_path, {"kind": "sentencepiece", "path": str(path)})
        return init_from.find(workdir, str(tmp_path)).folder, shared.resolve(Train(workdir=workdir))[0].to_dict()

    found = looked()
    for fails in each_call_fails(monkeypatch, workdir):
        with fails:
            assert looked() == found


def test_old_checkpoints_that_are_not_seen_for_a_moment_are_no_reason_to_end(tmp_path, monkeypatch):
    checkpoints = manager.CheckpointManager(str(tmp_path), ConfigDict({"keep": 1, "keep_best": True, "every": 1}))
    monkeypatch.setattr(checkpoints, "trained", list)
    checkpoints._delete_old()


def steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())  # and nothing half saved


@pytest.mark.slow
def test_a_save_that_failed_is_made_again_of_a_later_update(away, tmp_path, text, capsys):
    away(integrity, "write", 2)  # which a save does last, in the background
    assert train_here(tmp_path, text, train__steps=12, evaluate__every=0) == 0
    said = capsys.readouterr().err
    assert said.count("the checkpoint of step 4 could not be saved (/shared/run: Input/output error); trying") == 1
    found = steps(tmp_path)
    assert found[-1] == 12 and 4 not in found


@pytest.mark.slow
def test_the_last_save_is_made_again_until_it_is_whole(away, tmp_path, text):
    away(integrity, "write", 3)
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=100, evaluate__every=0) == 0
    assert steps(tmp_path) == [6]


@pytest.mark.parametrize("whole", (False, True), ids=("half saved", "whole nonetheless"))
def test_a_save_fails_once_in_however_many_of_its_threads(tmp_path, text, monkeypatch, capsys, whole):
    """Orbax writes its own notes in a thread apart, which finds no folder where another's failure has cleared it."""
    monkeypatch.setattr(folders, "PAUSE", 0.01)
    errors, saved = [errno.EIO, errno.ENOENT], []

    class Writer(ocp.AsyncCheckpointer):
        def save(self, folder, **named):
            super().save(folder, **named)
            saved.append(Path(folder))

        def wait_until_finished(self):
            super().wait_until_finished()
            if saved and errors:
                if not whole and saved[0].exists():
                    saved[0].rename(f"{saved[0]}.orbax-checkpoint-tmp")
                raise OSError(number := errors.pop(0), os.strerror(number), "/shared/run")

    monkeypatch.setattr(ocp, "AsyncCheckpointer", Writer)
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=100, evaluate__every=0) == 0
    assert steps(tmp_path) == [6] and not errors and len(saved) == (1 if whole else 2)
    assert capsys.readouterr().err.count("could not be saved") == (0 if whole else 1)


def test_what_a_save_left_is_cleared_before_the_next(away, tmp_path, text, monkeypatch):
    """Once it can be: it is in the way of a save of the same step."""
    away(integrity, "write", 1)
    away(Workdir, "discard", 2)
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=100, evaluate__every=0) == 0
    assert steps(tmp_path) == [6]


def test_a_folder_that_stays_away_ends_the_run_in_a_sentence(away, tmp_path, text, monkeypatch, capsys):
    away(integrity, "write", 10**6)
    monkeypatch.setattr(folders, "PATIENCE", 0.2)
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=2, evaluate__every=0) == 69
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"pretrain: no checkpoint could be saved in {tmp_path}/checkpoints for 0 s (")
    assert said.endswith("start the same command again once it answers")


def test_a_folder_that_stays_away_is_waited_for_once(away, tmp_path, text, monkeypatch, capsys):
    """And not, besides, at each look whether what failed is whole nonetheless, or at what it left."""

    def gone(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/shared/run")

    away(integrity, "write", 10**6)
    monkeypatch.setattr(folders, "PATIENCE", 0.2)
    monkeypatch.setattr(Workdir, "finished", lambda *arguments: folders.persistently(gone))
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=100, evaluate__every=0) == 69
    said = capsys.readouterr().err
    assert said.count("trying again for up to 0 s") == 1 and "no checkpoint could be saved in" in said


@pytest.mark.parametrize("broken", ["metrics/metrics", "files.json"])
def test_what_is_not_answered_is_not_taken_for_what_is_not_there(tmp_path, text, monkeypatch, capsys, broken):
    """A checkpoint whose loss cannot be read now may be the best, and one whose record cannot be read be damaged."""
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=3, evaluate__every=3, checkpoint__keep=2) == 0
    real = Path.read_bytes

    def read_bytes(path):
        if path == tmp_path / "checkpoints/6" / broken:
            raise TimeoutError(errno.ETIMEDOUT, "no answer", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(folders, "PATIENCE", 0.2)
    for step in ("best", "6"):
        if (step, broken) != ("6", "metrics/metrics"):
            capsys.readouterr()
            assert main(["evaluate", f"--workdir={tmp_path}", f"--step={step}", "--batches=1"]) == 69
            said = capsys.readouterr().err.splitlines()[-1]
            assert said == (
                f"pretrain: cannot use {tmp_path}/checkpoints/6/{broken}: no answer; start the same command again once "
                "its server answers"
            )


def test_whatever_meets_the_folder_ends_the_run_to_be_started_again(away, tmp_path, text, capsys):
    away(manager.CheckpointManager, "check", 1)
    assert train_here(tmp_path, text, train__steps=6, evaluate__every=0) == 69
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("pretrain: cannot use /shared/run: Input/output error; start the same command again once")


@pytest.fixture
def unaccounted(monkeypatch):
    """The file of the run's time is away from the first update on, and stays away. Attempts are made for a moment."""
    monkeypatch.setattr(folders, "PAUSE", 0.01)
    monkeypatch.setattr(folders, "PATIENCE", 0.2)
    own = Goodput.add

    def add(goodput, update, *arguments, **named):
        def gone():
            raise OSError(errno.EIO, os.strerror(errno.EIO), "/shared/run/goodput.jsonl")

        folders.persistently(gone) if update else own(goodput, update, *arguments, **named)

    monkeypatch.setattr(Goodput, "add", add)


def test_a_folder_that_is_away_is_asked_for_once_at_the_end(unaccounted, tmp_path, text, capsys):
    """A run once waited as long again for the last row of its time: too long for what comes after SIGTERM."""
    assert train_here(tmp_path, text, train__steps=6, evaluate__every=0) == 69
    said = capsys.readouterr().err
    assert said.count("trying again for up to 0 s") == 1 and "cannot use /shared/run/goodput.jsonl" in said


def test_a_folder_that_is_away_when_all_is_done_is_asked_for_once(tmp_path, text, monkeypatch, capsys):
    monkeypatch.setattr(folders, "PAUSE", 0.01)
    monkeypatch.setattr(folders, "PATIENCE", 0.2)

    def gone():
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/shared/run")

    own = Loop.finish

    def finish(loop):
        code = own(loop)
        for kind, name in ((Goodput, "add"), (writer.MetricWriter, "flush")):
            monkeypatch.setattr(kind, name, lambda *arguments, **named: folders.persistently(gone))
        return code

    monkeypatch.setattr(Loop, "finish", finish)
    assert train_here(tmp_path, text, train__steps=6, evaluate__every=0) == 69
    said = capsys.readouterr().err
    assert said.count("trying again for up to 0 s") == 1 and "cannot use /shared/run: Input/output error" in said


def test_what_ended_a_run_is_told_though_the_folder_is_away_too(unaccounted, tmp_path, text, monkeypatch, capsys):
    def read(loop):
        raise UserError("what ended it")

    monkeypatch.setattr(Loop, "read", read)
    assert train_here(tmp_path, text, train__steps=6, checkpoint__every=2, evaluate__every=0, log__every=100) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "pretrain: what ended it"


def test_what_is_made_of_an_error_of_the_folder_is_no_mistake(tmp_path):
    """Whatever the sentence would have advised."""

    def work():
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "/shared/run")
        except OSError as error:
            raise UserError("--prompt_file=/shared/run cannot be read; name a file of prompts") from error

    with pytest.raises(UserError) as raised:
        work()
    told = "cannot use /shared/run: Input/output error; start the same command again once its server answers"
    assert verdict(raised.value) == (69, f"pretrain: {told}\n")
    with pytest.raises(FaultError, match=told), folders.hurry():
        alike(work, lambda why: why)


@pytest.mark.parametrize(
    "cause",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError("timed out"),
        ValueError("UNAVAILABLE"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_what_the_users_own_code_meets_stays_a_mistake(cause):
    error = UserError("my.py fails with UNAVAILABLE; correct the recipe")
    error.__cause__ = cause
    assert verdict(error) == (2, "pretrain: my.py fails with UNAVAILABLE; correct the recipe\n")


def test_a_reader_that_left_is_no_server():
    assert verdict(BrokenPipeError(errno.EPIPE, "Broken pipe", "/x/train.csv")) == (141, "")


def test_a_record_has_every_file_and_a_config_is_saved(tmp_path, monkeypatch):
    """Whichever call of the system fails: a record of a part of the files would let the others be lost unnoticed."""
    for name in ("state/a/b", "state/c", "data/metadata"):
        (tmp_path / "8" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "8" / name).write_text(name)
    found = integrity.found(tmp_path / "8")
    assert len(found) == 3
    for failing in each_call_fails(monkeypatch, tmp_path):
        workdir = tempfile.mkdtemp(dir=tmp_path)
        with failing:
            assert folders.persistently(lambda: integrity.found(tmp_path / "8")) == found
            configs.save(ConfigDict({"seed": 7}), f"{workdir}/run")
        assert (Path(workdir) / "run/config.json").is_file()


def test_files_of_rows_are_opened_once_the_folder_is_back(away, tmp_path):
    for name in ("mkdir", "glob", "exists"):
        away(Path, name, 2)
    rows = writer.MetricWriter(tmp_path, tensorboard=True, csv=True, jsonl=True, start_step=0)
    rows.write("train", 1, {"loss": 2.5})
    away(Path, "exists", 2)
    rows.write("validation", 1, {"loss": 2.75})
    away(Path, "read_bytes", 2)
    rows.write("validation", 2, {"loss": 2.25, "accuracy": 0.5})  # another column: the file is written anew
    rows.close()
    assert (tmp_path / "validation.csv").read_text() == "step,loss,accuracy\n1,2.75,\n2,2.25,0.5\n"


def test_rows_are_written_once(away, tmp_path, monkeypatch, capsys):
    real = os.write

    class System:
        """The functions of `os` that metrics are written by."""

        def __getattr__(self, name):
            return getattr(os, name)

    system = System()
    system.write, system.fsync = real, os.fsync
    monkeypatch.setattr(writer, "os", system)
    away(system, "write", 2)
    away(system, "fsync", 2)
    rows = writer.MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=0)
    rows.write("train", 1, {"loss": 2.5})
    rows.close()
    assert (tmp_path / "train.csv").read_text() == "step,loss\n1,2.5\n"
    assert (tmp_path / "train.jsonl").read_text() == '{"step": 1, "loss": 2.5}\n'
    assert "trying again for up to 180 s" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="a C compiler makes what fails on Linux")
def test_whatever_is_being_done_when_the_folder_goes_away_it_is_done_in_the_end(tmp_path):
    """Not by errors that are raised for it here: the folder itself fails, at random moments of saving and restoring."""
    surroundings = {
        "LD_PRELOAD": failing_folders(tmp_path),
        "AWAY_FLAG": str(tmp_path / "flag"),
        "AWAY_FOLDER": str(tmp_path / "run"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(Path(__file__).with_name("interrupted.py"))]
    # Its end waits for none of the threads that saves left behind: Orbax would, for five minutes.
    done = subprocess.run(command, env=os.environ | surroundings, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "80 checkpoints were saved and restored\n"
    assert done.stderr.count("could not be saved") > 10  # or the moments are none in which anything is done
    assert done.stderr.count("trying again") - done.stderr.count("could not be saved") > 10
