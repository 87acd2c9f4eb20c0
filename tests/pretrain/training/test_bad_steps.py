"""A loss or gradient that is not finite: skipped, counted, named; or rewound; or, if it goes on, the run stops."""

import csv
import json

import numpy as np
import pytest
from runs import SMALL, mostly

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.training.train import train

POISONED = 9  # the position in the data of the batch that cannot be learned from, unless a test says otherwise


@pytest.fixture
def run(text, tmp_path, monkeypatch, signals):
    """Trains in this process on data of which one batch cannot be learned from."""
    whole, poisoned = pipeline.Corpus.batches, [POISONED]

    def batches(self, *, start, **options):
        for n, batch in enumerate(whole(self, start=start, **options), start):
            poison = np.float32(np.inf if n in poisoned else 1.0)
            yield batch | {"weights": batch["weights"] * poison}

    monkeypatch.setattr(pipeline.Corpus, "batches", batches)

    def run(poison=POISONED, **changes):
        poisoned[:] = [poison]
        keys = SMALL | {"data.train": f"text:{text}/*.py", "mesh.data": 8}
        keys |= {k.replace("__", "."): v for k, v in changes.items()}
        config = configs.load("configs/quickstart.py:tiny", [(key, str(value)) for key, value in keys.items()])
        assert train(config, str(tmp_path)) == 0
        with open(tmp_path / "metrics" / "train.csv") as file:
            return tmp_path, list(csv.DictReader(file))

    return run


def data_position(workdir, step):
    return json.loads((workdir / "checkpoints" / str(step) / "data" / "metadata").read_text())["position"]


def test_a_bad_update_is_skipped_counted_and_named_and_does_not_move_the_schedule(run, capsys):
    workdir, rows = run()
    assert [int(float(row["bad_total"])) for row in rows] == [0] * 9 + [1] * 15
    assert data_position(workdir, 24) == 24
    assert f"update 10 skipped: loss or gradient not finite, with the batch at data position {POISONED}" in (
        capsys.readouterr().err
    )
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates[POISONED] == rates[POISONED + 1]  # would have been applied, and then is
    assert rates[POISONED - 1] > rates[POISONED + 1] > rates[POISONED + 2]


@pytest.mark.slow
def test_rewinding_goes_back_to_the_checkpoint_and_past_the_data(run, capsys):
    workdir, rows = run(train__on_bad_step="rewind")
    assert [int(float(row["bad_total"])) for row in rows[-15:]] == [0] * 15
    assert data_position(workdir, 24) == 24 + (POISONED + 1 - 8)  # back at update 8, on with batch 10
    assert "rewound to update 8; the data goes on at position 10" in capsys.readouterr().err


def test_too_many_bad_updates_stop_the_run_with_everything_saved(run, tmp_path):
    with pytest.raises(UserError, match=r"3 updates in a row .* data position .* saved as checkpoint"):
        run(optimizer__name="sgd", optimizer__clip=0, schedule__peak=1e38, train__max_bad_steps=3)
    saved = [int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()]
    assert len(saved) >= 1


def test_rewinding_does_not_go_on_for_ever(run):
    options = {"optimizer__name": "sgd", "optimizer__clip": 0, "schedule__peak": 1e38, "train__on_bad_step": "rewind"}
    with pytest.raises(UserError, match="3 updates in a row"):
        run(**options, train__max_bad_steps=3)


@pytest.mark.parametrize("position", mostly([0, 11, 23], 11, 23))
def test_rewinding_goes_past_the_first_batch_a_saved_one_and_the_last(run, capsys, position):
    """Update 1 goes back to the beginning, 12 to checkpoint 8 and not to its own, 24 to 20; all are made, and good."""
    workdir, rows = run(poison=position, train__on_bad_step="rewind")
    back = position // 4 * 4
    assert f"rewound to update {back}; the data goes on at position {position + 1}" in capsys.readouterr().err
    assert [int(row["step"]) for row in rows] == list(range(1, 25))
    assert [float(row["bad_total"]) for row in rows] == [0] * 24
    assert data_position(workdir, 24) == 24 + position + 1 - back
