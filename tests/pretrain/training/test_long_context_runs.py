"""Transformer-XL and Sparse Transformer through the whole program: train, resume, evaluate, generate."""

import json
import shutil

import numpy as np
import pytest
from runs import assert_same_leaves, leaves, train_here

from pretrain.cli import main

STEPS, CUT, SEGMENT = 6, 3, 16
EVERY = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 4,
    "model.ff": 32,
    "train.steps": STEPS,
    "checkpoint.every": CUT,
    "evaluate.every": 0,
    "evaluate.batches": 1,
    "evaluate.batch_size": 8,
    "log.every": 1,
    "log.tensorboard": "false",
}
RECURRENT = (
    "configs/transformer_xl.py:tiny",
    {
        "model.memory": 2 * SEGMENT,
        "model.init_std": 0.2,  # at the usual 0.02 attention is uniform and hides mistakes
        "data.length": SEGMENT,
        "evaluate.length": SEGMENT,
        "evaluate.model.memory": 4 * SEGMENT,
    },
)
SPARSE = (
    "configs/sparse_transformer.py:tiny",
    {
        "model.context": 64,
        "model.position_axes": "(8, 8)",
        "model.attention": "('fixed_8_2', 'strided_8')",
        "model.dropout_residual": 0.1,
        "data.length": 64,
    },
)


def train(kind, workdir, text):
    recipe, keys = kind
    assert train_here(workdir, text, recipe=recipe, small=EVERY | keys) == 0
    return workdir


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory, text):
    return train(RECURRENT, tmp_path_factory.mktemp("recurrent") / "run", text)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory, text):
    return train(SPARSE, tmp_path_factory.mktemp("sparse") / "run", text)


@pytest.mark.slow
def test_recurrent_resume_is_bit_exact(recurrent, tmp_path, text, capsys):
    whole, workdir = recurrent, shutil.copytree(recurrent, tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints" / str(STEPS))
    train(RECURRENT, workdir, text)
    assert f"restored checkpoint {CUT}" in capsys.readouterr().err
    end, before = leaves(workdir, STEPS), leaves(whole, CUT)
    assert_same_leaves(end, leaves(whole, STEPS))
    hidden, held = (f"['carried']['attention']['{name}']" for name in ("hidden", "held"))
    np.testing.assert_array_equal(end[held], [2 * SEGMENT] * 8)
    assert end[hidden].shape == (2, 8, 2 * SEGMENT, 16)
    assert (np.abs(end[hidden]).max((-1, -2)) > 0).all()  # every layer of every lane remembers
    assert (np.abs(end[hidden] - before[hidden]).max((-1, -2)) > 0).all()


@pytest.fixture
def scores(capsys, no_cache):
    """`scores(workdir, "--length=16")`: what `pretrain evaluate` prints."""

    def run(workdir, *flags):
        assert main(["evaluate", f"--workdir={workdir}", "--format=json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_evaluation_with_longer_memory(recurrent, scores, tmp_path):
    """Four segments with a memory of three and more are one row four times as long; with a shorter one they are not."""
    trained = recurrent
    parts = scores(trained, f"--length={SEGMENT}", "--batches=4", "--batch_size=8")
    whole = scores(trained, f"--length={4 * SEGMENT}", "--batches=1", "--batch_size=8")
    assert parts["tokens"] == whole["tokens"] == 8 * 4 * SEGMENT
    assert parts["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    short = tmp_path / "short"
    shutil.copytree(trained, short)
    config = json.loads((short / "config.json").read_text())
    config["evaluate"]["model"]["memory"] = 1
    (short / "config.json").write_text(json.dumps(config))
    forgetful = scores(short, f"--length={SEGMENT}", "--batches=4", "--batch_size=8")
    assert abs(forgetful["loss"] - whole["loss"]) > 1e-4


def test_evaluation_has_one_row_by_default(recurrent, scores):
    parts = scores(recurrent, f"--length={SEGMENT}", "--batches=4")
    whole = scores(recurrent, f"--length={4 * SEGMENT}", "--batches=1")
    assert parts["tokens"] == whole["tokens"] == 4 * SEGMENT
    assert parts["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    three = scores(recurrent, f"--length={SEGMENT}", "--batches=1", "--config.evaluate.batch_size=3")
    assert three["tokens"] == 3 * SEGMENT


@pytest.mark.slow
def test_evaluation_with_stride(sparse, scores):
    plain, strided = scores(sparse, "--batches=2"), scores(sparse, "--batches=2", "--stride=16")
    # The first window scores all, the others what is new. Separators of documents, a few, are never predicted: a file
    # of this package has some hundred tokens, so that a window rarely has two.
    assert 0 <= 2 * 8 * 64 - plain["tokens"] <= 2 * 8
    assert 0 <= 64 + (2 * 8 - 1) * 16 - strided["tokens"] < 10
    assert abs(plain["loss"] - strided["loss"]) < 0.5  # of hardly trained models: nearly uniform over the bytes


@pytest.mark.parametrize("kind", ["recurrent", pytest.param("sparse", marks=pytest.mark.slow)])
def test_cached_generation(kind, request, capsys, no_cache):
    """Prompts of different lengths, one longer than a segment of Transformer-XL, are continued beyond it."""
    workdir = request.getfixturevalue(kind)
    written = []
    for cached in ("--cached", "--nocached"):
        flags = [
            "--prompt=def main(",
            "--prompt=import os, sys\n\n\nclass ",
            "--max_tokens=30",
            "--temperature=0",
            cached,
        ]
        assert main(["generate", f"--workdir={workdir}", "--format=json", *flags]) == 0
        written.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for one, other in zip(*written, strict=True):
        assert len(one["prompt"]) + one["tokens"] > SEGMENT
        assert one["log_probability"] == pytest.approx(other.pop("log_probability"), abs=1e-5 * one["tokens"])
        assert {name: one[name] for name in other} == other
