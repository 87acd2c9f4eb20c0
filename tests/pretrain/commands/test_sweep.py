"""Every number of a config and every file of a flag, set to what it should not be: each works or is one sentence.

Nothing is trained: `describe` builds models, optimisers and schedules, `prepare` what reads text.
"""

import numpy as np
import pytest

from configs import common
from pretrain.commands.flags import Number, commands
from pretrain.main import main

RECIPES = {
    "decoder": "configs/quickstart.py:tiny",
    "recurrent": "configs/transformer_xl.py:tiny",
    "two_stream": "configs/xlnet.py:mini_stdlib",
    "encoder": "configs/bert.py:mini_stdlib",
    "encoder_decoder": "configs/t5.py:mini_stdlib",
    "replaced_tokens": "configs/electra.py:mini_stdlib",
    "masked": "configs/bert.py:mini_stdlib",
    "spans": "configs/t5.py:mini_stdlib",
    "replaced": "configs/electra.py:mini_stdlib",
    "permutation": "configs/xlnet.py:mini_stdlib",
    "denoising": "configs/bart.py:mini_stdlib",
}
VALUES = ("-1", "0", "nan", "inf", "1e30", "-1e30", "1e999", "many", "")
KEYS = [("decoder", key) for key in common.base.ranges]
KEYS += [(name, f"model.{key}") for name, declare in common.MODELS.items() for key in declare.ranges]
KEYS += [(name, f"evaluate.model.{key}") for name, declare in common.MODELS.items() for key in declare.ranges]
KEYS += [(name, f"objective.{key}") for name, declare in common.OBJECTIVES.items() for key in declare.ranges]


@pytest.fixture
def outcome(capsys):
    """Runs a command in this process: its one sentence, or "" where it worked."""

    def run(*arguments):
        code = main(arguments)
        out, err = capsys.readouterr()
        if code == 0:
            assert out
            return ""
        last = err.strip().split("\n")[-1]
        assert code == 2 and last.startswith("pretrain: ") and "Traceback" not in err, err
        return last

    return run


@pytest.mark.parametrize(
    ("kind", "key"),
    [pytest.param(*key, marks=[pytest.mark.slow] * (index % 4 > 0)) for index, key in enumerate(KEYS)],
)
def test_numbers(outcome, kind, key):
    said = {value: outcome("describe", f"--config={RECIPES[kind]}", f"--config.{key}={value}") for value in VALUES}
    assert all(said[value] for value in ("nan", "inf", "1e999", "many", "")), said
    name = key.split(".")[-1]
    assert all(name in sentence for sentence in said.values() if sentence), said


NUMBERS = [
    (name, flag)
    for name, command in commands().items()
    for flag in command.flags
    if isinstance(command.flags[flag].parser, Number)
]


@pytest.mark.parametrize(("command", "flag"), NUMBERS)
def test_numbers_of_flags(outcome, command, flag):
    """What is in range gets as far as the work folder, which is not there and cannot be made."""
    assert len(NUMBERS) > 10
    kept = commands()[command].flags[flag].parser.flag
    more = ["--complete=x.png"] if flag in ("rows", "samples", "keep") else []
    more += ["--beams=2"] if flag == "length_penalty" else []
    for value in VALUES:
        said = outcome(command, "--workdir=/dev/null/run", f"--{flag}={value}", *more)
        if value in ("nan", "inf", "1e999", "many", "") or kept.range.broken_by(kept.kind(float(value))):
            assert f"--{flag}" in said, (value, said)
        else:
            assert "/dev/null" in said and f"--{flag}" not in said, (value, said)


DATA = ("prepare", f"--config={RECIPES['decoder']}", "--workdir=RUN", "--config.tokenizer.kind=bytes")
FILES = {
    "--config": ("describe", "--config=PATH"),
    "--config of a python file": ("describe", "--config=PATH.py"),
    "--workdir of evaluate": ("evaluate", "--workdir=PATH"),
    "--workdir of generate": ("generate", "--workdir=PATH"),
    "--prompt_file": ("generate", "--workdir=TRAINED", "--prompt_file=PATH", "--max_tokens=1"),
    "--workdir of prepare": (*DATA, "--workdir=PATH", "--config.data.train=text:pretrain/*.py"),
    "data.train": (*DATA, "--config.data.train=text:PATH"),
    "data.validation": (*DATA, "--config.data.train=text:pretrain/*.py", "--config.data.validation=text:PATH"),
    "data.train of JSON lines": (*DATA, "--config.data.train=jsonl:PATH"),
    "data.train of gzipped lines": (*DATA, "--config.data.train=jsonl:PATH.gz"),
    "data.train of images": (*DATA, "--config.data.train=images:PATH", "--config.data.image=(8, 8, 3)"),
    "data.train of a TFDS folder": (*DATA, "--config.data.train=tfds:PATH"),
    "data.store": (*DATA, "--config.data.train=text:pretrain/*.py", "--config.data.store=PATH"),
    "tokenizer.path": (*DATA, "--config.tokenizer.kind=sentencepiece", "--config.tokenizer.path=PATH"),
    "tokenizer.path of tokenizer.json": (*DATA, "--config.tokenizer.kind=huggingface", "--config.tokenizer.path=PATH"),
}
WORK = {(flag, kind) for flag in ("--workdir of prepare", "data.store") for kind in ("missing", "folder")}


@pytest.mark.parametrize("flag", FILES)
def test_files(outcome, whole, tmp_path, flag):
    """Of a missing path, an empty file, one of random bytes and a folder."""
    for suffix in ("", ".py", ".gz"):
        (tmp_path / f"empty{suffix}").write_bytes(b"")
        (tmp_path / f"binary{suffix}").write_bytes(np.random.default_rng(0).bytes(5000))
        (tmp_path / f"folder{suffix}").mkdir()
    for kind in ("missing", "empty", "binary", "folder"):
        places = {"PATH": tmp_path / kind, "RUN": tmp_path / f"run_{kind}", "TRAINED": whole}
        arguments = FILES[flag]
        for name, place in places.items():
            arguments = [argument.replace(name, str(place)) for argument in arguments]
        said = outcome(*arguments)
        assert ((flag, kind) in WORK) == (not said), (kind, said)
        assert not said or kind in said or "tokenizer" in said, (kind, said)  # a tokenizer's file was copied by then
