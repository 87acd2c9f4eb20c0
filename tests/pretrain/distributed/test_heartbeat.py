"""The watchdog of one process; peers that die are in test_processes.py."""

import contextlib
import time

import pytest

from pretrain.distributed import heartbeat
from pretrain.distributed.heartbeat import Watchdog
from pretrain.distributed.shutdown import FAULT
from pretrain.metrics.progress import Ledger


@pytest.fixture
def watch(monkeypatch, capfd):
    """`watch(ledger, patience)`: the exits of a watchdog within half a second, during which the ledger stands."""
    monkeypatch.setattr(heartbeat, "LOOK", 0.01)

    def run(ledger, patience):
        exits = []
        with contextlib.closing(Watchdog(patience, ledger, lambda code, message: exits.append((code, message)))):
            time.sleep(0.5)
        return exits, capfd.readouterr().err

    return run


def ledger_at(category, steady=True):
    ledger = Ledger()
    ledger.steady, ledger.turns, ledger.category = steady, 1, category
    return ledger


def test_watchdog_ends_a_hung_process(watch):
    exits, err = watch(ledger_at("data"), 0.1)
    ((code, message),) = exits
    assert code == FAULT and "config.train.patience=0.1" in message
    assert "test_heartbeat.py" in err  # all stacks


@pytest.mark.parametrize(
    ("ledger", "patience"),
    [
        (ledger_at("step"), 0.0),  # no limit
        (ledger_at("compile"), 0.1),  # six times the limit
        (ledger_at("data", steady=False), 0.1),  # the first update too
        (Ledger(), 0.1),  # preparing
    ],
)
def test_watchdog_waits(watch, ledger, patience):
    assert watch(ledger, patience)[0] == []
