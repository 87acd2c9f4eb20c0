"""Files that the classes of single models read in their own ways: the pieces and ids that those give."""

import json

import pytest
import sentencepiece

from input_pipeline import pipeline
from input_pipeline.errors import DataError
from input_pipeline.tokenizers import bpe
from input_pipeline.tokenizers import store as tokenizer_store

SETTINGS = {"path": "", "cased": False, "sentinels": 0, "unknown": "", "vocab_size": 330}
WIDE = "".join(chr(ord(letter) + 0xFEE0) for letter in "full")  # which the usual rules make "full" of
LINES = [
    "the cat sat on the mat, and the dog looked at the cat.",
    f"{WIDE} width and Naïve café",
    "lower, lowest, newest",
]
TEXTS = [*LINES, "", "  two\t spaces\n\nand lines ", "日本 unseen ☃", "a▁b", "é e\u0301"]


def made(tmp_path, kind, path, **settings):
    config = SETTINGS | {"kind": kind, "path": str(path)} | settings
    return tokenizer_store.make_folder(tmp_path / "run", config, {}, 0.0, print)


def merges(tmp_path, vocabulary, *lines):
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(vocabulary)}))
    (tmp_path / "merges.txt").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "vocab.json"


def test_ctrl(tmp_path):
    """Its longest merges first, whatever was made on the way is in the vocabulary or not."""
    words = ["<unk>", "low", "low@@", "er", "e@@", "r", "\n", "a", "lo@@"]
    path = merges(tmp_path, words, "#version", "l o", "lo w", "lo w</w>", "e r</w>", "x y")
    own = made(tmp_path, "ctrl", path)
    found = {"low": [1], "lower": [2, 3], "low\n\n a": [2, 6, 7], "lo": [0, 0], "er": [3], "xy": [0, 0], "": []}
    assert {text: own.encode(text).tolist() for text in found} == found
    assert own.decode([2, 3, 7, 2, 6, 1]) == "lower a low\n low"
    assert own.continuation([7], [2, 3, 1], "a") == " lower low" and own.vocab_size == 9
    assert dict(own.special) == {"unknown": 0} and own.continues is None
    assert pipeline.open_tokenizer(tmp_path / "run").fingerprint == own.fingerprint


def test_xlm(tmp_path):
    words = ["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", "low", "er</w>", "low</w>", "e", "r</w>"]
    path = merges(tmp_path, words, "l o 9", "lo w 8", "lo w</w> 7", "e r</w> 6")
    own = made(tmp_path, "xlm", path)
    found = {"lower  low": [6, 7, 8], "lo": [3, 3], "r": [10], "\x1c er": [7], "<s>": [3, 3, 3]}
    assert {text: own.encode(text).tolist() for text in found} == found
    special = {"end": 1, "unknown": 3, "pad": 2, "mask": 5, "separator": 1, "classifier": 0}
    assert dict(own.special) == special
    assert own.decode([0, 6, 7, 8, 1]) == "lower low"


def test_bpe_files_round_trip(tmp_path):
    for kind, head in (("ctrl", ["#version: 0.2"]), ("xlm", [])):
        (tmp_path / kind).mkdir()
        path = merges(tmp_path / kind, ["<unk>", "ñ@@"], *head, "a b", "ab c</w>")
        made(tmp_path / kind, kind, path)
        back = bpe.files(tmp_path / kind / "run" / "subwords.json")
        assert back["merges.txt"] == path.with_name("merges.txt").read_bytes()
        assert json.loads(back["vocab.json"]) == json.loads(path.read_text())


def test_gpt(tmp_path):
    words = ["<unk>", "l", "o", "w", "e", "r</w>", "lo", "low", "w</w>", "low</w>", ",</w>", "e</w>"]
    path = merges(tmp_path, words, "#version: 0.2", "l o", "lo w", "lo w</w>")
    own = made(tmp_path, "gpt", path)
    assert own.encode("Lówer, LOW☃e").tolist() == [7, 4, 5, 10, 7, 0, 11]
    assert own.decode([7, 4, 5, 9]) == "lower low" and "end" not in own.special


def trained(tmp_path, **options):
    with open(tmp_path / "sentencepiece.bpe.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 3),
            model_writer=file,
            minloglevel=3,
            **{"vocab_size": 60, "model_type": "unigram", "hard_vocab_limit": False} | options,
        )
    return tmp_path / "sentencepiece.bpe.model"


@pytest.mark.parametrize(("kind", "offset", "unknown"), [("xlm_roberta", 1, 3), ("camembert", 4, 3)])
def test_fairseq_ids(kind, offset, unknown, tmp_path):
    """As SentencePiece's own library has them: moved on, with another id for what is unknown."""
    path = trained(tmp_path)
    own, theirs = made(tmp_path, kind, path), sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in TEXTS:
        expected = [unknown if i == 0 else i + offset for i in theirs.encode(text)]
        assert own.encode(text).tolist() == expected, text
    assert own.vocab_size == theirs.vocab_size() + offset + 1 == own.special["mask"] + 1
    first = {"xlm_roberta": {"classifier": 0, "end": 2}, "camembert": {"classifier": 5, "end": 6}}[kind]
    special = first | {"pad": 1, "unknown": 3, "mask": own.vocab_size - 1, "separator": first["end"]}
    assert dict(own.special) == special
    ids = own.encode("the cat sat on")
    begins = theirs.encode("the cat sat on", out_type=str)
    assert own.decode(ids) == "the cat sat on"
    assert [not inside for inside in own.continues[ids]] == [piece.startswith("\u2581") for piece in begins]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("camembert", {"model_type": "bpe", "hard_vocab_limit": True}),
        ("camembert", {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}),
    ],
)
def test_sentencepiece_of_another_kind(kind, options, tmp_path):
    with pytest.raises(DataError):
        made(tmp_path, kind, trained(tmp_path, **options))
    assert not (tmp_path / "run" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [("ctrl", "merges.txt", None), ("xlm", "vocab.json", "[]"), ("gpt", "merges.txt", "a b")],
)
def test_unusable_class_files(kind, name, content, tmp_path):
    path = merges(tmp_path, ["<unk>"])
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(DataError):
        made(tmp_path, kind, path)
