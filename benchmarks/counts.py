"""Statistics of each objective's corruption on real text, next to the papers' figures.

    python -m benchmarks.counts [--text=SOURCE] [--quick] [--format=json]

Batches of each family's standard-library recipe, with rows as long as its paper's and a tokenizer of 8,192 pieces of
the recipe's kind, trained on the text.
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
Counts = Mapping[str, tuple[float, float]]  # statistic: (part, whole) in one batch


def count_masked(batch: Batch, corpus: pipeline.Corpus) -> Counts:
    special, valid = corpus.tokenizer.special, batch["weights"] > 0
    inputs = np.take_along_axis(batch["tokens"], batch["slots"], 1)[valid]
    targets = batch["targets"][valid]
    framing = [special[name] for name in ("classifier", "separator", "end") if name in special]
    text = (batch["segments"] > 0).sum() - np.isin(batch["tokens"], framing).sum()
    counts = {
        "of the text's tokens predicted": (len(targets), text),
        "of these hidden": ((inputs == special["mask"]).sum(), len(targets)),
        "as they were": ((inputs == targets).sum(), len(targets)),
    }
    if "next" in batch:
        counts["of pairs labelled 1"] = batch["next"].sum(), batch["next_weights"].sum()
    return counts


def count_spans(batch: Batch, corpus: pipeline.Corpus) -> Counts:
    sentinels = corpus.tokenizer.sentinels
    marks = [*sentinels, corpus.tokenizer.special["end"]]
    inputs, targets = batch["inputs"][batch["input_segments"] > 0], batch["targets"][batch["weights"] > 0]
    removed, kept = (~np.isin(targets, marks)).sum(), (~np.isin(inputs, marks)).sum()
    return {
        "of the text taken out": (removed, removed + kept),
        "pieces of a span": (removed, np.isin(inputs, sentinels).sum()),
        "tokens read of a row": (len(inputs), len(batch["inputs"])),
        "tokens written of a row": (len(targets), len(batch["inputs"])),
    }


def count_denoising(batch: Batch, corpus: pipeline.Corpus) -> Counts:
    inputs, targets = batch["inputs"][batch["input_segments"] > 0], batch["targets"][batch["weights"] > 0]
    masks = (inputs == corpus.tokenizer.special["mask"]).sum()
    removed = len(targets) - (len(inputs) - masks)
    return {"of the text taken out": (removed, len(targets)), "pieces for a mask": (removed, masks)}


def count_permutation(batch: Batch, corpus: pipeline.Corpus) -> Counts:
    rows = len(batch["weights"])
    return {
        "predicted of a row": ((batch["weights"] > 0).sum(), rows),
        "of rows read backwards": (batch["backward"].sum(), rows),
    }


@dataclass(frozen=True)
class Family:
    """A recipe with changed keys, its statistics, and the paper's figures for them."""

    recipe: str
    keys: Mapping[str, object]
    count: Callable[[Batch, pipeline.Corpus], Counts]
    paper: Mapping[str, float]


CHOSEN = {"of the text's tokens predicted": 0.15}
HIDDEN = {"of these hidden": 0.8, "as they were": 0.1}
PAIRS = {"of pairs labelled 1": 0.5}
BERT = {"data.length": 128, "objective.max_predictions": 20}
XLNET = {"data.length": 512, "objective.reuse": 256, "objective.perm_size": 256, "objective.predictions": 85}
FAMILIES = {
    "BERT": Family("bert", BERT, count_masked, HIDDEN | PAIRS),
    "BERT, whole words": Family("bert", BERT | {"objective.whole_words": "true"}, count_masked, HIDDEN | PAIRS),
    "RoBERTa": Family("roberta", {"data.length": 512, "objective.max_predictions": 100}, count_masked, CHOSEN | HIDDEN),
    "ALBERT": Family("albert", {"data.length": 512, "objective.max_predictions": 77}, count_masked, HIDDEN | PAIRS),
    "XLM": Family("xlm", {"data.length": 256, "objective.max_predictions": 70}, count_masked, CHOSEN | HIDDEN),
    "ELECTRA": Family("electra", {"data.length": 128}, count_masked, CHOSEN | {"of these hidden": 0.85}),
    "T5": Family("t5", {"data.length": 512}, count_spans, {"of the text taken out": 0.15, "pieces of a span": 3}),
    "BART": Family("bart", {"data.length": 512}, count_denoising, {"of the text taken out": 0.3}),
    "XLNet": Family("xlnet", XLNET, count_permutation, {"predicted of a row": 85, "of rows read backwards": 0.5}),
}


def mean_counts(family: Family, text: str, folder: Path, batches: int) -> dict[str, float]:
    """Each statistic over `batches` batches."""
    keys = {"data.train": text, "data.holdout": 0.05, "tokenizer.vocab_size": PIECES} | family.keys
    overrides = [(key, str(value)) for key, value in keys.items()]
    config = configs.load(f"configs/{family.recipe}.py:mini_stdlib", overrides)
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    corpus = pipeline.prepare(*sections, Workdir(str(folder)).folders, report=lambda line: None)
    reader = corpus.batches(seed=config.seed, batch_size=ROWS, workers=0, prefetch=2)
    totals: dict[str, np.ndarray] = {}
    for batch in itertools.islice(reader, batches):
        for name, fraction in family.count(batch, corpus).items():
            totals[name] = totals.get(name, 0) + np.array(fraction, float)
    reader.close()
    return {name: float(part / whole) for name, (part, whole) in totals.items()}


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--text", default="stdlib", help="text to read, as data.train (default: %(default)s)")
    args = parser.parse_args()
    rows, suffix = [], "" if args.text == "stdlib" else f" of {args.text}"
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            counts = mean_counts(family, args.text, Path(folder), QUICK if args.quick else BATCHES)
        for statistic, value in counts.items():
            target = family.paper.get(statistic)
            rows.append(report.Result(f"{name}{suffix}: {statistic}", value, "", target=target))
    settings = {name: (family.recipe, dict(family.keys)) for name, family in FAMILIES.items()}
    report.show(rows, args, settings | {"text": args.text})


if __name__ == "__main__":
    report.run(main)
