"""Recipe files: finding the one that a command names, and running it; what fails in it is said in one sentence."""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pretrain.errors import USER_ERRORS, UserError
from pretrain.workdir import CONFIG

RECIPES = Path(__file__).resolve().parents[2] / "configs"


def recipes() -> dict[str, Path]:
    """The recipe files, by name."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.py")) if p.stem not in ("__init__", "common", "kinds", "ranges")}


def recipe_module(path: str):
    """The Python module of a recipe file, which may import modules that lie beside it."""
    file = recipe_file(path)
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    with blaming(path, file), _beside(file):
        spec.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(
            f"{path} is no recipe: it has no function get_config(variant); see configs/quickstart.py for one"
        )
    return module


def recipe_config(path: str, variant: str = ""):
    """What the recipe's `get_config` returns, of that variant or of none."""
    get_config, given = recipe_module(path).get_config, [variant] if variant else []
    if not variant and _takes(get_config, ["any"]) and not _takes(get_config, []):
        raise UserError(f"the get_config of {path} needs a variant; write --config={path}:VARIANT")
    if variant and _takes(get_config, []) and not _takes(get_config, [variant]):
        raise UserError(f"{path} has no variants, since its get_config takes none; leave out :{variant}")
    with blaming(path, file := recipe_file(path)), _beside(file):
        return get_config(*given)


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[None]:
    """Modules beside a recipe may be imported; behind all others, of which none is to stand for one."""
    before = [*sys.path]
    sys.path.append(str(file.absolute().parent))
    try:
        yield
    finally:
        sys.path[:] = before


def _takes(function: Callable, given: Sequence) -> bool:
    """Whether a function can be called so; True of one that does not tell what it takes."""
    with contextlib.suppress(ValueError):
        try:
            inspect.signature(function, follow_wrapped=False).bind(*given)
        except TypeError:
            return False
    return True


def recipe_file(path: str, variant: str = "") -> Path:
    """Where the recipe is that `path` names, from the current folder or from the one that holds `configs`."""
    file, known = Path(path), recipes()
    if not file.exists() and path in {f"configs/{name}.py" for name in known}:
        return known[file.stem]
    if file.suffix == ".py" and file.is_file():
        return file
    if file.name == CONFIG and file.is_file():
        raise UserError(
            f"--config={path} is what a run wrote down, not a recipe; go on with that run with --workdir={file.parent} "
            "and no --config, or give its recipe"
        )
    if file.exists() and file.stem not in known:
        raise UserError(f"--config={path} is no Python file; give a recipe, such as configs/quickstart.py")
    close = difflib.get_close_matches(file.stem, known, n=1)
    if close:
        raise UserError(f"there is no recipe {path}, did you mean --config=configs/{close[0]}.py{variant}?")
    raise UserError(f"there is no recipe {path}; choose one of: {', '.join(f'configs/{name}.py' for name in known)}")


@contextlib.contextmanager
def blaming(path: str, file: Path):
    """Says in one sentence where and why the code of a recipe fails."""
    try:
        yield
    except USER_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(file)]
        here = isinstance(error, SyntaxError) and os.path.abspath(error.filename or "") == os.path.abspath(file)
        line = error.lineno if here else lines[-1] if lines else None
        where = f"{path}, line {line}," if line else path
        reason = error.msg if here else str(error)
        with contextlib.suppress(ValueError, SyntaxError):  # ml_collections' of a key, which is a text in quotes
            reason = str(ast.literal_eval(reason)).replace("\n", ": ")
        reason = reason.split("\n")[0]
        raise UserError(f"{where} fails with {type(error).__name__}: {reason}; correct the recipe") from error
