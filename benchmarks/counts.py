"""What each objective makes of real text, counted: how much is hidden and how, how much is to be written, what follows.

    python -m benchmarks.counts [--text=SOURCE] [--quick] [--format=json]

Batches of each family's recipe for the standard library, with rows as long as its paper's and a tokenizer of 8,192
pieces, of the recipe's kind, that is trained on the text. Beside a count stands what the paper says.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import report
from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.workdir import Workdir

ROWS, BATCHES, QUICK, PIECES = 64, 64, 4, 8192

Batch = Mapping[str, np.ndarray]
Counted = Mapping[str, tuple[float, float]]  # by what is counted: a part and its whole, of one batch


def masked(batch: Batch, corpus: pipeline.Corpus) -> Counted:
    """Of what is read, the share that is predicted; of that the shares that are hidden, kept and another piece."""
    special, there = corpus.tokenizer.special, batch["weights"] > 0
    read = np.take_along_axis(batch["tokens"], batch["slots"], 1)[there]
    targets = batch["targets"][there]
    framing = [special[name] for name in ("classifier", "separator", "end") if name in special]
    text = (batch["segments"] > 0).sum() - np.isin(batch["tokens"], framing).sum()
    hidden, kept = (read == special["mask"]).sum(), (read == targets).sum()
    counts = {
        "of the text's tokens predicted": (len(targets), text),
        "of these hidden": (hidden, len(targets)),
        "as they were": (kept, len(targets)),
    }
    if "next" in batch:
        counts["of pairs labelled 1"] = batch["next"].sum(), batch["next_weights"].sum()
    return counts


def spans(batch: Batch, corpus: pipeline.Corpus) -> Counted:
    """Of a row's text, the share that is taken out, and the length of a span."""
    marks = [*corpus.tokenizer.sentinels, corpus.tokenizer.special["end"]]
    inputs, targets = batch["inputs"][batch["input_segments"] > 0], batch["targets"][batch["weights"] > 0]
    taken, left = (~np.isin(targets, marks)).sum(), (~np.isin(inputs, marks)).sum()
    places = np.isin(inputs, corpus.tokenizer.sentinels).sum()
    rows = len(batch["inputs"])
    return {
        "of the text taken out": (taken, taken + left),
        "pieces of a span": (taken, places),
        "tokens read of a row": (len(inputs), rows),
        "tokens written of a row": (len(targets), rows),
    }


def denoising(batch: Batch, corpus: pipeline.Corpus) -> Counted:
    """Of a row's text, the share that is not read, and how many masks stand in it."""
    mask = corpus.tokenizer.special["mask"]
    inputs, targets = batch["inputs"][batch["input_segments"] > 0], batch["targets"][batch["weights"] > 0]
    masks = (inputs == mask).sum()
    taken = len(targets) - (len(inputs) - masks)
    return {"of the text taken out": (taken, len(targets)), "pieces for a mask": (taken, masks)}


def permutation(batch: Batch, corpus: pipeline.Corpus) -> Counted:
    """Of a row, how many places are predicted, and of rows the share that is read backwards."""
    there = batch["weights"] > 0
    return {
        "predicted of a row": (there.sum(), len(there)),
        "of rows read backwards": (batch["backward"].sum(), len(there)),
    }


@dataclass(frozen=True)
class Made:
    """What is counted of a family: its recipe, what is another in it, how, and what the paper says of each count."""

    family: str
    keys: Mapping[str, object]
    count: Callable[[Batch, pipeline.Corpus], Counted]
    paper: Mapping[str, float]


CHOSEN = {"of the text's tokens predicted": 0.15}
HIDDEN = {"of these hidden": 0.8, "as they were": 0.1}
PAIRS = {"of pairs labelled 1": 0.5}
BERT = {"data.length": 128, "objective.max_predictions": 20}
XLNET = {"data.length": 512, "objective.reuse": 256, "objective.perm_size": 256, "objective.predictions": 85}
MADE = {
    "BERT": Made("bert", BERT, masked, HIDDEN | PAIRS),
    "BERT, whole words": Made("bert", BERT | {"objective.whole_words": "true"}, masked, HIDDEN | PAIRS),
    "RoBERTa": Made("roberta", {"data.length": 512, "objective.max_predictions": 100}, masked, CHOSEN | HIDDEN),
    "ALBERT": Made("albert", {"data.length": 512, "objective.max_predictions": 77}, masked, HIDDEN | PAIRS),
    "XLM": Made("xlm", {"data.length": 256, "objective.max_predictions": 70}, masked, CHOSEN | HIDDEN),
    "ELECTRA": Made("electra", {"data.length": 128}, masked, CHOSEN | {"of these hidden": 0.85}),
    "T5": Made("t5", {"data.length": 512}, spans, {"of the text taken out": 0.15, "pieces of a span": 3}),
    "BART": Made("bart", {"data.length": 512}, denoising, {"of the text taken out": 0.3}),
    "XLNet": Made("xlnet", XLNET, permutation, {"predicted of a row": 85, "of rows read backwards": 0.5}),
}


def opened(made: Made, text: str, folder: Path) -> tuple[pipeline.Corpus, int]:
    """The text as a family reads it, made in a folder, and the seed of its batches."""
    keys = {"data.train": text, "data.holdout": 0.05, "tokenizer.vocab_size": PIECES} | made.keys
    config = configs.load(f"configs/{made.family}.py:mini_stdlib", [(key, str(value)) for key, value in keys.items()])
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    return pipeline.prepare(*sections, Workdir(str(folder)).folders, report=lambda line: None), config.seed


def counted(made: Made, text: str, folder: Path, batches: int) -> dict[str, float]:
    """Each count of so many batches, a part over its whole."""
    corpus, seed = opened(made, text, folder)
    reader = corpus.batches(seed=seed, batch_size=ROWS, workers=0, prefetch=2)
    totals: dict[str, np.ndarray] = {}
    for batch in itertools.islice(reader, batches):
        for name, fraction in made.count(batch, corpus).items():
            totals[name] = totals.get(name, 0) + np.array(fraction, float)
    reader.close()
    return {name: float(part / whole) for name, (part, whole) in totals.items()}


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--text", default="stdlib", help="what is read, as data.train (default: %(default)s)")
    args = parser.parse_args()
    rows, of = [], "" if args.text == "stdlib" else f" of {args.text}"
    for name, made in MADE.items():
        with tempfile.TemporaryDirectory() as folder:
            found = counted(made, args.text, Path(folder), QUICK if args.quick else BATCHES)
        rows += [
            report.Result(f"{name}{of}: {what}", value, "", target=made.paper.get(what))
            for what, value in found.items()
        ]
    report.show(rows, args, {name: (made.family, dict(made.keys)) for name, made in MADE.items()} | {"text": args.text})


if __name__ == "__main__":
    report.run(main)
