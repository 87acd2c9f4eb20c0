"""Vectors of sentences by an encoder of MiniLM's shape, against sentence-transformers with PyTorch.

    python -m benchmarks.embedding --texts=FILE [--limit=2000] [--rounds=5] [--quick] [--format=json]

FILE has a text a line. The weights are random, of MiniLM-L6's shape (6 layers of width 384), and the same on both
sides; a tokenizer is trained on FILE. Ours is `run.embed(texts)`; the peer is `SentenceTransformer.encode` with mean
pooling and batches of 32, in float32. Each run is a process of its own; the two take turns. The first call compiles.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report

PIECES, BATCH, TARGET = 30_522, 32, 1.5
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def make_model(folder: Path, texts: list[str]) -> None:
    """Writes a BERT with random weights and a tokenizer of the texts."""
    import tokenizers
    import torch
    import transformers

    trained = tokenizers.BertWordPieceTokenizer()
    trained.train_from_iterator(texts, vocab_size=PIECES)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    transformers.BertTokenizerFast(tokenizer_object=trained._tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(vocab_size=PIECES, **SHAPE)).save_pretrained(folder)


def read(file: str, limit: int) -> list[str]:
    """The first texts of a file."""
    return [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()][:limit]


def embed(kind: str, folder: str, file: str, limit: str, out: str) -> None:
    """Embed the texts twice, by "ours" or the "peer"; print seconds as JSON."""
    texts = read(file, int(limit))
    if kind == "ours":
        import pretrain

        run = pretrain.open(folder).embed
    else:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Normalize, Pooling, Transformer

        parts = Transformer(folder), Pooling(SHAPE["hidden_size"], "mean"), Normalize()
        model = SentenceTransformer(modules=parts, device="cpu")

        def run(texts):
            return model.encode(texts, batch_size=BATCH, show_progress_bar=False)

    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = run(texts)
        seconds.append(time.perf_counter() - began)
    np.save(out, found)
    print(json.dumps(seconds))


def main():
    if sys.argv[1:2] == ["--embed"]:
        return embed(*sys.argv[2:])
    parser = report.arguments(__doc__)
    parser.add_argument("--texts", required=True, help="a text a line")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    report.peers("torch", "transformers", "sentence_transformers")
    limit, rounds = (64, 1) if args.quick else (args.limit, args.rounds)
    times = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder / "hf", read(args.texts, limit))
        made = [sys.executable, "-m", "pretrain", "import", f"--folder={folder / 'hf'}", f"--workdir={folder / 'run'}"]
        subprocess.run(made, check=True, stdout=sys.stderr)
        for _ in range(rounds):
            for kind, model in (("ours", "run"), ("peer", "hf")):
                words = "--embed", kind, folder / model, args.texts, str(limit), folder / f"{kind}.npy"
                command = [sys.executable, "-m", "benchmarks.embedding", *map(str, words)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                times[kind].append(json.loads(done.stdout.splitlines()[-1]))
        ours, theirs = (np.load(folder / f"{kind}.npy") for kind in times)
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    rows = []
    for place, name in enumerate(("first call", "second call")):
        own, other = ([seconds[place] for seconds in times[kind]] for kind in times)
        target = TARGET if place else None
        rows.append(report.compare(f"{limit:,} texts, {name}", own, other, "sentence-transformers", target=target))
    packages = (*report.PACKAGES, "torch", "transformers", "sentence_transformers")
    report.show(rows, args, SHAPE | {"limit": limit}, report.versions(*packages))


if __name__ == "__main__":
    report.run(main)
