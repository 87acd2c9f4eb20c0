"""Metric files: exact under resume, whole after a crash, readable by every parser."""

import csv
import json

import numpy as np
import pytest

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


def test_writer_writes_every_row(tmp_path):
    train(tmp_path, 0, 4).close()
    assert rows_csv(tmp_path / "train.csv")[1] == {"step": "2", "loss": "0.5", "tokens": "200"}
    assert rows_jsonl(tmp_path / "validation.jsonl") == [{"step": 3, "loss": 0.666666667}]
    assert rows_jsonl(tmp_path / "train.jsonl")[2] == {
        "step": 3,
        "loss": float(f"{np.float32(1 / 3):.9g}"),
        "tokens": 300,
    }


@pytest.mark.parametrize(("killed", "restored"), [(9, 9), (9, 4), (8, 1), (3, 0)])
def test_writer_resumed_equals_uninterrupted(tmp_path, killed, restored):
    train(tmp_path / "whole", 0, 10).close()
    train(tmp_path / "cut", 0, killed).close()
    train(tmp_path / "cut", restored, 10).close()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("torn", ["5", '5,0.25\n6,"', "5,0."])
def test_writer_drops_a_torn_line(tmp_path, torn):
    train(tmp_path / "whole", 0, 6).close()
    train(tmp_path / "cut", 0, 4).close()
    with (tmp_path / "cut" / "train.csv").open("a") as file:
        file.write(torn)
    with (tmp_path / "cut" / "train.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    train(tmp_path / "cut", 4, 6).close()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_writer_replaces_the_row_of_the_same_step(tmp_path):
    train(tmp_path, 0, 6).close()
    writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=6)
    writer.write("validation", 6, {"loss": 9.0})
    writer.close()
    assert [row["step"] for row in rows_jsonl(tmp_path / "validation.jsonl")] == [3, 6]
    assert [row["loss"] for row in rows_csv(tmp_path / "validation.csv")] == ["0.666666667", "9.0"]


@pytest.mark.parametrize(
    ("later", "column"),
    [("accuracy", "accuracy"), ("exact_match of jsonl:x?fields=a,b", '"exact_match of jsonl:x?fields=a,b"')],
)
def test_csv_later_metric_adds_a_column(tmp_path, later, column):
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


def test_writer_infinite_values(tmp_path):
    writer = MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=0)
    writer.write("train", 1, {"loss": float("nan"), "gradient_norm": float("-inf")})
    writer.close()
    line = json.loads((tmp_path / "train.jsonl").read_text(), parse_constant=pytest.fail)
    assert line == {"step": 1, "loss": None, "gradient_norm": None}
    assert rows_csv(tmp_path / "train.csv") == [{"step": "1", "loss": "nan", "gradient_norm": "-inf"}]
    MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=1).close()
    assert json.loads((tmp_path / "train.jsonl").read_text())["loss"] is None


def test_tensorboard_purges_later_events(tmp_path):
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.jsonl", "hello\n"),
        ("train.csv", "a,b\n1,2\n"),
    ],
)
def test_writer_refuses_other_files(tmp_path, name, text):
    train(tmp_path, 0, 4).close()
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name):
        MetricWriter(tmp_path, tensorboard=False, csv=True, jsonl=True, start_step=4)
    assert (tmp_path / name).read_text() == text
