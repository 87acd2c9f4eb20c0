"""Time accounting over all starts of a run: kills, rewinds, clocks that differ."""

import json
import time

import pytest

from pretrain.metrics.goodput import Goodput, summarize


def rows(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def began(began, time):
    return {"began": began, "time": time, "host": "a"}


def at(time, update, **seconds):
    return {"time": time, "update": update, "seconds": seconds}


def nonzero(seconds):
    return {name: value for name, value in seconds.items() if value}


def test_summarize_one_start(tmp_path):
    found = summarize(
        rows(
            tmp_path / "goodput.jsonl",
            began(100, 103),
            at(104, 0, other=0.75, restore=0.25),
            at(110, 10, other=1.0, restore=0.25, compile=2.0, step=3.0, data=0.75),
            at(120, 20, other=1.5, restore=0.25, compile=2.0, step=10.0, data=1.25, save=2.0),
        )
    )
    assert nonzero(found.pop("seconds")) == {
        "start": 3.75,
        "restore": 0.25,
        "compile": 2,
        "step": 10,
        "data": 1.25,
        "save": 2,
        "other": 0.75,
    }
    assert found == {"starts": 1, "updates": 20, "made_again": 0, "total": 20.0, "goodput": 0.5}


def test_summarize_repeated_steps(tmp_path):
    """Killed at update 20 or later with a checkpoint of update 15: half of the stretch from 10 to 20, and its data."""
    found = summarize(
        rows(
            tmp_path / "goodput.jsonl",
            began(100, 100),
            at(100, 0),
            at(110, 10, step=10.0),
            at(130, 20, step=26.0, data=4.0),
            began(150, 152),
            at(153, 15, restore=1.0),
            at(163, 25, restore=1.0, step=8.0, data=2.0),
        )
    )
    assert found["starts"] == 2 and found["updates"] == 25 and found["made_again"] == 5
    assert nonzero(found["seconds"]) == {"step": 26, "data": 4, "start": 2, "restore": 1, "lost": 10, "idle": 20}
    assert found["total"] == 63


def test_summarize_counts_restoring_once(tmp_path):
    """As starts do: no second belongs to two categories."""
    found = summarize(
        rows(
            tmp_path / "goodput.jsonl",
            began(100, 104),
            at(104, 15, other=0.5, restore=1.0),
            at(114, 25, other=0.5, restore=1.0, step=10.0),
            began(120, 126),
            at(126, 20, restore=4.0),
        )
    )
    assert nonzero(found["seconds"]) == {"start": 5, "restore": 5, "step": 5, "lost": 5, "idle": 6}
    assert found["total"] == 26


def test_summarize_rewind(tmp_path):
    path = rows(
        tmp_path / "goodput.jsonl",
        began(0, 0),
        at(0, 0),
        at(4, 4, step=4.0),
        at(10, 10, step=10.0),
        at(11, 4, step=10.0, restore=1.0),
        at(17, 10, step=16.0, restore=1.0),
    )
    found = summarize(path)
    assert nonzero(found["seconds"]) == {"step": 10, "restore": 1, "lost": 6}
    assert (found["updates"], found["made_again"], found["starts"]) == (10, 6, 1)


def test_summarize_clock_that_goes_back(tmp_path):
    path = rows(
        tmp_path / "goodput.jsonl",
        began(1000, 1001),
        began(900, 903),  # another host, whose clock is behind
        at(904, 0, other=1.0),
        at(908, 8, other=1.0, step=4.0),
    )
    assert nonzero(summarize(path)["seconds"]) == {"step": 4, "start": 5}


def test_goodput_ignores_a_torn_line(tmp_path, monkeypatch):
    path = rows(tmp_path / "goodput.jsonl", began(0, 1), at(5, 4, step=4.0))
    whole = summarize(path)
    path.write_bytes(path.read_bytes() + b'{"time": 9, "update": 8, "sec')
    assert summarize(path) == whole
    monkeypatch.setattr(time, "time", lambda: 100.0)  # a busy machine's would go on between two rows
    goodput = Goodput(path, age=0.5, host="b")
    goodput.add(4, {"step": 0.0})
    goodput.add(9, {"step": 1.0}, now=False)  # too soon after the last one
    goodput.close()
    found = summarize(path)
    assert (found["starts"], found["updates"]) == (2, 4)
    assert found["seconds"]["start"] == 1.5


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"began": 1'])
def test_summarize_file_without_rows(content, tmp_path):
    (tmp_path / "goodput.jsonl").write_bytes(content)
    assert summarize(tmp_path / "goodput.jsonl")["starts"] == 0
