"""A student's run as users have it: its teacher is kept beside it, and it goes on, and is scored, from that alone."""

import json
import shutil

import pytest
from runs import SMALL, assert_same_leaves, leaves, train_here

from pretrain.checkpoints import integrity
from pretrain.cli import main
from pretrain.workdir import Workdir

STEPS = 6
PARAMETERS = "['params']"  # begins the names of them in a checkpoint
OWN = {"train.steps": STEPS, "train.batch_size": 8, "checkpoint.every": 2, "data.length": 32, "model.context": 32}
OWN |= {"evaluate.every": STEPS, "schedule.warmup": 2, "model.dropout_residual": 0.1}
TEACHER = SMALL | OWN | {"model.layers": 4, "train.steps": 2, "checkpoint.every": 2}
STUDENT = SMALL | OWN | {"model.layers": 2, "distill.layers": "(1, 3)"}


@pytest.fixture(scope="module")
def teacher(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("teacher") / "run"
    assert train_here(workdir, text, small=TEACHER) == 0
    return workdir


@pytest.fixture(scope="module")
def student(teacher, text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("student") / "run"
    assert train_here(workdir, text, small=STUDENT | {"distill.teacher": teacher}) == 0
    return workdir


def cut(student, tmp_path, step):
    """A copy of the run that ends at `step`."""
    workdir = tmp_path / "cut"
    shutil.copytree(student, workdir)
    for number in Workdir(workdir).steps():
        if number > step:
            shutil.rmtree(Workdir(workdir).checkpoint(number))
    return workdir


@pytest.mark.slow
def test_student_keeps_a_copy_of_its_teacher(student, teacher):
    kept = Workdir(student).teacher
    (step,) = kept.steps()
    copied, whole = leaves(kept.path, step), leaves(teacher, step)
    assert copied.keys() == {name for name in whole if name.startswith(PARAMETERS)} != whole.keys()
    assert_same_leaves(copied, {name: whole[name] for name in copied}, least=10)
    config = json.loads((student / "config.json").read_text())
    assert config["distill"]["model"] == {"layers": 4}
    position = json.loads((student / "checkpoints/2/data/metadata").read_text())
    assert position["teacher"] == integrity.fingerprint(kept.checkpoint(step))
    first, last = leaves(teacher, 2), leaves(student, STEPS)
    assert not any("teacher" in name or "frozen" in name for name in last)
    assert len([name for name in last if "opt_state" in name]) == len([name for name in first if "opt_state" in name])


@pytest.mark.slow
def test_student_resumes_without_the_teachers_run(student, teacher, text, tmp_path, capsys, signals):
    workdir = cut(student, tmp_path, 2)
    away = teacher.rename(teacher.with_name("away"))
    try:
        assert train_here(workdir, text, small=STUDENT | {"distill.teacher": teacher}) == 0
    finally:
        away.rename(teacher)
    assert "restored checkpoint 2" in capsys.readouterr().err
    assert_same_leaves(leaves(student, STEPS), leaves(workdir, STEPS))


@pytest.mark.slow
def test_student_is_evaluated_from_its_folder_alone(student, teacher, capsys):
    row = json.loads((student / "metrics/validation.jsonl").read_text().splitlines()[-1])
    away = teacher.rename(teacher.with_name("away"))
    try:
        assert main(["evaluate", f"--workdir={student}", "--batches=1", "--format=json"]) == 0
    finally:
        away.rename(teacher)
    scores = json.loads(capsys.readouterr().out)
    names = ("loss", "kl", "cosine", "perplexity")
    assert {name: scores[name] for name in names} == pytest.approx({name: row[name] for name in names}, rel=1e-5)
    assert scores["kl"] > 0
