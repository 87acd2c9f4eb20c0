"""What an import makes is a work folder: it trains, from its weights, is evaluated, and writes text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hub
import numpy as np
import pytest
from runs import leaves
from safetensors.numpy import save_file

import pretrain
from input_pipeline import pipeline
from pretrain.cli import main
from pretrain.interop import hf_export

STILL = ["--config.schedule.peak=0", "--config.schedule.warmup=0", "--config.train.batch_size=8"]
STILL += ["--config.train.steps=1", "--config.log.every=1", "--config.log.tensorboard=false"]


@pytest.fixture
def imported(tmp_path):
    def make(case):
        theirs = hub.make(tmp_path / "theirs", case)
        pretrain.from_huggingface(theirs, tmp_path / "run")
        return tmp_path / "run"

    return make


@pytest.fixture
def lines(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join("\n".join([f"text {i} of many.", *hub.TEXT]) for i in range(60)))
    return folder


def params(workdir, step):
    return {
        name: leaf for name, leaf in leaves(Path(workdir).absolute(), step).items() if name.startswith("['params']")
    }


@pytest.mark.parametrize(
    ("case", "length"),
    [("gpt2", 16), pytest.param("bert", 20, marks=pytest.mark.slow), pytest.param("t5", 24, marks=pytest.mark.slow)],
)
def test_training_begins_with_the_weights(case, length, imported, lines, signals, capsys, tmp_path, monkeypatch):
    imported(case)
    monkeypatch.chdir(tmp_path)
    workdir, source = Path("run"), f"text:{lines}/a.txt?document=blank_line"
    assert main(["evaluate", f"--workdir={workdir}"]) == 2
    said = capsys.readouterr().err
    assert "holds imported weights, and what their recipe is trained on cannot be scored (" in said
    assert said.endswith("); give --data, such as --data=text:/books/*.txt\n")
    assert main(["evaluate", f"--workdir={workdir}", "--stride=999"]) == 2
    assert "evaluate.stride=999" in capsys.readouterr().err
    before = params(workdir, 0)
    data = [f"--config.data.train={source}", f"--config.data.length={length}", "--config.data.holdout=0.2"]
    assert main(["train", f"--workdir={workdir}", *data, *STILL]) == 0
    said = capsys.readouterr().err
    assert f"took {len(before)} of {len(before)} parameters (100.0% of the numbers) from checkpoint 0" in said
    after = params(workdir, 1)
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    assert main(["train", f"--workdir={workdir}"]) == 0  # which goes on
    assert "restored checkpoint 1, all 1 steps are done" in capsys.readouterr().err
    assert main(["evaluate", f"--workdir={workdir}", "--step=0", f"--data={source}", "--format=json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["step"] == 0 and 0 < scored["loss"] < 30
    assert hf_export.export_folder(str(workdir), str(workdir.parent / "back")) == 1
    assert "after 1 of 1 updates. Its tokenizer" in (card := Path("back/README.md").read_text())
    assert "Training began with imported weights." in card


@pytest.mark.slow
def test_a_fresh_start_says_that_they_are_put_aside(imported, lines, signals, capsys):
    workdir = imported("gpt2")
    before = params(workdir, 0)
    train = ["train", f"--workdir={workdir}", f"--config.data.train=text:{lines}/a.txt", "--config.data.length=16"]
    train += ["--config.data.holdout=0.2", *STILL]
    assert main([*train, "--fresh=first"]) == 0
    remedy = f"--config.train.start_from={workdir}/earlier/first@0"
    assert "this run does not begin with them" in (said := capsys.readouterr().err) and remedy in said
    assert main([*train, "--fresh=second", remedy]) == 0
    assert f"took {len(before)} of {len(before)} parameters" in (said := capsys.readouterr().err)
    assert "does not begin" not in said
    for name, array in params(workdir, 1).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_another_model_does_not_begin_with_them(imported, lines, signals, capsys):
    workdir = imported("gpt2")
    other = [f"--workdir={workdir}", f"--config.data.train=text:{lines}/a.txt", "--config.data.length=16"]
    assert main(["train", *other, *STILL, "--config.model.layers=2"]) == 2
    assert f"the imported weights of {workdir}" in (said := capsys.readouterr().err)
    assert "leave it as the folder has it" in said
    assert main(["train", *other, *STILL, f"--config.train.start_from={workdir.parent}"]) == 2
    assert "has imported weights to start from" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["train.start_from", "distill.teacher"])
def test_a_run_that_names_no_tokenizer_takes_that_of_an_import(key, imported, lines, capsys, tmp_path):
    """Of a kind of which none is made here: `prepare` leaves it where `train` looks for it."""
    there, workdir = imported("gpt2"), tmp_path / "next"
    flags = ["--config=configs/gpt2.py:small", f"--config.data.train=text:{lines}/a.txt", "--config.data.length=16"]
    empty, other = "--config.tokenizer.path=", f"--config.{key}={there}"
    assert main(["describe", *flags, empty]) == 2
    assert "tokenizer.kind = huggingface trains no tokenizer" in capsys.readouterr().err
    assert main(["prepare", *flags, other, f"--workdir={workdir}", "--config.tokenizer.path=none.json"]) == 2
    assert "take the other run's: --config.tokenizer.path= (" in capsys.readouterr().err
    assert main(["describe", *flags, empty, other]) == 0
    for _ in range(2):  # makes it, then goes on with it
        assert main(["prepare", *flags, empty, other, f"--workdir={workdir}"]) == 0
    tokenizers = [pipeline.open_tokenizer(folder / "tokenizer") for folder in (workdir, there)]
    assert tokenizers[0].fingerprint == tokenizers[1].fingerprint


def test_from_python(imported, tmp_path, monkeypatch):
    run = pretrain.open(imported("gpt2"))
    assert run.step == 0 and run.generate("the", max_tokens=3, temperature=0).startswith("the")
    monkeypatch.chdir(tmp_path)
    assert pretrain.to_huggingface("run", "back") == 0
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


MEASURED = """
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
def test_memory_of_a_gigabyte(tmp_path):
    """The peak above what the program itself takes is less than half of the largest array, a matrix of all layers."""
    layers, width, files = 22, 1024, 2
    config = {**hub.answers()["gpt2"]["config"], "n_layer": layers, "n_embd": width, "n_head": 16, "n_inner": 4 * width}
    folder = hub.make(tmp_path / "theirs", "gpt2", tensors={}, config=config)
    (folder / "model.safetensors").unlink()
    sizes = {15: width, 31: 4 * width, 45: 3 * width}
    noise = np.random.default_rng(0).standard_normal(4 * width * width, dtype=np.float32)
    held, largest = {}, 0
    for number in range(files):
        some = {}
        for name, shape in hub.answers()["gpt2"]["shapes"].items():
            array = np.resize(noise, [sizes.get(size, size) for size in shape])
            if ".h.0." in name:
                some |= {name.replace(".h.0.", f".h.{layer}."): array for layer in range(number, layers, files)}
            elif ".h." not in name and number == 0:
                some[name] = array
        file = f"model-{number}.safetensors"
        save_file(some, folder / file)
        largest = max(largest, (folder / file).stat().st_size)
        held |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    paths = [str(folder), str(tmp_path / "run"), str(tmp_path / "back")]
    done = subprocess.run([sys.executable, "-c", MEASURED, *paths], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    before, imported, both = map(int, done.stdout.split())
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    array = 4 * layers * 4 * width * width  # bytes of the largest: a matrix of all layers
    used = [f"{size / 1e6:.0f} MB" for size in (total, largest, array, imported - before, both - before)]
    print("{} in files of {} and arrays of up to {} take {} to import, {} with the export".format(*used))
    assert total > 1e9
    assert imported - before < array / 2 < largest / 2
    assert both - before < 2 * array + total  # one file is written
