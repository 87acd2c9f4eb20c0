"""`pretrain probe`: what can be read linearly from each layer of a checkpoint."""

import html
import json
from pathlib import Path

import jax
import numpy as np

from pretrain.commands.arguments import Probe
from pretrain.commands.shared import check_out
from pretrain.distributed.init import print_on_host0, start
from pretrain.errors import UserError, nearest
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run
from pretrain.scoring.hidden import hidden
from pretrain.scoring.inputs import read_input
from pretrain.scoring.probe import probe
from pretrain.scoring.probe_tasks import TASKS, Items, items_of

COLOURS = ("#3266ad", "#d1495b", "#2e8b57", "#c98a1b", "#7d4fa8", "#3a9ca6")


def run(arguments: Probe) -> None:
    """Prints scores by layer and writes JSON and a plot."""
    start()
    for path in filter(None, (arguments.out, arguments.plot)):
        check_out(path)
    task, own_file = arguments.task, Path(arguments.task).is_file()
    source = arguments.train or (task if own_file else "")
    if not source or not (task in TASKS or own_file):
        unknown = f"neither a file nor a task{nearest(task, TASKS)}"
        raise UserError(f"--task={task}: {'has no data. Give --train=conllu:FILE.' if task in TASKS else unknown}")
    if not all(one == "all" or (one.isdecimal() and int(one)) for one in arguments.shots.split(",")):
        raise UserError(f"--shots={arguments.shots}: not numbers of texts. Give some such as 8,64,all.")
    records = read_input(source, "--train")
    # Without --test every fifth record.
    test = read_input(arguments.test, "--test") if arguments.test else records[4::5]
    train = records if arguments.test else [one for n, one in enumerate(records) if n % 5 != 4]
    order = np.random.default_rng(arguments.seed).permutation(len(train))[: arguments.limit]
    train, test = items_of(task, [train[n] for n in order], test[: arguments.limit])
    trained = Run(arguments.workdir, arguments.step, jax.local_devices(), arguments.average, print_on_host0)
    layers = arguments.layers
    states = [_states(trained.reader, part, layers, arguments.stack) for part in (train, test)]
    if jax.process_index() != 0:
        return
    rows, numbers = [], range(states[0][0].shape[0]) if layers == "all" else map(int, layers.split(","))
    for place, layer in enumerate(numbers):
        for shots in arguments.shots.split(","):
            count = len(train.texts) if shots == "all" else int(shots)
            few = train._replace(**{name: getattr(train, name)[:count] for name in ("texts", "labels", "keep")})
            own, other = [one[place] for one in states[0][:count]], [one[place] for one in states[1]]
            scores = probe(few, test, own, other, arguments.control, arguments.seed, arguments.rank)
            rows.append({"layer": layer, "shots": shots} | scores)
    result = {"step": trained.step, "task": task, "train": len(train.texts), "test": len(test.texts), "rows": rows}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result) + "\n", encoding="utf-8")
    if arguments.plot:
        Path(arguments.plot).write_text(plot(rows, f"{task}, checkpoint {trained.step}"), encoding="utf-8")
    if arguments.format == "json":
        print(one_line(result))
    else:
        title = f"checkpoint {trained.step}, {task}: {result['train']:,} training and {result['test']:,} test texts"
        show(title, list(rows[0]), [list(row.values()) for row in rows])


def _states(reader, part: Items, layers: str, stack: str) -> list[np.ndarray]:
    """States of a part's texts, [K, W, D] each, or [K, D] means."""
    rows = reader.rows(part.texts, spans=part.per_word)
    return list(hidden(reader, rows, layers, "word" if part.per_word else "mean", stack))


def plot(rows: list[dict], title: str) -> str:
    """Scores by layer as lines, an SVG picture."""
    lines = {}
    for row in rows:
        for name in [name for name in row if name not in ("layer", "shots")]:
            lines.setdefault(f"{name}, {row['shots']} texts", []).append((row["layer"], row[name]))
    last = max(row["layer"] for row in rows) or 1
    parts = [f'<text x="60" y="20">{html.escape(title)}</text>']
    for tick in np.linspace(0, 1, 6):
        y = 330 - 290 * tick
        parts.append(f'<path d="M60 {y:.0f}H500" stroke="#ddd"/><text x="28" y="{y + 4:.0f}">{tick:.1f}</text>')
    for layer in sorted({row["layer"] for row in rows}):
        parts.append(f'<text x="{56 + 440 * layer / last:.0f}" y="350">{layer}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{60 + 440 * layer / last:.1f},{330 - 290 * max(value, 0):.1f}" for layer, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="510" y="{50 + 18 * number}" fill="{colour}">{name}</text>')
    body = "\n".join(parts)
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="370" font-family="sans-serif" font-size="13">'
    return f"{head}\n{body}\n</svg>\n"
