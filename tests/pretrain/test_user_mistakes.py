"""User mistakes: exit code 2, one sentence that names the key, no traceback, nothing written."""

import json
import subprocess
import sys

import numpy as np
import pytest
from runs import ROOT, SMALL
from safetensors.numpy import save_file

from pretrain.cli import main

TINY = "--config=configs/quickstart.py:tiny"
SST2 = ["train", "--config=configs/tasks.py:sst2", "--workdir=NEW", "--config.train.start_from=RUN"]
SQUAD = ["train", "--config=configs/tasks.py:squad", "--workdir=NEW", "--config.train.start_from=RUN"]
OF_T5 = "--config=configs/t5.py:mini_stdlib"


def small(**changes):
    """The command line of a tiny run, with changes."""
    keys = SMALL | {"data.train": "text:TEXT/*.py"} | {k.replace("__", "."): v for k, v in changes.items()}
    return ["train", TINY, "--workdir=NEW", *(f"--config.{k}={v}" for k, v in keys.items())]


# (command line, name in the sentence). TEXT is a folder of text, RUN a finished run, NEW a new folder.
COMMAND_LINES = [
    (["trian"], "'train'"),
    (["train", "--wrkdir=x"], "'--workdir'"),
    (["train", "--steps=10"], "--config.train.steps"),
    (["train", "stray"], "stray"),
    (["train", TINY, "--workdir="], "--workdir"),
    (["train", "--config="], "--config"),
    (["train", f"--workdir={__file__}"], "--workdir"),
    (["train", "--workdir=NEW"], "--workdir"),
    (["train", TINY, "--workdir=runs/a[b]"], "--workdir"),
    (["train", TINY, "--workdir=RUN", "--allow=model.width"], "--allow=model.width"),
    (["train", TINY, "--workdir=RUN", "--allow=schedule.peek"], "schedule.peak"),
    ([*SST2, "--config.objective.metrics=('acuracy',)"], "metrics=acuracy"),
    ([*SST2, "--config.objective.metrics=('span_f1',)"], "metrics=span_f1"),
    ([*SQUAD, "--config.data.length=64"], "data.length=64"),
    (small(model__mix="plain"), "model.mix=plain"),
    (["evaluate", "--workdir=RUN", "--predictions=none/p.jsonl"], "--predictions=none"),
    (["evaluate", "--workdir=RUN", "--tasks=blimpp"], "blimp"),
    (["score", "--workdir=RUN", "--input=none.txt"], "--input=none.txt"),
    (["fill", "--workdir=RUN", "--text=a [MASK]"], "--workdir"),
    (["evaluate"], "--workdir"),
    (["evaluate", "--workdir=RUN", "--format=xml"], "--format"),
    (["evaluate", "--workdir=RUN", "--gzip=yes"], "--gzip"),
    (["evaluate", "--workdir=RUN", "--batches=-1"], "--batches"),
    (["evaluate", "--workdir=RUN", "--length=x"], "--length"),
    (["evaluate", "--workdir=RUN", TINY], "--config"),
    (["evaluate", "--workdir=RUN", "--config.train.steps=3"], "--config.train.steps"),
    (["evaluate", "--workdir=RUN", "--split=train", "--data=stdlib"], "--split"),
    (["evaluate", "--workdir=RUN", "--step=7"], "checkpoint"),
    (["evaluate", "--workdir=RUN", "--length=100"], "--length"),
    (["evaluate", "--workdir=RUN", "--stride=65"], "stride"),
    (["evaluate", "--workdir=RUN", "--batches=1", "--word_level"], "--word_level"),
    (["evaluate", "--workdir=RUN", "--data=text:/nowhere"], "/nowhere"),
    (["evaluate", "--workdir=RUN", "--data=stdlb"], "--data"),
    (["evaluate", "--workdir=RUN", "--task=configs/gpt2.py"], "--task=configs/gpt2.py"),
    (["evaluate", "--workdir=RUN", "--task=configs/tasks.py:nli", "--split=books"], "data.books"),
    (["attend", "--workdir=RUN", "--text=a", "--target=b"], "targets"),
    (["probe", "--workdir=RUN", "--task=pso"], "--task=pso"),
    (["embed", "--workdir=RUN", "--input=nowhere.txt", "--out=x.npz"], "--input=nowhere.txt"),
    (["generate", "--workdir=RUN", "--top_p=0"], "--top_p"),
    (["generate", "--workdir=RUN", "--length_penalty=0"], "--length_penalty"),
    (["generate", "--workdir=RUN", "--beams=4", "--top_k=1"], "--top_k"),
    (["generate", "--workdir=RUN", "--rows=3"], "--rows"),
    (["generate", "--workdir=RUN", f"--prompt={'x' * 100}"], "context"),
    (["generate", "--workdir=RUN", "--prompt=a", "--max_tokens=100"], "max_tokens"),
    (["generate", "--workdir=RUN", "--prompt_file=/nowhere"], "--prompt_file"),
    (["goodput", "--workdir=NEW"], "--workdir"),
    (["runs", "/nowhere"], "/nowhere"),
    (["report", "/nowhere"], "/nowhere"),
    (["describe", "--workdir=/nowhere"], "/nowhere"),
    (["describe", TINY, "--workdir=RUN"], "--workdir"),
    (["plan", TINY], "--topology"),
    (["import", "--workdir=NEW"], "--folder"),
    (["export", "--workdir=RUN"], "--folder"),
    (["export", "--workdir=RUN", "--folder=NEW", "--part=head"], "--part"),
    (["describe", "--config=configs/gpt33.py"], "configs/gpt3.py"),
    (["describe", "--config=configs/gpt2.py:huge"], "medium"),
    (["describe", TINY, "--config.train.stps=3"], "config.train.steps"),
    (["describe", TINY, "--config.steps=3"], "config.train.steps"),
    (["describe", TINY, "--config.train=3"], "config.train"),
    (["describe", TINY, "--config.train.steps.x=1"], "config.train.steps"),
    (["describe", TINY, "--config.train.steps=many"], "config.train.steps"),
    (["describe", TINY, "--config.train.steps=0"], "config.train.steps"),
    (["describe", TINY, "--config.schedule.peak=nan"], "config.schedule.peak"),
    (["describe", TINY, "--config.model.scan=maybe"], "config.model.scan"),
    (["describe", TINY, "--config.model.kind=recurrent"], "config.model.kind"),
    (["describe", TINY, "--config.model.memory=64"], "config.model.memory"),
    (["describe", TINY, "--config.model.heads=3"], "heads"),
    (["describe", TINY, "--config.model.norm=rmsnorm"], "norm"),
    (["describe", TINY, "--config.model.attention=('loc_8',)"], "loc_8"),
    (["describe", TINY, "--config.optimizer.name=adam"], "adamw"),
    (["describe", TINY, "--config.schedule.kind=cosin"], "cosine"),
    (["describe", TINY, "--config.schedule.kind=wsd", "--config.schedule.cooldown=1"], "config.schedule.cooldown"),
    (["describe", TINY, "--config.schedule.kind=wsd", "--config.schedule.cooldown_shape=sqrt"], "1-sqrt"),
    (["describe", TINY, "--config.data.layout=x"], "data.layout"),
    (["describe", TINY, "--config.data.train=stdlb"], "stdlb"),
    (["describe", TINY, "--config.tokenizer.kind=x"], "tokenizer.kind"),
    (["describe", "--config=configs/albert.py:mini_stdlib", "--config.optimizer.layer_decay=0.8"], "layer_decay=0.8"),
    (["describe", TINY, "--config.optimizer.frozen=('layrs/attention',)"], "layers/attention"),
    (["describe", TINY, "--config.optimizer.unfreeze=-2"], "config.optimizer.unfreeze"),
    (["describe", TINY, "--config.model.lora=4", "--config.model.lora_targets=('q_proj',)"], "lora_targets"),
    (["describe", "--config=configs/tasks.py:pairs", "--config.train.accumulate=2"], "train.accumulate=2"),
    (["describe", "--config=configs/tasks.py:nli", "--config.objective.loss=sotfmax"], "objective.loss=sotfmax"),
    (["describe", OF_T5, "--config.data.length=1"], "data.length"),
    (["describe", TINY, "--config.objective.loss_on=targets"], "config.objective.inputs"),
]
CONFIGS = [
    ({"train__batch_size": 6}, "6"),
    ({"train__accumulate": 3}, "accumulate"),
    ({"data__length": 128}, "config.data.length"),
    ({"model__vocab_size": 100}, "config.model.vocab_size"),
    ({"mesh__data": 3}, "3 devices"),
    ({"mesh__data": 1, "mesh__tensor": 8}, "config.model.heads"),
    ({"mesh__rules": "(('batch', 'daata'),)"}, "'data'"),
    ({"train__backend": "pjit"}, "config.train.backend"),
    ({"train__batch_size": 40, "train__batch_ramp": "(8, 24, 99)"}, "config.train.batch_ramp"),
    ({"train__batch_size": 16, "train__batch_ramp": "(4, 4, 99)"}, "config.train.batch_ramp"),
    ({"train__batch_size": 16, "train__batch_ramp": "(8, 8, 9)", "data__layout": "stream"}, "data.layout=stream"),
    ({"train__batch_size": 16, "train__batch_ramp": "(8, 8, 9)", "optimizer__unfreeze": -1}, "optimizer.unfreeze"),
    ({"data__examples": 5}, "data.examples=5"),
    ({"data__balanced": True}, "data.balanced=True"),
    ({"train__on_bad_step": "ignore"}, "on_bad_step"),
    ({"data__train": "text:/nowhere/*.txt"}, "/nowhere/*.txt"),
    ({"data__train": ""}, "data.train"),
    ({"train__trials": 2, "data__holdout": 0}, "train.trials=2"),
    ({"data__train": "parquet:TEXT/*.py"}, "no Parquet file"),
    ({"data__train": "csv:TEXT/*.py?field=body"}, "field=body"),
    ({"data__train": "squad:TEXT/*.py?field=context"}, "jsonl:"),
    ({"data__train": "wikitext"}, "--config.data.train='arrow:data/wikitext?field=text'"),
    ({"data__on_bad_record": "ignore"}, "data.on_bad_record"),
    ({"tokenizer__kind": "words"}, "tokenizer"),
]


@pytest.fixture
def mistake(capsys, tmp_path, text, whole, monkeypatch):
    """Runs a command line in this process and returns its one sentence."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    names = {"NEW": str(tmp_path / "new"), "TEXT": str(text), "RUN": str(whole)}

    def run(words):
        for name, path in names.items():
            words = [word.replace(f"={name}", f"={path}").replace(f":{name}/", f":{path}/") for word in words]
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert not list((tmp_path / "new").glob("checkpoints/*"))
        return error.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("words", "key"), COMMAND_LINES, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_command_line_mistake(mistake, words, key):
    sentence = mistake(words)
    assert sentence.startswith("pretrain: ") and key in sentence


@pytest.mark.parametrize(("changes", "key"), CONFIGS, ids=str)
def test_config_mistake(mistake, changes, key):
    assert key in mistake(small(**changes))


def test_config_of_another_run(mistake):
    words = small()
    words[2] = "--workdir=RUN"
    assert "--allow=schedule.peak" in mistake([*words, "--config.schedule.peak=0.5"])
    assert "--allow" not in mistake([*words, "--config.schedule.peak=0.5", "--config.seed=1"])
    # Allowing one key allows no other.
    assert "seed" in mistake([*words, "--config.schedule.peak=0.5", "--config.seed=1", "--allow=schedule.peak"])


def test_recipe_that_raises(mistake, tmp_path):
    (tmp_path / "mine.py").write_text("from configs import common\n\ndef get_config():\n    return common.bse()\n")
    assert "line 4: AttributeError" in mistake(["describe", f"--config={tmp_path / 'mine.py'}"])


def test_recipe_without_return(mistake, tmp_path):
    (tmp_path / "mine.py").write_text("from configs import common\n\ndef get_config():\n    common.base()\n")
    assert "get_config" in mistake(["describe", f"--config={tmp_path / 'mine.py'}"])


def test_recipe_without_model_or_run(mistake, tmp_path):
    lines = [
        "from configs import common",
        "",
        "def get_config():",
        "    config = common.base()",
        "    config.model = {}",
    ]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "    return config"]))
    assert "config.train.start_from" in mistake(["train", f"--config={tmp_path / 'mine.py'}", "--workdir=NEW"])


def test_recipe_without_whole_sections(mistake, tmp_path):
    lines = ["from ml_collections import ConfigDict", "", "def get_config():", "    return ConfigDict({'model': {}})"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    assert "configs.common.base()" in mistake(["train", f"--config={tmp_path / 'mine.py'}", "--workdir=NEW"])


@pytest.mark.parametrize("words", [["evaluate"], ["train", TINY], ["prepare", TINY]], ids=lambda words: words[0])
def test_folder_of_hugging_face(mistake, tmp_path, words):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "bert"}')
    assert "pretrain import" in mistake([*words, f"--workdir={tmp_path}"])
    assert config.read_text() == '{"model_type": "bert"}'


def test_import_of_lfs_pointer(mistake, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "model.safetensors" in mistake(["import", f"--folder={tmp_path}", "--workdir=NEW"])


@pytest.mark.parametrize(
    "words", [["import", "--workdir=NEW", "--folder="], ["train", TINY, "--workdir="]], ids=" ".join
)
@pytest.mark.parametrize("content", [b'{"model_type": ', b"\xff\xfe{}", b"[1]"])
def test_config_that_is_no_json(mistake, tmp_path, words, content):
    (tmp_path / "config.json").write_bytes(content)
    assert "config.json is no JSON" in mistake([*words[:-1], f"{words[-1]}{tmp_path}"])


def llama_folder(folder, **keys):
    """A Llama of two rows."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 2, **keys}))
    save_file({"model.embed_tokens.weight": np.zeros((2, 4096), np.float32)}, folder / "model.safetensors")


def test_import_of_unknown_rope_scaling(mistake, tmp_path):
    llama_folder(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert "rope_scaling" in mistake(["import", f"--folder={tmp_path}", "--workdir=NEW"])


def test_export_of_a_tokenizer_that_no_class_reads(mistake, tmp_path, signals):
    run, keys = tmp_path / "run", {"train__steps": 1, "schedule__warmup": 0, "evaluate__every": 0}
    (tmp_path / "a.txt").write_text("abc " * 2000)
    words = small(**keys, tokenizer__kind="symbols", data__train=f"text:{tmp_path}/a.txt", data__holdout=0)
    assert main([word.replace("NEW", str(run)) for word in words]) == 0
    assert "tokenizer.kind=symbols" in mistake(["export", f"--workdir={run}", f"--folder={tmp_path / 'hf'}"])
    assert not (tmp_path / "hf").exists()


def test_wandb_is_missing(mistake, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "pip install -e '.[wandb]'" in mistake(small(log__wandb="mine"))


def test_empty_prompt_file(mistake, tmp_path):
    (tmp_path / "prompts.txt").touch()
    assert "--prompt_file" in mistake(["generate", "--workdir=RUN", f"--prompt_file={tmp_path / 'prompts.txt'}"])


def test_copied_validation_text(mistake, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("A line of a book.\n" * 40)
    one, two = (f"text:{tmp_path}/{name}.txt" for name in ("one", "two"))
    assert "data.validation" in mistake(small(data__train=one, data__validation=two))


@pytest.mark.parametrize(("line", "key"), [('{"text": "\\ud83d"}', "replace_surrogates"), ("{", "on_bad_record")])
def test_bad_record(mistake, tmp_path, line, key):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n')
    assert key in mistake(small(data__train=f"jsonl:{tmp_path}/a.jsonl"))


def test_words_longer_than_rows(mistake, tmp_path):
    (tmp_path / "long.txt").write_text("abcd" * 9000)
    keys = {"data.train": f"text:{tmp_path}/long.txt", "data.layout": "concat", "data.sentences": "", "data.length": 32}
    keys |= {"tokenizer.kind": "bytes", "objective.candidates": "text", "objective.whole_words": True}
    words = ["train", "--config=configs/roberta.py:mini_stdlib", "--workdir=NEW"]
    assert "objective.kind" in mistake([*words, *(f"--config.{key}={value}" for key, value in keys.items())])


@pytest.mark.parametrize("command", ["import", "export"])
def test_import_and_export_run_in_one_process(mistake, monkeypatch, command):
    for name, value in (("COORDINATOR", "127.0.0.1:1234"), ("PROCESSES", "2"), ("PROCESS", "0")):
        monkeypatch.setenv(f"LONGHAUL_{name}", value)
    assert "LONGHAUL_COORDINATOR" in mistake([command, "--folder=NEW", "--workdir=RUN"])


def test_real_program_prints_one_line():
    line = [sys.executable, "-m", "pretrain", "describe", TINY, "--config.train.stepz=3"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "config.train.stepz" in done.stderr
