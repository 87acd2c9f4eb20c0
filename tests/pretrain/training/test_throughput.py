"""Rates measure training alone; a trace covers the updates that it names, however the run comes to them."""

import jax
import pytest
from runs import train_here

from pretrain import config as configs
from pretrain.costs.flops import flops_per_token
from pretrain.step.train_spec import TrainSpec
from pretrain.training.throughput import Throughput


class Seconds:
    """A ledger that is told what it holds."""

    def __init__(self):
        self.held = dict.fromkeys(("step", "data", "save", "evaluate", "compile", "other"), 0.0)

    def add(self, **seconds):
        for category, value in seconds.items():
            self.held[category] += value

    def seconds(self):
        return dict(self.held)


def test_throughput_counts_training_alone():
    config, ledger = configs.load("configs/quickstart.py:tiny", [("log.peak_flops", "1e12")]), Seconds()
    rates = Throughput(TrainSpec.build_abstract(config), config.data.length, config.log.peak_flops, ledger)
    assert rates.read() == {}
    ledger.add(compile=30.0, data=5.0)
    rates.count(512)  # the update that compiled
    assert rates.read() == {}
    ledger.add(step=3.0, data=1.0, evaluate=50.0, save=7.0, other=2.0)
    rates.count(512)
    rates.count(512)
    read = rates.read()
    assert read["tokens_per_second"] == 256
    assert read["data_wait"] == 0.25
    assert read["mfu"] == pytest.approx(
        256 * flops_per_token(TrainSpec.build_abstract(config), 64)["full"] / (1e12 * jax.device_count())
    )
    assert rates.read() == {}


def test_throughput_of_steps_that_are_done_early():
    """On a CPU the next update is done too by the time that the last one's metrics are read."""
    config = configs.load("configs/quickstart.py:tiny")
    ledger = Seconds()
    rates = Throughput(TrainSpec.build_abstract(config), config.data.length, config.log.peak_flops, ledger)
    ends = []
    for _ in range(4):
        ledger.add(step=2.0)
        ends.append(ledger.seconds())
    rates.count(512, ends[0])
    for end in ends[1:]:
        rates.count(512, end)
        assert rates.read()["tokens_per_second"] == 256


@pytest.mark.slow
def test_profiler_of_resumed_run(tmp_path, text):
    options = {"evaluate__every": 0, "schedule__warmup": 2, "log__profile": "(3, 6)"}
    for steps in (4, 6):
        assert train_here(tmp_path, text, train__steps=steps, **options) == 0
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 2
