"""Evaluate and continue runs that commit d2b2e01 made, with the results of that commit.

tests/goldens/old_run holds two work folders, written by `pretrain train` with 4 updates, and their text.
`python -m tests.test_old_runs FOLDER` makes such work folders in the empty folder FOLDER and prints their metrics.
Never replace those in the repository: users continue runs of that age. Add another if a format is meant to change.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.golden import GOLDENS, TEXT, overrides, pretrain, read_metrics

OLD = GOLDENS / "old_run"
TRAIN = "--config.data.train=text:text/*.txt?document=blank_line"

EVALUATION = {  # of checkpoint 4, on all of the validation split
    "gpt": {"step": 4, "loss": 5.553067140633307, "bits_per_byte": 6.097872378557558, "tokens": 1058},
    "bert": {"step": 4, "loss": 5.484488910152799, "mlm": 4.790918077741351, "nsp": 0.6935708324114481, "tokens": 77},
}
LOSSES = {  # of updates 5 and 6, which start from checkpoint 4
    "gpt": {"train": [5.56432915, 5.5193181], "validation": 5.48733044},
    "bert": {"train": [5.57798324, 5.38695657], "validation": 5.2338953},
}
RECIPES = {"gpt": "configs/quickstart.py:tiny", "bert": "configs/bert.py:mini_stdlib"}
DATA = {
    "data.holdout": 0.2,
    "data.length": 32,
    "train.batch_size": 4,
    "model.context": 32,
    "model.width": 8,
    "model.heads": 2,
    "model.ff": 16,
}
SIZES = {
    "gpt": {"tokenizer.vocab_size": 300, "model.vocab_size": 300, "model.layers": 2},
    "bert": {"tokenizer.vocab_size": 150, "model.vocab_size": 150, "model.layers": 1, "objective.max_predictions": 6},
}
TRAINING = {
    "train.steps": 4,
    "train.compare_every": 0,
    "checkpoint.every": 2,
    "log.every": 1,
    "log.tensorboard": "false",
    "evaluate.every": 2,
    "evaluate.batches": 2,
    "evaluate.batch_size": 4,
    "schedule.kind": "constant",
    "schedule.warmup": 2,
    "schedule.peak": 0.003,
}
OPTIMIZATION = {
    "gpt": {"model.dropout_residual": 0.1, "optimizer.name": "adamw", "optimizer.b2": 0.99},
    "bert": {"checkpoint.keep": 1, "checkpoint.keep_best": "false"},
}


def list_data(workdir: Path) -> dict[str, Path]:
    """Files of the tokenizer, the token store and the index caches, by name."""
    # store.json holds the modification times of the text, which differ in each copy.
    files = [path for folder in ("tokenizer", "data") for path in (workdir / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(workdir)): path for path in files if path.name not in ("store.json", "lock")}


@pytest.mark.parametrize("name", RECIPES)
def test_old_run_continues(name, tmp_path):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    workdir = tmp_path / name
    written = {file: path.stat().st_mtime_ns for file, path in list_data(workdir).items()}

    scores = json.loads(pretrain(tmp_path, "evaluate", f"--workdir={name}", "--format=json"))
    assert {key: scores[key] for key in EVALUATION[name]} == pytest.approx(EVALUATION[name], rel=1e-5)

    pretrain(tmp_path, "train", f"--workdir={name}", "--config.train.steps=6")
    train, validation = read_metrics(workdir, "train"), read_metrics(workdir, "validation")
    assert [*train] == [1, 2, 3, 4, 5, 6]
    assert [train[5]["loss"], train[6]["loss"]] == pytest.approx(LOSSES[name]["train"], rel=1e-5)
    assert validation[6]["loss"] == pytest.approx(LOSSES[name]["validation"], rel=1e-5)

    assert {file: path.stat().st_mtime_ns for file, path in list_data(workdir).items()} == written


@pytest.mark.parametrize("name", RECIPES)
def test_old_run_data_format(name, tmp_path):
    shutil.copytree(TEXT, tmp_path / "text")
    flags = overrides(DATA, SIZES[name])
    pretrain(tmp_path, "prepare", f"--config={RECIPES[name]}", f"--workdir={name}", TRAIN, *flags)
    files, old = list_data(tmp_path / name), list_data(OLD / name)
    assert files.keys() <= old.keys()  # the index cache of validation is first written by training
    for file in files:
        if not file.startswith("tokenizer"):  # SentencePiece writes its own version's settings
            assert files[file].read_bytes() == old[file].read_bytes(), file


if __name__ == "__main__":
    place = Path(sys.argv[1])
    shutil.copytree(TEXT, place / "text")
    for run, recipe in RECIPES.items():
        options = overrides(DATA, SIZES[run], TRAINING, OPTIMIZATION[run])
        pretrain(place, "train", f"--config={recipe}", f"--workdir={run}", TRAIN, *options)
        print(run, read_metrics(place / run, "train"), read_metrics(place / run, "validation"))
