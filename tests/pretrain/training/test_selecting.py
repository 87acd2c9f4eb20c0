"""What selects the best checkpoint may change when a run goes on: it is not what is learned."""

import csv
import json

import pytest
from runs import train_here

from pretrain.checkpoints.checkpoint import Checkpoints

KEYS = {"train__z_loss": 0.1, "checkpoint__keep": 1, "schedule__decay_steps": 8}


@pytest.mark.slow
def test_figures_of_another_term_are_not_compared_with(tmp_path, text, signals, capsys):
    def cost(step):
        return json.loads((tmp_path / "checkpoints" / str(step) / "metrics" / "metrics").read_text())["loss"]

    assert train_here(tmp_path, text, train__steps=4, **KEYS) == 0
    nats = cost(4)
    changed = KEYS | {"train__steps": 8, "evaluate__every": 8}
    assert train_here(tmp_path, text, objective__selects="accuracy", **changed) == 2
    assert "config.objective.selects is 'accuracy'; choose one of: loss, objective" in capsys.readouterr().err
    assert train_here(tmp_path, text, objective__selects="objective", **changed) == 0
    assert "measured in another way than before (config.evaluate, config.objective.selects" in capsys.readouterr().err
    # With the z-loss the objective is larger: compared with it, what the loss selected would stay the best.
    assert cost(8) > nats
    found = Checkpoints(str(tmp_path))
    assert (found.steps(), found.find("best")) == ([8], 8)


@pytest.mark.slow
def test_a_checkpoint_is_scored_again_where_a_run_goes_on_that_measures_in_another_way(tmp_path, text, signals, capsys):
    def scored():
        row, *_ = csv.DictReader((tmp_path / "metrics" / "validation.csv").read_text().splitlines())
        return row["tokens"], row["loss"], Checkpoints(str(tmp_path)).losses()[8]

    rows = []
    for batches, steps in ((1, 8), (2, 8), (2, 9)):
        assert train_here(tmp_path, text, train__steps=steps, evaluate__batches=batches) == 0
        rows.append(scored())
        said = "earlier losses no longer count" in capsys.readouterr().err
        assert said == (len(rows) == 3)
    assert rows[0] == rows[1] and int(rows[2][0]) == 2 * int(rows[0][0]) and rows[0][1:] != rows[2][1:]


@pytest.mark.slow
def test_a_last_validation_that_was_cut_short_is_made_up_in_the_way_of_its_run(tmp_path, text, signals, capsys):
    """Also where all losses that there are were measured before the run went on in another way."""
    options = {"evaluate__every": 0, "checkpoint__keep": 9}
    assert train_here(tmp_path, text, train__steps=8, **options) == 0
    kept = Checkpoints(str(tmp_path))
    for _ in range(2):
        assert train_here(tmp_path, text, train__steps=10, evaluate__batches=2, **options) == 0
        assert sorted(kept.losses()) == [8, 10]
        assert "nothing is measured anew" not in capsys.readouterr().err
        (tmp_path / "checkpoints" / "10" / "metrics" / "metrics").unlink()


@pytest.mark.slow
def test_a_start_that_makes_no_update_leaves_the_best_checkpoint_the_best(tmp_path, text, signals, capsys):
    """Measured in another way, the last one alone had a loss once, and the next start deleted the best."""
    worse = {"optimizer__name": "sgd", "optimizer__b1": 0, "schedule__kind": "constant", "schedule__warmup": 8}
    worse |= {"optimizer__weight_decay": 0, "schedule__peak": 50, "checkpoint__keep": 2, "evaluate__every": 4}
    assert train_here(tmp_path, text, train__steps=12, **worse) == 0
    kept = Checkpoints(str(tmp_path))
    best = kept.best()
    assert best < 12
    rows = (tmp_path / "metrics" / "validation.csv").read_text()
    for last in (12, 8):  # and where the last one's validation was cut short
        capsys.readouterr()
        assert train_here(tmp_path, text, train__steps=12, **worse | {"evaluate__batches": 2}) == 0
        assert "the validation text changed): nothing is measured anew" in capsys.readouterr().err
        assert (tmp_path / "metrics" / "validation.csv").read_text() == rows and max(kept.losses()) == last
        (tmp_path / "checkpoints" / "12" / "metrics" / "metrics").unlink(missing_ok=True)
    assert train_here(tmp_path, text, train__steps=14, **worse | {"checkpoint__every": 1}) == 0
    assert "earlier losses no longer count" not in capsys.readouterr().err
    assert kept.best() == best


def test_a_start_that_makes_no_update_changes_nothing_of_the_run(tmp_path, text, signals, capsys):
    """Its length of the schedule once became the run's, by which the next start trained without a word."""
    assert train_here(tmp_path, text, train__steps=8) == 0
    before = (tmp_path / "config.json").read_text()
    assert train_here(tmp_path, text, train__steps=8, schedule__decay_steps=500) == 0
    assert (tmp_path / "config.json").read_text() == before
    capsys.readouterr()
    assert train_here(tmp_path, text, train__steps=9, schedule__decay_steps=500) == 0
    assert "config.schedule.decay_steps makes the schedule 500 updates long, which was 8" in capsys.readouterr().err
