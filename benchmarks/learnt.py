"""What each pretraining objective learns in minutes.

    python -m benchmarks.learnt [--text=SOURCE] [--parallel=SOURCE] [--probe=TRAIN,DEV] [--runs=FOLDER]
                                [--only=NAME,...] [--updates=1000] [--quick] [--format=json]

Each run is `pretrain train` of a recipe with 4 layers (T5, BART: 2 + 2) of width 128 on 32 rows of 64 tokens, scored on
40 batches of the 5 % of documents that are held out. The tokenizer of 1,024 pieces is trained on the text. The
baseline ignores the context: the share of the most frequent answer. Runs that are in FOLDER are resumed or reused.

With learned positions every other layer is local and weights start three times as large as published: dense layers of
this size are still at unigram frequencies after a thousand updates.

    nsp, sop    rows of 128 tokens of 4,096 pieces; `sop` starts from `nsp`; `sop of nsp` scores `nsp` itself on order,
                which the topic does not reveal
    electra     starts from `mlm`, since from scratch its discriminator may stay with the majority (Clark et al. 2020,
                section 3.2), and trains as long as costs the same as `mlm on`, which continues `mlm`
    student     two layers, taught by `mlm`; `student alone` is the same model from scratch
    denoising   its baseline copies the token at the same position
    tlm         masks texts with their translations (--parallel=parallel:train.{}.gz?fields=en,de)
    tasks       spans, mixed with three toy tasks on phrases: write the first word, the last, their number

--probe fits a linear map from frozen states to parts of speech (two CoNLL-U files, benchmarks/probes.py).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import probes, report
from input_pipeline import pipeline
from input_pipeline.sources import parser
from pretrain import config as configs
from pretrain.workdir import Workdir

LENGTH, ROWS, PIECES, BATCHES = 64, 32, 1024, 40
QUICK = 10  # updates
COMMON = {
    "model.layers": 4,
    "model.width": 128,
    "model.heads": 2,
    "model.ff": 512,
    "model.context": LENGTH,
    "model.dtype": "float32",
    "model.dropout": 0,
    "model.dropout_attention": 0,
    "data.length": LENGTH,
    "data.holdout": 0.05,
    "train.batch_size": ROWS,
    "tokenizer.train_bytes": 6_000_000,
    "tokenizer.vocab_size": PIECES,
    "evaluate.batches": BATCHES,
    "evaluate.batch_size": ROWS,
    "checkpoint.keep": 1,
    "checkpoint.keep_best": "false",
    "log.tensorboard": "false",
}
PROBED = ("mlm", "mlm on", "electra")
LOCAL = {"model.attention": "('local_2', 'dense')", "model.init_std": 0.06, "schedule.peak": 1e-3}
BERT = LOCAL | {"model.vocab_size": PIECES, "objective.max_predictions": 10}
PAIRS = BERT | {
    "data.length": 2 * LENGTH,
    "model.context": 2 * LENGTH,
    "model.heads": 4,
    "model.vocab_size": 4 * PIECES,
    "tokenizer.vocab_size": 4 * PIECES,
    "objective.max_predictions": 20,
    "objective.passes": 4,
}
SWAPPED = PAIRS | {"objective.swapped_pairs": "true"}
UNTRAINED = {"train.steps": 1, "schedule.peak": 1e-30, "schedule.warmup": 0, "evaluate.every": 1}
UNPAIRED = {
    "objective.next_sentence": "false",
    "model.pair_head": "false",
    "data.layout": "packed",
    "data.sentences": "",
}
ELECTRA = LOCAL | {"schedule.peak": 5e-4, "model.vocab_size": PIECES, "model.embed": 128}
ELECTRA |= {"model.generator_size": 0.25, "model.activation": "gelu_tanh"}
STUDENT = BERT | {
    "model.layers": 2,
    "objective.smoothing": 0,
    "distill.layers": "(0, 3)",
    "distill.model.layers": 4,
    "distill.model.types": 2,
    "distill.model.pair_head": "false",
}
T5 = {"model.layers": 2, "model.vocab_size": PIECES + 128, "model.head_size": 64, "schedule.warmup": 0}
XLM = LOCAL | {"model.vocab_size": PIECES + 1, "model.languages": 2, "objective.languages": "true"}
XLM |= {"data.length": 2 * LENGTH, "model.context": 2 * LENGTH, "objective.max_predictions": 40}
BART = {"model.layers": 2, "model.vocab_size": PIECES + 2, "model.head_size": 64}
XLNET = {"model.layers": 2, "model.vocab_size": PIECES + 2, "model.init_std": 0.06, "schedule.peak": 1e-3}
TASKS = {"first": lambda words: words[0], "last": lambda words: words[-1], "count": lambda words: str(len(words))}
EXAMPLES, LONGEST = 8000, 9  # examples per task, words of the longest phrase


@dataclass(frozen=True)
class Learner:
    """A run and the measure that it is judged by."""

    family: str
    measure: str
    keys: Mapping[str, object]
    baseline: str = ""  # feature whose most frequent value is the baseline; of `inputs` the value at the same position
    start_from: str = ""  # learner whose weights it starts from
    teacher: str = ""
    budget: str = ""  # learner whose FLOPs it may use, instead of as many updates
    tasks: bool = False  # trains on TASKS too
    parallel: bool = False  # trains on two languages


LEARNERS = {
    "mlm": Learner("bert", "mlm_accuracy", BERT | UNPAIRED, "targets"),
    "nsp": Learner("bert", "nsp_accuracy", PAIRS, "next"),
    "sop": Learner("bert", "sop_accuracy", SWAPPED, "next", "nsp"),
    "sop of nsp": Learner("bert", "sop_accuracy", SWAPPED | UNTRAINED, "next", "nsp"),
    "mlm on": Learner("bert", "mlm_accuracy", BERT | UNPAIRED, "targets", "mlm"),
    "electra": Learner("electra", "recall", ELECTRA, start_from="mlm", budget="mlm"),
    "student": Learner("distilbert", "mlm_accuracy", STUDENT, "targets", teacher="mlm"),
    "student alone": Learner(
        "bert", "mlm_accuracy", BERT | UNPAIRED | {"model.layers": 2, "model.types": 0}, "targets"
    ),
    "spans": Learner("t5", "accuracy", T5, "targets"),
    "denoising": Learner("bart", "accuracy", BART, "inputs"),
    "tlm": Learner("xlm", "mlm_accuracy", XLM, "targets", parallel=True),
    "tasks": Learner("t5", "exact_match", T5 | {"evaluate.decode": 128}, tasks=True),
    "permutation": Learner("xlnet", "perplexity", XLNET),
}


def build_config(name: str, text: str, folder: Path, updates: int):
    """(recipe, overrides) of a learner."""
    learner, every = LEARNERS[name], max(1, updates // 10)
    keys = COMMON | {"data.train": text, "train.steps": updates, "schedule.warmup": every}
    keys |= {"evaluate.every": every, "checkpoint.every": every} | learner.keys
    if learner.tasks:
        files = (f"jsonl:{folder / task}.jsonl?fields=inputs,targets" for task in TASKS)
        keys |= {"data.train": " + ".join((text, *files)), "data.weights": "(0.1, 0.3, 0.3, 0.3)"}
    if learner.parallel:
        keys["data.languages"] = parser.parse(text, "--parallel")[0].fields
    if learner.teacher:
        keys["distill.teacher"] = str(folder / learner.teacher)
    if learner.start_from:
        keys["train.start_from"] = str(folder / learner.start_from)
    return f"configs/{learner.family}.py:mini_stdlib", {key: str(value) for key, value in keys.items()}


def write_tasks(text: str, folder: Path) -> None:
    """Write examples of TASKS with the text's words, such as {"inputs": "last: so it goes", "targets": "goes"}."""
    words = set()
    for source in parser.parse(text, "data.train"):
        for span in source.spans(1 << 20):
            for document in source.documents(span):
                words.update(re.findall("[a-z]+", "".join(document.chunks)))
    rng, words = np.random.default_rng(0), sorted(words)
    folder.mkdir(parents=True, exist_ok=True)
    for task, answer in TASKS.items():
        with (folder / f"{task}.jsonl").open("w") as file:
            for length in rng.integers(1, LONGEST + 1, EXAMPLES):
                phrase = [words[i] for i in rng.integers(len(words), size=length)]
                file.write(json.dumps({"inputs": f"{task}: {' '.join(phrase)}", "targets": answer(phrase)}) + "\n")


def count_updates(name: str, text: str, folder: Path, updates: int) -> int:
    """Updates of a learner: `updates`, or as many as cost the same as those of its budget."""
    from pretrain.commands.describe import describe

    if not LEARNERS[name].budget:
        return updates
    ours, budget = (
        describe(configs.load(recipe, list(keys.items())))["flops_per_step"]["causal"]
        for recipe, keys in (build_config(one, text, folder, updates) for one in (name, LEARNERS[name].budget))
    )
    return round(updates * budget / ours)


def train(name: str, text: str, folder: Path, updates: int) -> Path:
    """Train a learner to its last update; return its work folder."""
    workdir = folder / name.replace(" ", "_")
    if LEARNERS[name].tasks and not workdir.exists():
        write_tasks(text, folder)
    recipe, keys = build_config(name, text, folder, count_updates(name, text, folder, updates))
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    command = [sys.executable, "-m", "pretrain", "train", f"--config={recipe}", f"--workdir={workdir}", *flags]
    if code := subprocess.run(command).returncode:
        sys.exit(code)
    return workdir


def last_validation(workdir: Path) -> dict[str, float]:
    """Measures of a run's last validation."""
    return json.loads((workdir / "metrics" / "validation.jsonl").read_text().splitlines()[-1])


def baseline(workdir: Path, feature: str) -> float:
    """Accuracy of a feature's most frequent value on a run's validation, or of copying `inputs`."""
    config = configs.saved(str(workdir))
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    corpus = pipeline.prepare(*sections, Workdir(str(workdir)).folders, report=lambda line: None)
    length = config.data.length
    scored = corpus.evaluation("validation", length=length, stride=length, batch_size=ROWS, limit=BATCHES)
    if feature == "inputs":
        same = [(batch["targets"] == batch["inputs"])[batch["weights"] > 0] for batch in scored.batches()]
        return float(np.mean(np.concatenate(same)))
    weight = "weights" if feature == "targets" else f"{feature}_weights"
    values = np.concatenate([batch[feature][batch[weight] > 0] for batch in scored.batches()])
    return np.bincount(values).max() / len(values)


def results(name: str, workdir: Path, folder: Path) -> list[report.Result]:
    """Results of a finished run."""
    learner = LEARNERS[name]
    last = last_validation(workdir)
    row = report.Result(f"{name}, {learner.measure} after {last['step']:,} updates", last[learner.measure], "")
    if learner.baseline:
        row.against = "what is read there" if learner.baseline == "inputs" else "the most frequent answer"
        row.ratio = row.value / baseline(workdir, learner.baseline)
    rows = [row]
    for task in TASKS if learner.tasks else ():
        matches = last[f"exact_match of jsonl:{folder / task}.jsonl?fields=inputs,targets"]
        rows.append(report.Result(f"{name}, {task}, exact_match", matches, ""))
    return rows


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--text", default="stdlib", help="text to train on, as data.train (default: %(default)s)")
    parser.add_argument("--parallel", default="", help="source of two fields, a text in two languages")
    parser.add_argument("--probe", default="", help="two gzipped CoNLL-U files: to fit and to score")
    parser.add_argument("--runs", default="", help="folder of the runs (default: a temporary one)")
    parser.add_argument("--only", default="", help=f"some of: {', '.join(LEARNERS)} (default: all with a text)")
    parser.add_argument("--updates", type=int, default=1000)
    args = parser.parse_args()
    texts = {name: args.parallel if learner.parallel else args.text for name, learner in LEARNERS.items()}
    names = args.only.split(",") if args.only else [name for name, text in texts.items() if text]
    if unknown := set(names) - LEARNERS.keys():
        parser.error(f"--only={','.join(sorted(unknown))} is unknown; choose from: {', '.join(LEARNERS)}")
    if missing := [name for name in names if not texts[name]]:
        parser.error(f"--only={','.join(missing)} needs --parallel")
    files = args.probe.split(",") if args.probe else []
    if len(files) not in (0, 2) or not all(map(os.path.isfile, files)):
        parser.error(f"--probe={args.probe}: name two files, joined by a comma")
    updates, rows = QUICK if args.quick else args.updates, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.runs or temporary)
        for name in names:
            workdir = train(name, texts[name], folder, updates)
            rows += results(name, workdir, folder)
            if name in PROBED:
                rows += probes.evaluate(name, workdir, files)
        if PROBED[0] in names:
            rows += probes.evaluate("untrained", folder / PROBED[0], files, untrained=True)
        settings = {name: build_config(name, texts[name], Path("runs"), updates) for name in names}
        report.show(rows, args, settings)


if __name__ == "__main__":
    report.run(main)
