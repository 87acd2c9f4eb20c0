"""The lines that start what was planned: each launcher takes its own, and hands the flags on as they were typed."""

import importlib
import shlex

import pytest

from pretrain.cli import parse
from pretrain.commands import plan
from pretrain.plan import topology

FLAGS = ["--config=configs/gpt2.py:small", "--config.data.train=text:/a b/it's/*.py", "--config.mesh.fsdp=4"]
LINES = [
    (name, line)
    for name in ("v4:2x2x1", "v5e:2x2", "v5p:4x4x4", "v6e:4x4", "h100:8", "cpu:8")
    for line in plan.start_commands(topology.parse(name), "gpt2:small", FLAGS)
]


@pytest.mark.parametrize(("name", "line"), LINES, ids=lambda text: text.split(" --")[0])
def test_each_launcher_takes_its_line(name, line, capsys):
    filled = line.replace("ZONE", "us-east5-a").replace("BUCKET", "bucket").replace("REGISTRY", "registry.example")
    words = shlex.split(filled.replace("/SHARED", "/shared"))
    at = words.index("train")
    assert words[at + 1 : -1] == FLAGS and words[-1].startswith("--workdir=")
    assert parse(words[at:]).workdir.endswith("gpt2-small")
    if at > 1:
        assert words[:2] == ["python", "-m"]
        own = [word for word in words[2 : at - 1] if word != "--apply"]
        assert importlib.import_module(own[0]).main([*own[1:], "--dry-run", *words[at - 1 :]]) == 0
        out, err = capsys.readouterr()
        assert "warning" not in err
        assert "tpu_pod" not in line or plan.SOFTWARE[name.partition(":")[0]] in out


@pytest.mark.parametrize(
    ("name", "tpu"),
    [("GPT;rm", "gpt-rm"), ("my Run/x", "my-run-x"), ("books.v2", "books-v2"), ("1b", "run-1b"), ("é", "run")],
)
def test_a_pod_has_a_name_that_it_can_have(name, tpu):
    for line in plan.start_commands(topology.parse("v5e:2x2"), name, ()):
        assert f"/{tpu}" in line and (f"--tpu {tpu} --zone" in line or "launch.gke" in line)


def test_a_run_goes_on_in_its_own_folder():
    (line,) = plan.start_commands(topology.parse("cpu:2"), "tiny", (), "runs/x y")
    assert shlex.split(line)[-2:] == ["train", "--workdir=runs/x y"]
