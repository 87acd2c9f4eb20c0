"""What each pretraining objective learns in minutes, in small: a table, and with --chart its curves.

    python -m benchmarks.learnt [--text=SOURCE] [--parallel=SOURCE] [--probe=TRAIN,DEV] [--runs=FOLDER]
                                [--tune=TRAIN,DEV,TEST] [--only=NAME,...] [--updates=1000] [--chart=FILE.svg] [--quick]
                                [--format=json]

Every run is `pretrain train` of a shipped recipe with a model of 4 layers (T5, BART: 2 and 2), 128 wide, on 32 rows of
64 tokens of the text, such as jsonl:docs.jsonl.gz with a sentence a line, of which 5 % of the documents are held out;
its figure is of 40 batches of those. The tokenizer, of 1,024 pieces, is trained on the text. Beside a figure stands
what knows nothing of the context: of tokens the share of the most frequent one, of pairs that of the more frequent
answer. A run that is in FOLDER already is not made again, and one that was killed goes on.

Where positions are learned, every other layer sees a token and its neighbours alone, and matrices begin three times as
large as published. Dense layers of this size have not begun to look at other places after a thousand updates: what
they know by then is how frequent tokens are, and that one in ten of those asked for still stands there (12 % right).

`nsp` and `sop` read rows of 128 tokens, of 4,096 pieces, since a segment must be long enough to name what it is about,
and want a text of many topics. `nsp` begins from scratch and `sop` with its weights; `sop of nsp` asks the model that
learned to tell a text's next segment from a random one which of two came first, which the topic does not say.

`electra` begins with the weights of `mlm`: a discriminator that does not may stay with the majority, as its paper says
(Clark et al. 2020, section 3.2). `mlm on` goes on with `mlm` for as many updates again, and `electra` for as many as
cost the same; its recall is of replaced tokens. A probe is a linear map of a model's last hidden states to parts of
speech, fitted to the words of the first file (CoNLL-U), with its accuracy on those of the second; the models are left
as they are. With --tune they are trained on to tell the labels of sentences, which is how ELECTRA's paper judges them
(section 3.1); the figure is of the third file, the mean of several starts (benchmarks/probes.py). `untrained` is for
comparison.

`student` has two layers, begins as two of `mlm`'s and learns from it; `student alone` is the same model, from scratch.

`denoising` writes whole texts, which it reads without a third of their words and with their sentences in another order:
beside its figure stands what copies the piece that is read at the same place. `tlm` masks texts and their translations,
in rows of 128 tokens, of the source of two fields that --parallel names, such as parallel:train.{}.gz?fields=en,de;
without one it is left out.

`tasks` mixes spans with tasks made of the text's words, each of which has examples held out: to write the first word of
a phrase, its last, and how many there are. An answer counts if all of it is right.
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
from benchmarks.chart import chart
from input_pipeline import pipeline
from input_pipeline.sources import sources
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
QUICK_TO_LOOK = {"model.attention": "('local_2', 'dense')", "model.init_std": 0.06, "schedule.peak": 1e-3}
BERT = QUICK_TO_LOOK | {"model.vocab_size": PIECES, "objective.max_predictions": 10}
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
NOTHING = {"train.steps": 1, "schedule.peak": 1e-30, "schedule.warmup": 0, "evaluate.every": 1}
ALONE = {"objective.next_sentence": "false", "model.pair_head": "false", "data.layout": "packed", "data.sentences": ""}
ELECTRA = QUICK_TO_LOOK | {"schedule.peak": 5e-4, "model.vocab_size": PIECES, "model.embed": 128}
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
XLM = QUICK_TO_LOOK | {"model.vocab_size": PIECES + 1, "model.languages": 2, "objective.languages": "true"}
XLM |= {"data.length": 2 * LENGTH, "model.context": 2 * LENGTH, "objective.max_predictions": 40}
BART = {"model.layers": 2, "model.vocab_size": PIECES + 2, "model.head_size": 64}
XLNET = {"model.layers": 2, "model.vocab_size": PIECES + 2, "model.init_std": 0.06, "schedule.peak": 1e-3}
TASKS = {"first": lambda words: words[0], "last": lambda words: words[-1], "count": lambda words: str(len(words))}
EXAMPLES, LONGEST = 8000, 9  # of each task, and the words of the longest


@dataclass(frozen=True)
class Learner:
    """A run: its recipe's family, the measure that it is judged by, and what is another in its config.

    known: the feature whose most frequent value is what knows nothing; of `inputs` the one that stands at the same
    place. begins: whose weights it begins with.
    teacher: who teaches it. cost: whose arithmetic it may use, where that is not as many updates. tasks: whether it
    has TASKS besides the text. parallel: whether its text is of two fields, in two languages.
    """

    family: str
    measure: str
    keys: Mapping[str, object]
    known: str = ""
    begins: str = ""
    teacher: str = ""
    cost: str = ""
    tasks: bool = False
    parallel: bool = False


LEARNERS = {
    "mlm": Learner("bert", "mlm_accuracy", BERT | ALONE, "targets"),
    "nsp": Learner("bert", "nsp_accuracy", PAIRS, "next"),
    "sop": Learner("bert", "sop_accuracy", SWAPPED, "next", "nsp"),
    "sop of nsp": Learner("bert", "sop_accuracy", SWAPPED | NOTHING, "next", "nsp"),
    "mlm on": Learner("bert", "mlm_accuracy", BERT | ALONE, "targets", "mlm"),
    "electra": Learner("electra", "recall", ELECTRA, begins="mlm", cost="mlm"),
    "student": Learner("distilbert", "mlm_accuracy", STUDENT, "targets", teacher="mlm"),
    "student alone": Learner("bert", "mlm_accuracy", BERT | ALONE | {"model.layers": 2, "model.types": 0}, "targets"),
    "spans": Learner("t5", "accuracy", T5, "targets"),
    "denoising": Learner("bart", "accuracy", BART, "inputs"),
    "tlm": Learner("xlm", "mlm_accuracy", XLM, "targets", parallel=True),
    "tasks": Learner("t5", "exact_match", T5 | {"evaluate.decode": 128}, tasks=True),
    "permutation": Learner("xlnet", "perplexity", XLNET),
}


def config(name: str, text: str, folder: Path, updates: int):
    """(recipe, overrides) of a learner."""
    learner, every = LEARNERS[name], max(1, updates // 10)
    keys = COMMON | {"data.train": text, "train.steps": updates, "schedule.warmup": every}
    keys |= {"evaluate.every": every, "checkpoint.every": every} | learner.keys
    if learner.tasks:
        files = (f"jsonl:{folder / task}.jsonl?fields=inputs,targets" for task in TASKS)
        keys |= {"data.train": " + ".join((text, *files)), "data.weights": "(0.1, 0.3, 0.3, 0.3)"}
    if learner.parallel:
        keys["data.languages"] = sources.parse(text, "--parallel")[0].fields
    if learner.teacher:
        keys["distill.teacher"] = str(folder / learner.teacher)
    if learner.begins:
        keys["train.start_from"] = str(folder / learner.begins)
    return f"configs/{learner.family}.py:mini_stdlib", {key: str(value) for key, value in keys.items()}


def write_tasks(text: str, folder: Path) -> None:
    """Files of examples of TASKS, {"inputs": "last: so it goes", "targets": "goes"}, made of the text's words."""
    found = []
    for source in sources.parse(text, "data.train"):
        for span in source.spans(1 << 20):
            for document in source.documents(span):
                found += re.findall("[a-z]+", "".join(document.chunks))
    random, words = np.random.default_rng(0), sorted(set(found))
    folder.mkdir(parents=True, exist_ok=True)
    for task, answer in TASKS.items():
        with (folder / f"{task}.jsonl").open("w") as file:
            for length in random.integers(1, LONGEST + 1, EXAMPLES):
                phrase = [words[at] for at in random.integers(len(words), size=length)]
                file.write(json.dumps({"inputs": f"{task}: {' '.join(phrase)}", "targets": answer(phrase)}) + "\n")


def updates_of(name: str, text: str, folder: Path, updates: int) -> int:
    """How many updates a learner makes, where `mlm` makes `updates`."""
    from pretrain.commands.describe import describe

    if not LEARNERS[name].cost:
        return updates
    ours, theirs = (
        describe(configs.load(recipe, list(keys.items())))["flops_per_step"]["causal"]
        for recipe, keys in (config(one, text, folder, updates) for one in (name, LEARNERS[name].cost))
    )
    return round(updates * theirs / ours)


def train(name: str, text: str, folder: Path, updates: int) -> Path:
    """The work folder of a learner, all of whose updates are made."""
    workdir = folder / name.replace(" ", "_")
    if LEARNERS[name].tasks and not workdir.exists():
        write_tasks(text, folder)
    recipe, keys = config(name, text, folder, updates_of(name, text, folder, updates))
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    command = [sys.executable, "-m", "pretrain", "train", f"--config={recipe}", f"--workdir={workdir}", *flags]
    if done := subprocess.run(command).returncode:
        sys.exit(done)
    return workdir


def curve(workdir: Path, measure: str) -> tuple[list[int], list[float]]:
    """(updates, the measure then) of a run's validations."""
    rows = [json.loads(line) for line in (workdir / "metrics" / "validation.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows], [row[measure] for row in rows]


def unknowing(workdir: Path, feature: str) -> float:
    """The share of what a run's validation scores that is a feature's most frequent value, or stands in its place."""
    of = configs.saved(str(workdir))
    sections = of.data.to_dict(), of.tokenizer.to_dict(), of.objective.to_dict()
    corpus = pipeline.prepare(*sections, Workdir(str(workdir)).folders, report=lambda line: None)
    scored = corpus.evaluation(
        "validation", length=of.data.length, stride=of.data.length, batch_size=ROWS, limit=BATCHES
    )
    if feature == "inputs":
        same = [(batch["targets"] == batch[feature])[batch["weights"] > 0] for batch in scored.batches()]
        return float(np.mean(np.concatenate(same)))
    weight = "weights" if feature == "targets" else f"{feature}_weights"
    found = np.concatenate([batch[feature][batch[weight] > 0] for batch in scored.batches()])
    return np.bincount(found).max() / len(found)


FILES = {"probe": 2, "tune": 3}  # that each reads


def main():
    parser = report.arguments(__doc__.split("\n")[0])
    parser.add_argument("--text", default="stdlib", help="what is trained on, as data.train (default: %(default)s)")
    parser.add_argument("--parallel", default="", help="what is trained on in two languages: a source of two fields")
    parser.add_argument("--probe", default="", help="two gzipped CoNLL-U files: to fit, and to score")
    parser.add_argument(
        "--tune", default="", help="three gzipped files of sentences and labels: to train, choose, score"
    )
    parser.add_argument("--runs", default="", help="folder of the runs (default: one that is deleted)")
    parser.add_argument("--only", default="", help=f"some of: {', '.join(LEARNERS)} (default: all there is text for)")
    parser.add_argument("--updates", type=report.count, default=1000)
    parser.add_argument("--chart", type=report.new_file, default="", help="SVG file of the curves to write")
    args = parser.parse_args()
    texts = {name: args.parallel if learner.parallel else args.text for name, learner in LEARNERS.items()}
    names = args.only.split(",") if args.only else [name for name, text in texts.items() if text]
    asked = {name: given.split(",") for name, given in (("probe", args.probe), ("tune", args.tune)) if given}
    if unknown := set(names) - LEARNERS.keys():
        parser.error(f"--only={','.join(sorted(unknown))} is unknown; choose from: {', '.join(LEARNERS)}")
    if lacking := [name for name in names if not texts[name]]:
        parser.error(f"--only={','.join(lacking)} reads translations; name them by --parallel")
    for name, files in asked.items():
        if len(files) != FILES[name] or not all(map(report.gzipped, files)):
            parser.error(f"--{name}={','.join(files)} is not {FILES[name]} gzipped files, joined by commas")
    updates, rows, curves = QUICK if args.quick else args.updates, [], {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.runs or scratch)
        for name in names:
            learner, workdir = LEARNERS[name], train(name, texts[name], folder, updates)
            steps, values = curve(workdir, learner.measure)
            row = report.Result(f"{name}, {learner.measure} after {steps[-1]:,} updates", values[-1], "")
            if learner.known:
                row.against = "what is read there" if learner.known == "inputs" else "the most frequent answer"
                row.ratio = values[-1] / unknowing(workdir, learner.known)
            rows.append(row)
            for task in TASKS if learner.tasks else ():
                source = f"jsonl:{folder / task}.jsonl?fields=inputs,targets"
                value = curve(workdir, f"exact_match of {source}")[1][-1]
                rows.append(report.Result(f"{name}, {task}, exact_match", value, ""))
            if len(steps) > 1:
                curves[f"{name}: {learner.measure.replace('_', ' ')}"] = [step / steps[-1] for step in steps], values
            if name in PROBED:
                rows += probes.of(name, workdir, asked)
        if PROBED[0] in names:
            rows += probes.of("untrained", folder / PROBED[0], asked, untrained=True)
        if args.chart:
            shares = {label: xy for label, xy in curves.items() if max(xy[1]) <= 1}
            chart(args.chart, shares, "share of the updates", "share that is right", logarithmic=False)
        settings = {name: config(name, texts[name], Path("runs"), updates) for name in names}
        report.show(rows, args, settings)


if __name__ == "__main__":
    report.run(main)
