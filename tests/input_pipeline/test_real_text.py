"""Real corpora, where a folder of them is at hand (LONGHAUL_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest

FOLDER = os.environ.get("LONGHAUL_DATA", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="LONGHAUL_DATA names no folder of corpora")


def text_of(corpus, split: str) -> bytes:
    stream = corpus.stream(split)
    ids = np.zeros(stream.tokens, np.int32)
    stream.copy(0, ids)
    return corpus.tokenizer.decode(ids).encode()


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ("text:lm/enwik8-prefix/*.gz?bytes=:3738959", "text:lm/enwik8-prefix/*.gz?bytes=3738959:3946679"),
        ("jsonl:lm/c4-sample/train.jsonl.gz", "jsonl:lm/c4-sample/validation.jsonl.gz"),
        ("text:lm/tinyshakespeare/input.txt.gz?document=blank_line", ""),
    ],
)
def test_real_text_round_trip(prepare, train, validation):
    def at(spec):
        kind, _, path = spec.partition(":")
        return f"{kind}:{Path(FOLDER) / path}" if spec else ""

    settings = {"kind": "sentencepiece", "vocab_size": 2048, "algorithm": "bpe", "train_bytes": 300_000}
    corpus = prepare(at(train), validation=at(validation), holdout=0.05, tokenizer=settings, length=256)
    for split in corpus.summary():
        raw = corpus.raw_bytes(split["split"])
        assert text_of(corpus, split["split"]) == raw
        assert len(raw) == split["bytes"]
        assert split["bytes_per_token"] > 2
    sizes = [split["bytes"] for split in corpus.summary()]
    if "enwik8" in train:
        assert sizes == [3_738_959, 207_720]
    if "c4" in train:
        assert sizes == [2_026_105, 2_173_681]


@pytest.mark.parametrize(("split", "tokens"), [("valid", 217_646), ("test", 245_569)])
def test_real_text_word_count(prepare, split, tokens):
    corpus = prepare(f"text:{FOLDER}/lm/wikitext-2/wiki.{split}.tokens.gz")
    assert corpus.summary()[0]["words"] == tokens
