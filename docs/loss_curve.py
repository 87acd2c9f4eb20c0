"""Draw the loss of a run with the extra `plots`.

python docs/loss_curve.py runs/quickstart docs/figures/quickstart.svg
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "longhaul"  # the same file for the same metrics
from matplotlib import pyplot  # noqa: E402


def read_loss(path: Path) -> tuple[list[int], list[float]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [int(row["step"]) for row in rows], [float(row["loss"]) for row in rows]


def main(workdir: str, figure: str) -> None:
    metrics = Path(workdir) / "metrics"
    _, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
    axes.plot(*read_loss(metrics / "train.csv"), label="training", linewidth=1)
    axes.plot(*read_loss(metrics / "validation.csv"), "o-", label="validation")
    axes.set(xlabel="update", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    pyplot.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
