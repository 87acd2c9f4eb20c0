"""Every command that README and docs print is one that the program takes; where each is run is written here."""

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
from pretrain.commands.arguments import OfConfig, Train

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.py"))]
PROGRAMS = ("pretrain", "python", "make", "curl", "tfds", "pip", "hf", "git", ".")

# What is not run as printed, since it takes minutes, hours, a network or a cluster, and what stands for it.
RUN_BY = {
    "pretrain train": "tests/pretrain/commands/test_own_text.py, test_raw_files.py; CI's quickstart",
    "pretrain prepare": "tests/pretrain/commands/test_commands.py",
    "pretrain evaluate": "tests/pretrain/commands/test_commands.py",
    "pretrain generate": "tests/pretrain/commands/test_commands.py, test_image_runs.py",
    "pretrain describe": "here",
    "pretrain goodput": "tests/pretrain/commands/test_commands.py",
    "pretrain plan": "tests/pretrain/commands/test_plan.py, tests/pretrain/plan",
    "pretrain import": "tests/pretrain/interop",
    "pretrain export": "tests/pretrain/interop",
    "python -m launch.local": "tests/launch/test_local.py",
    "python -m launch.ssh": "tests/launch/test_ssh.py, test_sshd.py",
    "python -m launch.slurm": "tests/launch/test_slurm.py, test_slurm_cluster.py",
    "python -m launch.gke": "tests/launch/test_gke.py",
    "python -m launch.tpu_pod": "tests/launch/test_tpu_pod.py",
    "python -m benchmarks": "make benchmarks",
    "make": "CI",
    "curl": "a network",
    "git clone": "a network",
    "hf download": "a network; words of it here, where the extra hf is",
    "tfds build": "TensorFlow; names in tests/test_tfds_names.py",
    "pip install": "CI",
}


def printed(page: Path) -> list[str]:
    """The commands of a page: lines of its blocks and of recipes' docstrings, and those quoted whole in a sentence."""
    text = page.read_text().replace("\\\n", " ")
    if page.suffix == ".md":
        blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S))
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        quoted = re.findall(r"`((?:pretrain|python -m|tfds build) [^`]*)`", prose.replace("\n", " "))
    else:
        blocks = re.match(r'""".*?"""', text, re.S)[0]
        quoted = []
    lines = [line.strip().removeprefix("$ ") for line in blocks.splitlines()]
    return [line for line in [*lines, *quoted] if line.split(" ")[0] in PROGRAMS and " " in line and "..." not in line]


COMMANDS = sorted({command.split("  #")[0].strip() for page in PAGES for command in printed(page)})


def words(command: str) -> list[str]:
    """The words of a command, up to what is joined to it."""
    parts = shlex.split(command.replace("$kind", "dense"))
    return list(itertools.takewhile(lambda part: part not in ("&&", "|"), parts))


def test_commands_are_found():
    assert len(COMMANDS) > 30
    assert any("--data=" in command for command in COMMANDS) and any("launch.slurm" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_has_its_place(command):
    if not command.startswith(". "):
        assert [name for name in RUN_BY if " ".join(words(command)).startswith(name)]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pretrain") and "batchsize" not in c])
def test_the_program_takes_it(command):
    line = words(command)[1:]
    arguments = cli.parse([*line, "--workdir=x"] if len(line) == 1 else line)  # one that is named alone
    assert type(arguments).__name__ == ("Complete" if "--complete" in command else words(command)[1].title())
    if isinstance(arguments, OfConfig):
        assert configs.load(arguments.config or "configs/quickstart.py", arguments.overrides).train.steps > 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m launch")])
def test_launchers_take_it(command):
    line = words(command)[2:]
    at = line.index("--") if "--" in line else len(line)
    launcher, program = line[:at], line[at + 1 :]
    whole = [sys.executable, "-m", *launcher, "--dry-run", *line[at:]]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert program or "--stop" in launcher
    if program:
        arguments = cli.parse(program)
        assert isinstance(arguments, Train) and configs.load(arguments.config, arguments.overrides)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m benchmarks")])
def test_benchmarks_are_there(command):
    assert (ROOT / words(command)[2].replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("hf ")])
def test_the_hub_takes_it(command):
    """Its own program reads the words, and stops at --help; nothing is fetched."""
    pytest.importorskip("huggingface_hub")
    program = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()"]
    told, mistaken = (
        subprocess.run(
            [*program, *words(command)[1:], *more, "--help"],
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        for more in ([], ["--no-such-flag"])
    )
    assert told.returncode == 0 and "--local-dir" in told.stdout, told.stderr
    assert mistaken.returncode != 0


PROGRAMS_OF_BENCHMARKS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if f"python -m benchmarks.{path.stem}" in path.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS_OF_BENCHMARKS)
def test_benchmarks_tell_how_they_are_used(name):
    assert len(PROGRAMS_OF_BENCHMARKS) > 15
    whole = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pretrain describe")])
def test_descriptions_are_printed(command, capsys):
    assert cli.main(words(command)[1:]) == 0
    assert "parameters" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_has_the_target(command):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert words(command)[1] in targets


def test_the_mistake_that_readme_shows_is_answered_so(capsys):
    page = (ROOT / "README.md").read_text()
    command, answer = re.search(r"^\$ (pretrain .*batchsize.*)\n(pretrain: .*)$", page, re.M).groups()
    assert cli.main(shlex.split(command)[1:]) == 2
    assert capsys.readouterr().err.strip() == answer


def test_the_recipe_that_docs_show_is_one(tmp_path):
    (recipe,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(), re.S)
    (tmp_path / "mine.py").write_text(recipe)
    assert configs.load(f"{tmp_path / 'mine.py'}:medium").model.width == 1024


def test_pairs_of_sentences_are_joined_line_by_line(tmp_path):
    """The commands of WMT 2014 as docs/files.md has them, without the networks of curl and sacrebleu."""
    page = (ROOT / "docs" / "files.md").read_text()
    (block,) = re.findall(r"^```\n(language=de .*?)^```", page, re.M | re.S)
    programs, names = tmp_path / "bin", ("europarl-v7", "commoncrawl", "nc-v9")
    programs.mkdir()
    for name in names:  # in folders of their own, beside another pair's
        folder = tmp_path / name / ("training" if name != "commoncrawl" else ".")
        folder.mkdir(parents=True)
        for pair, end in (("de-en", "de"), ("de-en", "en"), ("fr-en", "en"), ("fr-en", "fr")):
            (folder / f"{name}.{pair}.{end}").write_text("".join(f"{name} {pair} {n}\n" for n in range(3)))
    fetch = 'name=${2##*training-parallel-}; tar -czC "$FOLDER/${name%.tgz}" .'
    for name, script in (("curl", fetch), ("sacrebleu", "echo $*")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "FOLDER": str(tmp_path)}
    done = subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    made = {path.name: path.read_text() for path in (tmp_path / "data/wmt14").iterdir() if path.is_file()}
    expected = "".join(f"{name} de-en {n}\n" for name in ("commoncrawl", "europarl-v7", "nc-v9") for n in range(3))
    assert made["train.de"] == made["train.en"] == expected
    assert made["newstest2013.en"] == "-t wmt13 -l en-de --echo src\n"
    assert made["newstest2014.de"] == "-t wmt14/full -l en-de --echo ref\n"
    assert len(made) == 6


def test_recipes_find_their_files_in_the_table():
    """Each file that a recipe names has a row in docs/files.md, and what the row's section makes."""
    files = (ROOT / "docs" / "files.md").read_text()
    for path in sorted((ROOT / "configs").glob("*.py")):
        module = configs.recipe_module(str(path)) if path.stem in configs.recipes() else None
        for variant in getattr(module, "VARIANTS", ()):
            config = module.get_config(variant)
            needed = [config.tokenizer.path] if config.tokenizer.path else []
            sources = " + ".join((config.data.train, config.data.validation, config.data.test))
            needed += re.findall(r"(?:text|parallel|images):(data/[\w-]+)", sources)
            needed += [f"tfds build {name}" for name in re.findall(r"tfds:([\w/.]+)", sources)]
            for name in needed:
                assert name in files, f"{path.name}:{variant} needs {name}"
            assert not needed or path.name in files
