"""`pretrain plan` as a user has it: tables and JSON, a search, and mistakes of one sentence."""

import json

import jax
import pytest

from pretrain import config as configs
from pretrain.checkpoints import restore
from pretrain.cli import main
from pretrain.commands import plan
from pretrain.config import load
from pretrain.plan import search, step
from pretrain.plan.topology import parse
from pretrain.workdir import POSITION, Workdir

TINY = "--config=configs/quickstart.py:tiny"


@pytest.fixture(autouse=True, scope="module")
def begun():
    """The devices of these tests are there: a plan for fewer, as a process's first, leaves no more to later ones."""
    assert len(jax.devices()) == 8


def planned(capsys, *args, code=0):
    """What the command prints, and what it says on standard error."""
    assert main(["plan", *args]) == code
    return capsys.readouterr()


def test_a_plan_as_json(capsys):
    words = ("--topology=cpu:8", "--format=json", "--config.mesh.fsdp=4", "--config.train.batch_size=16")
    out, err = planned(capsys, TINY, *words, "--config.train.accumulate=2")
    facts = json.loads(out)
    assert err == "compiling a step of quickstart-tiny for cpu:8: seconds, minutes for the largest\n"
    assert facts["mesh"] == {"data": 2, "fsdp": 4, "sequence": 1, "tensor": 1}  # data is -1: whatever is left
    assert (facts["topology"], facts["devices"], facts["accumulate"]) == ("cpu:8", 8, 2)
    memory = facts["memory"]
    assert memory["fits"] is None and memory["capacity"] is None and facts["roofline"] is None
    assert sum(memory["categories"].values()) == memory["needed"]
    assert facts["tokens"] == 16 * 64 and facts["flops"]["full"] > facts["flops"]["causal"] > 0
    assert facts["bytes_moved"] > memory["categories"]["parameters"]
    kinds = {(row["kind"], *row["axes"]) for row in facts["collectives"]}
    assert ("all-gather", "fsdp") in kinds  # parameters
    assert {row["kind"] for row in facts["collectives"] if "data" in row["axes"]} == {"all-reduce"}  # gradients


def test_where_parameters_lie_and_by_which_rule(capsys):
    words = ("--topology=cpu:8", "--format=json", "--config.mesh.fsdp=4", "--config.mesh.tensor=2")
    facts = json.loads(planned(capsys, TINY, *words).out)
    rows = {row["name"]: row for row in facts["parameters"]}
    query = rows["layers/attention/query/kernel"]
    assert query["axes"] == ["layers", "embed", "heads", "head_size"] and query["shape"] == [2, 64, 2, 32]
    assert query["split"] == [[], ["fsdp"], ["tensor"], []] and query["copies"] == 1
    assert query["rule"] == "heads -> tensor; fsdp takes embed, the largest free axis that divides"
    assert query["bytes_per_device"] * 8 == query["bytes"] == 2 * 64 * 64 * 4
    assert not facts["warnings"]


def test_a_rule_whose_axis_has_one_device_is_no_missing_rule(capsys):
    facts = json.loads(planned(capsys, TINY, "--topology=cpu:2", "--format=json", "--config.mesh.data=2").out)
    rules = {row["name"]: row["rule"] for row in facts["parameters"]}
    heads = "heads -> tensor by config.mesh.rules, of which this mesh has 1"
    assert rules["layers/attention/query/kernel"] == heads
    assert rules["final_norm/scale"] == "no rule of config.mesh.rules splits it"


@pytest.mark.parametrize(
    ("overrides", "devices", "words"),
    [
        ({}, 8, ("every parameter is whole on each of 8 devices", "config.mesh.fsdp splits parameters, gradients")),
        ({"mesh.fsdp": "3", "train.batch_size": "6"}, 6, ("layers/", "is whole on each of 6 devices: fsdp: 3 divides")),
        ({"mesh.fsdp": "4", "mesh.data": "2"}, 8, ()),
    ],
)
def test_what_every_device_holds_is_warned_of(overrides, devices, words):
    """A table's rows are padded, so that it divides over anything; 3 divides no power of two."""
    overrides = overrides | {"evaluate.batch_size": "24", "model.positions": "none"}
    config = load("configs/quickstart.py:tiny", tuple(overrides.items()))
    spec = step.prepare(config, parse(f"cpu:{devices}"))
    said = " ".join(step.warnings(step.shardings(spec), spec.layout.mesh.shape))
    assert all(word in said for word in words) and bool(said) == bool(words)


@pytest.mark.slow
def test_the_tables_read_aloud(capsys):
    out, _ = planned(capsys, TINY, "--topology=cpu:8", "--config.mesh.fsdp=8")
    for words in ("quickstart-tiny takes", "memory of one device", "optimiser state", "all-gather", "as the compiler"):
        assert words in out


@pytest.mark.slow
def test_a_students_teacher_is_planned_too(capsys):
    words = ("--topology=cpu:2", "--format=json", "--config.train.batch_size=4")
    facts = json.loads(planned(capsys, "--config=configs/distilbert.py:mini_stdlib", *words).out)
    assert facts["memory"]["categories"]["teacher"] > facts["memory"]["categories"]["parameters"]


@pytest.mark.slow
def test_a_search(capsys, monkeypatch):
    monkeypatch.setattr(search, "MAX_COMPILES", 3)
    words = ("--topology=cpu:4", "--search", "--format=json", "--config.train.batch_size=4")
    out, err = planned(capsys, TINY, *words, "--config.model.layers=1")
    found = json.loads(out)
    assert found["tried"]["choices"] > found["tried"]["compiled"] > 1 and "may fit" in err
    assert found["ranked"][0]["overrides"] == found["best"] and found["best"][0].startswith("--config.mesh.data=")
    (start,) = found["plan"]["start"]
    given = f"{TINY} --config.train.batch_size=4 --config.model.layers=1"
    assert all(flag in start for flag in found["best"]) and f"-- train {given} " in start
    out, _ = planned(capsys, TINY, *words[:1], *words[2:], "--config.model.layers=1", *found["best"])
    assert json.loads(out)["memory"]["needed"] == found["plan"]["memory"]["needed"]


@pytest.mark.slow
def test_a_run_that_has_begun_is_started_as_it_goes_on(capsys, tmp_path):
    """No line starts it with what would have it learn by another config."""
    configs.save(load("configs/quickstart.py:tiny"), str(tmp_path))
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    words = (f"--workdir={tmp_path}", "--topology=cpu:2", "--format=json")
    out, _ = planned(capsys, *words, "--config.mesh.fsdp=2", "--config.mesh.data=1")
    (start,) = json.loads(out)["start"]
    assert start.endswith(f"-- train --config.mesh.fsdp=2 --config.mesh.data=1 --workdir={tmp_path}")
    out, _ = planned(capsys, *words, "--config.train.accumulate=2")
    assert json.loads(out)["start"]
    out, _ = planned(capsys, *words, "--config.train.batch_size=16")
    assert json.loads(out)["start"] == []
    out, _ = planned(capsys, *words[:2], "--config.train.batch_size=16")
    assert out.splitlines()[-1].startswith("this run has checkpoints")


def test_a_run_whose_checkpoints_are_gone_is_not_planned(capsys, tmp_path):
    """No line would start it."""
    configs.save(load("configs/quickstart.py:tiny"), str(tmp_path))
    row = {"time": 1.0, "update": 12, "saved": 10, "seconds": {}}
    Workdir(str(tmp_path)).goodput.write_text(
        "".join(json.dumps(one) + "\n" for one in ({"began": 0.0, "time": 0.0}, row))
    )
    assert main(["plan", f"--workdir={tmp_path}", "--topology=cpu:2"]) == 2
    assert "had checkpoint 10 and has none now" in capsys.readouterr().err


def test_a_run_of_weights_alone_has_not_begun(capsys, monkeypatch, tmp_path):
    """An import: training begins there, by whatever config the user gives."""
    configs.save(load("configs/quickstart.py:tiny"), str(tmp_path))
    mark = tmp_path / "checkpoints" / "0" / POSITION
    mark.parent.mkdir(parents=True)
    mark.write_text(json.dumps({restore.WEIGHTS_ONLY: True}))
    words = (f"--workdir={tmp_path}", "--topology=cpu:2", "--format=json", "--config.train.batch_size=16")
    out, _ = planned(capsys, *words)
    (start,) = json.loads(out)["start"]
    assert start.endswith(f"-- train --config.train.batch_size=16 --workdir={tmp_path}")


def test_small_parameters_are_one_line(capsys):
    alike = {"axes": ["embed"], "split": [[]], "rule": "embed -> nowhere"}
    kernel, bias, scale = (
        alike | {"name": name, "shape": [size], "bytes": size, "bytes_per_device": size // 2}
        for name, size in (("kernel", 1_000_000), ("bias", 64), ("scale", 64))
    )
    plan._show_parameters([kernel, bias, scale])
    out = capsys.readouterr().out
    assert (
        "kernel" in out
        and "embed -> nowhere" in out
        and "bias" not in out
        and "2 others, each less than 0.1% of all bytes" in out
    )
    plan._show_parameters([kernel, bias])  # a line of its own takes no more than one that sums up
    assert "bias" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "order"), [(1.5, "by step time"), (None, "by recomputed FLOPs")])
def test_what_a_search_compiled_is_readable_on_80_columns(capsys, monkeypatch, seconds, order):
    way = "data=16 fsdp=2 sequence=2 tensor=16, 64 parts, remat dots_no_batch"
    row = {"words": way, "result": "fits, 64.0GB a device, 1.95 s a step, bound by memory, MFU 23%"}
    found = {
        "ranked": [row | {"step_seconds": seconds}],
        "plan": {},
        "tried": {"compiled": 1, "possible": 7},
        "seconds": 3.0,
        "ended": "1 of 7 tried; no other can be better",
        "best": ["--config.mesh.data=16"],
    }
    monkeypatch.setattr(plan, "search", lambda *arguments, **named: found)
    monkeypatch.setattr(plan, "report", lambda facts: None)
    out, _ = planned(capsys, TINY, "--topology=cpu:2", "--search")
    title, *lines, ended, best = out.splitlines()
    assert order in title and best == "--config.mesh.data=16" and "1 of 7 tried" in ended
    assert lines == [f"  1. {way}", f"     {row['result']}"] and all(len(line) <= 80 for line in lines)


def test_a_runs_own_config_is_planned(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(step, "plan", lambda config, topology, report: seen.append(config) or {})
    monkeypatch.setattr(plan, "report", lambda facts: None)
    monkeypatch.setattr(step, "check", lambda facts, config: None)
    configs.save(load("configs/quickstart.py:tiny", (("train.batch_size", "24"),)), str(tmp_path))
    assert main(["plan", f"--workdir={tmp_path}", "--topology=cpu:8", "--config.train.accumulate=3"]) == 0
    assert (seen[0].train.batch_size, seen[0].train.accumulate) == (24, 3)


def test_a_plan_that_does_not_fit(capsys, monkeypatch):
    full = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm. Exceeded"
    monkeypatch.setattr(step, "_compiled", lambda lowered: (None, full))
    out, err = planned(capsys, TINY, "--topology=cpu:8", "--format=json", code=2)
    memory = json.loads(out)["memory"]
    assert memory["fits"] is False and memory["left"] == -round(4.25 * 2**30)
    _, said = err.splitlines()
    assert said.startswith("pretrain: quickstart-tiny does not fit cpu:8, 21.5GB of 16.9GB on each device: 4.56GB are")
    assert "does not fit" in err and "config.model.remat" in err
