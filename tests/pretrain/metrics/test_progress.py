"""Progress lines, the bar on a terminal, and the ledger of time."""

import io
import os
import pty
import time

import pytest

from pretrain.metrics.progress import Ledger, Progress, amount, clock, still


def test_progress_plain_lines():
    out = io.StringIO()
    progress = Progress(2000, 100, "training", file=out)
    values = {"loss": 3.4123, "learning_rate": 1e-3, "tokens_per_second": 41_234.0, "data_wait": 0.12, "unshown": 1.0}
    progress.update(110, values)
    time.sleep(0.02)
    progress.update(120, values)
    progress.note("saved step 120")
    progress.close()
    first, second, note = out.getvalue().splitlines()
    assert first == "step 110/2000  loss 3.412  lr 1.0e-03  41.2k tok/s  12% data wait"
    assert second.startswith(first.replace("110", "120") + "  ETA 0:00:0")
    assert note == "saved step 120"


def test_progress_time_left(monkeypatch):
    times = iter([0.0, 50.0, 60.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    out = io.StringIO()
    progress = Progress(1000, 0, "training", file=out)
    for step in (1, 11, 13):
        progress.update(step, {})
    assert out.getvalue().splitlines() == ["step 1/1000", "step 11/1000  ETA 1:22:25", "step 13/1000  ETA 1:22:15"]


def test_progress_prints_seldom(monkeypatch):
    times = iter([0.0, 1.0, 2.5, 3.0, 3.1])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    out = io.StringIO()
    progress = Progress(50, 0, "training", file=out, seconds=2.0)
    for step in (10, 20, 30, 40, 50):
        progress.update(step, {})
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["10/50", "30/50", "50/50"]


def read_to_end(terminal: int) -> str:
    """Reads all that was written to a pseudo-terminal whose writing end is closed."""
    shown = b""
    try:
        while chunk := os.read(terminal, 1 << 16):
            shown += chunk
    except OSError:  # Linux reports a closed end in this way
        pass
    os.close(terminal)
    return shown.decode()


def test_progress_terminal():
    reading, writing = pty.openpty()
    with os.fdopen(writing, "w") as terminal:
        progress = Progress(10, 0, "training", file=terminal)
        progress.update(5, {"loss": 2.5})
        progress.note("saved step 5 [not markup]")
        progress.close()
    shown = read_to_end(reading)
    assert "step 5/10  loss 2.500" in shown
    assert "saved step 5 [not markup]" in shown
    assert "\x1b[" in shown  # the line is redrawn in place


def test_still_reports_until_the_end():
    lines = []
    with still(lines.append, "compiling", every=0.01):
        time.sleep(0.2)
    count = len(lines)
    assert count >= 2 and lines[0] == "still compiling, 0:00:00 so far"
    time.sleep(0.05)
    assert len(lines) == count


def test_ledger_nested_blocks(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    ledger = Ledger()
    now[0] += 1
    with ledger.spend("evaluate"):
        now[0] += 2
        with ledger.spend("data"):
            now[0] += 4
        now[0] += 8
    now[0] += 16
    assert ledger.seconds() == {
        "step": 0,
        "data": 4,
        "save": 0,
        "restore": 0,
        "evaluate": 10,
        "compile": 0,
        "other": 17,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (950, "950"),
        (0.25, "0.25"),
        (999.6, "1.00k"),
        (41_234, "41.2k"),
        (124_439_808, "124M"),
        (3.14e20, "314E"),
    ],
)
def test_amount(value, shown):
    assert amount(value) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00:00"), (192.4, "0:03:12"), (90_061, "1 d 1:01:01")])
def test_clock(seconds, shown):
    assert clock(seconds) == shown
