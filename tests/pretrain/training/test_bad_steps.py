"""A loss or gradient that is not finite: skipped, counted, named; or rewound; or, if it goes on, the run stops."""

import csv
import json

import numpy as np
import pytest
from runs import SMALL, mostly

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.training.trainer import train


@pytest.fixture
def run(text, tmp_path, monkeypatch, signals):
    """Trains in this process on data whose batches at the positions `poison` cannot be learned from."""
    whole = pipeline.Corpus.batches

    def run(poison, **changes):
        def batches(self, *, start, **options):
            for n, batch in enumerate(whole(self, start=start, **options), start):
                yield batch | {"weights": batch["weights"] * np.float32(np.inf if n in poison else 1.0)}

        monkeypatch.setattr(pipeline.Corpus, "batches", batches)
        keys = SMALL | {"data.train": f"text:{text}/*.py", "mesh.data": 8, "evaluate.every": 0, "train.steps": 12}
        keys |= {k.replace("__", "."): v for k, v in changes.items()}
        config = configs.load("configs/quickstart.py:tiny", [(key, str(value)) for key, value in keys.items()])
        assert train(config, str(tmp_path)) == 0

    return run


def rows(workdir):
    with open(workdir / "metrics" / "train.csv") as file:
        return list(csv.DictReader(file))


def data_position(workdir, step):
    return json.loads((workdir / "checkpoints" / str(step) / "data" / "metadata").read_text())["position"]


def test_bad_step_is_skipped(run, tmp_path):
    """It is counted, and does not move the schedule."""
    run([9])
    assert [int(float(row["bad_total"])) for row in rows(tmp_path)] == [0] * 9 + [1] * 3
    assert data_position(tmp_path, 12) == 12
    rates = [float(row["learning_rate"]) for row in rows(tmp_path)]
    assert rates[9] == rates[10]  # would have been applied, and then is
    assert rates[8] > rates[10] > rates[11]


@pytest.mark.parametrize("position", mostly([0, 9, 11], 9, 11))
def test_rewind_continues_after_the_bad_batch(run, tmp_path, position):
    """Step 1 goes back to the beginning, 10 and 12 to checkpoint 8; all are made, and good."""
    run([position], train__on_bad_step="rewind")
    back = position // 4 * 4
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(1, 13))
    assert [float(row["bad_total"]) for row in rows(tmp_path)] == [0] * 12
    assert data_position(tmp_path, 12) == 12 + position + 1 - back


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("skip", marks=pytest.mark.slow), "rewind"])
def test_too_many_bad_steps_name_a_good_checkpoint(run, tmp_path, way):
    """However often the same is tried again, and whichever way: a run that ended badly is never done."""
    for tried in (way, way, "rewind"):
        with pytest.raises(UserError, match=r"config\.train\.max_bad_steps=3.*@8\.$"):
            run(range(9, 99), train__max_bad_steps=3, train__on_bad_step=tried)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()} >= {"4", "8"}


def test_run_that_stops_has_a_row_for_every_step_it_saves(run, tmp_path):
    """The step that was on its way when the third was found to be bad counts, too."""
    with pytest.raises(UserError):
        run(range(5, 9), train__max_bad_steps=3, checkpoint__every=24)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == ["9"]
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(1, 10))


@pytest.mark.slow
def test_evaluation_tells_good_parameters_from_bad(run, tmp_path, capsys):
    """A rate that diverges: the checkpoint that is named has a loss, the last one has none."""
    worse = {"optimizer__name": "sgd", "optimizer__clip": 0, "optimizer__b1": 0, "optimizer__weight_decay": 0}
    worse |= {"schedule__kind": "constant", "schedule__peak": 1e9, "schedule__warmup": 24, "train__max_bad_steps": 3}
    with pytest.raises(UserError) as error:
        run([], **worse, train__steps=24, checkpoint__every=1, checkpoint__keep=2, checkpoint__keep_best=False)
    named = int(str(error.value).rpartition("@")[2].removesuffix("."))
    steps = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit())
    losses = []
    for step in (named, steps[-1]):
        capsys.readouterr()
        assert main(["evaluate", f"--workdir={tmp_path}", f"--step={step}", "--batches=1", "--format=json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] is not None and losses[1] is None
    assert main(["generate", f"--workdir={tmp_path}", f"--step={steps[-1]}", "--max_tokens=2", "--beams=2"]) == 2
