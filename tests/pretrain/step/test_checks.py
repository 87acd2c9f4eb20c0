"""Configs that contradict themselves: each error names the key."""

import pytest

from configs import common
from models import ModelError
from pretrain.config import load
from pretrain.errors import UserError
from pretrain.step.checks import check_config, check_mesh, check_model
from pretrain.step.train_spec import TrainSpec

TINY = "configs/quickstart.py:tiny"
RECURRENT = "configs/transformer_xl.py:tiny"
SPARSE = "configs/sparse_transformer.py:tiny"
MISTAKES = [  # recipe, override, key in the message
    (TINY, ("evaluate.length", "1024"), "config.evaluate.length=1024"),
    (TINY, ("log.profile", "(100000, 100001)"), "config.log.profile"),
    (TINY, ("evaluate.stopping", "sometimes"), "config.evaluate.stopping"),
    (TINY, ("evaluate.model.width", "32"), "config.evaluate.model"),
    (TINY, ("model.attention_path", "splash"), "splash"),
    (RECURRENT, ("data.layout", "packed"), "config.data.layout"),
    (RECURRENT, ("evaluate.length", "9000"), "config.evaluate.length=9000"),
    (SPARSE, ("data.length", "513"), "config.data.length=513"),
    (SPARSE, ("mesh.sequence", "3"), "config.data.length"),
]


def check(config):
    check_config(config)
    spec = TrainSpec.build_abstract(config)
    check_model(spec.model, config)
    check_mesh(spec, config, training=True)


@pytest.mark.parametrize(("recipe", "override", "key"), MISTAKES, ids=str)
def test_config_mistake(recipe, override, key):
    with pytest.raises((UserError, ModelError)) as caught:
        check(load(recipe, [override]))
    assert key in str(caught.value)


def test_pmap_excludes_mesh_axes():
    config = common.base()
    config.train.backend, config.mesh.tensor = "pmap", 2
    with pytest.raises(UserError):
        TrainSpec.build_abstract(config)


def test_evaluation_may_change_fields_without_parameters():
    config = load(TINY, [("evaluate.model.attention_path", "chunked")])
    assert TrainSpec.build_abstract(config).eval_model.attention_path == "chunked"


@pytest.mark.parametrize("recipe", [TINY, RECURRENT, SPARSE])
def test_recipes_pass(recipe):
    check(load(recipe, []))
