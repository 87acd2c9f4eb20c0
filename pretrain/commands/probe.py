"""`pretrain probe`: what can be read linearly from each layer of a checkpoint."""

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
    if arguments.format == "json":
        print(one_line(result))
    else:
        title = f"checkpoint {trained.step}, {task}: {result['train']:,} training and {result['test']:,} test texts"
        show(title, list(rows[0]), [list(row.values()) for row in rows])
    if arguments.plot:
        plot(arguments.plot, rows, f"{task}, checkpoint {trained.step}")


def _states(reader, part: Items, layers: str, stack: str) -> list[np.ndarray]:
    """States of a part's texts, [K, W, D] each, or [K, D] means."""
    rows = reader.rows(part.texts, spans=part.per_word)
    return list(hidden(reader, rows, layers, "word" if part.per_word else "mean", stack))


def plot(file: str, rows: list[dict], title: str) -> None:
    """Draws scores by layer as lines. Errors: UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("--plot: needs the package matplotlib. Run pip install -e '.[plots]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list] = {}
    for row in rows:
        for name in [name for name in row if name not in ("layer", "shots")]:
            lines.setdefault(f"{name}, {row['shots']} texts", []).append((row["layer"], row[name]))
    figure, axes = pyplot.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="layer", title=title)
    axes.legend()
    figure.savefig(file, bbox_inches="tight")
    pyplot.close(figure)
