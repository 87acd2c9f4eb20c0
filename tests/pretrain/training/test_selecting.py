"""What selects the best checkpoint may change when a run goes on: it is not what is learned."""

import json

import pytest
from runs import train_here

from pretrain.checkpoints.restore import Checkpoints

KEYS = {"train__z_loss": 0.1, "checkpoint__keep": 1, "schedule__decay_steps": 8}


@pytest.mark.slow
def test_losses_of_another_term_are_not_compared(tmp_path, text, signals):
    def cost(step):
        return json.loads((tmp_path / "checkpoints" / str(step) / "metrics" / "metrics").read_text())["loss"]

    assert train_here(tmp_path, text, train__steps=4, **KEYS) == 0
    nats = cost(4)
    changed = KEYS | {"train__steps": 8, "evaluate__every": 8}
    assert train_here(tmp_path, text, objective__selects="accuracy", **changed) == 2
    assert train_here(tmp_path, text, objective__selects="objective", **changed) == 0
    # With the z-loss the objective is larger: compared with it, what the loss selected would stay the best.
    assert cost(8) > nats
    found = Checkpoints(str(tmp_path))
    assert (found.steps(), found.find("best")) == ([8], 8)
