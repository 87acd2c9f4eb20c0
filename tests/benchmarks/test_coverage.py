"""Benchmarks cover every kind of model, objective, layout and fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import learnt, pods
from benchmarks.faults import FAULTS
from configs import common
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from pretrain import config as configs
from pretrain import losses
from pretrain.losses.examples import ExampleObjective
from pretrain.losses.seq2seq import TextToText
from pretrain.step.checks import check_config
from pretrain.step.train_spec import TrainSpec

CONFIGS = {model: pods.config_of(model, {}) for model in (*pods.MODELS, *pods.FAMILIES)}
SAME_DECODER = ("xla", "chunked")  # dense models, which decode as `splash` does


def test_programs_cover_every_kind():
    assert {config.model.kind for config in CONFIGS.values()} == {*common.MODELS}
    # Tasks run the programs of their model, with another head.
    of_tasks = ExampleObjective, TextToText
    tasks = {kind for kind, objective in losses.OBJECTIVES.items() if issubclass(objective, of_tasks)}
    assert {config.objective.kind for config in CONFIGS.values()} == {*common.OBJECTIVES} - tasks
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
    with pytest.raises(ModelError):
        TrainSpec.build_abstract(CONFIGS[model]).model.init_cache(1, 1)


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


ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(FAULTS)
GROUPS = [NAMES[group::4] for group in range(4)]  # each group costs one undisturbed job


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_faults_end_with_the_same_bits(names, tmp_path):
    options = [f"--only={','.join(names)}", "--trials=1", "--format=json"]
    command = [sys.executable, "-m", "benchmarks.faults", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"]: row["value"] for row in rows} == dict.fromkeys(names, 1)
