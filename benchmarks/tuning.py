"""An epoch of fine-tuning on labelled sentences, against Hugging Face's Trainer with dynamic padding.

    python -m benchmarks.tuning --train=FILE [--text=SOURCE] [--quick] [--format=json]

FILE is gzipped, with a sentence, a tab and its label on each line, such as SST-2's. A BERT of 4 layers of width 256
with random weights and a tokenizer of --text is tuned on it by `pretrain train --config=configs/tasks.py:sst2`; its
export by `Trainer` with `DataCollatorWithPadding`: the same rows of 32, AdamW, rates and dropout, in float32, without
evaluations. Each run is a process of its own; the two take turns.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import learnt, report

ROWS, LENGTH, PEAK, DECAY, DROPOUT = 32, 64, 3e-5, 0.01, 0.1
MODEL = {"model.width": 256, "model.heads": 4, "model.ff": 1024}
MODEL |= {"model.dropout": DROPOUT, "model.dropout_attention": DROPOUT}
BASE = learnt.COMMON | learnt.BERT | learnt.UNPAIRED | learnt.UNTRAINED | MODEL | {"model.attention": "dense"}


def run(*words: str, keys: dict | None = None) -> float:
    """Seconds of a program; exit with its exit code if that is not 0."""
    flags = [f"--config.{key}={value}" for key, value in (keys or {}).items()]
    began = time.perf_counter()
    if code := subprocess.run([sys.executable, "-m", *words, *flags], stdout=sys.stderr).returncode:
        sys.exit(code)
    return time.perf_counter() - began


def read(file: str) -> tuple[list[str], list[int]]:
    """Sentences and labels."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        lines = [line.rstrip("\n").rpartition("\t") for line in text]
    return [sentence for sentence, _, _ in lines], [int(label) for _, _, label in lines]


def longhaul(file: str, folder: Path, steps: int, number: int) -> dict[str, float]:
    """Seconds of an epoch of ours: of updates and data, with compilation, and of the whole command."""
    workdir = folder / f"ours{number}"
    keys = {
        "train.start_from": folder / "base",
        "data.train": f"tsv:{file}?columns=sentence,label&quotes=none",
        "data.holdout": 0.0,
        "data.length": LENGTH,
        "data.store": folder / "store",
        "train.steps": steps,
        "schedule.warmup": steps // 10,
        "schedule.peak": PEAK,
        "optimizer.weight_decay": DECAY,
        "checkpoint.every": steps,
        "log.every": steps,
        "log.tensorboard": "false",
    }
    whole = run("pretrain", "train", "--config=configs/tasks.py:sst2", f"--workdir={workdir}", keys=keys)
    command = [sys.executable, "-m", "pretrain", "goodput", f"--workdir={workdir}", "--format=json"]
    spent = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["seconds"]
    epoch = spent["step"] + spent["data"]
    return {"epoch": epoch, "epoch with compilation": epoch + spent["compile"], "whole command": whole}


def trainer(file: str, folder: Path, steps: int, number: int) -> dict[str, float]:
    """Seconds of an epoch of the peer's."""
    result = folder / "trainer.json"
    whole = run("benchmarks.tuning", "--peer", file, str(folder), str(steps), str(result))
    epoch = json.loads(result.read_text())["train_runtime"]
    return {"epoch": epoch, "epoch with compilation": epoch, "whole command": whole}


def peer(file: str, folder: str, steps: str, result: str) -> None:
    """Train the peer; write its metrics."""
    report.peers("torch", "transformers", "accelerate")
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/hf")
    sentences, labels = read(file)
    encoded = tokenizer(sentences, truncation=True, max_length=LENGTH)
    examples = [{"input_ids": ids, "label": label} for ids, label in zip(encoded["input_ids"], labels, strict=True)]
    arguments = TrainingArguments(
        output_dir=f"{folder}/trainer",
        per_device_train_batch_size=ROWS,
        max_steps=int(steps),
        learning_rate=PEAK,
        warmup_steps=int(steps) // 10,
        weight_decay=DECAY,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    model = AutoModelForSequenceClassification.from_pretrained(f"{folder}/hf", num_labels=2)
    done = Trainer(model, arguments, data_collator=DataCollatorWithPadding(tokenizer), train_dataset=examples).train()
    Path(result).write_text(json.dumps(done.metrics))


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    parser = report.arguments(__doc__)
    parser.add_argument("--train", required=True, help="gzipped file of labelled sentences")
    parser.add_argument("--text", default="stdlib", help="text of the tokenizer, as data.train (default: %(default)s)")
    args = parser.parse_args()
    report.peers("torch", "transformers", "accelerate")
    steps = 20 if args.quick else len(read(args.train)[0]) // ROWS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = BASE | {"data.train": args.text}
        run("pretrain", "train", "--config=configs/bert.py:mini_stdlib", f"--workdir={folder / 'base'}", keys=keys)
        run("pretrain", "export", f"--workdir={folder / 'base'}", f"--folder={folder / 'hf'}")
        ours, theirs = [], []
        for number in range(1 if args.quick else 5):
            ours.append(longhaul(args.train, folder, steps, number))
            theirs.append(trainer(args.train, folder, steps, number))
    rows = []
    for name in ours[0]:
        times = [[one[name] for one in side] for side in (ours, theirs)]
        target = 1.5 if name == "epoch" else None
        rows.append(report.compare(f"tuning, {steps} updates, {name}", *times, "Trainer", target=target))
    packages = (*report.PACKAGES, "torch", "transformers", "accelerate")
    report.show(rows, args, BASE | {"steps": steps}, report.versions(*packages))


if __name__ == "__main__":
    report.run(main)
