"""A process that comes no further is named with its last update and its stack, and the run ends to be started again."""

import os
import re
import threading
import time

import pytest
from test_others import ready, working

from input_pipeline.files import locked
from pretrain.distributed import watchdog
from pretrain.distributed.shutdown import FAULT
from pretrain.distributed.streams import Unheard
from pretrain.distributed.watchdog import Place, Watchdog


class Leaver:
    """Stands for the way out of a process that has no others."""

    others = None

    def __init__(self):
        self.said = []

    def leave(self, code, sentence):
        self.said.append((code, sentence))


@pytest.fixture
def watched(monkeypatch):
    """`watched(patience, place, seconds)`: what is said of work that stands at `place(looks)` for so long."""
    monkeypatch.setattr(watchdog, "LOOK", 0.01)

    def watch(patience, place, seconds=0.5):
        leaver, calls = Leaver(), iter(range(10**9))
        dog = Watchdog(leaver, patience, lambda: place(next(calls)))
        time.sleep(seconds)
        dog.close()
        assert leaver.watchdog is None
        return leaver.said

    return watch


def test_work_that_comes_no_further_ends_the_process(watched):
    code, sentence = watched(0.1, lambda calls: Place(7, "data", 12))[0]
    assert code == FAULT
    stands = r"nothing has come further for \d+ s, waiting for data after update 12 \(config\.train\.patience = 0\.1\)"
    assert re.match(stands, sentence), sentence
    assert "start the same command again" in sentence
    assert "test_watchdog.py" in sentence and "time.sleep(seconds)" in sentence  # where the main thread is


@pytest.mark.parametrize(
    ("patience", "place"),
    [
        (0.1, lambda calls: Place(calls, "step", 12)),
        (0.0, lambda calls: Place(7, "step", 12)),
        (0.1, lambda calls: Place(7, "compile", 12)),  # which may take six times as long
        (0.1, lambda calls: Place(7, "data", 12, False)),  # and so may the first update
    ],
)
def test_work_that_goes_on_or_may_take_long_is_left_alone(watched, patience, place):
    assert watched(patience, place, seconds=0.4) == []


def test_a_reader_that_stands_still_ends_no_run(watched):
    """A pager, or Ctrl-S: the process waits in what it prints."""
    read, write = os.pipe()
    stream = Unheard(write, "wb")
    printing = threading.Thread(target=lambda: stream.write(bytes(1 << 20)), daemon=True)  # more than a pipe holds
    printing.start()
    assert watched(0.1, lambda calls: Place(7, "other", 12)) == []
    os.close(read)
    printing.join()
    stream.close()
    assert watched(0.1, lambda calls: Place(7, "other", 12))


def test_who_waits_alone_before_the_first_update_is_left_alone(watched):
    """It may wait for another run that tokenises the same text."""
    assert watched(0.01, lambda calls: Place(7, "begin", 0, False)) == []


STUCK = """
        from pretrain.distributed.consensus import gathered
        from pretrain.distributed.watchdog import Place, Watchdog
        gathered('compiled')
        at = [0]
        Watchdog(leaving, 2, lambda: Place(at[0], 'data' if at[0] == 4 else 'step', 7 + at[0]))
        at[0] = 4
        def asleep_at_the_wheel():
            time.sleep(300)
        if INDEX == {culprit}:
            asleep_at_the_wheel()
        at[0] = 5
        gathered('here')"""


@pytest.mark.parametrize("culprit", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_hangs_ends_all_by_name(culprit):
    """The other one waits for it in a collective, which has no end of its own."""
    from runs import ends

    ended = ends(working(STUCK.format(culprit=culprit)), timeout=60)
    for code, _, err in ended:
        assert code == FAULT, err
        late = rf"process {culprit} is late: the rest waits since (\d+) s, waiting for data after update 11; start"
        found = re.search(late, err)
        assert found and int(found[1]) >= 2, err  # its patience, and what a busy machine adds
        assert "asleep_at_the_wheel" in err


BEFORE = """
        from pretrain.distributed.consensus import gathered
        from pretrain.distributed.watchdog import Place, Watchdog
        gathered('compiled')
        Watchdog(leaving, 0.5, lambda: Place(leaving.meetings, 'begin', 0, False))
        def tokenised(seconds):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        def asleep_at_the_wheel():
            time.sleep(300)
        if INDEX == 1:
            tokenised({seconds})
            if {hangs}:
                asleep_at_the_wheel()
        gathered('here')"""


def test_a_process_that_hangs_before_the_first_update_ends_all_by_name():
    from runs import ends

    for code, _, err in ends(working(BEFORE.format(seconds=1, hangs=True)), timeout=60):
        assert code == FAULT, err
        assert "process 1 is late: the rest waits since" in err and "before the first update; start the same" in err
        assert "asleep_at_the_wheel" in err


@pytest.mark.slow
def test_a_process_that_works_for_long_before_the_first_update_is_waited_for():
    """The other one is late by its own clock for twice as long as it may be, and calls again and again."""
    from runs import ends

    for code, _, err in ends(working(BEFORE.format(seconds=8, hangs=False)), timeout=60):
        assert code == 0, err


BY_OTHERS = """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        from pretrain.distributed.consensus import gathered
        from pretrain.distributed.watchdog import Place, Watchdog
        gathered('compiled')
        with ProcessPoolExecutor(1, get_context('spawn')) as pool:
            pool.submit(int).result()
            Watchdog(leaving, 0.5, lambda: Place(leaving.meetings, 'begin', 0, False))
            if INDEX == 1:
                pool.submit(exec, 'import time\\nwhile time.process_time() < 8: pass').result()
        gathered('here')"""


@pytest.mark.slow
def test_a_process_whose_workers_work_for_long_is_waited_for():
    """As those that tokenise do: their parent, which waits for them, was once taken for one that hangs."""
    from runs import ends

    for code, _, err in ends(working(BY_OTHERS), timeout=60):
        assert code == 0, err


IN_LINE = """
        from pathlib import Path
        from input_pipeline.files import locked
        from pretrain.distributed.consensus import gathered
        from pretrain.distributed.watchdog import Place, Watchdog
        gathered('compiled')
        Watchdog(leaving, 0.5, lambda: Place(leaving.meetings, 'begin', 0, False))
        def asleep_at_the_wheel():
            time.sleep(300)
        with locked(Path({lock!r}), lambda: print('in line', flush=True)):
            if {hangs}:
                asleep_at_the_wheel()
        gathered('here')"""


@pytest.mark.slow
def test_who_waits_for_a_lock_of_another_run_is_left_alone(tmp_path):
    """A run that tokenises the same text for hours, alive and at work: the kernel frees what a dead one held."""
    from runs import ends

    with locked(tmp_path / "lock", print):
        processes = working(IN_LINE.format(lock=str(tmp_path / "lock"), hangs=False))
        ready(processes, "in line")
        time.sleep(8)
        assert [process.poll() for process in processes] == [None, None]
    for code, _, err in ends(processes, timeout=60):
        assert code == 0, err


def test_of_a_lock_that_a_process_hangs_with_its_holder_is_named(tmp_path):
    from runs import ends

    for code, _, err in ends(working(IN_LINE.format(lock=str(tmp_path / "lock"), hangs=True)), timeout=60):
        assert code == FAULT, err
        assert "asleep_at_the_wheel" in err and "is late: the rest waits since" in err
