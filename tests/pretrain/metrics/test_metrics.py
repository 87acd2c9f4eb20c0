"""Metric files: exact under resume, whole after a crash, readable by every parser."""

import csv
import errno
import json
import os
import resource
import threading

import numpy as np
import pytest

from pretrain.cli import verdict
from pretrain.errors import UserError
from pretrain.metrics.writer import MetricWriter


def rows_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rows_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(folder, start, stop, tensorboard=False):
    """What a run from `start` to `stop` writes: train rows every step, validation rows every third."""
    writer = MetricWriter(folder, tensorboard=tensorboard, csv=True, jsonl=True, start_step=start)
    for step in range(start + 1, stop + 1):
        writer.write("train", step, {"loss": np.float32(1 / step), "tokens": 100 * step})
        if step % 3 == 0:
            writer.write("validation", step, {"loss": 2 / step})
    return writer


def contents(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def test_files_hold_every_row(tmp_path):
    train(tmp_path, 0, 4).close()
    assert rows_csv(tmp_path / "train.csv")[1] == {"step": "2", "loss": "0.5", "tokens": "200"}
    assert rows_jsonl(tmp_path / "validation.jsonl") == [{"step": 3, "loss": 0.666666667}]
    assert rows_jsonl(tmp_path / "train.jsonl")[2] == {
        "step": 3,
        "loss": float(f"{np.float32(1 / 3):.9g}"),
        "tokens": 300,
    }


@pytest.mark.parametrize(("killed", "restored"), [(9, 9), (9, 4), (8, 1), (3, 0)])
def test_resumed_run_equals_uninterrupted(tmp_path, killed, restored):
    train(tmp_path / "whole", 0, 10).close()
    train(tmp_path / "cut", 0, killed)  # never closed, as by kill -9
    train(tmp_path / "cut", restored, 10).close()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("torn", ["5", '5,0.25\n6,"', "5,0."])
def test_torn_last_line_is_repaired(tmp_path, torn):
    train(tmp_path / "whole", 0, 6).close()
    train(tmp_path / "cut", 0, 4)
    with (tmp_path / "cut" / "train.csv").open("a") as file:
        file.write(torn)
    with (tmp_path / "cut" / "train.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    train(tmp_path / "cut", 4, 6).close()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_row_of_the_restored_step_takes_the_place_of_the_earlier_one(tmp_path):
    train(tmp_path, 0, 6)
    writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=6)
    writer.write("validation", 6, {"loss": 9.0})
    writer.close()
    assert [row["step"] for row in rows_jsonl(tmp_path / "validation.jsonl")] == [3, 6]
    assert [row["loss"] for row in rows_csv(tmp_path / "validation.csv")] == ["0.666666667", "9.0"]


@pytest.mark.parametrize(
    ("later", "column"),
    [("accuracy", "accuracy"), ("exact_match of jsonl:x?fields=a,b", '"exact_match of jsonl:x?fields=a,b"')],
)
def test_later_metric_adds_a_column(tmp_path, later, column):
    def run(start, stop):
        writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=False, start_step=start)
        for step in range(start + 1, stop + 1):
            writer.write("train", step, {"loss": 1.0} | ({later: 0.5} if step > 2 else {}))
        writer.close()

    run(0, 3)
    assert (tmp_path / "train.csv").read_text() == f"step,loss,{column}\n1,1.0,\n2,1.0,\n3,1.0,0.5\n"
    run(2, 2)
    assert (tmp_path / "train.csv").read_text() == "step,loss\n1,1.0\n2,1.0\n"
    run(2, 3)
    assert (tmp_path / "train.csv").read_text() == f"step,loss,{column}\n1,1.0,\n2,1.0,\n3,1.0,0.5\n"


def test_missing_metric_is_blank(tmp_path):
    writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=0)
    writer.write("train", 1, {"loss": 1.0, "accuracy": 0.5})
    writer.write("train", 2, {"loss": 1.0})
    writer.close()
    assert rows_csv(tmp_path / "train.csv")[1]["accuracy"] == ""
    assert rows_jsonl(tmp_path / "train.jsonl")[1] == {"step": 2, "loss": 1.0}


def test_values_that_are_not_finite(tmp_path):
    def strict(word):
        raise AssertionError(f"{word} is not JSON")

    writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=0)
    writer.write("train", 1, {"loss": float("nan"), "gradient_norm": float("-inf")})
    writer.close()
    line = json.loads((tmp_path / "train.jsonl").read_text(), parse_constant=strict)
    assert line == {"step": 1, "loss": None, "gradient_norm": None}
    assert rows_csv(tmp_path / "train.csv") == [{"step": "1", "loss": "nan", "gradient_norm": "-inf"}]
    MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=1).close()
    assert json.loads((tmp_path / "train.jsonl").read_text())["loss"] is None


def test_tensorboard_events_after_the_restored_step_are_purged(tmp_path):
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import masked_crc32c  # noqa: F401  (the reader below needs only the framing)

    def events():
        found = []
        for path in sorted((tmp_path / "tensorboard").iterdir()):
            data = path.read_bytes()
            at = 0
            while at < len(data):  # TFRecord: length (8 bytes), its checksum (4), the record, its checksum (4)
                size = int.from_bytes(data[at : at + 8], "little")
                found.append(Event.FromString(data[at + 12 : at + 12 + size]))
                at += size + 16
        return found

    train(tmp_path, 0, 6, tensorboard=True).close()
    seen = [(event.step, value.tag) for event in events() for value in event.summary.value]
    assert (6, "train/loss") in seen and (3, "validation/loss") in seen
    train(tmp_path, 4, 5, tensorboard=True).close()
    train(tmp_path, 0, 2, tensorboard=True).close()  # which had no checkpoint to go on from
    starts = [event.step for event in events() if event.session_log.status == SessionLog.START]
    assert starts == [1, 5, 1]


def test_nothing_asked_for_writes_nothing(tmp_path):
    writer = MetricWriter(tmp_path / "metrics", tensorboard=False, csv=False, jsonl=False, start_step=0)
    writer.write("train", 1, {"loss": 1.0})
    writer.flush()
    writer.close()
    assert not (tmp_path / "metrics").exists()


def test_steps_must_rise(tmp_path):
    writer = MetricWriter(tmp_path, tensorboard=False, csv=False, jsonl=True, start_step=0)
    writer.write("train", 2, {"loss": 1.0})
    with pytest.raises(ValueError, match="rising steps"):
        writer.write("train", 1, {"loss": 1.0})
    writer.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.jsonl", "hello\n"),
        ("train.jsonl", "[1]\n"),
        ("train.jsonl", "[" * 100_000 + "\n"),
        ("train.jsonl", '{"step": Infinity}\n'),
        ("train.csv", "a,b\n1,2\n"),
        ("train.csv", "step,lo\n1,0.5,100\n"),
        ("train.csv", "step,loss,tokens\n1,0.5\n"),
        ("train.csv", 'step,loss,tokens\n1,"1"x,100\n'),
    ],
)
def test_a_file_that_is_not_metrics_is_set_aside(tmp_path, name, text):
    train(tmp_path, 0, 4).close()
    for _ in range(2):
        (tmp_path / name).write_text(text)
        said = []
        writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=4, report=said.append)
        writer.write("train", 5, {"loss": 0.2, "tokens": 500})
        writer.close()
        assert len(said) == 1
        assert f"{name} is not a file of metrics; it is set aside as {name}.damaged" in said[0]
        rows = rows_csv(tmp_path / name) if name.endswith("csv") else rows_jsonl(tmp_path / name)
        assert [int(row["step"]) for row in rows] == [5]
    for aside in (f"{name}.damaged", f"{name}.damaged.1"):
        assert (tmp_path / aside).read_text() == text


def test_what_else_lies_there_is_the_users(tmp_path):
    """A copy of an earlier try's rows, figures of a test split, notes: no row of theirs is dropped, no file renamed."""
    train(tmp_path, 0, 4).close()
    own = {
        "train-before.csv": (tmp_path / "train.csv").read_text(),
        "test.jsonl": '{"step": 4, "loss": 1.5}\n',
        "notes.csv": "what,why\na,b\n",
    }
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    train(tmp_path, 1, 2).close()
    assert contents(tmp_path).items() >= own.items()
    assert [row["step"] for row in rows_csv(tmp_path / "train.csv")] == ["1", "2"]


def test_a_folder_in_place_of_a_file_and_the_other_way_round(tmp_path):
    (tmp_path / "metrics" / "train.csv").mkdir(parents=True)
    train(tmp_path / "metrics", 0, 2).close()
    assert (tmp_path / "metrics" / "train.csv.damaged").is_dir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file is a file, and is to be the folder of metrics; move it away"):
        train(tmp_path / "file", 0, 2)


def test_a_file_in_place_of_the_events_is_set_aside(tmp_path):
    (tmp_path / "tensorboard").write_text("x")
    said = []
    MetricWriter(tmp_path, tensorboard=True, csv=False, jsonl=False, start_step=0, report=said.append).close()
    assert (tmp_path / "tensorboard.damaged").read_text() == "x"
    assert not list((tmp_path / "tensorboard").iterdir())  # no row, no file
    assert len(said) == 1 and "set aside as tensorboard.damaged" in said[0]


@pytest.mark.parametrize("kind", ["tensorboard", "csv", "jsonl"])
def test_a_file_that_cannot_grow_stops_the_run_and_is_named(tmp_path, kind):
    """The queue of a writer that a full disk had ended once kept the run waiting for ever, in writing and closing."""
    writer = MetricWriter(tmp_path, **{k: k == kind for k in ("tensorboard", "csv", "jsonl")}, start_step=0)
    failures = []

    def write():
        try:
            for step in range(1, 1000):
                writer.write("train", step, {"loss": 1.0})
        except OSError as error:
            failures.append(error)
        writer.close()

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not writing.is_alive()
    (failure,) = failures
    code, sentence = verdict(failure)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert code == 2 and f"cannot write {file}: File too large" in sentence
    assert file.stat().st_size <= 4096


def test_a_full_disk_leaves_no_torn_row(tmp_path, monkeypatch):
    """It takes a part of a row before it says that it is full."""
    train(tmp_path / "whole", 0, 6).close()
    writer = train(tmp_path / "cut", 0, 3)
    write, room = os.write, [5]

    def full(descriptor, line):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(descriptor, line[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write("train", 4, {"loss": 0.25, "tokens": 400})
    monkeypatch.undo()
    assert rows_csv(tmp_path / "cut" / "train.csv")[-1]["step"] == "3"
    writer.close()
    train(tmp_path / "cut", 3, 6).close()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_row_that_is_taken_in_pieces_is_whole(tmp_path, monkeypatch):
    train(tmp_path / "whole", 0, 3).close()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:4]))
    train(tmp_path / "pieces", 0, 3).close()
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
