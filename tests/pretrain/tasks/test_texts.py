"""Tasks whose answers are texts: losses against Transformers and by hand, decoded answers, and whole runs."""

import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from test_runs import read_params, records
from updates import GRADIENT, ragged, small

from configs import common
from input_pipeline import corruption
from input_pipeline.batch_spec import declared, empty
from input_pipeline.tokenizers.base import Bytes
from pretrain import cli
from pretrain.decoding.sampling import generate
from pretrain.evaluation import decoded
from pretrain.interop import families
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec

END, LENGTH = 256, 40
PAIRS = [("ab:", " cd"), ("what is it?", " a dog"), ("x", "")]
RECIPE = """
from configs import common

def get_config(variant=""):
    config = common.base()
    config.name = "task"
    config.model = common.{model}()
    config.model.update(vocab_size=300, context=64, layers=1, width=32, heads=2, ff=64, dtype="float32", head_size=16)
    config.tokenizer.kind = "bytes"
    config.objective = common.{kind}()
    config.objective.update(inputs="{{text}} :", targets=" {{label:bad|good}}", labels=(), target_length=8)
    config.objective.update(metrics=("accuracy", "invalid"), selects="accuracy", {keys})
    config.data.update(train="jsonl:train.jsonl", validation="jsonl:dev.jsonl", layout="packed_examples", length=48)
    config.model.update({{name: 0.0 for name in config.model if name.startswith("dropout")}})
    config.train.update(steps=100, batch_size=16)
    config.schedule.update(peak=1e-2, warmup=5)
    config.evaluate.update(every=50, batch_size=8)
    config.checkpoint.every = 50
    return config
"""
KINDS = {"text": ("encoder_decoder", ""), "causal": ("decoder", 'loss_on="targets"')}


def prompts_config(**keys):
    """A config of prompts and answers for a small GPT-2 that reads bytes."""
    config = common.base()
    config.model.update(vocab_size=257, context=64, layers=2, width=20, heads=4, ff=36, dtype="float32")
    config.model.update({name: 0.0 for name in config.model if name.startswith("dropout")})
    config.objective.update(inputs="q", targets="a", **keys)
    config.data.update(layout="packed_examples", length=LENGTH)
    config.mesh.data = 1
    return config


def rows_of(config, groups):
    task = corruption.build(config.objective.to_dict(), Bytes())
    batch = empty(declared(task, len(groups), LENGTH, "packed_examples")) | {"row": np.arange(len(groups))}
    found = [[task.read({"q": q, "a": a})[0] for q, a in group] for group in groups]
    task.write_rows(batch, np.arange(len(groups)), found)
    return batch


@pytest.mark.oracle
@pytest.mark.parametrize("loss_on", ["targets", "all"])
def test_loss_equals_gpt2_with_labels_of_the_answers(loss_on):
    """Transformers reads each example alone with labels of -100 on its prompt; here two of them share a row."""
    torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    config, pairs = prompts_config(loss_on=loss_on), PAIRS[:2]
    sizes = {"n_layer": 2, "n_embd": 20, "n_head": 4, "n_inner": 36, "vocab_size": 257, "n_positions": 64}
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    table = families.weight_map(families.FAMILIES["gpt2"], config.model.to_dict())
    arrays = {name: one.detach().numpy() for name, one in module.named_parameters()}
    sources = table.arrays(arrays.__getitem__)
    params = unflatten_dict({path: jnp.float32(source.make()) for path, source in sources.items()}, sep="/")

    theirs, count = 0.0, 0
    for question, answer in pairs:
        ids = np.array([[END, *question.encode(), *answer.encode(), END]])
        labels = ids.copy()
        if loss_on == "targets":
            labels[:, : 1 + len(question)] = -100
        scored = len(answer) + 1 + len(question) * (loss_on == "all")
        theirs += scored * module(torch.tensor(ids), labels=torch.tensor(labels)).loss.item()
        count += scored
    spec, batch = TrainSpec.build_abstract(config), rows_of(config, [pairs])
    model = BoundModel(spec.model, params, spec.inputs)
    sums, _ = jax.jit(lambda batch: spec.objective.score(model, batch, {}, None))(batch)
    # By hand: the letters of the answers, and an end for each.
    assert spec.objective.denominators(batch)["loss"] == count == {"targets": 11, "all": 25}[loss_on]
    np.testing.assert_allclose(sums["loss"], theirs, rtol=1e-5)


def test_decoded_answers_equal_those_of_each_prompt_alone():
    """Prompts of different lengths in one batch, one of them cut to leave room; rows of padding write nothing."""
    config = prompts_config(metrics=("exact_match",), target_length=30)
    config.model.context = LENGTH
    spec = TrainSpec.build(config, jax.devices()[:1])
    shapes, draw = spec.param_shapes, np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.8 * draw.standard_normal(leaf.shape), leaf.dtype), shapes)
    batch = rows_of(config, [[pair] for pair in PAIRS] + [[]])
    run = SimpleNamespace(spec=spec, config=config, corpus=SimpleNamespace(tokenizer=Bytes()))
    found = decoded._write(run, params, batch, 4)
    for row, (question, _) in zip(found, PAIRS, strict=False):
        ids = [*question.encode()]
        prompt = np.array([END, *ids[max(0, len(ids) - 10) :]])  # 40 + 1 - 30 tokens, of which one begins the row
        ((alone, _),) = generate(
            spec.eval_model, params, [prompt], temperature=0, max_tokens=30, end_id=END, vocabulary=257
        )
        assert row[row >= 0].tolist() == alone.tolist()
    assert (found[3] == -1).all()


def test_classes_and_text_of_a_row():
    """GPT's auxiliary loss: both terms and their gradients, against plain formulas."""
    changes = {"objective__labels": ("a", "b"), "objective__lm_weight": 0.5, "data__layout": "examples"}
    config = small("tagging", **GRADIENT)
    config.objective = common.classification()
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    spec = TrainSpec.build_abstract(config)
    batch, draw = ragged(spec, 1), np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * draw.standard_normal(x.shape), x.dtype), spec.param_shapes)
    model = BoundModel(spec.model, params, spec.inputs)
    sums, outputs, _ = jax.jit(lambda batch: spec.objective.evaluate(model, batch, {}))(batch)
    hidden = spec.model.apply({"params": params}, batch["tokens"]).hidden
    log_p = jax.nn.log_softmax(spec.model.apply({"params": params}, hidden, method="logits"))
    nats, count = 0.0, 0
    for row, (ids, real) in enumerate(zip(batch["tokens"], batch["segments"] > 0, strict=True)):
        for place in range(1, real.sum()):
            nats, count = nats - log_p[row, place - 1, ids[place]], count + 1
    assert spec.objective.terms == {"label": 1.0, "lm": 0.5}
    assert spec.objective.denominators(batch) == {"label": batch["weights"].sum(), "lm": count}
    np.testing.assert_allclose(sums["lm"], nats, rtol=1e-5)
    labels = jax.nn.log_softmax(outputs["logits"])[np.arange(len(hidden)), batch["labels"]]
    np.testing.assert_allclose(sums["label"], -(labels * batch["weights"]).sum(), rtol=1e-5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, number in (("train", 200), ("dev", 20)):
        lines = [
            json.dumps(record | {"label": place % 2}) + "\n" for place, record in enumerate(records(number, number))
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def recipe(folder, kind):
    model, keys = KINDS[kind]
    (folder / "recipe.py").write_text(RECIPE.format(model=model, kind=kind, keys=keys))
    return ["train", "--config=recipe.py", "--workdir=run"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_run_is_scored_and_resumes(kind, folder, capsys):
    pytest.importorskip("sacrebleu")
    assert cli.main([*recipe(folder, kind), "--config.objective.metrics=('accuracy', 'invalid', 'chrf')"]) == 0
    shutil.copytree("run", "again")
    shutil.rmtree("again/checkpoints/100")
    assert cli.main(["train", "--workdir=again"]) == 0
    one, other = (read_params(name) for name in ("run", "again"))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    capsys.readouterr()
    assert cli.main(["evaluate", "--workdir=run", "--predictions=out.jsonl", "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["label"].strip() for row in rows] == ["bad", "good"] * 10
    assert scores["accuracy"] == np.mean([row["prediction"] == row["label"].strip() for row in rows]) > 0.9
    assert scores["chrf_signature"].startswith("nrefs:1|") and scores["examples"] == 20
    assert scores["tokens"] == sum(len(row["label"]) + 1 for row in rows)
    assert (
        cli.main(["generate", "--workdir=run", "--prompt=a fine film, 3 :", "--temperature=0", "--max_tokens=8"]) == 0
    )
    assert "good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        ("text", ["--config.objective.inputs={body}"], "no usable field 'body'"),
        ("text", ["--config.objective.targets={label:bad}"], "label '1' is none of {label:bad}"),
        ("causal", ["--config.objective.targets=label"], "config.objective.labels"),
        ("causal", ["--config.objective.targets={answer}", "--config.objective.metrics=()"], "objective.targets"),
        ("causal", ["--config.objective.target_length=64"], "config.objective.target_length=64"),
        ("causal", ["--config.objective.inputs="], "data.layout=packed_examples"),
    ],
)
def test_mistakes_end_before_training(kind, keys, problem, folder, capsys):
    keys += ["--config.objective.selects=loss"] if "--config.objective.metrics=()" in keys else []
    assert cli.main([*recipe(folder, kind), *keys]) == 2
    error = capsys.readouterr().err
    assert problem in error and "Traceback" not in error
