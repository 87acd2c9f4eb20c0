"""`train.trials`: the same config with several seeds, one run after the other, and the median of their results."""

import copy
import json
import statistics

from pretrain.distributed.consensus import on_host0
from pretrain.distributed.init import print_on_host0
from pretrain.errors import UserError
from pretrain.metrics.tables import show
from pretrain.report.history import History
from pretrain.training.trainer import train
from pretrain.workdir import TRIALS, Workdir, write

NO_MEASURES = ("step", "seconds", "tokens", "examples")  # columns of validations that say when and how much
COLUMNS = ("measure", "median", "standard deviation", "lowest", "highest")


def train_trials(config, workdir: str, fresh: str = "", allowed=()) -> int:
    """Train in `<workdir>/seed<N>` with each of `train.trials` seeds from config.seed on; return the exit code.

    The same command continues at the trial that was interrupted. At the end the last validations are compared, in a
    table and in `<workdir>/trials.json`.
    """
    if not (config.data.validation or config.data.holdout) or not (config.log.jsonl or config.log.csv):
        raise UserError(
            f"config.train.trials={config.train.trials}: nothing to compare. Set config.data.validation (or holdout) "
            "and config.log.jsonl."
        )
    seeds = range(config.seed, config.seed + config.train.trials)
    for number, seed in enumerate(seeds, 1):
        trial = copy.deepcopy(config)
        with trial.unlocked():
            trial.seed, trial.train.trials = seed, 1
            trial.data.store = config.data.store or f"{workdir}/data"  # tokenised once
        folder = f"{workdir}/seed{seed}"
        if not fresh and on_host0(lambda folder=folder: _result(folder) is not None):
            print_on_host0(f"trial {number} of {len(seeds)}: {folder} is finished")
            continue
        print_on_host0(f"trial {number} of {len(seeds)}: {folder}")
        if code := train(trial, folder, fresh, allowed=allowed):
            return code
    on_host0(lambda: _compare(workdir, {seed: _result(f"{workdir}/seed{seed}") for seed in seeds}))
    return 0


def _result(folder: str) -> dict | None:
    """The measures of a finished run's last validation; None before its end."""
    run = Workdir(folder)
    if not run.config.is_file():
        return None
    history = History(run)
    last = [row for row in history.validation if row["step"] == history.steps][-1:]
    if not last or history.steps not in run.steps():
        return None
    return {name: value for name, value in last[0].items() if name not in NO_MEASURES}


def _compare(workdir: str, results: dict[int, dict]) -> None:
    """Print and write median and spread of each measure over the seeds."""
    rows = {}
    for name in next(iter(results.values())):
        values = [result[name] for result in results.values() if result.get(name) is not None]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            rows[name] = (statistics.median(values), spread, min(values), max(values))
    show(f"last validations of {len(results)} seeds", COLUMNS, [(name, *row) for name, row in rows.items()])
    table = {name: dict(zip(COLUMNS[1:], row, strict=True)) for name, row in rows.items()}
    content = json.dumps({"seeds": results, "measures": table}, indent=2) + "\n"
    write(Workdir(workdir).path / TRIALS, content.encode())
