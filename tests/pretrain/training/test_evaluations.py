"""Named evaluations on a cadence: rows, the best checkpoint, resuming, and what is refused."""

import csv
import json
import shutil

import pytest
from runs import ROOT

from pretrain import cli
from pretrain.checkpoints.restore import Checkpoints
from pretrain.metrics import goodput
from pretrain.workdir import Workdir

RECIPE = """
from configs import quickstart

def get_config(variant=""):
    config = quickstart.get_config("tiny")
    config.train.steps = 12
    config.data.update(train="text:{text}/*.py")
    config.evaluate.update(every=4, batches=2)
    config.checkpoint.update(every=4, keep=9)
    config.schedule.warmup = 2
    config.evaluations = {{
        "again": {{"every": 4, "batches": 2}},
        "docs": {{"data": "text:{docs}/*.md", "every": 6}},
        "pairs": {{"task": "blimp", "data": "jsonl:{pairs}", "limit": 3, "every": 6}},
        "tags": {{"probe": "pos", "data": "jsonl:{tags}", "every": 6}},
    }}
    config.checkpoint.best = "docs/loss"
    return config
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("named")
    pairs = [{"sentence_good": f"import {name}", "sentence_bad": f"{name} import", "UID": "a"} for name in "xyzw"]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    tags = [{"words": f"import x{n % 7} y".split(), "upos": ["V", str(n % 2), "N"]} for n in range(40)]
    (folder / "tags.jsonl").write_text("".join(json.dumps(one) + "\n" for one in tags))
    files = {name: folder / f"{name}.jsonl" for name in ("pairs", "tags")}
    (folder / "recipe.py").write_text(RECIPE.format(text=text, docs=ROOT / "docs", **files))
    command = ["train", f"--config={folder / 'recipe.py'}", f"--workdir={folder / 'run'}"]
    assert cli.main(command) == 0
    return folder / "run"


def rows(workdir, split):
    with (workdir / "metrics" / f"{split}.csv").open() as file:
        return list(csv.DictReader(file))


def test_named_evaluation_of_the_validation_split_equals_validation(run):
    assert rows(run, "again") == rows(run, "validation") and len(rows(run, "again")) == 3
    assert [row["step"] for row in rows(run, "docs")] == ["6", "12"]
    spent = goodput.summarize(Workdir(str(run)).goodput)["seconds"]
    assert min(spent["evaluate"], spent["evaluate again"], spent["evaluate docs"]) > 0


def test_best_checkpoint_is_that_of_the_named_evaluation(run, capsys):
    losses = Checkpoints(str(run)).losses()
    (last,) = {step: loss for step, (loss, _) in losses.items()}.items()
    assert last == (12, pytest.approx(float(rows(run, "docs")[1]["loss"]), rel=1e-8))
    assert cli.main(["evaluate", f"--workdir={run}", "--split=docs", "--step=best", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["step"] == 12 and found["loss"] == pytest.approx(losses[12][0], rel=1e-6)


def test_task_on_a_cadence_has_the_figures_of_the_command(run, capsys):
    first, last = rows(run, "pairs")
    assert (first["step"], last["step"], last["items"]) == ("6", "12", "3")
    flags = ["--tasks=blimp", f"--data=blimp:jsonl:{run.parent}/pairs.jsonl", "--limit=3", "--format=json"]
    assert cli.main(["evaluate", f"--workdir={run}", *flags]) == 0
    (found,) = json.loads(capsys.readouterr().out)["tasks"]
    assert float(last["acc"]) == pytest.approx(found["acc"])


def test_probe_on_a_cadence_has_the_figures_of_the_command(run, capsys):
    last = rows(run, "tags")[-1]
    assert (last["step"], last["items"]) == ("12", "8")
    asked = ["probe", f"--workdir={run}", "--task=pos", f"--train=jsonl:{run.parent}/tags.jsonl", "--format=json"]
    assert cli.main(asked) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    for row in found:
        assert float(last[f"accuracy_{row['layer']}"]) == pytest.approx(row["accuracy"])


def test_resumed_run_writes_the_same_rows(run, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "12")
    shutil.rmtree(again / "checkpoints" / "8")
    assert cli.main(["train", f"--workdir={again}"]) == 0
    for split in ("validation", "again", "docs", "pairs", "tags"):
        assert rows(again, split) == rows(run, split)
    assert Checkpoints(str(again)).losses() == Checkpoints(str(run)).losses()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('config.checkpoint.best = "doc/loss"', "checkpoint.best=doc/loss: no evaluation doc"),
        ('config.checkpoint.best = "docs/accuracy"', "checkpoint.best=docs/accuracy"),
        ('config.evaluations = {"train": {}}', "config.evaluations.train: must be"),
        ('config.evaluations = {"docs": {"evry": 1}}', "evaluations.docs.evry"),
        ('config.evaluations = {"docs": {"data": config.data.train}}', "evaluations.docs.data"),
        ('config.evaluations = {"docs": {"task": "blip"}}', "evaluations.docs.task"),
        ('config.evaluations = {"docs": {"probe": "pso"}}', "evaluations.docs.probe"),
    ],
)
def test_mistakes(line, problem, text, tmp_path, capsys):
    recipe = RECIPE.format(text=text, docs=ROOT / "docs", pairs="none.jsonl", tags="none.jsonl").replace(
        "    return", f"    {line}\n    return"
    )
    (tmp_path / "recipe.py").write_text(recipe)
    assert cli.main(["train", f"--config={tmp_path / 'recipe.py'}", f"--workdir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert problem in error and "Traceback" not in error
