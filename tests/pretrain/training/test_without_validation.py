"""A run without validation data has no validation figures and is whole in all else."""

import pytest
from runs import SMALL

from pretrain import config as configs
from pretrain.cli import main
from pretrain.training.trainer import train


@pytest.fixture
def run(text, tmp_path, signals):
    def run(**changes):
        keys = SMALL | {"data.train": f"text:{text}/*.py", "train.steps": 8, "schedule.warmup": 2, "mesh.data": 8}
        keys |= {k.replace("__", "."): v for k, v in changes.items()}
        config = configs.load("configs/quickstart.py:tiny", [(key, str(value)) for key, value in keys.items()])
        assert train(config, str(tmp_path)) == 0
        return tmp_path

    return run


def test_training_without_validation_data(run, capsys, no_cache):
    workdir = run(data__holdout=0, evaluate__every=2)
    assert "no validation data" in capsys.readouterr().err
    assert not (workdir / "metrics" / "validation.csv").exists()
    assert len((workdir / "metrics" / "train.csv").read_text().splitlines()) == 1 + 8
    assert (workdir / "checkpoints" / "8").is_dir()
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert "--split" in capsys.readouterr().err
    assert main(["evaluate", f"--workdir={workdir}", "--split=train", "--batches=1"]) == 0
    assert main(["evaluate", f"--workdir={workdir}", "--step=best", "--split=train"]) == 2  # no checkpoint has a loss
