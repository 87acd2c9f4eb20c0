"""Questions with four endings scored by a GPT-2 small, against lm-evaluation-harness with PyTorch.

    python -m benchmarks.scoring --items=FILE [--limit=500] [--rounds=5] [--quick] [--format=json]

FILE has JSON lines with `query`, `choices` and `gold`, such as HellaSwag's. The weights are random, of GPT-2 small's
shape (12 layers of width 768, 50,257 pieces), and the same on both sides; a tokenizer is trained on FILE. Ours is
`pretrain evaluate --tasks=hellaswag`; the peer is `simple_evaluate` with its Hugging Face model and batches of 16, in
float32. Each run is a process of its own; the two take turns. `scoring` has compilation, but not the start of Python,
nor the reading of models and, on our side, of items (a tenth of a second).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import report

PIECES, BATCH, TARGET = 50_257, 16, 2.0
SMALL = {"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
TINY = {"n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 2}
METRICS = ("acc", "acc_norm")


def make_model(folder: Path, items: str, shape: dict) -> None:
    """Writes a GPT-2 with random weights and a tokenizer of the items' texts."""
    import tokenizers
    import torch
    import transformers

    with open_lines(items) as file:
        texts = [text for line in file for row in [json.loads(line)] for text in (row["query"], *row["choices"])]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=PIECES, min_frequency=2, special_tokens=["<|endoftext|>"])
    transformers.GPT2TokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=PIECES, bos_token_id=0, eos_token_id=0, **shape)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def open_lines(file: str):
    import gzip

    return gzip.open(file, "rt", encoding="utf-8") if file.endswith(".gz") else open(file, encoding="utf-8")


def command(*words: str) -> tuple[float, str]:
    """Seconds and output of a program; exit with its exit code if that is not 0."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return time.perf_counter() - began, done.stdout.rstrip().rpartition("\n")[2]


def ours(folder: Path, items: str, limit: int) -> tuple[dict[str, float], dict]:
    """(seconds, metrics) of `pretrain evaluate --tasks`."""
    flags = [f"--data=hellaswag:jsonl:{items}", f"--limit={limit}", "--format=json"]
    whole, line = command("pretrain", "evaluate", f"--workdir={folder / 'run'}", "--tasks=hellaswag", *flags)
    (found,) = json.loads(line)["tasks"]
    return {"scoring": found["seconds"], "whole command": whole}, found


def theirs(folder: Path, items: str, limit: int) -> tuple[dict[str, float], dict]:
    """(seconds, metrics) of the peer."""
    whole, line = command("benchmarks.scoring", "--peer", str(folder / "hf"), items, str(limit))
    found = json.loads(line)
    return {"scoring": found["seconds"], "whole command": whole}, found


def peer(folder: str, items: str, limit: str) -> None:
    """Score with the peer; print seconds and metrics as JSON."""
    report.peers("torch", "lm_eval", extra="lm-eval")
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    task = {"task": "items", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": items}}}
    task |= {"test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{query}}"}
    task |= {"doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}"}
    task["metric_list"] = [{"metric": metric} for metric in METRICS]
    model = HFLM(pretrained=folder, device="cpu", batch_size=BATCH, dtype="float32")
    began = time.perf_counter()
    found = lm_eval.simple_evaluate(model, tasks=[task], limit=int(limit), bootstrap_iters=0)
    seconds = time.perf_counter() - began
    print(json.dumps({name: found["results"]["items"][f"{name},none"] for name in METRICS} | {"seconds": seconds}))


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    parser = report.arguments(__doc__)
    parser.add_argument("--items", required=True, help="JSON lines with query, choices and gold")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    report.peers("torch", "transformers", "lm_eval", extra="oracle,lm-eval")
    limit, rounds = (20, 1) if args.quick else (args.limit, args.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder / "hf", args.items, TINY if args.quick else SMALL)
        command("pretrain", "import", f"--folder={folder / 'hf'}", f"--workdir={folder / 'run'}")
        pairs = [(ours(folder, args.items, limit), theirs(folder, args.items, limit)) for _ in range(rounds)]
    for (_, mine), (_, other) in pairs:
        assert all(abs(mine[name] - other[name]) < 1e-6 for name in METRICS), (mine, other)
    rows = []
    for name in ("scoring", "whole command"):
        times = [[one[name] for one, _ in side] for side in zip(*pairs, strict=True)]
        target = TARGET if name == "scoring" else None
        rows.append(report.compare(f"{limit} items of four endings, {name}", *times, "lm-eval", target=target))
    packages = (*report.PACKAGES, "torch", "transformers", "lm_eval")
    report.show(rows, args, SMALL | {"limit": limit}, report.versions(*packages))


if __name__ == "__main__":
    report.run(main)
