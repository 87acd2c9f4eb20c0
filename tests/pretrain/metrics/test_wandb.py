"""Weights & Biases, offline: the rows in its own files, and one id over several starts."""

import json
import sys
import time

import pytest

from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.metrics.wandb_run import WandbRun, load_wandb

HEADER, BLOCK = 7, 1 << 15  # bytes of a file's header, and of LevelDB's blocks
FIRST, LAST = (1, 2), (1, 4)  # types of the records that begin and that end a message


def read_messages(path):
    """The protocol buffers of a file of records as LevelDB logs them: checksum, length, type, part of a message."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, message = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # no record begins in the last bytes of a block
            at += BLOCK - at % BLOCK
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        message = (b"" if kind in FIRST else message) + data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in LAST:
            yield pb.Record.FromString(message)


def read_whole(path):
    """All messages of a file; its writer is another process, which may be late."""
    for _ in range(300):
        messages = list(read_messages(path))
        if messages and messages[-1].HasField("exit"):
            return messages
        time.sleep(0.1)
    pytest.fail(f"{path}: no end")


def read_rows(messages):
    for message in messages:
        if message.HasField("history"):
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in message.history.item}
            yield {name: value for name, value in items.items() if not name.startswith("_")} | {"step": items["_step"]}


def test_wandb_offline_keeps_its_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = configs.load("configs/quickstart.py:tiny", [("log.wandb", "tests")])
    for steps in ((5, 10), (10, 15)):
        run = WandbRun(config, str(tmp_path))
        for step in steps:
            run.write("train", step, {"loss": 1 / step, "tokens_seen": 512 * step})
        run.write("validation", steps[-1], {"loss": 2.0})
        run.write("train", steps[0], {"loss": 9.0})  # a step that a rewind repeats
        run.close()
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    messages = [read_whole(path) for path in files]
    runs = [message.run for some in messages for message in some if message.HasField("run")]
    assert {run.run_id for run in runs} == {(tmp_path / "metrics" / "wandb_id").read_text()}
    assert {(run.project, run.display_name) for run in runs} == {("tests", tmp_path.name)}
    assert [list(read_rows(some)) for some in messages] == [
        [
            {"step": 5, "train/loss": 0.2, "train/tokens_seen": 2560},
            {"step": 10, "train/loss": 0.1, "train/tokens_seen": 5120, "validation/loss": 2.0},
        ],
        [
            {"step": 10, "train/loss": 0.1, "train/tokens_seen": 5120},
            {"step": 15, "train/loss": 1 / 15, "train/tokens_seen": 7680, "validation/loss": 2.0},
        ],
    ]


@pytest.mark.parametrize("package", [None, type(sys)("wandb")])  # missing, or a folder of that name
def test_wandb_missing(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", package)
    with pytest.raises(UserError, match=r"log\.wandb=mine needs the package wandb"):
        load_wandb("mine")
