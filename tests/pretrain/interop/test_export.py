"""Exports of runs and imports: which checkpoint, the model card, and refusals."""

import json
import re
import shutil

import hub
import pytest
import yaml
from runs import SMALL, train_here

import pretrain
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder

GPT2 = SMALL | {"model.dropout_residual": 0, "model.context": 32, "data.length": 32, "tokenizer.path": ""}
GPT2 |= {"train.steps": 4, "train.batch_size": 8, "checkpoint.every": 2, "evaluate.every": 4, "schedule.warmup": 2}


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("card") / "run"
    assert train_here(workdir, text, recipe="configs/gpt2.py:small", small=GPT2) == 0
    return workdir


def read_card(folder):
    """(text, front matter, {key: value} of its tables)."""
    text = (folder / "README.md").read_text()
    _, matter, body = text.split("---\n", 2)
    return text, yaml.safe_load(matter), dict(re.findall(r"^\| `(\S+)` \| `(.*)` \|$", body, re.MULTILINE))


def test_card_of_a_run(run, text, tmp_path):
    pretrain.to_huggingface(run, tmp_path / "back")
    card, matter, facts = read_card(tmp_path / "back")
    tags = ["longhaul", "gpt2", "causal"]
    assert matter == {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags}
    assert "`GPT2LMHeadModel` of 6,880 parameters" in card and "after 4 of 4 updates" in card and "257 entries" in card
    (row,) = map(json.loads, (run / "metrics/validation.jsonl").read_text().splitlines())
    figures = {"loss": f"{row['loss']:.6g}", "tokens": f"{row['tokens']:,}"}
    stored = json.loads((run / "checkpoints/4/data/metadata").read_text())["text"]
    config = {
        "model.kind": "decoder",
        "model.width": "16",
        "objective.kind": "causal",
        "data.train": f"text:{text}/*.py",
        "data.holdout": "0.05",
        "tokenizer.kind": "bytes",
        "train.steps": "4",
        "optimizer.name": "adamw",
        "schedule.peak": "0.0006",
        "seed": "0",
    }
    expected = config | figures | {"tokenizer": "bytes", "text": stored}
    assert expected.items() <= facts.items() and "distill.teacher" not in facts
    assert "pretrain train --workdir=RUN\npretrain export --workdir=RUN --folder=NEW --step=4\n" in card
    assert 'model = GPT2LMHeadModel.from_pretrained("back")\n' in card


def test_card_of_an_average(run, tmp_path):
    export_folder(str(run), str(tmp_path / "mean"), average=2)
    card, _, facts = read_card(tmp_path / "mean")
    assert "after 2 and 4 of 4 updates" in card and "--step=4 --average=2\n" in card and "loss" not in facts


def test_card_of_an_import_has_no_training(tmp_path):
    pretrain.from_huggingface(hub.make(tmp_path / "theirs", "electra"), tmp_path / "a | `b`")
    pretrain.to_huggingface(tmp_path / "a | `b`", tmp_path / "back")
    card, matter, facts = read_card(tmp_path / "back")
    assert matter == {"library_name": "transformers", "tags": ["longhaul", "electra"]}  # the Hub has no task for it
    assert "`` electra:a \\| `b` ``" in card and "--step=0\n" in card and "pretrain train" not in card
    assert facts["model.kind"] == "replaced_tokens"
    assert not [key for key in facts if key.startswith(("optimizer.", "schedule.", "data.", "loss"))]


def test_export_unfinished_run_needs_a_step(run, capsys, tmp_path):
    workdir = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(workdir / "checkpoints" / "4")
    for flags in ([], ["--average=2"]):
        assert main(["export", f"--workdir={workdir}", f"--folder={tmp_path}/latest", *flags]) == 2
        assert "--step=2" in capsys.readouterr().err
    assert pretrain.to_huggingface(workdir, tmp_path / "named", step=2) == 2
    card, _, facts = read_card(tmp_path / "named")
    assert "after 2 of 4 updates" in card and "loss" not in facts
    shutil.rmtree(workdir / "checkpoints" / "2")
    assert main(["export", f"--workdir={workdir}", f"--folder={tmp_path}/none"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "named"]


def test_export_writes_these_files(imported, tmp_path):
    run = pretrain.open(imported("gpt2")[1])
    assert run.step == 0 and run.generate("the", max_tokens=3, temperature=0).startswith("the")
    assert pretrain.to_huggingface(imported("gpt2")[1], tmp_path / "back") == 0
    names = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names


@pytest.mark.parametrize(
    ("field", "value"),
    [("attention", ["dense", "strided_8", "dense"]), ("activation", "gated_silu")],
)
def test_export_refuses_fields(field, value, imported, tmp_path):
    workdir = shutil.copytree(imported("gpt2")[1], tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["model"][field] = value
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"config.model.{field}="):
        export_folder(str(workdir), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_export_refuses_another_padding(tmp_path, capsys):
    """RoBERTa's class counts positions from the padding id; `describe` says so before."""
    folder, run = hub.make(tmp_path / "theirs", "roberta", tokenizer=False), tmp_path / "run"
    hub.unigram(folder)
    pretrain.from_huggingface(folder, run)
    assert main(["describe", f"--workdir={run}"]) == 0
    assert "export: padding id 0" in capsys.readouterr().out
    assert main(["export", f"--workdir={run}", f"--folder={tmp_path}/back"]) == 2
    assert "padding id 0" in capsys.readouterr().err and not (tmp_path / "back").exists()
