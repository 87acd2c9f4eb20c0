"""Learners: one for every objective, with a valid config, and their baselines."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import learnt
from pretrain import config as configs
from pretrain.step.checks import check_config

PARALLEL = "parallel:train.{}?fields=en,de"


def test_every_objective_has_a_learner(tmp_path):
    kinds = set()
    for name, learner in learnt.LEARNERS.items():
        text = PARALLEL if learner.parallel else "stdlib"
        recipe, keys = learnt.build_config(name, text, tmp_path, 10)
        config = configs.load(recipe, list(keys.items()))
        check_config(config)
        kinds.add(config.objective.kind + "-languages" * bool(learner.parallel and config.objective.languages))
    assert kinds == {"masked", "masked-languages", "replaced", "spans", "permutation", "denoising"}


@pytest.mark.parametrize(("feature", "share"), [("targets", 0.6), ("inputs", 0.2)])
def test_baseline(feature, share, monkeypatch, tmp_path):
    batch = {
        "inputs": np.array([[7, 8, 9, 9], [9, 2, 3, 3]]),
        "targets": np.array([[7, 7, 7, 1], [9, 4, 3, 3]]),
        "weights": np.array([[1, 1, 1, 1], [0, 1, 0, 0]]),
    }
    section = SimpleNamespace(to_dict=dict, length=4)
    monkeypatch.setattr(
        learnt.configs, "saved", lambda _: SimpleNamespace(data=section, tokenizer=section, objective=section)
    )
    corpus = SimpleNamespace(evaluation=lambda *_, **__: SimpleNamespace(batches=lambda: [batch]))
    monkeypatch.setattr(learnt.pipeline, "prepare", lambda *_, **__: corpus)
    assert learnt.baseline(tmp_path, feature) == pytest.approx(share)
