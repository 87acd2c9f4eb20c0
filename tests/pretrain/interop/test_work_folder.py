"""An import is a work folder: it trains from its weights, evaluates, generates and is exported again."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hub
import numpy as np
import pytest
from runs import leaves
from safetensors.numpy import load_file, save_file

import pretrain
from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.cli import main
from pretrain.interop import families

TRAIN = ["--config.schedule.warmup=0", "--config.train.batch_size=8", "--config.log.every=1"]
TRAIN += ["--config.log.tensorboard=false", "--config.data.holdout=0.2"]
STILL = [*TRAIN, "--config.schedule.peak=0", "--config.train.steps=1"]


SIZES = {"layers": 2, "width": 15, "heads": 3, "ff": 29, "context": 23, "vocab_size": 67}
SINGLE = ["--config.tokenizer.path=", "--config.objective.next_sentence=False", "--config.data.layout=packed"]
SINGLE += ["--config.data.sentences="]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of documents."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\n\n".join("\n".join([f"text {i} of many.", *hub.TEXT]) for i in range(60)))
    return path


@pytest.fixture
def copied(imported, tmp_path):
    """`copied(case)`: a copy of an import, to train in."""
    return lambda case: shutil.copytree(imported(case)[1], tmp_path / "run")


def params(workdir, step):
    stored = leaves(Path(workdir).absolute(), step)
    return {name: np.asarray(leaf) for name, leaf in stored.items() if name.startswith("['params']")}


def test_training_starts_with_imported_weights(copied, text, signals, capsys, tmp_path):
    workdir, source = copied("gpt2"), f"text:{text}?document=blank_line"
    before = params(workdir, 0)
    data = [f"--config.data.train={source}", "--config.data.length=16"]
    assert main(["train", f"--workdir={workdir}", *data, *STILL]) == 0
    after = params(workdir, 1)
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={workdir}", "--step=0", f"--data={source}", "--format=json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["step"] == 0 and 0 < scored["loss"] < 30
    assert pretrain.to_huggingface(workdir, tmp_path / "back") == 1
    assert "Training began with imported weights." in (tmp_path / "back/README.md").read_text()


@pytest.mark.slow
def test_untrained_heads_are_named_until_they_are_trained(text, signals, capsys, tmp_path):
    tensors = hub.weights(hub.answers()["bert"]["shapes"])
    tensors = {name: array for name, array in tensors.items() if not name.startswith("cls.")}
    folder, source = hub.make(tmp_path / "theirs", "bert", tensors=tensors), f"text:{text}?document=blank_line"
    workdir, data = f"--workdir={tmp_path / 'run'}", [f"--config.data.train={source}", "--config.data.length=16"]
    data.append("--config.objective.whole_words=False")

    def printed(*words):
        code, output = main([*words]), capsys.readouterr()
        assert code == 0, output.err
        return output.out + output.err

    assert "pairs" in printed("import", f"--folder={folder}", workdir)
    untrained = "head_bias, pairs, transform, transform_norm untrained"
    assert untrained in printed("evaluate", workdir, f"--data={source}")
    other = [f"--workdir={tmp_path / 'next'}", f"--config.train.start_from={tmp_path / 'run'}"]
    model = [f"--config.model.{name}={size}" for name, size in SIZES.items()]
    assert untrained in printed("train", "--config=configs/bert.py", *other, *model, *data, *SINGLE, *STILL)
    assert untrained in printed("train", workdir, *data, *STILL)
    assert untrained not in printed("evaluate", workdir, f"--data={source}")


def test_training_refuses_another_model(copied, text, signals, capsys):
    workdir = copied("gpt2")
    data = [f"--config.data.train=text:{text}", "--config.data.length=16"]
    assert main(["train", f"--workdir={workdir}", *data, *STILL, "--config.model.layers=2"]) == 2
    assert "imported weights" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["train.start_from", "distill.teacher"])
def test_another_run_takes_the_tokenizer(key, imported, text, capsys, tmp_path):
    there, workdir = imported("gpt2")[1], tmp_path / "next"
    flags = ["--config=configs/gpt2.py:small", f"--config.data.train=text:{text}", "--config.data.length=16"]
    empty, other = "--config.tokenizer.path=", f"--config.{key}={there}"
    assert main(["describe", *flags, empty]) == 2
    assert "tokenizer.kind" in capsys.readouterr().err
    for _ in range(2):  # makes it, then finds it
        assert main(["prepare", *flags, empty, other, f"--workdir={workdir}"]) == 0
    one, two = (pipeline.open_tokenizer(folder / "tokenizer") for folder in (workdir, there))
    assert one.fingerprint == two.fingerprint


RECIPE = """
from configs import common

def get_config():
    config = common.base()
    config.model = dict(pair_head=False)
    config.objective = common.masked()
    config.objective.update(next_sentence=False, whole_words=False)
    config.data.update(layout="packed", length=16)
    return config
"""


def test_recipe_without_a_model_starts_from_an_import(imported, text, signals, capsys, tmp_path):
    there, new = imported("bert")[1], f"--workdir={tmp_path / 'new'}"
    (tmp_path / "recipe.py").write_text(RECIPE)
    flags = [f"--config={tmp_path / 'recipe.py'}", f"--config.train.start_from={there}"]
    assert main(["describe", *flags]) == 0
    assert main(["train", *flags, new, f"--config.data.train=text:{text}", *STILL]) == 0
    assert "; left out: pairs/bias, pairs/kernel, pooler" in capsys.readouterr().err
    assert (
        configs.saved(str(tmp_path / "new")).tokenizer.kind
        == configs.saved(str(there)).tokenizer.kind
        != "sentencepiece"
    )
    assert main(["export", new, f"--folder={tmp_path / 'back'}"]) == 0


LENGTHS = {"t5": 24, "t5_v1_1": 24, "mt5": 24, "bert": 20, "albert": 20}
MORE = {
    "distilbert": ["--config.train.accumulate=1"],
    "xlnet": [
        *("--config.model.memory=8", "--config.model.reuse=8", "--config.objective.reuse=8"),
        *("--config.objective.perm_size=8", "--config.objective.predictions=4"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in hub.answers() if c not in ("bert_masked", "albert_masked", "mt5_tied")])
def test_family_trains_and_returns(case, text, signals, capsys, tmp_path, monkeypatch):
    theirs = hub.make(tmp_path / "theirs", case)
    monkeypatch.chdir(tmp_path)

    def run(command, *flags):
        code = main([command, "--workdir=run", *flags])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    run("import", f"--folder={theirs}")
    config, before = json.loads(Path("run/config.json").read_text()), params("run", 0)
    count = sum(math.prod(shape) for shape in hub.answers()[case]["shapes"].values())
    assert sum(array.size for array in before.values()) == count

    source = f"text:{text}?document=blank_line" + "&code=Books" * (case == "ctrl")
    sources = " + ".join(f"{source}&language={one}" for one in config["data"]["languages"]) or source
    data = [f"--config.data.train={sources}", f"--config.data.length={LENGTHS.get(case, 16)}"]
    run("train", *data, *TRAIN, "--config.schedule.peak=0.01", "--config.train.steps=2", *MORE.get(case, ()))
    losses = [json.loads(line)["loss"] for line in Path("run/metrics/train.jsonl").read_text().splitlines()]
    assert len(losses) == 2 and all(0 < loss < 40 for loss in losses)
    after = params("run", 2)
    moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert {name for name in after if name.endswith("['kernel']")} <= moved
    assert all(np.isfinite(array).all() for array in after.values())

    evaluate = ("evaluate", f"--data={sources}", "--batches=1", "--format=json")
    last, first = json.loads(run(*evaluate)), json.loads(run(*evaluate, "--step=0"))
    assert (last["step"], first["step"]) == (2, 0) and 0 < last["loss"] < 40 and first["loss"] != last["loss"]
    if config["model"]["kind"] in ("decoder", "encoder_decoder"):
        written = json.loads(run("generate", "--prompt=the", "--max_tokens=4", "--format=json"))
        assert written["step"] == 2 and 0 < written["tokens"] <= 4 and written["log_probability"] < 0
        assert max(written["ids"]) < pretrain.open("run").tokenizer.vocab_size

    run("export", "--folder=back")
    old, new = (load_file(folder / "model.safetensors") for folder in (theirs, Path("back")))
    tied = families.MODEL_TYPES[hub.answers()[case]["config"]["model_type"]].tied
    old = {name if name in new else tied.get(name, name): array for name, array in old.items()}
    assert {name: array.shape for name, array in old.items()} == {name: array.shape for name, array in new.items()}
    assert sum(not np.array_equal(old[name], new[name]) for name in new) > len(new) / 2
    assert main(["import", "--folder=back", "--workdir=again"]) == 0


MEASURE = """
import resource, sys
from pretrain.interop.hf_import import import_folder
from pretrain.interop.hf_export import export_folder
import jax, orbax.checkpoint
jax.devices()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
import_folder(sys.argv[1], sys.argv[2])
imported = peak()
export_folder(sys.argv[2], sys.argv[3])
print(before, imported, peak())
"""


@pytest.mark.slow
def test_import_memory(tmp_path):
    """Importing a gigabyte takes less than half of its largest array, one matrix of all layers."""
    layers, width, files = 22, 1024, 2
    keys = {"n_layer": layers, "n_embd": width, "n_head": 16, "n_inner": 4 * width}
    folder = hub.make(tmp_path / "theirs", "gpt2", tensors={}, keys=keys)
    (folder / "model.safetensors").unlink()
    sizes = {15: width, 31: 4 * width, 45: 3 * width}
    noise = np.random.default_rng(0).standard_normal(4 * width * width, dtype=np.float32)
    index = {}
    for number in range(files):
        tensors = {}
        for name, shape in hub.answers()["gpt2"]["shapes"].items():
            array = np.resize(noise, [sizes.get(size, size) for size in shape])
            if ".h.0." in name:
                tensors |= {name.replace(".h.0.", f".h.{layer}."): array for layer in range(number, layers, files)}
            elif ".h." not in name and number == 0:
                tensors[name] = array
        save_file(tensors, folder / f"model-{number}.safetensors")
        index |= dict.fromkeys(tensors, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    paths = [str(folder), str(tmp_path / "run"), str(tmp_path / "back")]
    done = subprocess.run([sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    before, imported, both = map(int, done.stdout.split())
    array = 4 * layers * 4 * width * width
    assert total > 1e9
    assert imported - before < array / 2
    assert both - before < 2 * array + total  # an export holds one file
