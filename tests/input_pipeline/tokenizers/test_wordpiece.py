"""WordPiece: BERT's ids to the last one, from any file, and the same training on every machine."""

import json
import random

import pytest

from input_pipeline import pipeline
from input_pipeline.errors import DataError

pytest.importorskip("tokenizers", reason="needs the extra hf")

from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import wordpiece

TEXT = "Die Brücke, the bridge: bridging unbridgeable bridges?! don't stop 北京 bridge-head\n" * 9
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *"!',-.:?[]ab北京é",
    *("bridge", "##s", "##ing", "un", "##bridge", "##able", "the", "die", "brucke", "Die", "Brücke", "##head", "don"),
    *("t", "stop", "mask", "##n", "e", "##e", "bri", "##dge"),
]
ODD = [
    "",
    "The bridges, unbridgeable bridging!",
    "Die Brücke é 北京!bridge",
    "[MASK] the [SEP] bridge[PAD]",
    "a\u00a0b\u200b\ufffd\0c\tstop\r\nthe",
    "bridge" * 30,
    "\u00a1stop\u00bf don't \U0001f600 \u2581the",
]


@pytest.fixture
def vocabulary(write):
    return write("vocab.txt", "\n".join(["[PAD]", "unused", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]) + "\n")


def loaded(prepare, write, settings: dict):
    return prepare(f"text:{write('a.txt', TEXT)}", tokenizer={"kind": "wordpiece", **settings}).tokenizer


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_equals_bert(prepare, write, vocabulary, cased):
    bert = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy", reason="needs the extra oracle")
    oracle = bert.BertTokenizerLegacy(vocabulary, do_lower_case=not cased)
    oracle.all_special_tokens_extended = []
    tokenizer = loaded(prepare, write, {"path": vocabulary, "cased": cased})
    accents = "e\u0301 Bru\u0308cke"  # composed by the peer's cased form, which the release does not do
    for text in [*ODD, TEXT] + [accents] * (not cased):
        pieces = [
            piece
            for word in oracle.basic_tokenizer.tokenize(text)
            for piece in oracle.wordpiece_tokenizer.tokenize(word)
        ]
        assert tokenizer.encode(text).tolist() == oracle.convert_tokens_to_ids(pieces), text


def test_wordpiece_special_and_continues(prepare, write, vocabulary):
    tokenizer = loaded(prepare, write, {"path": vocabulary})
    assert tokenizer.special == {"pad": 0, "unknown": 2, "classifier": 3, "separator": 4, "mask": 5, "end": 4}
    assert tokenizer.end_id == 4 and tokenizer.sentinels == () and tokenizer.vocab_size == 6 + len(PIECES)
    continues = {piece for i, piece in enumerate(PIECES, 6) if tokenizer.continues[i]}
    assert continues == {piece for piece in PIECES if piece.startswith("##")}
    assert not tokenizer.continues[:6].any()
    assert tokenizer.decode([3, *tokenizer.encode("The BRIDGES"), 4, 0]) == "the bridges"


def test_wordpiece_tokenizer_json(prepare, write, vocabulary, tmp_path):
    first = loaded(prepare, write, {"path": vocabulary})
    kept = (tmp_path / "run/tokenizer/wordpiece.json").read_bytes()
    (tmp_path / "run").rename(tmp_path / "before")
    again = loaded(prepare, write, {"path": write("tokenizer.json", kept)})
    assert again.encode(TEXT).tolist() == first.encode(TEXT).tolist() and again.fingerprint == first.fingerprint
    assert pipeline.open_tokenizer(tmp_path / "run/tokenizer").special == first.special


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_training_deterministic(cased):
    """The library alone numbers continuing characters by chance."""
    trained = [wordpiece.train([TEXT, "And nothing else."], 120, cased) for _ in range(4)]
    assert len(set(trained)) == 1
    vocabulary = json.loads(trained[0])["model"]["vocab"]
    assert [piece for piece, i in sorted(vocabulary.items(), key=lambda item: item[1])][:5] == SPECIAL
    assert "bridge" in vocabulary and ("D" in vocabulary) == cased and ("ü" in vocabulary) == cased
    assert "##!" not in vocabulary and "##北" not in vocabulary  # each is a word of its own


def test_wordpiece_training_long_words():
    """They are left out: a trainer's time for one grows with the square of its length."""
    long = "".join(random.Random(0).choices("abridge", k=200_000))
    short = wordpiece.train([TEXT, " bridge,"], 120, False)
    assert wordpiece.train([TEXT, f"{long} bridge,{long}"], 120, False) == short


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        ("\n".join(PIECES), {}),
        ('{"model": {"type": "BPE"}, "normalizer": null}', {}),
        ('{"model": {"type": "WordPiece"}, "normalizer": {"lowercase": true}}', {"cased": True}),
    ],
)
def test_wordpiece_unusable_file(prepare, write, tmp_path, content, settings):
    with pytest.raises(DataError):
        loaded(prepare, write, {"path": write("vocab", content), **settings})
    assert not (tmp_path / "run/tokenizer/made.json").exists()


def test_wordpiece_vocabulary_too_small():
    with pytest.raises(DataError):
        wordpiece.train([TEXT], 20, False)


def test_unigram_continues(tmp_path):
    library = huggingface_tokenizer.library()
    model = library.Tokenizer(
        library.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("\u2581a", -1.0), ("b", -2.0)], 0)
    )
    model.pre_tokenizer = library.pre_tokenizers.Metaspace()
    model.add_special_tokens(["</s>", "<extra_id_0>", "<extra_id_1>", "<mask>"])
    model.save(str(tmp_path / "t5.json"))
    tokenizer = huggingface_tokenizer.load(tmp_path / "t5.json")
    assert tokenizer.special == {"end": 1, "unknown": 0, "separator": 1, "mask": 6}
    assert tokenizer.sentinels == (4, 5)
    assert tokenizer.continues.tolist() == [False, False, False, True, False, False, False]
    assert tokenizer.encode("ab</s>b<mask>").tolist() == [2, 3, 0, 0, 3, 0]  # "<", "/s>": text is no special id


def test_huggingface_older_file(tmp_path):
    """Without the kind of its model and without empty entries: the library infers them."""
    library, texts = huggingface_tokenizer.library(), [TEXT, "the </s> [MASK] a<unk>b"]
    unigram = library.Tokenizer(library.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("\u2581a", -1.0)], 0))
    unigram.pre_tokenizer = library.pre_tokenizers.Metaspace()
    unigram.save(str(tmp_path / "unigram.json"))
    (tmp_path / "pieces.json").write_bytes(wordpiece.train([TEXT], 100, False))
    for path in (tmp_path / "unigram.json", tmp_path / "pieces.json"):
        spec, older = json.loads(path.read_text()), path.with_suffix(".older.json")
        del spec["model"]["type"]
        older.write_text(json.dumps({name: value for name, value in spec.items() if value}))
        new, old = map(huggingface_tokenizer.load, (path, older))
        assert [old.encode(text).tolist() for text in texts] == [new.encode(text).tolist() for text in texts]
        assert (old.special, old.continues.tolist()) == (new.special, new.continues.tolist())
    assert json.loads(wordpiece.read(older, {"cased": False}))["model"]["vocab"]
