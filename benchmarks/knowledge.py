"""Knowledge of checkpoints of a few minutes: minimal pairs and last words during training, parts of speech by layer.

    python -m benchmarks.knowledge --text=SOURCE --pairs=FILE --words=FILE --tags=TRAIN,DEV [--limit=500]
                                   [--runs=FOLDER] [--only=NAME,...] [--updates=1000] [--plots=FOLDER] [--quick]
                                   [--format=json]

GPT, BERT, ELECTRA and Transformer-XL with 4 layers of width 256 and 4,096 pieces of WordPiece train with Muon on 4,096
tokens an update of --text; ELECTRA starts from BERT (Clark et al. 2020, section 3.2). Named evaluations ask --pairs
(BLiMP's fields; chance is 0.5) and --words (LAMBADA's) eight times on the way; ELECTRA's discriminator gives no
likelihood. Then `pretrain probe` predicts the parts of speech of --tags (two CoNLL-U files) from each layer, and
`pretrain evaluate` reads the held-out text by Transformer-XL with memories of several lengths. Runs in FOLDER are
resumed or reused.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import learnt, report
from benchmarks.transfer import folder_of

PIECES, LENGTH, ROWS, ASKED = 4096, 128, 32, 8
MEMORIES = (16, 64, 256)
SIZES = {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.ff": 1024, "tokenizer.vocab_size": PIECES}
SIZES |= {"model.context": LENGTH, "data.length": LENGTH, "model.vocab_size": PIECES, "tokenizer.kind": "wordpiece"}
COMMON = learnt.COMMON | SIZES | {"evaluate.batches": 10, "train.batch_size": ROWS}
COMMON |= {"optimizer.name": "muon", "optimizer.b1": 0.95, "optimizer.b2": 0.95, "optimizer.weight_decay": 0.1}
COMMON |= {"schedule.kind": "linear", "schedule.peak": 8e-3}
MASKED = COMMON | {"model.attention": "('local_2', 'dense')", "model.init_std": 0.06}
DECODER = {key: value for key, value in COMMON.items() if key != "model.dropout"}
RECURRENT = {key: value for key, value in COMMON.items() if key not in ("model.context", "evaluate.batch_size")}
RECURRENT |= {"model.memory": 64, "data.length": 64, "train.batch_size": 64, "evaluate.length": 64}
RUNS = {
    "GPT": ("configs/quickstart.py", DECODER),
    "BERT": ("configs/bert.py:mini_stdlib", MASKED | learnt.UNPAIRED | {"objective.max_predictions": 20}),
    "ELECTRA": (
        "configs/electra.py:mini_stdlib",
        MASKED | {"model.embed": 256, "model.generator_size": 0.25},
    ),
    "Transformer-XL": (
        "configs/transformer_xl.py:tiny",
        RECURRENT | {"evaluate.batch_size": 8, "evaluate.model.memory": 64},
    ),
}


def run_pretrain(*words: str) -> str:
    """The last line that a command prints; exit with its exit code if that is not 0."""
    done = subprocess.run([sys.executable, "-m", "pretrain", *map(str, words)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.rstrip().rpartition("\n")[2]


def train(name: str, args, runs: Path) -> dict[str, object]:
    """Train a run; its overrides."""
    recipe, keys = RUNS[name]
    every = max(1, args.updates // ASKED)
    keys = keys | {"data.train": args.text, "train.steps": args.updates, "schedule.warmup": max(1, args.updates // 10)}
    keys |= {"evaluate.every": args.updates, "checkpoint.every": args.updates}
    if name == "ELECTRA":
        keys["train.start_from"] = runs / folder_of("BERT")
    else:
        tasks = {"pairs": ("blimp", args.pairs), "words": ("lambada", args.words)}
        options = {"limit": args.limit, "every": every}
        asked = {field: {"task": task, "data": f"jsonl:{file}"} | options for field, (task, file) in tasks.items()}
        recipe = own_recipe(recipe, asked, runs)
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    run_pretrain("train", f"--config={recipe}", f"--workdir={runs / folder_of(name)}", *flags)
    return {"recipe": RUNS[name][0]} | keys


def own_recipe(recipe: str, evaluations: dict, runs: Path) -> str:
    """A recipe file with named evaluations, which flags cannot add, and its variant."""
    file, _, variant = recipe.partition(":")
    module = Path(file).stem
    runs.mkdir(parents=True, exist_ok=True)
    own = runs / f"{module}_asked.py"
    own.write_text(
        f"from configs import {module}\n\n\ndef get_config(variant=''):\n    config = {module}.get_config(variant)\n"
        f"    config.evaluations = {evaluations!r}\n    return config\n"
    )
    return f"{own}:{variant}".rstrip(":")


def curve(folder: Path, evaluation: str, measure: str) -> tuple[list[int], list[float]]:
    """Updates, and values of a measure of a named evaluation."""
    with open(folder / "metrics" / f"{evaluation}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [int(row["step"]) for row in rows], [float(row[measure]) for row in rows]


def probe(folder: Path, tags: str) -> list[dict]:
    """The scores of the parts of speech by layer."""
    train, test = (f"conllu:{file}" for file in tags.split(","))
    words = "probe", f"--workdir={folder}", "--task=pos", f"--train={train}", f"--test={test}", "--limit=500"
    return json.loads(run_pretrain(*words, "--control", "--format=json"))["rows"]


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--text", default="stdlib", help="text to train on, as data.train (default: %(default)s)")
    parser.add_argument("--pairs", required=True, help="JSON lines with sentence_good and sentence_bad")
    parser.add_argument("--words", required=True, help="JSON lines with text, whose last word is asked")
    parser.add_argument("--tags", required=True, help="two CoNLL-U files")
    parser.add_argument("--limit", type=int, default=500, help="pairs and words to ask (default: %(default)s)")
    parser.add_argument("--runs", default="", help="folder of the runs (default: a temporary one)")
    parser.add_argument("--only", default=",".join(RUNS), help="runs (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--plots", default="", help="folder for pairs.svg and layers.svg")
    args = parser.parse_args()
    if args.quick:
        args.updates, args.limit = ASKED, 8
    rows, settings, pairs, layers = [], {}, {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(args.runs or temporary)
        for name in (name for name in RUNS if name in args.only.split(",")):
            folder = runs / folder_of(name)
            settings[name] = train(name, args, runs)
            if name != "ELECTRA":
                pairs[name] = curve(folder, "pairs", "acc")
                first, *_, last = pairs[name][1]
                rows.append(report.Result(f"{name}, pairs, after 1/{ASKED} of the updates", first, ""))
                rows.append(report.Result(f"{name}, pairs", last, ""))
                for measure in ("acc", "perplexity"):
                    rows.append(
                        report.Result(f"{name}, last words, {measure}", curve(folder, "words", measure)[1][-1], "")
                    )
            scores = probe(folder, args.tags)
            layers[name] = [row["layer"] for row in scores], [row["accuracy"] for row in scores]
            layers[f"{name}, control"] = layers[name][0], [row["control"] for row in scores]
            for row in scores:
                for measure in ("accuracy", "control"):
                    rows.append(report.Result(f"{name}, layer {row['layer']}, {measure}", row[measure], ""))
            for memory in MEMORIES if name == "Transformer-XL" else ():
                words = "evaluate", f"--workdir={folder}", "--split=validation", "--format=json"
                found = json.loads(run_pretrain(*words, f"--config.evaluate.model.memory={memory}"))
                rows.append(report.Result(f"{name}, memory {memory}", found["perplexity"], "perplexity"))
        settings = {name: {key: str(value) for key, value in keys.items()} for name, keys in settings.items()}
    report.show(rows, args, settings)
    if args.plots:
        report.plot(f"{args.plots}/pairs.svg", pairs, "updates", "minimal pairs, accuracy")
        report.plot(f"{args.plots}/layers.svg", layers, "layer", "parts of speech, accuracy")


if __name__ == "__main__":
    report.run(main)
