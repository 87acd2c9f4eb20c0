"""A task from its records to the figure: training, resuming, scoring and predictions, by configs alone."""

import csv
import json
import shutil

import jax
import numpy as np
import pytest
from runs import mostly

import pretrain
from pretrain import cli

WORDS = {"good": ("fine", "great", "lovely"), "bad": ("awful", "dull", "poor")}
RECIPE = """
from configs import common

def get_config(variant=""):
    config = common.base()
    config.name = "task"
    config.model = common.{model}()
    config.model.update(vocab_size=300, context=64, layers=1, width=32, heads=2, ff=64, dtype="float32")
    config.tokenizer.kind = "bytes"
    config.objective = common.{kind}()
    config.objective.update({objective})
    config.data.update(train="jsonl:train.jsonl", validation="jsonl:dev.jsonl", layout="examples", length=48)
    config.data.buckets = (32,)
    config.train.update(steps=60, batch_size=16)
    config.schedule.update(peak=1e-2, warmup=5)
    config.optimizer.clip = 1.0
    config.evaluate.update(every=30, batch_size=20)
    config.checkpoint.every = 30
    return config
"""
OBJECTIVES = {
    "classification": 'texts=("text",), labels=("bad", "good")',
    "regression": 'texts=("text",), label="score", metrics=("pearson",)',
    "choice": 'text="question", choices=("one", "two"), label="right"',
    "extraction": "question=16, stride=12, max_answer=8, best=5",
    "siamese": 'texts=("text", "question"), label="score", highest=1.0, metrics=("pearson",), selects="pearson"',
    "tagging": 'labels=("O", "B-GOOD", "I-GOOD", "B-BAD"), metrics=("span_f1", "accuracy")',
}


def records(number, seed):
    draw = np.random.default_rng(seed)
    for one in range(number):
        label = ("bad", "good")[one % 2]
        pick = {name: str(draw.choice(words)) for name, words in WORDS.items()}
        right = int(draw.integers(2))
        choices = [pick["good"], pick["bad"]][:: -1 if right else 1]
        yield {
            "text": f"a {pick[label]} film, {draw.integers(100)}",
            "label": label,
            "score": float(label == "good"),
            "question": "which is good?",
            "one": choices[0],
            "two": choices[1],
            "right": right,
            "context": (context := f"By day {draw.integers(100)} a {pick['good']} film, and then a {pick['bad']} end."),
            "answers": {"text": [pick["good"]], "answer_start": [context.index(pick["good"])]},
            "words": ["a", "really", pick["good"], "one", "and", pick["bad"]],
            "tags": ["O", "B-GOOD", "I-GOOD", "O", "O", "B-BAD"],
        }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, number in (("train", 200), ("dev", 50)):
        lines = [json.dumps(record) + "\n" for record in records(number, number)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def recipe(folder, kind, model="encoder", **objective):
    more = "".join(f", {name}={value!r}" for name, value in objective.items())
    text = RECIPE.format(model=model, kind=kind, objective=OBJECTIVES[kind] + more)
    (folder / "recipe.py").write_text(text)
    return ["train", "--config=recipe.py", "--workdir=run"]


@pytest.mark.parametrize("kind", mostly((*OBJECTIVES, "joint"), "regression", "choice", "siamese", "joint"))
def test_task_is_learned_and_scored(kind, folder, capsys):
    kind, more = ("extraction", {"joint": True}) if kind == "joint" else (kind, {})
    assert cli.main(recipe(folder, kind, **more)) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "--workdir=run", "--predictions=out.jsonl", "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["record"] for row in rows] == list(records(50, 50))
    assert scores["examples"] == len(rows) == 50
    if kind in ("regression", "siamese"):
        values = np.array([(row["prediction"], row["label"]) for row in rows])
        assert scores["pearson"] == pytest.approx(np.corrcoef(values.T)[0, 1])
        assert scores["loss"] == pytest.approx(np.mean((values[:, 0] - values[:, 1]) ** 2), rel=1e-4)
        assert scores["pearson"] > 0.8
    elif kind == "extraction":
        assert min(len(row["record"]["context"]) for row in rows) > 34  # bytes that a window holds
        assert scores["exact"] == np.mean([row["prediction"] == row["label"][0] for row in rows]) > 0.9
        best = [[one["score"] for one in row["answers"]] for row in rows]
        assert all(some == sorted(some, reverse=True) and len(some) == 5 for some in best)
    elif kind == "tagging":
        right = [a == b for row in rows for a, b in zip(row["prediction"], row["label"], strict=True)]
        assert scores["accuracy"] == pytest.approx(np.mean(right)) and np.mean(right) > 0.9
        assert scores["span_f1"] > 0.9
    else:
        assert scores["accuracy"] == np.mean([row["prediction"] == row["label"] for row in rows]) > 0.9
        nats = [-np.log(row["scores"][row["label"]]) for row in rows]
        assert scores["loss"] == pytest.approx(np.mean(nats), abs=1e-4)


def test_several_sources_scored_as_a_task(whole, folder, capsys):
    """A decoder that was trained on text alone: equal texts are nearest, texts in reverse order only in the middle."""
    recipe(folder, "siamese")
    keys = 'loss="ranking", texts=("source", "target"), metrics=("retrieval", "retrieval_back"), selects="retrieval"'
    text = (folder / "recipe.py").read_text()
    (folder / "recipe.py").write_text(text.replace("return", f"config.objective.update({keys})\n    return"))
    lines = [f"number {n} of all" for n in "12345"]
    for name, found in {"one.en": lines, "one.de": lines, "other.en": lines, "other.de": lines[::-1]}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in found))
    data = [f"--data={name}:parallel:{name}.{{}}?fields=en,de" for name in ("one", "other")]
    command = ["evaluate", f"--workdir={whole}", "--task=recipe.py", "--predictions=p.jsonl", *data]
    assert cli.main([*command, "--format=json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("retrieval", "retrieval_back"):
        assert [result["data"][one][name] for one in ("one", "other")] == [1.0, pytest.approx(0.2)]
        assert result["mean"][name] == pytest.approx(0.6) and result["gap"][name] == pytest.approx(0.8)
    assert cli.main(command) == 0
    table = capsys.readouterr().out
    assert "all 5 examples" in table and all(name in table for name in ("other", "mean", "gap of one", "0.6000"))
    rows = [json.loads(line) for line in (folder / "p.other.jsonl").read_text().splitlines()]
    assert [row["record"] for row in rows] == [
        {"source": a, "target": b} for a, b in zip(lines, lines[::-1], strict=True)
    ]
    assert cli.main([*command, "--data=one:parallel:other.{}?fields=en,de"]) == 2
    assert "twice" in capsys.readouterr().err
    # A task with a head that the checkpoint lacks.
    (folder / "recipe.py").write_text(text.replace('label="score"', 'loss="softmax", labels=("bad", "good")'))
    assert cli.main([*command[:3], "--data=jsonl:dev.jsonl"]) == 2
    assert "task_head/out/kernel is absent" in capsys.readouterr().err


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [(), ("loss=softmax", "labels=('0.0','1.0')", "metrics=('accuracy',)", "selects=loss")]
)
def test_exported_embeddings_as_in_transformers(more, folder):
    """Cosines of means of the hidden states that Transformers' base class has, with or without a head here."""
    transformers = pytest.importorskip("transformers", reason="needs the extra oracle")
    keys = ["tokenizer.kind=wordpiece", "tokenizer.vocab_size=200", "train.steps=2", "schedule.warmup=0"]
    keys += [f"objective.{key}" for key in more]
    command = recipe(folder, "siamese")
    assert cli.main([*command, *(f"--config.{key}" for key in keys)]) == 0
    assert cli.main(["export", "--workdir=run", "--folder=out"]) == 0
    options = ["--task=recipe.py", "--data=jsonl:dev.jsonl", "--predictions=out.jsonl"]
    assert cli.main(["evaluate", "--workdir=run", *options]) == 0
    found = [json.loads(line)["prediction"] for line in (folder / "out.jsonl").read_text().splitlines()]
    model, tokenizer = (getattr(transformers, f"Auto{part}").from_pretrained("out") for part in ("Model", "Tokenizer"))
    assert type(model).__name__ == "BertModel" and (folder / "out" / "1_Pooling" / "config.json").is_file()
    sides = []
    for name in ("text", "question"):
        read = tokenizer([row[name] for row in records(50, 50)], padding=True, return_tensors="pt")
        mask = read["attention_mask"][..., None]
        pooled = ((model.eval()(**read).last_hidden_state * mask).sum(1) / mask.sum(1)).detach().numpy()
        sides.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
    np.testing.assert_allclose(found, (sides[0] * sides[1]).sum(1), atol=1e-5)


@pytest.mark.slow
def test_questions_without_an_answer_in_squad_files(folder, capsys):
    """Half of the questions ask for a film that the text lacks."""
    for name, number in (("train", 300), ("dev", 50)):
        questions = []
        for one, record in enumerate(records(number, number)):
            qas = {"id": str(one), "question": "good film?" if one % 2 else "book?"}
            texts, places = record["answers"]["text"], record["answers"]["answer_start"]
            pairs = [{"text": text, "answer_start": place} for text, place in zip(texts, places, strict=True)]
            qas |= {"answers": pairs * (one % 2), "is_impossible": one % 2 == 0}
            questions.append({"context": record["context"], "qas": [qas]})
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": questions}]}))
    metrics = ("exact", "HasAns_exact", "NoAns_exact", "best_exact", "best_exact_thresh")
    keys = [f"--config.data.{split}=squad:{name}.json" for split, name in (("train", "train"), ("validation", "dev"))]
    command = recipe(folder, "extraction", no_answer=True, metrics=metrics, selects="best_exact")
    assert cli.main([*command, *keys, "--config.train.steps=120", "--config.schedule.decay_steps=120"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "--workdir=run", "--predictions=out.jsonl", "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    right = [row["prediction"] in (row["label"] or [""]) for row in rows]
    assert scores["exact"] == np.mean(right) and scores["best_exact"] >= scores["exact"] > 0.9
    assert scores["NoAns_exact"] == np.mean([one for one, row in zip(right, rows, strict=True) if not row["label"]])
    assert all((row["prediction"] == "") == (row["no_answer"] > 0) for row in rows)


@pytest.mark.parametrize("kind", mostly(("classification", "regression", "siamese"), "siamese"))
def test_examples_without_labels_are_predicted(kind, folder, capsys):
    assert cli.main([*recipe(folder, kind), "--config.train.steps=2", "--config.schedule.warmup=0"]) == 0
    rows = {"text": "a fine film", "question": "a"}, {"text": "a dull one", "question": "b", "label": "", "score": ""}
    (folder / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["evaluate", "--workdir=run", "--data=jsonl:new.jsonl"]) == 2
    assert "--predictions" in capsys.readouterr().err
    assert cli.main(["evaluate", "--workdir=run", "--data=jsonl:new.jsonl", "--predictions=out.jsonl"]) == 0
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [None, None]
    assert all(
        row["prediction"] in ("bad", "good") if kind == "classification" else 0 <= abs(row["prediction"]) < 9
        for row in rows
    )


def test_predictions_are_of_tasks(whole, capsys):
    assert cli.main(["evaluate", f"--workdir={whole}", "--predictions=out.jsonl"]) == 2
    assert "--predictions" in capsys.readouterr().err


def test_describe_names_what_selects(folder, capsys):
    assert cli.main([*recipe(folder, "classification"), "--config.train.steps=2", "--config.schedule.warmup=0"]) == 0
    capsys.readouterr()
    assert cli.main(["describe", "--workdir=run"]) == 0
    (row,) = csv.DictReader((folder / "run" / "metrics" / "validation.csv").read_text().splitlines())
    assert f"validation accuracy {100 * float(row['accuracy']):.1f} %" in capsys.readouterr().out


def test_pairs_of_a_model_with_one_type(folder):
    """As RoBERTa: the second text has the type of the first. A loss that is not finite would end the run."""
    keys = ["--config.model.types=1", "--config.objective.texts=('text', 'question')", "--config.train.steps=2"]
    keys += ["--config.train.max_bad_steps=1", "--config.schedule.warmup=0"]
    assert cli.main([*recipe(folder, "classification"), *keys]) == 0


@pytest.mark.parametrize("kind", mostly(("classification", "extraction", "siamese"), "extraction", "siamese"))
def test_resumed_run_equals_the_uninterrupted_one(kind, folder):
    command = recipe(folder, kind)
    keys = ["--config.train.steps=20", "--config.checkpoint.every=10", "--config.schedule.decay_steps=20"]
    if kind != "extraction":  # whose records are fewer
        keys += ["--config.data.examples=60", f"--config.data.balanced={kind == 'classification'}"]
    assert cli.main([*command, *keys]) == 0
    shutil.copytree("run", "again")
    shutil.rmtree("again/checkpoints/20")
    assert cli.main(["train", "--workdir=again"]) == 0
    one, other = (read_params(name) for name in ("run", "again"))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def read_params(workdir):
    variables = pretrain.open(workdir).variables
    return {str(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(variables)}


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        ("classification", ["--config.objective.labels=('bad',)"], "objective.labels"),
        ("classification", ["--config.objective.labels=('bad', 'fine')"], "label 'good' is not one of"),
        ("classification", ["--config.objective.texts=('body',)"], "no usable field 'body'"),
        ("classification", ["--config.objective.label=class"], "no record has a label"),
        ("choice", ["--config.objective.number=3"], "objective.choices"),
        ("tagging", ["--config.objective.words=text"], "words and 6 tags"),
        ("regression", ["--config.objective.label=label"], "label 'bad' is not a number"),
        ("siamese", ["--config.objective.label=label"], "label 'bad' is not a number"),
        ("extraction", ["--config.objective.question=46"], "no room beside objective.question=46"),
        ("extraction", ["--config.objective.stride=40"], "objective.stride=40"),
        ("extraction", ["--config.objective.answers=spans"], "no record has a label"),
        ("extraction", ["--config.objective.metrics=('HasAns_f1',)"], "objective.no_answer=True"),
        ("tagging", ["--config.objective.metrics=('spans',)"], "objective.metrics=spans"),
    ],
)
def test_mistakes_end_before_training(kind, keys, problem, folder, capsys):
    assert cli.main([*recipe(folder, kind), *keys]) == 2
    error = capsys.readouterr().err
    assert problem in error and "Traceback" not in error


FAMILIES = ("encoder", "decoder", "encoder_decoder", "replaced_tokens", "two_stream", "recurrent")


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_kind_on_every_family(kind, model, folder, capsys):
    """From scratch by config alone: two updates, then scores and a prediction for every record."""
    recipe(folder, kind, model)
    keys = ["train.steps=2", "schedule.warmup=0", "evaluate.every=0", "checkpoint.every=2"]
    keys += ["model.reuse=16"] * (model == "two_stream")  # its default is longer than these rows
    assert cli.main(["train", "--config=recipe.py", "--workdir=run", *(f"--config.{key}" for key in keys)]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "--workdir=run", "--predictions=out.jsonl", "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert np.isfinite(scores["loss"]) and scores["examples"] == 50
    assert len((folder / "out.jsonl").read_text().splitlines()) == 50
