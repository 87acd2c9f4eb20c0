"""Import boundaries between packages and rooms, and the size of files."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "models", "input_pipeline", "pretrain", "launch")
LONGEST = 400  # lines of a file

# Third-party and own packages that a package may import at import time, besides the standard library and itself.
REQUIRED = {
    "configs": {"ml_collections"},
    "models": {"jax", "flax", "numpy"},
    "input_pipeline": {"numpy", "grain", "absl", "sentencepiece", "etils", "filelock"},
    "pretrain": {"configs", "models", "input_pipeline", "jax", "flax", "numpy", "optax", "orbax", "tensorstore", "absl"}
    | {"etils", "filelock", "ml_collections", "rich"},
    "launch": set(),
}
# Packages that only functions may import: slow to import, or of an extra.
LAZY = {
    "input_pipeline": {"tokenizers", "zstandard", "tensorflow_datasets", "PIL", "apache_beam", "fsspec", "aiohttp"}
    | {"pyarrow", "array_record"},
    "pretrain": {"tensorboardX", "tokenizers", "safetensors", "huggingface_hub", "sacrebleu", "plotly", "wandb"}
    | {"rouge_score", "lm_eval", "matplotlib"},
}
# package -> the only modules that may import it, by the start of their path.
ONLY_IN = {
    "tensorflow_datasets": "input_pipeline/sources/",
    "array_record": "input_pipeline/sources/tfds",
    "pyarrow": "input_pipeline/sources/tables",
    "PIL": "input_pipeline/sources/images",
    "plotly": "pretrain/report/page",
    "apache_beam": "input_pipeline/token_store/build",
}
# Rooms of each package from top to bottom; imports go down only, and rooms of one floor do not import each other.
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
        {"examples"},
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
        {"interop", "report"},
        {"training"},
        {"run"},
        {"scoring"},
        {"evaluation"},
        {"tasks"},
        {"decoding", "plan"},
        {"costs"},
        {"step"},
        {"losses", "optimizers"},
        {"parallel", "checkpoints"},
        {"distributed", "changes"},
        {"metrics"},
        {"config"},
        {"workdir", "recipes"},
        {"errors"},
    ),
}


def modules(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path):
    """(imported module, whether only a function imports it) for each import of a file; `from a import b` gives a.b."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{alias.name}", id(node) in lazy) for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package):
    for path in modules(package):
        place = str(path.relative_to(ROOT))
        for name, lazy in imports(path):
            top = name.partition(".")[0]
            allowed = REQUIRED[package] | {package} | (LAZY.get(package, set()) if lazy else set())
            assert top in sys.stdlib_module_names or top in allowed, f"{place} imports {name}"
            assert place.startswith(ONLY_IN.get(top, "")), f"{place} imports {name}"


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_downwards(package):
    floor = {name: number for number, rooms in enumerate(FLOORS[package]) for name in rooms}
    paths = [path for path in modules(package) if path != ROOT / package / "__init__.py"]
    rooms = {path: path.relative_to(ROOT / package).parts[0].removesuffix(".py") for path in paths}
    assert set(rooms.values()) == set(floor)
    for path, room in rooms.items():
        for name, _ in imports(path):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if top == package and other in floor and other != room:
                assert floor[other] > floor[room], f"{path.relative_to(ROOT)} imports {name}"


def test_files_are_short():
    paths = [*modules(*PACKAGES, "tests", "benchmarks", "docs"), *(ROOT / "docs").glob("*.md")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert not {path: count for path, count in lines.items() if count > LONGEST and not path.endswith("configs.md")}


def test_code_reads_every_config_key():
    """No `config.get(key, default)`: defaults are in configs/common.py."""
    for path in modules("pretrain"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                assert ast.unparse(node.func.value).partition(".")[0] != "config", f"{path}:{node.lineno}"


def test_test_files_have_unique_names():
    """pytest collects folders without __init__.py, which needs unique names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
