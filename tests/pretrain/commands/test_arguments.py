"""Commands called from Python: what they are told is typed and checked, as their flags are, and cannot change."""

import dataclasses
import functools
import importlib
import inspect
import json
from types import SimpleNamespace

import pytest
from pretrain.commands.flags import commands
from runs import ROOT

from pretrain.cli import parse
from pretrain.commands import complete, describe, evaluate, export, generate, goodput, plan, prepare, run, train
from pretrain.commands.arguments import (
    Complete,
    Describe,
    Evaluate,
    Export,
    Generate,
    Goodput,
    Import,
    Plan,
    Prepare,
    Train,
    flagged,
)
from pretrain.decoding import decoding
from pretrain.errors import UserError

FORMS = {Train: train, Evaluate: evaluate, Generate: generate, Complete: complete, Describe: describe}
FORMS |= {Plan: plan, Goodput: goodput, Prepare: prepare}
FORMS |= {Import: importlib.import_module("pretrain.commands.import"), Export: export}


@pytest.mark.parametrize("form", FORMS)
def test_a_command_is_a_function_of_its_arguments(form):
    (parameter,) = inspect.signature(FORMS[form].run).parameters.values()
    assert parameter.annotation is form


def test_every_command_has_its_arguments():
    assert [form for command in commands().values() for form in command.forms] == list(FORMS)


def test_a_command_does_what_its_line_does(capsys):
    line = ["describe", "--config=configs/quickstart.py:tiny", "--config.model.layers=3", "--format=json"]
    told = Describe(config="configs/quickstart.py:tiny", overrides=(("model.layers", "3"),), format="json")
    assert parse(line) == told
    assert run(told) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


def test_a_line_gives_types():
    arguments = parse(["generate", "--workdir=x", "--prompt=a", "--prompt=b", "--top_p=1", "--top_k=4", "--nocached"])
    assert arguments == Generate(workdir="x", prompt=("a", "b"), top_p=1.0, top_k=4, cached=False)
    assert (type(arguments.top_p), type(arguments.top_k), arguments.temperature) == (float, int, None)
    assert parse(["generate", "--workdir=x", "--complete=a.png"]) == Complete(workdir="x", complete="a.png")
    assert parse(["train"]) == Train()


@pytest.mark.parametrize(
    ("form", "values", "words"),
    [
        (Evaluate, {"stride": -1}, "--stride=-1; it must be at least 0"),
        (Evaluate, {"stride": "1"}, "--stride is '1', which is not an int; write for example 100"),
        (Evaluate, {"format": "xml"}, "--format is 'xml'; choose one of: json, table"),
        (Evaluate, {"workdir": ""}, "--workdir is missing; give the folder of a `pretrain train` run"),
        (Evaluate, {"workdir": ROOT}, "which is not a str"),
        (Evaluate, {"data": "stdlib", "split": "test"}, "--data and --split both say what is scored"),
        (Evaluate, {"overrides": (("train.steps", "3"),)}, "steps out, set keys of config.evaluate alone"),
        (Generate, {"prompt": "a"}, "--prompt is 'a', which is not a tuple"),
        (Generate, {"top_p": 0.0}, "--top_p=0.0; it must be above 0 and at most 1"),
        (Generate, {"seed": True}, "--seed is True, which is not an int"),
        (
            Export,
            {"folder": "s3://b/x"},
            "--folder=s3://b/x is in an object store, and has to be on a disk; make it on",
        ),
        (Import, {"folder": "s3://b/x"}, "--folder=s3://b/x is in an object store, and has to be on a disk; fetch it"),
        (Generate, {"prompt_file": "gs://b/x"}, "--prompt_file=gs://b/x is in an object store"),
        (Train, {"config": ROOT / "configs/gpt2.py"}, "which is not a str"),
        (Describe, {"config": "configs/gpt2.py"}, "--config and --workdir both say what is described"),
    ],
)
def test_what_cannot_be_is_refused(form, values, words):
    with pytest.raises(UserError) as refused:
        form(**{"workdir": "x"} | values)
    assert words in str(refused.value)


def test_arguments_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Train().workdir = "x"
    assert {field.name for field in dataclasses.fields(Train)} - {field.name for field in flagged(Train)} == {
        "config",
        "overrides",
    }


@pytest.mark.parametrize(("values", "temperature"), [({}, 0.8), ({"temperature": 0.5}, 0.5), ({"beams": 4}, 0.0)])
def test_generation_is_told_of_every_flag_that_says_how_to_write(values, temperature):
    arguments = Generate(workdir="x", **values)
    told, known = arguments.options(), inspect.signature(decoding.generate).parameters
    assert told.keys() == {field.name for field in flagged(Generate)} & known.keys()
    assert told == {name: getattr(arguments, name) for name in told} | {"temperature": temperature}
    image = Complete(workdir="x", complete="a.png", **values)
    assert image.options(1.0)["temperature"] == (temperature if values else 1.0)
    assert told.keys() - image.options(1.0).keys() == {"max_tokens", "beyond"}  # which are the image's


def test_a_prompt_is_a_line_whatever_else_it_holds(tmp_path):
    file = tmp_path / "prompts.txt"
    for text, prompts in {
        "one\x0cpage\u2028 of\rit\x85\r\n\ntwo": ["one\x0cpage\u2028 of\rit\x85", "", "two"],
        "one\n": ["one"],
        "\ufeffone\n": ["one"],  # as some editors begin a file
        "\n\n": ["", ""],
    }.items():
        file.write_bytes(text.encode())
        assert generate.read_prompts(Generate(workdir="x", prompt_file=str(file))) == prompts


def test_figures_that_are_not_finite_are_null_in_json(capsys):
    task = {"loss": float("-inf"), "examples": 2}
    result = {"loss": float("nan"), "perplexity": float("inf"), "tokens": 3, "tokens_per_second": 1.5}
    objective = SimpleNamespace(measures=("loss", "perplexity"), decoded=())
    told = Evaluate(workdir="x", format="json")
    evaluate.report(result | {"tasks": {"a": task}}, 5, "validation", objective, told)

    def refused(word):
        raise ValueError(word)  # what Python alone reads

    row = json.loads(capsys.readouterr().out, parse_constant=refused)
    known = {"step": 5, "split": "validation", "tokens": 3, "tokens_per_second": 1.5}
    assert row == known | {"loss": None, "perplexity": None, "tasks": {"a": {"loss": None, "examples": 2}}}


@pytest.mark.parametrize(
    "overrides", [{"train.steps": "2"}, (("train.steps", 2),), ("train.steps", "2"), "train.steps=2", None]
)
def test_overrides_are_pairs_of_texts(overrides):
    for form in (Train, functools.partial(Evaluate, workdir="x")):
        with pytest.raises(UserError, match=r"^overrides is .*; write pairs of texts, such as \(\('train.steps'"):
            form(overrides=overrides)
