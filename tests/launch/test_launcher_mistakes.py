"""A mistake on a launcher's command line: exit code 2 and one sentence that names it, before anything starts."""

import importlib

import pytest

from launch.common import COMMANDS
from pretrain import cli

POD, SLURM, GKE = ["--tpu=pod", "--zone=z"], [], ["--image=i", "--tpu=v5e:4x4"]
MISTAKES = [
    ("local", ["--processes", "2"], "--"),
    ("local", ["--processes", "0", "--", "train"], "--processes"),
    ("local", ["--proceses", "2", "--", "train"], "--proceses"),
    ("local", ["--", "trian"], "train"),
    ("ssh", ["--", "train"], "--hosts"),
    ("ssh", ["--hosts=a,me@a", "--", "train"], "once"),
    ("ssh", ["--hostfile=/no/such/file", "--", "train"], "/no/such/file"),
    ("ssh", ["--hosts=a", "--env=A", "--", "train"], "--env"),
    ("ssh", ["--hosts=a", "--ssh=no-such-ssh", "--", "train"], "no-such-ssh"),
    ("slurm", ["--per", "gpu", "--", "train"], "--gpus-per-node"),
    ("slurm", ["--container-image=a", "--apptainer=b", "--", "train"], "--apptainer"),
    ("slurm", ["--", "train", "--config=configs/gpt9.py:xl"], "configs/gpt9.py"),
    ("tpu_pod", ["--zone=z", "--", "train"], "--tpu"),
    ("tpu_pod", POD, "--"),
    ("tpu_pod", [*POD, "--create=v5p-8", "--", "train"], "--version"),
    ("tpu_pod", [*POD, "--create=v5p:4x4", "--", "train"], "v5p:4x4"),
    ("tpu_pod", [*POD, "--spot", "--", "train"], "--create"),
    ("gke", ["--image=i", "--", "train"], "--tpu"),
    ("gke", [*GKE, "--gpu=x", "--", "train"], "--gpu"),
    ("gke", ["--tpu=v5e:4x4", "--", "train"], "--image"),
    ("gke", ["--image=i", "--tpu=v5p:8x4", "--", "train"], "v5p:8x4"),
    ("gke", [*GKE, "--claim=shared", "--", "train"], "--claim"),
]


@pytest.mark.parametrize(("name", "argv", "key"), MISTAKES)
def test_command_line_mistake(name, argv, key, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"launch.{name}").main(argv)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and key in err.splitlines()[-1]


@pytest.mark.parametrize(("name", "argv"), [("slurm", SLURM), ("tpu_pod", POD), ("gke", [*GKE, "--apply"])])
def test_missing_tool_exits_with_2(name, argv, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"launch.{name}").main([*argv, "--", "train", "--workdir=/shared/x"])
    assert ended.value.code == 2


def test_commands_are_those_of_pretrain():
    assert {*COMMANDS} == {*cli.COMMANDS}
