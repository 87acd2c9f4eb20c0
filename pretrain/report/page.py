"""A page about runs in one file: tables, and curves by plotly with its JavaScript embedded."""

import functools
import html
import re
import time
from collections.abc import Callable, Iterable, Sequence

from configs import common
from pretrain import changes
from pretrain import config as configs
from pretrain.errors import USER_ERRORS
from pretrain.evaluation.evaluation import describe_loss
from pretrain.metrics import goodput
from pretrain.metrics.progress import amount, clock
from pretrain.report.history import History

POINTS = 5000  # most points of a curve: ten runs then take about 10 MB
COLOURS = ("#3266ad", "#d1495b", "#2e8b57", "#c98a1b", "#7d4fa8", "#3a9ca6", "#8c5a3c", "#6b7280")
CATEGORY_COLOURS = dict(zip(goodput.CATEGORIES, (*COLOURS, "#e07b39", "#c9ced6"), strict=True))
CURVES = (  # split, column, title; evaluations stand between
    ("train", "loss", "training loss"),
    ("validation", "loss", "validation loss"),
    ("train", "learning_rate", "learning rate"),
    ("train", "grad_norm", "gradient norm"),
    ("speed", "tokens_per_second", "tokens/s"),
)
STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1em } td, th { padding: .2em .9em .2em 0; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere } td { font-variant-numeric: tabular-nums }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 1.6em } .note { color: #666 }"""


def render(runs: Sequence[History]) -> str:
    """The page as HTML."""
    names = _short_names(runs)
    thinned = any(len(rows) > POINTS for run in runs for rows in (run.train, run.validation))
    note = f"Curves show at most {POINTS:,} points: every n-th row and the last." if thinned else ""
    sections = (
        ("Runs", _overview(names, runs)),
        ("What was run", _settings(names, runs)),
        ("Curves", f'<p class="note">Drag to zoom, double-click to reset. {note}</p>{_curves(names, runs)}'),
        ("Where the time went", _times(names, runs)),
        ("Checkpoints", _checkpoints(names, runs)),
    )
    body = "\n".join(f"<h2>{title}</h2>\n{content}" for title, content in sections)
    title = html.escape(", ".join(names))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def differences(run: History) -> tuple[str, dict[str, tuple]]:
    """The recipe that a run's name gives, and key -> (recipe's value, run's) where they differ.

    Without such a recipe the name is empty and the values are those of `configs.common.base`.
    """
    stem, variant = re.fullmatch(r"([^:-]*)[:-]?(.*)", str(run.config["name"]), re.S).groups()
    spec, known = "", configs.flat(common.base())
    if stem in configs.recipes():
        try:
            known = configs.flat(configs.recipe_config(f"configs/{stem}.py", variant))
            spec = f"configs/{stem}.py" + (f":{variant}" if variant else "")
        except USER_ERRORS:
            pass  # a variant that this version does not have
    known = configs.as_tuples(known)
    changed = {key: (known.get(key), value) for key, value in run.config.items() if known.get(key) != value}
    return spec, changed


def _overview(names, runs) -> str:
    rows = []
    for name, run in zip(names, runs, strict=True):
        row = run.summary()
        seen = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row["seen"])) if row["seen"] else ""
        steps, speed = f"{row['step']:,}/{row['steps']:,}", row["tokens_per_second"]
        speed = amount(speed) if speed else None
        rows.append((name, row["run"], row["state"], steps, row["loss"], row["best_validation"], speed, seen))
    return _table(("run", "folder", "state", "step", "loss", "best validation", "tokens/s", "last row"), rows)


def _settings(names, runs) -> str:
    parts = []
    for name, run in zip(names, runs, strict=True):
        parts.append(f"<h3>{html.escape(name)}</h3>")
        data = [(key, run.config[f"data.{key}"]) for key in ("train", "validation", "layout", "length", "store")]
        parts.append(_table(("data", ""), [(key, value) for key, value in data if value]))
        starts = [
            (time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start["began"])), *_machine(start))
            for start, *_ in run.starts
        ]
        parts.append(_table(("start", "host", "processes", "devices", "versions"), starts))
        if rows := changes.read(run.folder.name):
            parts.append("<p>Keys that a resumed run changed, and the step after which.</p>")
            cells = [(row["key"], _value(row["was"]), _value(row["now"]), row["step"], row["date"]) for row in rows]
            parts.append(_table(("key", "was", "now", "after step", "date"), cells))
        spec, changed = differences(run)
        parts.append(
            f"<p>{len(changed)} keys differ from {html.escape(spec or 'the defaults (no recipe has its name)')}.</p>"
        )
        parts.append(
            _table(
                ("key", "recipe" if spec else "default", "run"),
                [(k, _value(a), _value(b)) for k, (a, b) in changed.items()],
            )
        )
    if len(runs) > 1:
        keys = sorted({key for run in runs for key in run.config})
        rows = [(key, *(_value(run.config.get(key)) for run in runs)) for key in keys]
        parts.append("<h3>Keys that differ between the runs</h3>")
        parts.append(_table(("key", *names), [row for row in rows if len(set(row[1:])) > 1]))
    return "\n".join(parts)


def _machine(start: dict) -> tuple:
    versions = start.get("versions", {})
    devices = f"{start.get('devices', '')} {start.get('device', '')}".strip()
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    return start.get("host"), start.get("processes"), devices, shown or "not recorded"


def _curves_of(runs: Sequence[History]) -> list[tuple[str, str, str]]:
    """CURVES, with the losses of named evaluations and the terms that select checkpoints."""
    found = []
    for run in runs:
        named = sorted({key.split(".")[1] for key in run.config if key.startswith("evaluations.")})
        selecting, _, term = run.config.get("checkpoint.best", "validation/loss").partition("/")
        term = run.config.get("objective.selects", "loss") if term == "loss" else term
        found += [(name, "loss") for name in named] + [(selecting, term)]
    new = [(*pair, f"{pair[0]} {pair[1].replace('_', ' ')}") for pair in dict.fromkeys(found)]
    return [*CURVES[:2], *(curve for curve in new if curve not in CURVES), *CURVES[2:]]


def _curves(names, runs) -> str:
    from plotly.subplots import make_subplots

    curves = _curves_of(runs)
    figure = make_subplots(
        rows=len(curves),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.15 / len(curves),
        subplot_titles=[c[2] for c in curves],
    )
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        speeds = [{"step": step, "tokens_per_second": speed} for step, speed in run.speeds()]
        of_split = {"train": run.train, "validation": run.validation, "speed": speeds}
        for place, (split, key, _) in enumerate(curves, start=1):
            rows = _thin([row for row in of_split.get(split) or run.rows(split) if key in row])
            figure.add_scatter(
                x=[row["step"] for row in rows],
                y=[row[key] for row in rows],
                name=html.escape(name),
                legendgroup=str(number),
                showlegend=place == 1,
                mode="lines+markers" if len(rows) < 50 else "lines",
                line={"color": COLOURS[number % len(COLOURS)], "width": 1.5},
                row=place,
                col=1,
            )
    figure.update_layout(
        height=240 * len(curves), template="plotly_white", hovermode="x unified", margin={"t": 40, "r": 10}
    )
    figure.update_xaxes(title_text="step", row=len(curves), col=1)
    return figure.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False})


def _times(names, runs) -> str:
    from plotly.graph_objects import Figure

    figure, rows = Figure(), []
    spent = [goodput.summarize(run.folder.goodput) if run.starts else None for run in runs]
    named = {category for found in spent if found for category in found["seconds"]} - {*goodput.CATEGORIES}
    for category in (*goodput.CATEGORIES, *sorted(named)):
        seconds = [found["seconds"].get(category, 0.0) if found else 0.0 for found in spent]
        figure.add_bar(
            y=[html.escape(name) for name in names],
            x=[value / 60 for value in seconds],
            name=category,
            orientation="h",
            marker_color=CATEGORY_COLOURS.get(category),
            visible=True if any(seconds) else "legendonly",
        )
    for name, found in zip(names, spent, strict=True):
        if found:
            again = found["made_again"]
            rows.append((name, f"{found['goodput']:.1%}", clock(found["total"]), found["starts"], again))
    figure.update_layout(barmode="stack", template="plotly_white", height=160 + 50 * len(runs), margin={"t": 20})
    figure.update_xaxes(title_text="minutes")
    figure.update_yaxes(autorange="reversed")
    table = _table(("run", "goodput", "total", "starts", "steps repeated"), rows)
    return table + figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})


def _checkpoints(names, runs) -> str:
    rows = []
    for name, run in zip(names, runs, strict=True):
        found, describe = run.checkpoints(), _loss_in_words(run)
        # What the newest ones are chosen by; a loss of another measure says nothing beside it.
        measure = next((one["measure"] for one in reversed(found) if one["loss"] is not None), None)
        for one in found:
            loss = describe(one["loss"]) if one["loss"] is not None and one["measure"] == measure else None
            rows.append((name, one["step"], loss, None if one["bytes"] is None else f"{amount(one['bytes'])}B"))
    return _table(("run", "step", "selects the best", "size"), rows)


def _loss_in_words(run: History) -> Callable[[float], str]:
    """A function that describes the loss of a checkpoint, as `describe_loss`."""
    try:
        return functools.partial(describe_loss, configs.saved(str(run.folder.path)))
    except USER_ERRORS:  # a config of another version
        return "{:.4f}".format


def _short_names(runs: Sequence[History]) -> list[str]:
    """The last parts of the folders' names, as many as tell them apart."""
    parts = [str(run.folder.name).rstrip("/").split("/") for run in runs]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            break
    return names


def _thin(rows: list) -> list:
    every = -(-len(rows) // POINTS) or 1
    return rows[::every] + rows[-1:] * ((len(rows) - 1) % every > 0)


def _value(value) -> str:
    return "" if value is None else repr(value) if value == "" else str(value)


def _table(columns: Iterable[str], rows: Sequence[Sequence]) -> str:
    if not rows:
        return '<p class="note">none</p>'

    def cell(value) -> str:
        if value is None:
            return ""
        return html.escape(
            f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        )

    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
