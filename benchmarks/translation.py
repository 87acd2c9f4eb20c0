"""What the small Transformer for translation reaches: its recipe trained, and sacrebleu's BLEU of the test of 2016.

    python -m benchmarks.translation [--pairs=data/multi30k] [--workdir=RUN] [--quick] [--format=json]

`pretrain train` of configs/transformer.py:multi30k, which takes about 45 minutes of two CPU cores, and `pretrain
evaluate` of the mean of its last five checkpoints, with 4 beams. 25 BLEU was wanted. docs/data.md says where the files
of --pairs come from; sacrebleu is in the extra `bleu`. A run that is in RUN already goes on, or is only evaluated.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import report

RECIPE, AVERAGED, WANTED = "configs/transformer.py:multi30k", 5, 25.0
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
QUICK = {"train.steps": 10, "schedule.warmup": 2, "checkpoint.every": 2, "evaluate.every": 10, "evaluate.batches": 1}


def overrides(pairs: str, quick: bool) -> dict[str, object]:
    """Keys of the recipe that are others here."""
    keys = {f"data.{split}": f"parallel:{pairs}/{name}.{{}}.gz?fields=en,de" for split, name in FILES.items()}
    return keys | (QUICK if quick else {})


def pretrain(*words: str) -> str:
    """What a command of Longhaul prints; ends this program with its exit code if it fails."""
    done = subprocess.run([sys.executable, "-m", "pretrain", *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main():
    parser = report.arguments(__doc__.split("\n")[0])
    parser.add_argument("--pairs", default="data/multi30k", help="folder of the files (default: %(default)s)")
    parser.add_argument("--workdir", default="", help="work folder of the run (default: one that is deleted)")
    args = parser.parse_args()
    report.peers("sacrebleu", extra="bleu")
    keys = overrides(args.pairs, args.quick)
    with tempfile.TemporaryDirectory() as scratch:
        workdir = args.workdir or str(Path(scratch) / "run")
        flags = [f"--config.{key}={value}" for key, value in keys.items()]
        pretrain("train", f"--config={RECIPE}", f"--workdir={workdir}", *flags)
        some = ["--batches=1"] if args.quick else []
        said = pretrain(
            "evaluate", f"--workdir={workdir}", "--split=test", f"--average={AVERAGED}", "--format=json", *some
        )
        found = json.loads(said)
    name = f"multi30k, test of 2016, mean of {AVERAGED} checkpoints up to update {found['step']:,}"
    rows = [
        report.Result(f"{name}, BLEU", found["bleu"], "", target=WANTED),
        report.Result(f"{name}, the reference to the letter", found["exact_match"], ""),
    ]
    report.show(rows, args, {"recipe": RECIPE, **keys}, report.versions(*report.PACKAGES, "sentencepiece", "sacrebleu"))


if __name__ == "__main__":
    report.run(main)
