"""Compiles every recipe's step for its target, and writes what it takes into docs/plan.md.

    python docs/plan_table.py                        # those without figures, or whose config is another by now
    python docs/plan_table.py bert:large t5:11b      # these, in any case
    python docs/plan_table.py --write                # none: writes the page from the figures that there are

Figures are kept in docs/figures/plan.json as they come: all of them take some two hours on 2 cores. Targets whose
compiler is not installed are left out, and said. Ends with 1 if a recipe does not fit its target.
"""

import contextlib
import json
import sys
from importlib import metadata
from pathlib import Path

from pretrain.errors import UserError
from pretrain.metrics.progress import amount
from pretrain.plan import step, targets, topology

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures" / "plan.json"
PAGE = ROOT / "docs" / "plan.md"
BEGIN, END = "<!-- figures of docs/plan_table.py -->\n", "<!-- end -->\n"
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")
KEPT = ("memory", "roofline")


def compiled(recipe: str, target: targets.Target) -> dict:
    """The figures of one recipe on one target."""
    config = target.config(recipe)
    facts = step.plan(config, topology.parse(target.topology))
    kept = {name: facts[name] for name in KEPT}
    return kept | {"fingerprint": targets.fingerprint(config), "versions": versions()}


def versions() -> dict[str, str]:
    """Of what compiles: those packages that are installed."""
    found = {}
    for package in COMPILERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def holds(figures: dict, recipe: str, target: targets.Target) -> bool:
    """Whether there are figures of a recipe on a target as both are now."""
    found = figures.get(f"{recipe} {target.topology}")
    return bool(found) and found.get("fingerprint") == targets.fingerprint(target.config(recipe))


def table(figures: dict) -> str:
    """The page's table: a line for each recipe and target of which there are figures."""
    lines = [
        "| recipe | topology | overrides | a device takes | of | least time of a step | bound by | MFU at most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for recipe, several in targets.TARGETS.items():
        for target in several:
            words = " ".join(f"`{key}={value}`" for key, value in target.overrides)
            if holds(figures, recipe, target):
                found = figures[f"{recipe} {target.topology}"]
                lines.append(f"| `{recipe}` | `{target.topology}` | {words} | {' | '.join(_cells(found))} |")
    return "\n".join(lines) + "\n"


def _cells(found: dict) -> list[str]:
    memory, time = found["memory"], found["roofline"]
    bytes = [f"{amount(memory[name])}B" for name in ("needed", "capacity")]
    bytes[0] += "" if memory["fits"] else ", **too much**"
    if not time:
        return [*bytes, "-", "-", "-"]
    return [*bytes, f"{time['step_seconds']:.3g} s", time["bound"], f"{time['mfu']:.0%}"]


def write(figures: dict) -> None:
    """Puts the table into the page, and the figures beside it."""
    rows = [f"{json.dumps(name)}: {json.dumps(figures[name], sort_keys=True)}" for name in sorted(figures)]
    FIGURES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(figures) + END + after)


def kept() -> dict:
    """The figures that there are; another of this program may have added to them."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def main(names: list[str]) -> int:
    if names == ["--write"]:
        write(kept())
        return 0
    wrong = 0
    for recipe in names or targets.TARGETS:
        recipe, _, only = recipe.partition("@")
        for target in targets.TARGETS[recipe]:
            if only not in ("", target.topology) or (not names and holds(kept(), recipe, target)):
                continue
            try:
                found = compiled(recipe, target)
            except UserError as error:
                print(f"{recipe}: {error}", file=sys.stderr)
                continue
            wrong += not found["memory"]["fits"]
            print(f"{recipe} {target.topology}: {' '.join(_cells(found))}", flush=True)
            write(kept() | {f"{recipe} {target.topology}": found})
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
