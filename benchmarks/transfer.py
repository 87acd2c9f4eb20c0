"""What pretraining for minutes is worth on a task with few labels, and what each way of adapting a model costs.

    python -m benchmarks.transfer --text=SOURCE --train=SOURCE --test=SOURCE [--fields=sentence,label]
                                  [--runs=FOLDER] [--only=NAME,...] [--updates=3000] [--trials=5] [--quick]
                                  [--plot=FILE] [--format=json]

Models have 4 layers of width 128 and train on rows of 64 tokens of --text. BERT trains for --updates, the others for as
many as cost the same: ELECTRA starts from a BERT of half of them (Clark et al. 2020, section 3.2), ALBERT and GPT from
random weights. Each then learns configs/tasks.py:sst2 from --train with 50, 200, 1,000 and all labels, which each seed
draws anew; accuracy is that on --test after the last update, the median of --trials seeds.

    scratch                BERT's tokenizer and model with random weights
    frozen, mixed, tuned   the head alone; the head and a mixture of all layers; everything
    layer decay            rates fall by 0.8 a layer (ELECTRA)
    unfreezing             one layer more, from the top, in each epoch (ULMFiT)
    LoRA                   changes of rank 8 of queries and values, with the head

Runs that are in FOLDER are resumed or reused.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import learnt, report
from pretrain import config as configs
from pretrain.commands.describe import describe

BERT = learnt.BERT | learnt.UNPAIRED
ALBERT = BERT | {"model.embed": 64, "tokenizer.vocab_size": learnt.PIECES - 3, "schedule.peak": 5e-3}
ALBERT["objective.swapped_pairs"] = "false"
GPT = {"model.dropout_embedding": 0, "model.dropout_residual": 0, "model.vocab_size": learnt.PIECES}
GPT |= {"schedule.peak": 1e-3, "tokenizer.kind": "wordpiece"}
EPOCHS, ROWS, LEAST = 3, 32, 120  # of tuning: epochs, rows of a batch, fewest updates
LABELS, FEW = (50, 200, 1000, 0), 1000  # 0: all; FEW: those of the comparisons
PEAK = 3e-4  # of tuning
BODY = "('*', '!task_head*')"


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A recipe with changed keys, trained for `share` of the budget, from `start_from` if it is named."""

    recipe: str
    keys: dict
    share: float = 1.0
    start_from: str = ""

    def overrides(self, text: str) -> dict:
        dropout = "model.dropout_residual" if "model.dropout_residual" in self.keys else "model.dropout"
        common = {key: value for key, value in learnt.COMMON.items() if key != "model.dropout"}
        return common | {dropout: 0, "data.train": text} | self.keys


PRETRAINED = {
    "BERT": Pretrained("configs/bert.py:mini_stdlib", BERT),
    "half of BERT": Pretrained("configs/bert.py:mini_stdlib", BERT, 0.5),
    "ELECTRA": Pretrained("configs/electra.py:mini_stdlib", learnt.ELECTRA, 0.5, "half of BERT"),
    "ALBERT": Pretrained("configs/albert.py:mini_stdlib", ALBERT),
    "GPT": Pretrained("configs/quickstart.py", GPT),
    "scratch": Pretrained("configs/bert.py:mini_stdlib", BERT | learnt.UNTRAINED, 0.0),
}
WAYS = {
    "frozen": {"optimizer.frozen": BODY, "schedule.peak": 1e-2},
    "mixed": {"model.mix": "plain", "optimizer.frozen": "('*', '!task_head*', '!scalar_mix*')", "schedule.peak": 1e-2},
    "tuned": {},
    "layer decay": {"optimizer.layer_decay": 0.8},
    "unfreezing": {"optimizer.unfreeze": -1},
    "LoRA": {"model.lora": 8, "schedule.peak": 3e-3},
}


def folder_of(name: str) -> str:
    return name.lower().replace(" ", "_").replace(",", "")


def run_pretrain(*words: str, keys: dict) -> None:
    """Run `pretrain train`; exit with its exit code if that is not 0."""
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    if code := subprocess.run([sys.executable, "-m", "pretrain", "train", *words, *flags]).returncode:
        sys.exit(code)


def pretraining(name: str, args, runs: Path, updates: int) -> tuple[str, dict]:
    """(recipe, overrides) of a model whose updates cost as much as `updates` of BERT's."""
    one = PRETRAINED[name]
    keys = one.overrides(args.text)
    if one.start_from:
        keys["train.start_from"] = runs / folder_of(one.start_from)
    if one.share:
        flops = [cost(model.recipe, model.overrides(args.text)) for model in (PRETRAINED["BERT"], one)]
        steps = max(10, round(updates * one.share * flops[0] / flops[1]))
        every = max(1, steps // 10)
        keys |= {"train.steps": steps, "schedule.warmup": every, "evaluate.every": every, "checkpoint.every": every}
    return one.recipe, {key: str(value) for key, value in keys.items()}


def cost(recipe: str, keys: dict) -> float:
    """FLOPs of an update."""
    return describe(configs.load(recipe, [(key, str(value)) for key, value in keys.items()]))["flops_per_step"][
        "causal"
    ]


def tuning(name: str, labels: int, way: str, args, runs: Path) -> dict:
    """Overrides of configs/tasks.py:sst2."""
    steps = max(10 if args.quick else LEAST, EPOCHS * (labels or args.size) // ROWS)
    text, label = args.fields.split(",")
    keys = {
        "train.start_from": runs / folder_of(name),
        "data.train": args.train,
        "data.validation": args.test,
        "objective.texts": f"('{text}',)",
        "objective.label": label,
        "data.examples": labels,
        "data.length": learnt.LENGTH,
        "data.buckets": "(16, 32, 64)",
        "train.steps": steps,
        "train.trials": args.trials,
        "schedule.peak": PEAK,
        "schedule.warmup": steps // 10,
        "evaluate.every": steps,
        "checkpoint.every": steps,
        "checkpoint.keep_best": "false",
        "log.tensorboard": "false",
    }
    return {key: str(value) for key, value in (keys | WAYS[way]).items()}


def tune(name: str, labels: int, way: str, args, runs: Path) -> list[report.Result]:
    """Accuracy of the seeds, and for a way of adapting BERT what it trains and keeps."""
    folder = runs / "tuned" / f"{folder_of(name)}_{labels or 'all'}_{folder_of(way)}"
    if not (folder / "trials.json").is_file():
        keys = tuning(name, labels, way, args, runs)
        run_pretrain("--config=configs/tasks.py:sst2", f"--workdir={folder}", keys=keys)
    measured = json.loads((folder / "trials.json").read_text())["measures"]["accuracy"]
    title = f"{name}, {labels or args.size:,} labels, {way}"
    spread = (measured["lowest"], measured["highest"])
    rows = [report.Result(f"{title}, accuracy", measured["median"], "", spread=spread)]
    if labels == FEW and name == "BERT":
        facts = describe(configs.saved(str(folder / "seed0")))
        rows.append(report.Result(f"{title}, parameters trained", facts["parameters_trained"], ""))
        state = facts["bytes"]["gradients"] + facts["bytes"]["optimizer"]
        rows.append(report.Result(f"{title}, gradients and optimizer state", state / 1e6, "MB"))
    return rows


def cases(names) -> list[tuple[str, int, str]]:
    """(model, labels, way) of each figure."""
    curves = [(name, labels, "tuned") for name in ("BERT", "scratch") if name in names for labels in LABELS]
    ways = [("BERT", FEW, way) for way in WAYS if way != "tuned" and "BERT" in names]
    return curves + ways + [(name, FEW, "tuned") for name in ("ELECTRA", "ALBERT", "GPT") if name in names]


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--text", default="stdlib", help="text to pretrain on, as data.train (default: %(default)s)")
    parser.add_argument("--train", required=True, help="source of labelled texts, as data.train")
    parser.add_argument("--test", required=True, help="source of labelled texts to score")
    parser.add_argument("--fields", default="sentence,label", help="their fields (default: %(default)s)")
    parser.add_argument(
        "--size", type=int, default=6920, help="examples of --train (default: those of SST-2's sentences)"
    )
    parser.add_argument("--runs", default="", help="folder of the runs (default: a temporary one)")
    parser.add_argument("--only", default=",".join(PRETRAINED), help="models (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--plot", default="", help="draw accuracy by number of labels into this file")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - PRETRAINED.keys():
        parser.error(f"--only={','.join(sorted(unknown))} is unknown; choose from: {', '.join(PRETRAINED)}")
    if args.quick:
        args.updates, args.trials = 20, 2
    rows, settings = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(args.runs or temporary)
        for name in (name for name in PRETRAINED if name in names):
            recipe, keys = settings[name] = pretraining(name, args, runs, args.updates)
            run_pretrain(f"--config={recipe}", f"--workdir={runs / folder_of(name)}", keys=keys)
        measured = cases(names)[:: 4 if args.quick else 1]
        for case in measured:
            rows += tune(*case, args, runs)
        settings |= {" ".join(map(str, case)): tuning(*case, args, Path("runs")) for case in measured}
    report.show(rows, args, settings)
    if args.plot:
        accuracies = {row.name: 100 * row.value for row in rows}
        sizes = [labels or args.size for labels in LABELS]
        curves = {
            name: (sizes, [accuracies[f"{name}, {size:,} labels, tuned, accuracy"] for size in sizes])
            for name in ("BERT", "scratch")
        }
        report.plot(args.plot, curves, "labels", "accuracy (%)", log="x")


if __name__ == "__main__":
    report.run(main)
