"""Who may import whom, and how long a file may be: read from the source of every module."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"configs", "models", "input_pipeline", "pretrain", "launch"}
LONGEST = 400  # lines

# What each package may import when it is imported, besides the standard library and itself.
REQUIRED = {
    "configs": {"ml_collections"},
    "models": {"jax", "flax", "numpy"},
    "input_pipeline": {
        "etils",
        "filelock",
        "numpy",
        "grain",
        "absl",
        "sentencepiece",
    },  # absl for Grain, whose settings are its flags
    "pretrain": {
        "filelock",
        "configs",
        "models",
        "input_pipeline",
        "jax",
        "flax",
        "numpy",
        "optax",
        "orbax",
        "tensorstore",
        "absl",
    }
    | {"etils", "filelock", "ml_collections", "rich"},
    "launch": set(),
}
# What only a function may import, when it is called: slow to import, or from an extra that may not be installed.
LAZY = {
    "configs": set(),
    "models": set(),
    "input_pipeline": {"tokenizers", "zstandard", "tensorflow_datasets", "PIL", "apache_beam", "fsspec", "aiohttp"},
    "pretrain": {"tensorboardX", "tokenizers", "safetensors", "huggingface_hub", "sacrebleu"},
    "launch": set(),
}
# package or module -> the starts of the paths of the modules that may import it. What a command is told leaves
# pretrain/commands/flags.py as typed arguments; Grain's settings are flags.
ONLY_IN = {
    "tensorflow_datasets": "input_pipeline/sources",
    "PIL": "input_pipeline/sources/images",
    "apache_beam": "input_pipeline/token_store/beam",
    "fsspec": "input_pipeline/io",
    "aiohttp": "input_pipeline/io",
    "absl.flags": ("pretrain/cli", "pretrain/config", "pretrain/commands/flags", "input_pipeline/batching/loader"),
}

# The floors of each package, top floor first; what shares a floor does not know each other.
FLOORS = {
    "models": (
        {"build"},
        {"electra"},
        {"gpt", "bert", "t5", "transformer_xl", "xlnet"},
        {"transformer"},
        {"attention"},
        {"layers"},
        {"errors"},
    ),
    "input_pipeline": (
        {"pipeline"},
        {"validate"},
        {"batching"},
        {"corruption"},
        {"packing"},
        {"splits"},
        {"token_store"},
        {"tokenizers"},
        {"sources"},
        {"batch_spec", "io", "processes"},
        {"errors"},
    ),
    "pretrain": (
        {"__main__"},
        {"cli"},
        {"commands"},
        {"interop"},
        {"training"},
        {"run"},
        {"evaluation"},
        {"decoding", "plan"},
        {"costs"},
        {"step"},
        {"losses", "optimizers"},
        {"parallel", "checkpoints"},
        {"metrics", "distributed"},
        {"config"},
        {"aside", "errors", "workdir"},
    ),
}


def modules(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(tree, package):
    """(imported module, whether inside a function) of every import statement."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = f"{package}.{node.module or ''}" if node.level else node.module
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) in inside


def offences(path, source):
    """What a module imports that it may not, one sentence each."""
    package = path.parts[0]
    for name, lazy in imports(ast.parse(source), package):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == package:
            below = {"common.py": ("configs.model_kinds.", "configs.ranges."), "model_kinds.py": ("configs.ranges.",)}
            stands_on = below.get(path.name, ("configs.common.",))
            if package == top == "configs" and not f"{name}.".startswith(stands_on):
                yield f"{path} imports {name}: a recipe stands on configs.common alone"
            continue
        alone = [places for module, places in ONLY_IN.items() if f"{name}.".startswith(f"{module}.")]
        if not all(str(path).startswith(places) for places in alone):
            yield f"{path} imports {name}: only {alone[0]} may"
        elif top in LAZY[package]:
            if not lazy:
                yield f"{path} imports {name} when it is imported itself; import it in the function that needs it"
        elif top not in REQUIRED[package]:
            yield f"{path} imports {name}, which is not for {package}"


@pytest.mark.parametrize("package", sorted(OURS))
def test_imports_stay_inside_their_boundaries(package):
    found = [
        offence
        for path in modules(package)
        for offence in offences(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert modules(package) and not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/x.py", "from pretrain import step"),
        ("models/x.py", "import optax"),
        ("models/x.py", "import ml_collections"),
        ("input_pipeline/x.py", "import jax.numpy as jnp"),
        ("input_pipeline/x.py", "def f():\n    import jax"),
        ("input_pipeline/sources/tfds.py", "import tensorflow_datasets as tfds"),
        ("input_pipeline/x.py", "def f():\n    import tensorflow_datasets as tfds"),
        ("pretrain/x.py", "import tensorflow as tf"),
        ("pretrain/x.py", "def f():\n    from tensorflow_datasets import load"),
        ("pretrain/x.py", "import tensorboardX"),
        ("pretrain/workdir.py", "from absl import flags"),
        ("pretrain/commands/evaluate.py", "def f():\n    import absl.flags"),
        ("configs/x.py", "from configs import gpt2"),
        ("configs/x.py", "import numpy"),
        ("launch/x.py", "from pretrain import errors"),
    ],
)
def test_an_offence_is_found(path, source):
    assert list(offences(Path(path), source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/x.py", "import functools\nfrom models.attention.masks import Mask\nimport jax.numpy as jnp"),
        ("input_pipeline/sources/tfds.py", "def f():\n    import tensorflow_datasets as tfds"),
        ("configs/x.py", "import math\nfrom configs.common import base"),
        ("configs/x.py", "from configs import common"),
        ("pretrain/x.py", "from models.errors import ModelError"),
        ("pretrain/x.py", "from absl import logging"),
    ],
)
def test_what_is_allowed_is_no_offence(path, source):
    assert not list(offences(Path(path), source))


def climbs(path, source):
    """Imports of a module that go up a floor, or aside to another room of its own floor, one sentence each."""
    package, room = path.parts[0], path.parts[1].removesuffix(".py")
    floor = {name: number for number, rooms in enumerate(FLOORS[package]) for name in rooms}
    for name, _ in imports(ast.parse(source), package):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if top == package and other in floor and other != room and floor[other] <= floor[room]:
            yield f"{path} imports {name}, which is no floor below"


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_imports_go_downwards(package):
    paths = [path.relative_to(ROOT) for path in modules(package) if path != ROOT / package / "__init__.py"]
    rooms = {path.parts[1].removesuffix(".py") for path in paths}
    assert rooms == set().union(*FLOORS[package])
    assert not [one for path in paths for one in climbs(path, (ROOT / path).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/transformer/x.py", "from models.gpt import Decoder"),
        ("models/layers/x.py", "from models.attention import attend"),
        ("input_pipeline/token_store/x.py", "def f():\n    from input_pipeline import pipeline"),
        ("pretrain/step/x.py", "from pretrain.training.trainer import train"),
    ],
)
def test_a_climb_is_found(path, source):
    assert list(climbs(Path(path), source))


def test_models_have_what_their_interface_names():
    """Nobody asks a model whether it has an attribute, or for one by a name that is made up in place."""
    for path in modules("models"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert not called & {"getattr", "hasattr", "setattr"}, path


def test_files_are_short():
    paths = [*modules(*OURS, "tests", "benchmarks", "docs"), ROOT / "setup.py"]
    paths += set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "configs.md"}  # which is generated
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert not {path: count for path, count in lines.items() if count > LONGEST}


# What is nothing but a name in a work folder, or a mark in one; others, such as "data", are words too.
NAMES = {"config.json", "files.json", "checkpoints", "broken", "earlier", "runs", "metrics/metrics", "data/metadata"}
NAMES |= {".partial", ".deleted", ".damaged", ".orbax-checkpoint-tmp"}
WAYS = ("write_text(", "write_bytes(", "write_json", "import replaced")  # of writing a file
FINDS = {"glob", "rglob", "joinpath", "with_name", "with_suffix"}  # methods of paths


def spelled(path, source):
    """Where a module spells a name in a work folder, as one, or joins a literal to a path; one sentence each."""
    for node in ast.walk(ast.parse(source)):
        joined = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            joined = [node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FINDS:
            joined = node.args
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield f"{path}:{node.lineno} spells {node.value!r}"
        for part in joined:
            text = isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
            if text and ast.unparse(part) != "'*'":
                yield f"{path}:{node.lineno} joins {ast.unparse(part)} to a path"


def test_the_work_folder_alone_knows_its_names():
    """And how a file is written whole or not at all."""
    others = {f"pretrain/{name}.py" for name in ("workdir", "aside", "config/recipe", "costs/capacity")}
    for path in modules("pretrain"):
        name = str(path.relative_to(ROOT))
        source = path.read_text(encoding="utf-8")
        if name not in others:
            assert not list(spelled(name, source))
            assert not [way for way in WAYS if way in source]


@pytest.mark.parametrize(
    "source",
    [
        'folder / "state"',
        'folder / f"{step}.csv"',
        'Path("x").glob("*.partial")',
        'path.with_name("x")',
        'open("config.json")',
        'DONE = ".partial"',
    ],
)
def test_a_name_in_the_work_folder_is_found(source):
    assert list(spelled("pretrain/x.py", source))


def test_what_is_no_name_is_not_found():
    source = 'spend("data")\nfolder / LOSS\nfolder / names[0]\nsize / 2\nprint("bring the tokenizer/ back")'
    assert not list(spelled("pretrain/x.py", source))


def test_configs_hold_every_default():
    """`config.get(key, default)` would put a default into the code."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("pretrain")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and ast.unparse(node.func.value).partition(".")[0] == "config"
    ]
    assert not found


def test_test_files_have_names_of_their_own():
    """Folders of tests are no packages: two files of one name could not be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted({*names})
