"""Every command that README, docs and recipes print is one that the programs accept."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain import cli
from pretrain import config as configs
from pretrain.commands.arguments import ConfigArguments, Train

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "configs").glob("*.py")),
]
PROGRAMS = ("pretrain", "python", "make", "tfds", "hf")


def read_commands(page: Path) -> list[str]:
    """Return the commands of a page: lines of its blocks and of docstrings, and those quoted whole in prose."""
    text = page.read_text().replace("\\\n", " ")
    if page.suffix == ".md":
        blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S))
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        quoted = re.findall(r"`((?:pretrain|python -m|tfds build) [^`]*)`", prose.replace("\n", " "))
    else:
        blocks, quoted = re.match(r'""".*?"""', text, re.S)[0], []
    lines = [line.strip().removeprefix("$ ") for line in blocks.splitlines()]
    commands = [line.split("  #")[0].strip() for line in [*lines, *quoted]]
    return [line for line in commands if line.split(" ")[0] in PROGRAMS and " " in line and "..." not in line]


COMMANDS = sorted({command for page in PAGES for command in read_commands(page)})


def starting(*prefixes: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(prefixes)]


def split(command: str) -> list[str]:
    """Return the words of a command, up to what is joined to it."""
    return list(
        itertools.takewhile(lambda word: word not in ("&&", "|"), shlex.split(command.replace("$kind", "dense")))
    )


@pytest.mark.parametrize(
    "prefix", ["pretrain train", "pretrain evaluate", "python -m launch.", "python -m benchmarks."]
)
def test_commands_are_printed(prefix):
    assert starting(prefix)


@pytest.mark.parametrize("command", [c for c in starting("pretrain") if "--" in c and "=C" not in c and "=W" not in c])
def test_command_of_pretrain(command, capsys):
    line = split(command)[1:]
    arguments = cli.parse(line)
    assert type(arguments).__name__ == ("Complete" if "--complete" in command else line[0].title())
    if isinstance(arguments, ConfigArguments) and "configs/tasks.py" in command:  # its model is that of a run
        path, _, variant = arguments.config.partition(":")
        assert set(dict(arguments.overrides)) <= {*configs.flat(configs.recipe_config(path, variant))}
    elif isinstance(arguments, ConfigArguments):
        assert configs.load(arguments.config or "configs/quickstart.py", arguments.overrides).train.steps > 0
    if line[0] == "describe":
        assert cli.main(line) == 0 and "parameters" in capsys.readouterr().out


@pytest.mark.parametrize("command", starting("python -m launch"))
def test_command_of_a_launcher(command):
    line = split(command)[2:]
    at = line.index("--") if "--" in line else len(line)
    program = line[at + 1 :]
    result = subprocess.run(
        [sys.executable, "-m", *line[:at], "--dry-run", *line[at:]], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stdout, result.stderr
    if program:
        arguments = cli.parse(program)
        assert isinstance(arguments, Train) and configs.load(arguments.config, arguments.overrides)
    else:
        assert "--stop" in line


@pytest.mark.parametrize("command", starting("python -m benchmarks"))
def test_command_of_a_benchmark(command):
    assert (ROOT / split(command)[2].replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.parametrize("command", starting("make "))
def test_command_of_make(command):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert split(command)[1] in targets


@pytest.mark.parametrize("command", starting("hf "))
def test_command_of_the_hub(command):
    """Its own program parses the words and stops at --help; nothing is downloaded."""
    pytest.importorskip("huggingface_hub")
    program = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()", *split(command)[1:], "--help"]
    result = subprocess.run(program, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert result.returncode == 0 and "--local-dir" in result.stdout, result.stderr


BENCHMARKS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if f"python -m benchmarks.{path.stem}" in path.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_help(name):
    program = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("usage: "), result.stderr


def test_recipe_of_running_page(tmp_path):
    (recipe,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "running.md").read_text(), re.S)
    (tmp_path / "mine.py").write_text(recipe)
    assert configs.load(f"{tmp_path / 'mine.py'}:medium").model.width == 1024


def test_wmt_commands_join_files_line_by_line(tmp_path):
    """The block of docs/data.md for WMT 2014, with stand-ins for curl and sacrebleu."""
    (block,) = re.findall(r"^```\n(language=de .*?)^```", (ROOT / "docs" / "data.md").read_text(), re.M | re.S)
    programs, names = tmp_path / "bin", ("commoncrawl", "europarl-v7", "nc-v9")
    programs.mkdir()
    for name in names:
        folder = tmp_path / name / ("training" if name != "commoncrawl" else ".")
        folder.mkdir(parents=True)
        for pair, language in (("de-en", "de"), ("de-en", "en"), ("fr-en", "en"), ("fr-en", "fr")):
            (folder / f"{name}.{pair}.{language}").write_text("".join(f"{name} {pair} {n}\n" for n in range(3)))
    fetch = 'name=${2##*training-parallel-}; tar -czC "$FOLDER/${name%.tgz}" .'
    for name, script in (("curl", fetch), ("sacrebleu", "echo $*")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "FOLDER": str(tmp_path)}
    result = subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and not result.stderr, result.stderr
    files = {path.name: path.read_text() for path in (tmp_path / "data/wmt14").iterdir() if path.is_file()}
    assert files["train.de"] == files["train.en"] == "".join(f"{name} de-en {n}\n" for name in names for n in range(3))
    assert files["newstest2013.en"] == "-t wmt13 -l en-de --echo src\n"
    assert files["newstest2014.de"] == "-t wmt14/full -l en-de --echo ref\n"
    assert len(files) == 6


def test_files_of_recipes_are_in_the_table():
    page = (ROOT / "docs" / "data.md").read_text()
    for name, path in configs.model_recipes().items():
        module = configs.recipe_module(str(path))
        for variant in getattr(module, "VARIANTS", ()):
            config = module.get_config(variant)
            needed = [config.tokenizer.path] if config.tokenizer.path else []
            sources = " + ".join((config.data.train, config.data.validation, config.data.test))
            needed += re.findall(r"(?:text|parallel|images):(data/[\w-]+)", sources)
            needed += [f"tfds build {dataset}" for dataset in re.findall(r"tfds:([\w/.]+)", sources)]
            assert not [file for file in needed if file not in page], f"{name}:{variant}"
            assert not needed or f"{name}.py" in page
