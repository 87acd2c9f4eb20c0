"""Transformer-XL's recipes run as shipped: raw files in, scored to the last symbol or word."""

import json
import string

import pytest

from pretrain.cli import main

SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 16,
    "model.memory": 8,
    "model.dtype": "float32",
    "data.length": 8,
    "train.batch_size": 8,
    "train.steps": 2,
    "evaluate.length": 8,
    "evaluate.batch_size": 8,
    "evaluate.model.memory": 16,
    "log.tensorboard": "false",
}
TEXT8 = (string.ascii_lowercase + " the cat sat on the mat ") * 40
ENWIK8 = "".join(map(chr, range(9, 0x600))) * 2  # of 205 byte values, one of them the line end, as enwik8 is


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "text", "symbols"), [pytest.param("text8", TEXT8, 27, marks=pytest.mark.slow), ("enwik8", ENWIK8, 204)]
)
def test_a_recipe_from_its_raw_file_to_a_score(variant, text, symbols, tmp_path, monkeypatch, capsys):
    """The recipe with a smaller network, and the cuts of a smaller file."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    data = text.encode()
    (tmp_path / "data" / variant).write_bytes(data)
    size = len(data)
    cuts = {
        "train": (0, size * 9 // 10),
        "validation": (size * 9 // 10, size * 19 // 20),
        "test": (size * 19 // 20, size),
    }
    lines = "&line_ends=dropped" if variant == "enwik8" else ""
    keys = SMALL | {f"data.{s}": f"text:data/{variant}?bytes={a}:{b}{lines}" for s, (a, b) in cuts.items()}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    assert main(["train", f"--config=configs/transformer_xl.py:{variant}", "--workdir=run", *flags]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--workdir=run", "--split=test", "--format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    tail = data[cuts["test"][0] :].replace(b"\n", b"")
    assert 1 <= len(tail) - row["tokens"] <= 2  # its first symbol is only read; one may belong to the cut before
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / 0.6931471806)
    made = json.loads((tmp_path / "run/tokenizer/symbols.json").read_text())["vocabulary"]
    assert len(made) == symbols
    assert main(["generate", "--workdir=run", "--prompt=the ", "--max_tokens=4"]) == 0
    assert main(["generate", "--workdir=run", "--max_tokens=4"]) == 2
    assert "no end token that a text could begin after; give --prompt" in capsys.readouterr().err


@pytest.mark.slow
def test_words_from_their_raw_files_to_a_score(tmp_path, monkeypatch, capsys):
    """wt103 with a smaller network and fewer words; each line ends with one token, as in WikiText's count."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "wikitext-103"
    folder.mkdir(parents=True)
    lines = {"train": 100, "valid": 20, "test": 30}
    for name, count in lines.items():
        text = "".join(f" \n word{n % 40} of <unk> {n} words , in a row . \n" for n in range(count))
        (folder / f"wiki.{name}.tokens").write_text(text)
    keys = SMALL | {"model.vocab_size": 30, "model.cutoffs": "(10,20,25)", "tokenizer.vocab_size": 30}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    assert main(["train", "--config=configs/transformer_xl.py:wt103", "--workdir=run", *flags]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--workdir=run", "--split=test", "--word_level", "--format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    words = lines["test"] * 12  # 10 words and the ends of 2 lines
    assert (row["words"], row["tokens"]) == (words, words + 1)  # and the end token before the file
    assert row["bits_per_byte"] is None  # rare words are all one
    made = json.loads((tmp_path / "run/tokenizer/words.json").read_text())["vocabulary"]
    assert made[0] == "<eos>" and len(made) == 30 and "<unk>" in made[:12]
