"""A run without validation data has no validation figures and is whole in all else."""

from runs import train_here

from pretrain.cli import main


def test_training_without_validation_data(tmp_path, text, no_cache):
    workdir = tmp_path / "run"
    assert train_here(workdir, text, data__holdout=0, evaluate__every=2, train__steps=4, schedule__decay_steps=24) == 0
    assert not (workdir / "metrics" / "validation.csv").exists()
    assert len((workdir / "metrics" / "train.csv").read_text().splitlines()) == 1 + 4
    assert (workdir / "checkpoints" / "4").is_dir()
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    assert main(["evaluate", f"--workdir={workdir}", "--split=train", "--batches=1"]) == 0
    assert main(["evaluate", f"--workdir={workdir}", "--step=best", "--split=train"]) == 2  # no checkpoint has a loss
