"""Every command that README and docs print is one that the program takes; where each is run is written here."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain import config as configs
from pretrain import main
from pretrain.commands.arguments import OfConfig, Train

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.py"))]
PROGRAMS = ("pretrain", "python", "make", "curl", "tfds", "pip", ".")

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
    arguments = main.parse([*line, "--workdir=x"] if len(line) == 1 else line)  # one that is named alone
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
        arguments = main.parse(program)
        assert isinstance(arguments, Train) and configs.load(arguments.config, arguments.overrides)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m benchmarks")])
def test_benchmarks_are_there(command):
    assert (ROOT / words(command)[2].replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pretrain describe")])
def test_descriptions_are_printed(command, capsys):
    assert main.main(words(command)[1:]) == 0
    assert "parameters" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_has_the_target(command):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert words(command)[1] in targets


def test_the_mistake_that_readme_shows_is_answered_so(capsys):
    page = (ROOT / "README.md").read_text()
    command, answer = re.search(r"^\$ (pretrain .*batchsize.*)\n(pretrain: .*)$", page, re.M).groups()
    assert main.main(shlex.split(command)[1:]) == 2
    assert capsys.readouterr().err.strip() == answer


def test_the_recipe_that_docs_show_is_one(tmp_path):
    (recipe,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(), re.S)
    (tmp_path / "mine.py").write_text(recipe)
    assert configs.load(f"{tmp_path / 'mine.py'}:medium").model.width == 1024


def test_recipes_find_their_files_in_the_table():
    """Each file that a recipe names has a row in docs/files.md, and what the row's section makes."""
    files = (ROOT / "docs" / "files.md").read_text()
    for path in sorted((ROOT / "configs").glob("*.py")):
        module = configs.recipe_module(str(path)) if path.stem in configs.recipes() else None
        for variant in getattr(module, "VARIANTS", ()):
            config = module.get_config(variant)
            needed = [config.tokenizer.path] if config.tokenizer.path else []
            sources = " + ".join((config.data.train, config.data.validation, config.data.test))
            needed += re.findall(r"text:(data/[\w-]+)", sources)
            needed += [f"tfds build {name}" for name in re.findall(r"tfds:([\w/.]+)", sources)]
            for name in needed:
                assert name in files, f"{path.name}:{variant} needs {name}"
            assert not needed or path.name in files
