"""`pretrain probe`: what can be read linearly from each layer of a checkpoint."""

import json
from pathlib import Path

import jax

from pretrain.commands.arguments import Probe
from pretrain.commands.shared import check_out
from pretrain.distributed.init import print_on_host0, start
from pretrain.errors import UserError, nearest
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run
from pretrain.scoring.probe_layers import probe_layers, read_parts
from pretrain.scoring.probe_tasks import TASKS


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
    parts = read_parts(task, source, arguments.test, arguments.limit, arguments.seed)
    trained = Run(arguments.workdir, arguments.step, jax.local_devices(), arguments.average, print_on_host0)
    names = "layers", "control", "mix", "seed", "rank", "stack"
    options = {name: getattr(arguments, name) for name in names}
    rows, mix = probe_layers(trained.reader, parts, shots=arguments.shots.split(","), **options)
    if jax.process_index() != 0:
        return
    train, test = parts
    result = {"step": trained.step, "task": task, "train": len(train.texts), "test": len(test.texts), "rows": rows}
    result |= {"mix": mix} if mix else {}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result) + "\n", encoding="utf-8")
    if arguments.format == "json":
        print(one_line(result))
    else:
        title = f"checkpoint {trained.step}, {task}: {result['train']:,} training and {result['test']:,} test texts"
        show(title, list(rows[0]), [list(row.values()) for row in rows])
        if mix:
            score, weights = next(iter(mix.items())), " ".join(f"{weight:.3f}" for weight in mix["weights"])
            print(f"mix of these layers: {score[0]} {score[1]:.4f}, weights {weights}, centre {mix['centre']:.2f}")
    if arguments.plot:
        plot(arguments.plot, rows, f"{task}, checkpoint {trained.step}")


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
