"""The programs for four chips cover every kind of model, objective and layout."""

import pytest

from benchmarks import pods
from configs import common
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from pretrain.step.train_spec import TrainSpec

CONFIGS = {model: pods.config_of(model, {}) for model in (*pods.MODELS, *pods.FAMILIES)}
SAME_DECODER = ("xla", "chunked")  # dense models, which decode as `splash` does


def test_programs_cover_every_kind():
    assert {config.model.kind for config in CONFIGS.values()} == {*common.MODELS}
    assert {config.objective.kind for config in CONFIGS.values()} == {*common.OBJECTIVES}
    words = [word for config in CONFIGS.values() for word in config.model.get("attention", ())]
    patterns = {type(parse_pattern(word)) for word in words}
    assert patterns == {type(parse_pattern(word)) for word in ("dense", "local_8", "strided_8", "fixed_8_2")}


def test_programs_cover_every_layout():
    layouts = [{"data": 4}, {"fsdp": 4}, {"sequence": 4}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}]
    for model in CONFIGS:
        for layout in layouts:
            assert {pods.name_of(model, layout, task) for task in ("step", "evaluation")} <= pods.PROGRAMS.keys()
            decoding = {pods.name_of(model, layout, task) for task in ("prompt", "decoding")}
            assert decoding <= pods.PROGRAMS.keys() or model not in pods.DECODED + pods.WRITING


@pytest.mark.parametrize("model", [m for m in CONFIGS if m not in pods.DECODED + pods.WRITING + SAME_DECODER])
def test_models_without_decoding_programs_refuse_to_decode(model):
    with pytest.raises(ModelError, match="Train a decoder"):
        TrainSpec.build_abstract(CONFIGS[model]).model.init_cache(1, 1)
