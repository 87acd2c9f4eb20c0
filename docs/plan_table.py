"""Compile every recipe's step for its target and write the figures into docs/plan.md.

    python docs/plan_table.py                        # targets without figures, or whose config changed
    python docs/plan_table.py bert:large t5:11b      # these, in any case
    python docs/plan_table.py --write                # none: only write the table

Figures are stored in docs/figures/plan.json as they come; all of them take about two hours on 2 cores. Exits with 1
if a recipe does not fit its target.
"""

import contextlib
import json
import sys
from importlib import metadata
from pathlib import Path

from pretrain.errors import UserError
from pretrain.metrics.progress import amount
from pretrain.plan import step, targets, topology

DOCS = Path(__file__).resolve().parent
FIGURES, PAGE = DOCS / "figures" / "plan.json", DOCS / "plan.md"
BEGIN, END = "<!-- figures of docs/plan_table.py -->\n", "<!-- end -->\n"
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")
HEAD = """\
| recipe | topology | overrides | a device takes | of | least time of a step | bound by | MFU at most |
|---|---|---|---|---|---|---|---|
"""


def compile_target(recipe: str, target: targets.Target) -> dict:
    """Return memory and roofline of one recipe on one target, with the fingerprint of its config."""
    config = target.config(recipe)
    facts = step.plan(config, topology.parse(target.topology))
    versions = {}
    for package in COMPILERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "memory": facts["memory"],
        "roofline": facts["roofline"],
        "fingerprint": targets.fingerprint(config),
        "versions": versions,
    }


def load_figures() -> dict:
    """Return the stored figures; another process of this script may have added some."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def is_current(figures: dict, recipe: str, target: targets.Target) -> bool:
    """Whether the figures of a target are those of the recipe's present config."""
    row = figures.get(f"{recipe} {target.topology}")
    return bool(row) and row.get("fingerprint") == targets.fingerprint(target.config(recipe))


def format_row(recipe: str, target: targets.Target, row: dict) -> str:
    memory, time = row["memory"], row["roofline"]
    needed, capacity = (f"{amount(memory[name])}B" for name in ("needed", "capacity"))
    cells = [f"`{recipe}`", f"`{target.topology}`", " ".join(f"`{key}={value}`" for key, value in target.overrides)]
    cells += [needed + ("" if memory["fits"] else ", **too much**"), capacity]
    cells += [f"{time['step_seconds']:.3g} s", time["bound"], f"{time['mfu']:.0%}"] if time else ["-"] * 3
    return f"| {' | '.join(cells)} |\n"


def write(figures: dict) -> None:
    """Write the table into the page, and the figures next to it."""
    rows = [f"{json.dumps(name)}: {json.dumps(figures[name], sort_keys=True)}" for name in sorted(figures)]
    FIGURES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    table = "".join(
        format_row(recipe, target, figures[f"{recipe} {target.topology}"])
        for recipe, several in targets.TARGETS.items()
        for target in several
        if is_current(figures, recipe, target)
    )
    page = PAGE.read_text()
    PAGE.write_text(page.partition(BEGIN)[0] + BEGIN + HEAD + table + END + page.partition(END)[2])


def main(names: list[str]) -> int:
    if names == ["--write"]:
        write(load_figures())
        return 0
    failures = 0
    for recipe in names or targets.TARGETS:
        recipe, _, only = recipe.partition("@")  # `bert:large@v5e:2x2` compiles one of several targets
        for target in targets.TARGETS[recipe]:
            if only not in ("", target.topology) or (not names and is_current(load_figures(), recipe, target)):
                continue
            try:
                row = compile_target(recipe, target)
            except UserError as error:  # such as a compiler that is not installed
                print(f"{recipe}: {error}", file=sys.stderr)
                continue
            failures += not row["memory"]["fits"]
            print(format_row(recipe, target, row), end="", flush=True)
            write(load_figures() | {f"{recipe} {target.topology}": row})
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
