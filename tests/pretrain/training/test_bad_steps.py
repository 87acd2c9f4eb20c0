"""A loss or gradient that is not finite: skipped, counted, named; or rewound; or, if it goes on, the run stops."""

import csv
import json

import numpy as np
import pytest
from runs import SMALL, mostly, train_here

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.training.trainer import train

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
        poisoned[:] = [poison] if isinstance(poison, int) else poison
        keys = SMALL | {"data.train": f"text:{text}/*.py", "mesh.data": 8}
        keys |= {k.replace("__", "."): v for k, v in changes.items()}
        config = configs.load("configs/quickstart.py:tiny", [(key, str(value)) for key, value in keys.items()])
        assert train(config, str(tmp_path)) == 0
        with open(tmp_path / "metrics" / "train.csv") as file:
            return tmp_path, list(csv.DictReader(file))

    return run


def data_position(workdir, step):
    return json.loads((workdir / "checkpoints" / str(step) / "data" / "metadata").read_text())["position"]


def test_bad_step_is_skipped(run, capsys):
    """It is counted and reported, and does not move the schedule."""
    workdir, rows = run()
    assert [int(float(row["bad_total"])) for row in rows] == [0] * 9 + [1] * 15
    assert data_position(workdir, 24) == 24
    assert f"step 10: loss or gradient not finite at data position {POISONED}; step skipped" in capsys.readouterr().err
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates[POISONED] == rates[POISONED + 1]  # would have been applied, and then is
    assert rates[POISONED - 1] > rates[POISONED + 1] > rates[POISONED + 2]


WORSE = {"optimizer__name": "sgd", "optimizer__clip": 0, "optimizer__weight_decay": 0, "optimizer__b1": 0}
WORSE |= {"schedule__kind": "constant", "schedule__warmup": 24, "schedule__peak": 1e9, "train__max_bad_steps": 3}
WORSE |= {"checkpoint__every": 1, "checkpoint__keep": 2, "checkpoint__keep_best": False, "evaluate__every": 0}


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def has_a_loss(workdir, step, capsys):
    """Whether the validation text has a finite loss by the parameters of a checkpoint."""
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={workdir}", f"--step={step}", "--batches=1", "--format=json"]) == 0
    return json.loads(capsys.readouterr().out)["loss"] is not None


@pytest.mark.parametrize("way", ["skip", "rewind"])
def test_last_sound_checkpoint_is_named(run, text, tmp_path, tmp_path_factory, capsys, way):
    """However often the same is tried again; the checkpoint that was saved last gives no probabilities."""
    for _ in range(3):
        with pytest.raises(UserError, match=r"config\.train\.max_bad_steps=3") as error:
            run(poison=-1, **WORSE, train__on_bad_step=way)
        named = int(str(error.value).rpartition(f"start from {tmp_path}@")[2].removesuffix("."))
        steps = saved(tmp_path)
        assert named in steps and len(steps) <= 4
    assert has_a_loss(tmp_path, named, capsys) and not has_a_loss(tmp_path, steps[-1], capsys)
    for how in ("--temperature=0", "--top_p=0.9", "--beams=2"):
        assert main(["generate", f"--workdir={tmp_path}", f"--step={steps[-1]}", "--max_tokens=2", how]) == 2
    assert main(["generate", f"--workdir={tmp_path}", f"--step={named}", "--max_tokens=2"]) == 0
    few = {"train__max_bad_steps": 1, "train__start_from": f"{tmp_path}@{steps[-1]}", "data__workers": 0}
    assert train_here(tmp_path_factory.mktemp("next"), text, **few) == 2


@pytest.mark.parametrize("position", mostly([0, 9, 11, 23], 9, 11, 23))
def test_rewind_continues_after_the_bad_batch(run, capsys, position):
    """Step 1 goes back to the beginning, 12 to checkpoint 8 and not to its own, 24 to 20; all are made, and good."""
    workdir, rows = run(poison=position, train__on_bad_step="rewind")
    back = position // 4 * 4
    assert f"rewound to step {back}, continuing at data position {position + 1}" in capsys.readouterr().err
    assert [int(row["step"]) for row in rows] == list(range(1, 25))
    assert [float(row["bad_total"]) for row in rows] == [0] * 24
    assert data_position(workdir, 24) == 24 + position + 1 - back


ENDS_BADLY = {"train__steps": 12, "train__max_bad_steps": 3, "checkpoint__every": 4, "evaluate__every": 0}


@pytest.mark.slow
def test_run_that_ended_bad_is_not_done_when_started_again(run, tmp_path):
    for way in ("skip", "skip", "rewind"):  # which rewinds no step where none is left
        with pytest.raises(UserError, match=r"3 steps were not finite.*@8\.$"):
            run(poison=(9, 10, 11), **ENDS_BADLY, train__on_bad_step=way)
    assert saved(tmp_path)[-1] == 12


def test_run_that_stops_has_a_row_for_every_step_it_saves(run, tmp_path, capsys):
    """The step that was on its way when the third was found to be bad counts, too."""
    with pytest.raises(UserError, match="4 steps were not finite, the last at data position 8"):
        run(poison=range(5, 9), **ENDS_BADLY | {"train__steps": 24, "checkpoint__every": 24})
    with open(tmp_path / "metrics" / "train.csv") as file:
        rows = list(csv.DictReader(file))
    assert saved(tmp_path)[-1] == 9 and [int(row["step"]) for row in rows] == list(range(1, 10))


def test_rewinding_run_stops_after_too_many(run):
    """Steps 9 and 10 are good by the parameters of checkpoint 8, however bad the later data is."""
    with pytest.raises(UserError, match=r"3 steps were not finite.*@8\.$"):
        run(poison=range(10, 99), **ENDS_BADLY, train__on_bad_step="rewind")


def test_skipped_steps_do_not_count_as_rewinds(run, capsys):
    with pytest.raises(UserError, match="4 steps were not finite"):
        run(poison=range(6, 10), **ENDS_BADLY)
    run(poison=10, **ENDS_BADLY, train__on_bad_step="rewind")
    assert "rewound to step" in capsys.readouterr().err


def test_first_bad_step_may_end_a_run(run):
    with pytest.raises(UserError, match=r"config\.train\.max_bad_steps=1"):
        run(poison=5, **ENDS_BADLY | {"train__max_bad_steps": 1}, train__on_bad_step="rewind")
