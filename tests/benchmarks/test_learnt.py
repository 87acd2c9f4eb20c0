"""Learners: one for every objective, with a valid config."""

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
