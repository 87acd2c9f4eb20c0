"""What is compiled for four absent chips leaves nothing out: a kind that is new is given a row, a row all its cells."""

import pytest

from benchmarks import pods
from configs import common
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from pretrain.step.train_spec import TrainSpec

CONFIGS = {model: pods.config_of(model, {}) for model in (*pods.MODELS, *pods.FAMILIES)}
AS_SPLASH = ("xla", "chunked")  # dense models, which decode alike whatever path trains them


def test_every_kind_has_a_row():
    assert {config.model.kind for config in CONFIGS.values()} == {*common.MODELS}
    assert {config.objective.kind for config in CONFIGS.values()} == {*common.OBJECTIVES}
    words = [word for config in CONFIGS.values() for word in config.model.get("attention", ())]
    patterns = {type(parse_pattern(word)) for word in words}
    assert patterns == {type(parse_pattern(word)) for word in ("dense", "local_8", "strided_8", "fixed_8_2")}


def test_every_row_has_all_layouts():
    layouts = [{"data": 4}, {"fsdp": 4}, {"sequence": 4}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}]
    for model in CONFIGS:
        for layout in layouts:
            assert {pods.name_of(model, layout, task) for task in ("step", "evaluation")} <= pods.PROGRAMS.keys()
            decoding = {pods.name_of(model, layout, task) for task in ("prompt", "decoding")}
            assert decoding <= pods.PROGRAMS.keys() or model not in pods.DECODED + pods.WRITING


@pytest.mark.parametrize("model", [m for m in CONFIGS if m not in pods.DECODED + pods.WRITING + AS_SPLASH])
def test_what_is_not_decoded_cannot_be(model):
    with pytest.raises(ModelError, match="Train a decoder"):
        TrainSpec.build_abstract(CONFIGS[model]).model.init_cache(1, 1)
