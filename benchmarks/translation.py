"""BLEU of the small translation Transformer on Multi30k's test set of 2016.

    python -m benchmarks.translation [--pairs=data/multi30k] [--workdir=RUN] [--quick] [--format=json]

Trains configs/transformer.py:multi30k (about 45 minutes on two CPU cores) and evaluates the mean of its last five
checkpoints with 4 beams. The target is 25 BLEU. docs/data.md names the source of the files in --pairs; sacrebleu is in
the extra `bleu`. An existing RUN is resumed, or only evaluated.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import report

RECIPE, AVERAGED, TARGET = "configs/transformer.py:multi30k", 5, 25.0
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
QUICK = {"train.steps": 10, "schedule.warmup": 2, "checkpoint.every": 2, "evaluate.every": 10, "evaluate.batches": 1}


def overrides(pairs: str, quick: bool) -> dict[str, object]:
    """Changed keys of the recipe."""
    keys = {f"data.{split}": f"parallel:{pairs}/{name}.{{}}.gz?fields=en,de" for split, name in FILES.items()}
    return keys | (QUICK if quick else {})


def pretrain(*words: str) -> str:
    """Run a command; return its output, or exit with its exit code."""
    done = subprocess.run([sys.executable, "-m", "pretrain", *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--pairs", default="data/multi30k", help="folder of the parallel files (default: %(default)s)")
    parser.add_argument("--workdir", default="", help="work folder of the run (default: a temporary one)")
    args = parser.parse_args()
    report.peers("sacrebleu", extra="bleu")
    keys = overrides(args.pairs, args.quick)
    with tempfile.TemporaryDirectory() as scratch:
        workdir = args.workdir or str(Path(scratch) / "run")
        flags = [f"--config.{key}={value}" for key, value in keys.items()]
        pretrain("train", f"--config={RECIPE}", f"--workdir={workdir}", *flags)
        flags = ["--split=test", f"--average={AVERAGED}", "--format=json", *(["--batches=1"] if args.quick else [])]
        scores = json.loads(pretrain("evaluate", f"--workdir={workdir}", *flags))
    name = f"multi30k, test of 2016, mean of {AVERAGED} checkpoints up to update {scores['step']:,}"
    rows = [
        report.Result(f"{name}, BLEU", scores["bleu"], "", target=TARGET),
        report.Result(f"{name}, exact matches", scores["exact_match"], ""),
    ]
    report.show(rows, args, {"recipe": RECIPE, **keys}, report.versions(*report.PACKAGES, "sentencepiece", "sacrebleu"))


if __name__ == "__main__":
    report.run(main)
