"""Configs whose objective, model and teacher do not go together: each error names the key."""

import pytest
from updates import small

from configs import common
from pretrain.errors import UserError
from pretrain.step.train_spec import TrainSpec

XLM = {"model__types": 0, "model__languages": 3, "objective__next_sentence": False, "objective__languages": True}
XLM |= {"data__languages": ("en", "fr"), "data__layout": "concat", "data__sentences": ""}
TEACHER = {"distill__teacher": "runs/teacher", "objective__next_sentence": False, "data__layout": "packed"}
MISTAKES = [  # objective, changes, key in the message
    ("permutation", {"model__reuse": 4}, "config.model.reuse=4"),
    ("permutation", {"train__z_loss": 0.1}, "config.train.z_loss=0.1"),
    ("masked", {"model__pair_head": False}, "config.model.pair_head"),
    ("masked", {"model__types": 1}, "config.model.types"),
    ("masked", XLM | {"model__languages": 1}, "config.model.languages=1"),
    ("masked", XLM | {"objective__languages": False}, "config.objective.languages=False"),
    ("replaced", {"train__label_smoothing": 0.1}, "config.train.label_smoothing=0.1"),
    ("replaced", {"objective__selects": "found"}, "config.objective.selects"),
    ("masked", TEACHER | {"distill__layers": (0, 1)}, "config.distill.layers"),
    ("masked", TEACHER | {"distill__model": {"vocab_size": 9}}, "config.model.vocab_size"),
    ("masked", TEACHER | {"distill__model": {"width": 8}}, "config.model.width"),
    ("masked", TEACHER | {"distill__model": {"context": 8}}, "config.distill.teacher"),
    ("masked", {"distill__layers": (0, 1)}, "config.distill.teacher"),
    ("masked", TEACHER | {"train__start_from": "x", "distill__layers": (0,)}, "config.train.start_from"),
    ("spans", {"distill__teacher": "runs/teacher"}, "config.distill.teacher"),
]
PAIRS = [  # objective, model
    ("causal", "encoder"),
    ("masked", "decoder"),
    ("masked", "two_stream"),
    ("spans", "decoder"),
    ("permutation", "encoder"),
    ("replaced", "encoder"),
]


@pytest.mark.parametrize(("kind", "changes", "key"), MISTAKES)
def test_objective_mistake(kind, changes, key):
    with pytest.raises(UserError) as caught:
        TrainSpec.build_abstract(small(kind, **changes))
    assert key in str(caught.value)


@pytest.mark.parametrize(("objective", "model"), PAIRS)
def test_objective_does_not_serve_model(objective, model):
    config = common.base()
    config.model, config.objective = common.MODELS[model](), common.OBJECTIVES[objective]()
    with pytest.raises(UserError):
        TrainSpec.build_abstract(config)


def test_bidirectional_decoder_predicts_masked_tokens():
    config = small("masked", objective__next_sentence=False, data__layout="concat")
    config.model = common.decoder()
    config.model.bidirectional = True
    assert TrainSpec.build_abstract(config).inputs == ("tokens", "positions", "segments")


def test_adaptive_softmax_excludes_smoothing():
    config = common.base()
    config.model = common.recurrent()
    config.model.cutoffs, config.train.z_loss = (5, 11), 0.1
    with pytest.raises(UserError):
        TrainSpec.build_abstract(config)
