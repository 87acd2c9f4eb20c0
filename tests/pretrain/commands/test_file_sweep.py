"""Every flag and every key that takes a path, given one that is missing, empty, of random bytes, a folder or a loop.

Each works or is one sentence. What takes a path is read off the commands' flags and the config: a new one fails here
until it is given a row, or is said to be a word.
"""

import itertools

import numpy as np
import pytest
from pretrain.commands.flags import commands
from runs import ROOT, SMALL

from configs import common
from input_pipeline.sources import images
from pretrain.cli import main

TINY = "configs/quickstart.py:tiny"
PACKAGE = "--config.data.train=text:pretrain/*.py"
KEYS = [f"--config.{key}={value}" for key, value in (SMALL | {"train.steps": 1, "schedule.warmup": 1}).items()]
TRAIN = ("train", f"--config={TINY}", PACKAGE, *KEYS)
PREPARE = ("prepare", f"--config={TINY}", "--workdir=RUN", "--config.tokenizer.kind=bytes")
GENERATE = ("generate", "--workdir=TRAINED", "--max_tokens=1")
DRAW = ("generate", "--workdir=DRAWN", "--rows=1", "--samples=1")

WORDS = {"fresh", "step", "split", "prompt", "topology", "beam", "part"}  # flags of text that is no path
FLAGS = {  # by command and flag; PATH is given, of the others each is what it should be
    ("train", "workdir"): (*TRAIN, "--workdir=PATH"),
    ("evaluate", "workdir"): ("evaluate", "--workdir=PATH"),
    ("evaluate", "data"): ("evaluate", "--workdir=TRAINED", "--data=text:PATH"),
    ("generate", "workdir"): ("generate", "--workdir=PATH"),
    ("generate", "prompt_file"): (*GENERATE, "--prompt_file=PATH"),
    ("generate", "complete"): (*DRAW, "--images=test", "--complete=PATH.png"),
    ("generate", "images"): (*DRAW, "--complete=RUN.png", "--images=images:PATH"),
    ("describe", "workdir"): ("describe", "--workdir=PATH"),
    ("plan", "workdir"): ("plan", "--topology=cpu:8", "--workdir=PATH"),
    ("goodput", "workdir"): ("goodput", "--workdir=PATH"),
    ("prepare", "workdir"): (*PREPARE, PACKAGE, "--workdir=PATH"),
    ("import", "folder"): ("import", "--workdir=RUN", "--folder=PATH"),
    ("import", "generator"): ("import", "--workdir=RUN", "--folder=ELECTRA", "--generator=PATH"),
    ("import", "workdir"): ("import", "--folder=ELECTRA", "--workdir=PATH"),
    ("export", "workdir"): ("export", "--folder=RUN", "--workdir=PATH"),
    ("export", "folder"): ("export", "--workdir=TRAINED", "--folder=PATH"),
}
CONFIGS = {  # of --config, which every command of a config reads alike
    ("describe", "config"): ("describe", "--config=PATH"),
    ("train", "config of a Python file"): ("train", "--workdir=RUN", "--config=PATH.py"),
    ("prepare", "config of a variant"): ("prepare", "--workdir=RUN", "--config=PATH.py:small"),
}
KINDS = {  # keys of text that is no path, but one of some words
    *("data.layout", "data.sentences", "evaluate.stopping", "model.activation", "model.attention_path", "model.dtype"),
    *("model.kind", "model.norm", "model.param_dtype", "model.placement", "model.positions", "model.remat", "name"),
    *("objective.kind", "objective.selects", "optimizer.decay", "optimizer.name", "schedule.kind", "train.backend"),
    *("tokenizer.algorithm", "tokenizer.kind", "tokenizer.pieces", "tokenizer.unknown", "train.on_bad_step"),
}
PATHS = {
    ("data.train", ""): (*PREPARE, "--config.data.train=text:PATH"),
    ("data.train", "JSON lines"): (*PREPARE, "--config.data.train=jsonl:PATH"),
    ("data.train", "gzipped lines"): (*PREPARE, "--config.data.train=jsonl:PATH.gz"),
    ("data.train", "pairs"): (*PREPARE, "--config.data.train=parallel:PATH.{}?fields=py,gz"),
    ("data.train", "images"): (*PREPARE, "--config.data.train=images:PATH", "--config.data.image=(8, 8, 3)"),
    ("data.train", "a TFDS folder"): (*PREPARE, "--config.data.train=tfds:PATH"),
    ("data.validation", ""): (*PREPARE, PACKAGE, "--config.data.validation=text:PATH"),
    ("data.test", ""): (*PREPARE, PACKAGE, "--config.data.test=text:PATH"),
    ("data.store", ""): (*PREPARE, PACKAGE, "--config.data.store=PATH"),
    ("tokenizer.path", "SentencePiece"): (
        *(*PREPARE, PACKAGE, "--config.tokenizer.kind=sentencepiece", "--config.tokenizer.path=PATH"),
    ),
    ("tokenizer.path", "tokenizer.json"): (
        *(*PREPARE, PACKAGE, "--config.tokenizer.kind=huggingface", "--config.tokenizer.path=PATH"),
    ),
    ("tokenizer.path", "WordPiece"): (
        *(*PREPARE, PACKAGE, "--config.tokenizer.kind=wordpiece", "--config.tokenizer.path=PATH"),
    ),
    ("train.start_from", ""): (*TRAIN, "--workdir=RUN", "--config.train.start_from=PATH"),
    ("distill.teacher", ""): (*TRAIN, "--workdir=RUN", "--config.distill.teacher=PATH"),
}
CASES = FLAGS | CONFIGS | PATHS
NEW = ("missing", "folder")  # a folder that is made, or is empty, is as good as any
WORK = {
    *((case, kind) for case in (("train", "workdir"), ("prepare", "workdir"), ("data.store", "")) for kind in NEW),
    *((case, kind) for case in (("import", "workdir"), ("export", "folder")) for kind in NEW),
    (("generate", "complete"), "missing"),
}


def test_every_flag_has_its_case():
    given = {
        (name, flag)
        for name, command in commands().items()
        for form in command.forms
        for flag, field in form.__dataclass_fields__.items()
        if "flag" in field.metadata and field.metadata["flag"].kind in (str, tuple)
        if not field.metadata["flag"].choices and flag not in WORDS
    }
    assert given == FLAGS.keys()
    assert {*itertools.chain(*(command.flags for command in commands().values()))} >= WORDS


def test_every_key_has_its_case():
    def texts(section, before=""):
        for name, value in section.items():
            if isinstance(value, dict):
                yield from texts(value, f"{before}{name}.")
            elif isinstance(value, str):
                yield before + name

    assert {*texts(common.base().to_dict())} == KINDS | {key for key, _ in PATHS}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run of one update on images."""
    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 16, (9, 8, 8, 3), np.uint8)):
        images.write_png(folder / f"{number}.png", pixels)
    sources = [f"--config.data.{split}=images:{folder}/{of}.png" for split, of in (("train", "[1-8]"), ("test", "0"))]
    sources.append("--config.data.validation=")
    keys = SMALL | {"train.steps": 1, "train.batch_size": 8, "data.holdout": 0.0, "schedule.warmup": 1}
    keys |= {"model.attention": "('strided_24',)", "model.remat": "none", "model.vocab_size": 256}
    flags = [f"--config.{key}={value}" for key, value in keys.items() if key != "tokenizer.kind"]
    recipe = "--config=configs/sparse_transformer.py:tiny_images"
    assert main(["train", recipe, f"--workdir={folder / 'run'}", *sources, *flags]) == 0
    return folder / "run"


def slow(case):
    """What needs a run of its own takes longer."""
    return [pytest.mark.slow] * (case == ("train", "workdir") or "--workdir=DRAWN" in CASES[case])


@pytest.fixture
def places(request, tmp_path, monkeypatch, case):
    """What the words in capitals stand for, but PATH and RUN."""
    needed = " ".join(CASES[case])
    found = {"TRAINED": request.getfixturevalue("whole")} if "TRAINED" in needed else {}
    found |= {"DRAWN": request.getfixturevalue("drawn")} if "DRAWN" in needed else {}
    if "ELECTRA" in needed:
        monkeypatch.syspath_prepend(ROOT / "tests/pretrain/interop")
        import hub

        found["ELECTRA"] = hub.make(tmp_path / "electra", "electra")
    return found


@pytest.mark.parametrize("case", [pytest.param(one, id=" ".join(one).strip(), marks=slow(one)) for one in CASES])
def test_paths(capsys, signals, tmp_path, places, case):
    for suffix in ("", ".py", ".gz", ".png"):
        (tmp_path / f"empty{suffix}").write_bytes(b"")
        (tmp_path / f"binary{suffix}").write_bytes(np.random.default_rng(0).bytes(5000))
        (tmp_path / f"folder{suffix}").mkdir()
        (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
    for kind in ("missing", "empty", "binary", "folder", "loop"):
        arguments = CASES[case]
        for name, place in ({"PATH": tmp_path / kind, "RUN": tmp_path / f"run_{kind}"} | places).items():
            arguments = [argument.replace(name, str(place)) for argument in arguments]
        capsys.readouterr()
        code = main(arguments)
        err = capsys.readouterr().err
        assert code == (0 if (case, kind) in WORK else 2), (kind, err)
        if code:
            said = err.strip().split("\n")[-1]
            assert said.startswith("pretrain: ") and "Traceback" not in err, err
            assert f"/{kind}" in said or "tokenizer" in said, (kind, said)  # a tokenizer's file was copied by then
