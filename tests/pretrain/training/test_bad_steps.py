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
    said = capsys.readouterr().err
    assert f"update 10 failed: loss or gradient not finite, with the batch at data position {POISONED}\n" in said
    assert "rewound to update 8; the data goes on at position 10" in said


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
def test_updates_that_stay_bad_leave_the_last_good_checkpoint(run, text, tmp_path, tmp_path_factory, capsys, way):
    """It is named, whatever is kept, and however often the same is tried again; of the last one nothing comes."""
    for _ in range(3):
        with pytest.raises(UserError) as error:
            run(poison=-1, **WORSE, train__on_bad_step=way)
        words = {"skip": "updates in a row had", "rewind": "the run went back 2 times, and again an update had"}
        assert words[way] in str(error.value) and "is not finite, the last with the batch at" in str(error.value)
        named = int(str(error.value).rpartition(f"--config.train.start_from={tmp_path}@")[2])
        steps = saved(tmp_path)
        assert named in steps and len(steps) <= 4
        assert (f"saved as checkpoint {steps[-1]};" in str(error.value)) == (way == "skip")
    assert has_a_loss(tmp_path, named, capsys) and not has_a_loss(tmp_path, steps[-1], capsys)
    told = f"checkpoint {steps[-1]} in {tmp_path}/checkpoints was saved while updates were bad ("
    for how in ("--temperature=0", "--top_p=0.9", "--beams=2"):
        assert main(["generate", f"--workdir={tmp_path}", f"--step={steps[-1]}", "--max_tokens=2", how]) == 2
        said = capsys.readouterr().err
        assert "pretrain: the model gives no probabilities" in said
        assert said.count(told) == (way == "skip")
    assert main(["generate", f"--workdir={tmp_path}", f"--step={named}", "--max_tokens=2"]) == 0
    assert "was saved while updates were bad" not in capsys.readouterr().err
    taken = f"{tmp_path}@{steps[-1]}"
    few = {"train__max_bad_steps": 1, "train__start_from": taken, "data__workers": 0}
    assert train_here(tmp_path_factory.mktemp("next"), text, **few) == 2
    said = capsys.readouterr().err
    assert f"look at that data, at what config.train.start_from = {taken} gives (by" in said
    assert said.count(told) == (way == "skip")


@pytest.mark.parametrize("position", mostly([0, 11, 23], 11, 23))
def test_rewinding_goes_past_the_first_batch_a_saved_one_and_the_last(run, capsys, position):
    """Update 1 goes back to the beginning, 12 to checkpoint 8 and not to its own, 24 to 20; all are made, and good."""
    workdir, rows = run(poison=position, train__on_bad_step="rewind")
    back = position // 4 * 4
    assert f"rewound to update {back}; the data goes on at position {position + 1}" in capsys.readouterr().err
    assert [int(row["step"]) for row in rows] == list(range(1, 25))
    assert [float(row["bad_total"]) for row in rows] == [0] * 24
    assert data_position(workdir, 24) == 24 + position + 1 - back


ENDS_BADLY = {"train__steps": 12, "train__max_bad_steps": 3, "checkpoint__every": 4, "evaluate__every": 0}


@pytest.mark.slow
def test_a_run_that_ended_behind_bad_updates_is_not_done_when_it_is_started_again(run, tmp_path):
    for way in ("skip", "skip", "rewind"):  # which goes back at no update where none is left
        words = r"3 updates in a row had .* saved as checkpoint 12; .*, if it evaluates well, .*start_from=.*@8$"
        with pytest.raises(UserError, match=words):
            run(poison=(9, 10, 11), **ENDS_BADLY, train__on_bad_step=way)
    assert saved(tmp_path)[-1] == 12


def test_a_run_that_stops_has_a_row_for_every_update_that_it_saves(run, tmp_path, capsys):
    """The one that was on its way when the third was found to be bad is read too, and its skip told."""
    with pytest.raises(UserError, match=r"4 updates in a row had .* with the batch at data position 8; none of them"):
        run(poison=range(5, 9), **ENDS_BADLY | {"train__steps": 24, "checkpoint__every": 24})
    assert "(4 in a row, 4 in all)" in capsys.readouterr().err
    with open(tmp_path / "metrics" / "train.csv") as file:
        rows = list(csv.DictReader(file))
    assert saved(tmp_path)[-1] == 9 and [int(row["step"]) for row in rows] == list(range(1, 10))


def test_a_run_whose_last_updates_were_skipped_says_so(run, capsys):
    run(poison=(10, 11), **ENDS_BADLY)
    assert "done: 12 updates, the last 2 skipped, in " in capsys.readouterr().err


def test_what_was_good_before_a_run_went_back_is_named(run):
    """Updates 9 and 10 are good by the parameters of checkpoint 8, however bad the data is that comes later."""
    with pytest.raises(UserError, match=r"the run went back 2 times, and again an update had .*start_from=.*@8$"):
        run(poison=range(10, 99), **ENDS_BADLY, train__on_bad_step="rewind")


def test_only_going_back_counts_where_a_run_goes_back(run, capsys):
    """A run that was stopped for bad updates goes on so that it goes back: it has not gone back yet."""
    with pytest.raises(UserError, match="4 updates in a row had"):  # the fourth was on its way
        run(poison=range(6, 10), **ENDS_BADLY)
    run(poison=10, **ENDS_BADLY, train__on_bad_step="rewind")
    assert "rewound to update" in capsys.readouterr().err


def test_the_first_bad_update_may_end_a_run_that_has_not_gone_back(run):
    with pytest.raises(UserError) as error:
        run(poison=5, **ENDS_BADLY | {"train__max_bad_steps": 1}, train__on_bad_step="rewind")
    assert str(error.value).startswith("an update had a loss or gradient that is not finite")
