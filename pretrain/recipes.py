"""Recipe files of configs/, and the user's own."""

import contextlib
import importlib.util
import sys
import traceback
from pathlib import Path

from ml_collections import ConfigDict

from pretrain.errors import USER_ERRORS, UserError, nearest

ROOT = Path(__file__).resolve().parents[1]
OF_TASKS = ("tasks",)  # recipes that take their model from a run
NO_RECIPES = ("__init__", "common", "model_kinds", "objective_kinds", "ranges")


def recipes() -> dict[str, Path]:
    """The recipe files of `configs/`, by name."""
    return {path.stem: path for path in sorted((ROOT / "configs").glob("*.py")) if path.stem not in NO_RECIPES}


def model_recipes() -> dict[str, Path]:
    """The recipes that have a model of their own, by name."""
    return {name: path for name, path in recipes().items() if name not in OF_TASKS}


def recipe_file(path: str, flag: str = "--config") -> Path:
    """The recipe that `path`, the value of a flag, names; relative to the current folder or to the checkout."""
    for file in (Path(path), ROOT / path):
        if file.suffix == ".py" and file.is_file():
            return file
    known = [f"configs/{name}.py" for name in recipes()]
    raise UserError(f"{flag}={path}: no such recipe{nearest(path, known)}")


def recipe_module(path: str, flag: str = "--config"):
    """The module of a recipe file, which may import modules next to it."""
    file = recipe_file(path, flag)
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    with _recipe_code(path, file, flag):
        spec.loader.exec_module(module)
    return module


def recipe_config(path: str, variant: str = "") -> ConfigDict:
    """Calls the recipe's `get_config`, with the variant if there is one."""
    module = recipe_module(path)
    with _recipe_code(path, recipe_file(path)):
        config = module.get_config(variant) if variant else module.get_config()
    if not isinstance(config, ConfigDict):
        raise UserError(f"--config={path}: get_config returns no config ({type(config).__name__}). Return one.")
    return config


@contextlib.contextmanager
def _recipe_code(path: str, file: Path, flag: str = "--config"):
    """Runs a recipe's code: it may import modules next to it, and an exception becomes a UserError with its line.

    config_flags' own loader would put a whole traceback into the message.
    """
    sys.path.append(str(file.parent.resolve()))
    try:
        yield
    except USER_ERRORS:
        raise
    except Exception as error:
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == file.name]
        line = f", line {frames[-1]}" if frames else ""
        message = str(error).partition("\n")[0]
        raise UserError(f"{flag}={path}{line}: {type(error).__name__}: {message}. Correct the recipe.") from error
    finally:
        sys.path.remove(str(file.parent.resolve()))
