"""Memory of a run, checked before anything is allocated."""

from pretrain.cli import main


def test_model_larger_than_the_host_is_refused(capsys, tmp_path, text):
    huge = ["--config.model.width=98304", "--config.model.ff=393216", "--config.model.heads=64"]
    own = [f"--config.data.train=text:{text}/*.py", f"--workdir={tmp_path / 'run'}"]
    assert main(["train", "--config=configs/quickstart.py:tiny", *own, *huge]) == 2
    assert "B of memory" in capsys.readouterr().err
    assert not (tmp_path / "run" / "tokenizer").exists()
