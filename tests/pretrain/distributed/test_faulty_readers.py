"""Reader processes that are slow are waited for; those that fail end the run, which says why."""

import os
import time

import pytest
from runs import ROOT, assert_same_leaves, command, ends, leaves, pair, train

from pretrain import cli

# Python imports a module of this name as it starts, here in every process that reads for a run; `{do}` comes before the
# reading of batch n. What reads for the process of another number than FAULTY, if that is set, is left alone.
FAULTY = """
import errno, os, sys, time
if "--multiprocessing-fork" in sys.orig_argv and os.environ.get("LONGHAUL_PROCESS") == os.environ.get("FAULTY"):
    from input_pipeline.batching import training
    from input_pipeline.errors import DataError
    own = training.Examples.__getitem__
    def faulty(self, n):
        {do}
        return own(self, n)
    training.Examples.__getitem__ = faulty
"""
STEPS = 4000  # more than will be made


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """`faulty(do)`: readers that are started from now on do that first, whoever starts them."""

    def plant(do):
        (tmp_path / "planted").mkdir()
        (tmp_path / "planted" / "sitecustomize.py").write_text(FAULTY.format(do=do))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'planted'}{os.pathsep}{ROOT}")

    return plant


@pytest.mark.slow
def test_slow_readers_change_nothing(whole, tmp_path, text, faulty):
    """Each batch takes a third of a second, in which the loop makes many updates."""
    read = tmp_path / "read"
    read.mkdir()
    faulty(f"open(os.path.join({str(read)!r}, str(n)), 'w').close(); time.sleep(1/3)")
    done = train(tmp_path / "run", text, data__workers=1)
    assert done.returncode == 0, done.stderr
    assert {str(n) for n in range(24)} <= set(os.listdir(read))
    assert_same_leaves(leaves(whole), leaves(tmp_path / "run"))
    rows = [(folder / "metrics" / "train.csv").read_text() for folder in (whole, tmp_path / "run")]
    assert rows[0] == rows[1]


FAULTS = {
    "the data": ("raise DataError('record 7 is broken; leave it out')", 2, "record 7 is broken; leave it out"),
    "a bug": ("raise ValueError('no such thing')", 1, "ValueError: no such thing"),
    "a folder that is away": (
        "raise OSError(errno.ESTALE, 'Stale file handle', '/shared/tokens')",
        69,
        "cannot use /shared/tokens: Stale file handle; start the same command again once",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_reader_that_fails_ends_all_processes(tmp_path, text, faulty, monkeypatch, name):
    """In the process that it reads for and in the other, with its own words, soon after its batch is asked for."""
    do, expected, why = FAULTS[name]
    faulty(f"if n == 6: {do}")
    monkeypatch.setenv("FAULTY", "1")
    words = command(tmp_path / "run", text, train__steps=STEPS, data__workers=1, evaluate__every=0)
    processes = pair(*words)
    for line in processes[0].stderr:
        if "step 3/" in line:
            break
    began = time.monotonic()
    (code, _, said), (own, _, said_there) = ends(processes)
    assert time.monotonic() - began < 30
    assert (code, own) == (expected, expected), said + said_there
    assert why in said_there and why in said
    assert ("Traceback" in said_there) == (expected == 1)  # of a bug alone


def test_a_bugs_last_line_is_the_error():
    """Which the other processes say; Grain and JAX add notes about frames that they leave out of tracebacks."""
    error = ValueError("no such thing")
    error.add_note("Frames were left out.")
    code, said = cli.verdict(error)
    assert code == 1 and said.splitlines()[0] == "Frames were left out."
    assert said.splitlines()[-1] == "ValueError: no such thing"
