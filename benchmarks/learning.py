"""Learning curves of finished runs, from their work folders: training loss against tokens, as an SVG.

    python -m benchmarks.learning OUT.svg runs/dense runs/transformer_xl runs/sparse

Each run is one line, labelled by its folder, or by its whole path where two folders have one name; the y axis is bits
per token, which is bits per byte for bytes.
"""

import argparse
import csv
import math
import os
from pathlib import Path

from benchmarks import report
from benchmarks.chart import chart
from pretrain import config as configs
from pretrain.costs.flops import tokens_of_row
from pretrain.errors import UserError
from pretrain.step.train_spec import TrainSpec


def curve(workdir: Path) -> tuple[list[float], list[float]]:
    """(millions of tokens seen, bits a token) at each logged update."""
    config = configs.saved(str(workdir))
    tokens = config.train.batch_size * tokens_of_row(TrainSpec.build_abstract(config), config.data.length)
    logged = workdir / "metrics" / "train.csv"
    if not logged.is_file():
        raise UserError(f"{workdir} has no {logged.relative_to(workdir)}; name runs with config.log.csv = true")
    with open(logged, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(f"{workdir} has no row in {logged.relative_to(workdir)}; name runs that have made updates")
    return (
        [int(row["step"]) * tokens / 1e6 for row in rows],
        [float(row["loss"]) / math.log(2) for row in rows],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=report.new_file, help="SVG file to write")
    parser.add_argument("workdirs", nargs="+", type=Path, help="work folders of runs with metrics")
    args = parser.parse_args()
    last = [os.path.basename(os.path.abspath(workdir)) for workdir in args.workdirs]
    names = [name if last.count(name) == 1 else str(run) for name, run in zip(last, args.workdirs, strict=True)]
    curves = {name: curve(workdir) for name, workdir in zip(names, args.workdirs, strict=True)}
    chart(args.out, curves, "million tokens", "bits a token, training", logarithmic=False)


if __name__ == "__main__":
    report.run(main)
