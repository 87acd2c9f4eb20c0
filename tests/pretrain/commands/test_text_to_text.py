"""T5's recipe on tasks, small: trained, scored, its targets decoded, and asked for text."""

import json
import subprocess

import pytest
from runs import ROOT, environment, launched, train_here

from pretrain.cli import main

STEPS = 20
SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.ff": 32,
    "model.heads": 2,
    "model.head_size": 8,
    "model.vocab_size": 278,
    "data.length": 64,
    "data.weights": "(0.5, 0.25, 0.25)",
    "tokenizer.kind": "bytes",
    "tokenizer.sentinels": 20,
    "train.steps": STEPS,
    "train.batch_size": 16,
    "schedule.peak": 0.1,
    "evaluate.every": STEPS,
    "evaluate.batches": 1,
    "evaluate.batch_size": 8,
    "evaluate.decode": 4,
    "log.tensorboard": "false",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks whose answers are nearly always the same."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, answers in (("likely", "aaa "), ("rare", "a bb")):
        rows = [{"inputs": f"{name}: {number}", "targets": answers[number % 4].strip()} for number in range(200)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def sources(folder, text):
    return [f"text:{text}/*.py", *(f"jsonl:{folder}/{name}.jsonl?fields=inputs,targets" for name in ("likely", "rare"))]


@pytest.fixture(scope="module")
def run(tmp_path_factory, text, sources):
    workdir = tmp_path_factory.mktemp("run") / "run"
    options = {"recipe": "configs/t5.py:mini_stdlib", "small": SMALL}
    assert train_here(workdir, text, data__train=" + ".join(sources), **options) == 0
    return workdir


def scores(capsys, run, *flags):
    assert main(["evaluate", f"--workdir={run}", "--format=json", *flags]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
def test_from_training_to_text(run, sources, tmp_path, capsys):
    """Decoded targets are the same in training, in one process on eight devices, and in two of one each."""
    (row,) = map(json.loads, (run / "metrics/validation.jsonl").read_text().splitlines())
    capsys.readouterr()
    first, scored = scores(capsys, run, "--decode=4"), scores(capsys, run)
    assert {"loss", "accuracy", "perplexity", "exact_match", "sequence_accuracy"} <= {*scored}
    assert list(scored["tasks"]) == sources[1:]
    assert row["exact_match"] == pytest.approx(first["exact_match"])
    for name, task in first["tasks"].items():
        assert task["examples"] == 4
        assert row[f"exact_match of {name}"] == pytest.approx(task["exact_match"])
    assert [task["examples"] for task in scored["tasks"].values()] != [4, 4]

    line = launched(tmp_path, "evaluate", f"--workdir={run}", "--format=json")
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = [json.loads(said) for said in done.stdout.splitlines() if said.startswith("{")]
    assert found["exact_match"] == scored["exact_match"]
    for name, task in scored["tasks"].items():
        assert found["tasks"][name] == pytest.approx(task, rel=1e-4)

    assert "tasks" not in scores(capsys, run, "--decode=0")


@pytest.mark.slow
def test_text_from_a_prompt(run, capsys):
    for options in (["--temperature=0"], ["--beams=2"]):
        prompts = ["--prompt=likely: 7", "--prompt=rare: 8"]
        assert main(["generate", f"--workdir={run}", "--format=json", "--max_tokens=6", *prompts, *options]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert [row["prompt"] for row in rows] == ["likely: 7", "rare: 8"]
        assert all(row["tokens"] for row in rows)
