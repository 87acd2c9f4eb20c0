"""Tokenizers: nothing lost, every byte accounted for, the same training on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipeline import pipeline
from input_pipeline.errors import DataError
from input_pipeline.sources import parser
from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers import wordpiece
from input_pipeline.tokenizers.base import Bytes

library = pytest.importorskip("tokenizers", reason="needs the extra hf")

CODE = "".join(
    f"def function_{n}(self, value):\n    if value is None:\n        return {n}\n\n    return self.name + 'é{n}'\n\n\n"
    for n in range(300)
)

HARD = ["", "\0", "\u2581", "a\u2581b \u2581", " lead", "trail ", "a  b", "\t\r\n", "\r\n\n   x"]
HARD += ["<end>", "<unk>", "<0x41>", "⁇▅", "<|endoftext|>"]


def byte_level(path, tokens=("<|endoftext|>",)):
    """Saves a byte-level BPE trained on code as a tokenizer.json."""
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=400, special_tokens=list(tokens), initial_alphabet=alphabet)
    model.train_from_iterator([CODE], trainer)
    model.save(str(path))
    return path


@pytest.fixture(scope="module", params=["bytes", "byte level", "unigram words", "bpe words", "bpe phrases"])
def exact(request, tmp_path_factory):
    """A tokenizer that loses nothing, trained on code."""
    if request.param == "bytes":
        return Bytes()
    path = tmp_path_factory.mktemp("exact") / "tokenizer"
    if request.param == "byte level":
        return huggingface_tokenizer.load(byte_level(path))
    path.write_bytes(sentencepiece_tokenizer.train([CODE], 400, *request.param.split()))
    return sentencepiece_tokenizer.load(path)


def check_round_trip(tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and tokenizer.end_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode("utf-8"))
    decoder = tokenizer.decoder()
    fed = [decoder.feed(token) for token in ids]
    assert "".join(fed) + decoder.finish() == text
    assert "\ufffd" not in "".join(fed) or "\ufffd" in text


@settings(max_examples=60)
@given(text=st.text(max_size=80) | st.text(alphabet="ab \n\t\u2581é\0", max_size=40))
def test_round_trip(exact, text):
    check_round_trip(exact, text)


def test_round_trip_of_hard_texts(exact):
    for text in HARD:
        check_round_trip(exact, text)
    assert [ids.tolist() for ids in exact.encode_all(HARD)] == [exact.encode(text).tolist() for text in HARD]


def test_decode_special_ids(exact):
    assert exact.decode([exact.end_id]) == "" and exact.byte_lengths[exact.end_id] == 0
    assert exact.decode([exact.vocab_size + 5]) == "\ufffd"


def test_training_is_deterministic():
    train = sentencepiece_tokenizer.train
    for algorithm in sentencepiece_tokenizer.ALGORITHMS:
        assert train([CODE], 350, algorithm, "words") == train([CODE], 350, algorithm, "words")


def test_sentencepiece_rewriting(tmp_path):
    """As T5's or XLNet's: normalised, so that bytes per token are not known."""
    prefix = str(tmp_path / "foreign")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CODE.split("\n")), model_prefix=prefix, vocab_size=150, minloglevel=3
    )
    tokenizer = sentencepiece_tokenizer.load(tmp_path / "foreign.model")
    ids = tokenizer.encode("def  function")
    assert tokenizer.byte_lengths is None
    assert tokenizer.decode([*ids, tokenizer.end_id]) == "def function"
    assert tokenizer.continuation((), ids) == "def function"
    assert tokenizer.continuation(ids, tokenizer.encode("name")) == " name"


def test_huggingface_dropout_off(tmp_path):
    """A BPE's dropout is for training: of a text that is stored once, each start would make another store."""
    path = byte_level(tmp_path / "tokenizer.json")
    sure = huggingface_tokenizer.load(path)
    spec = json.loads(path.read_text())
    spec["model"]["dropout"] = 0.5
    path.write_text(json.dumps(spec))
    text = "the cat and the dog " * 20
    for _ in range(3):
        np.testing.assert_array_equal(huggingface_tokenizer.load(path).encode(text), sure.encode(text))


def test_huggingface_rewriting(tmp_path):
    """As BERT's: lower-cased word pieces."""
    (tmp_path / "tokenizer.json").write_bytes(wordpiece.train([CODE], 200, False))
    tokenizer = huggingface_tokenizer.load(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("Def Function")
    assert tokenizer.end_id == wordpiece.SPECIAL.index("[SEP]") and tokenizer.byte_lengths is None
    assert tokenizer.decode(ids) == tokenizer.continuation((), ids) == "def function"
    assert tokenizer.continuation(tokenizer.encode("def"), tokenizer.encode("function")) == " function"
    assert tokenizer.continuation(ids[:2], ids[2:]) == tokenizer.decode(ids).removeprefix(tokenizer.decode(ids[:2]))


@pytest.mark.parametrize("special", [True, False])
def test_huggingface_token_with_spaces(tmp_path, special):
    """Special ones are never found in a text; others swallow the spaces beside them."""
    path = byte_level(tmp_path / "tokenizer.json")
    model = library.Tokenizer.from_file(str(path))
    added = library.AddedToken("<tool>", special=special, lstrip=True)
    (model.add_special_tokens if special else model.add_tokens)([added])
    model.save(str(path))
    tokenizer = huggingface_tokenizer.load(path)
    text = "def  <tool>  name"
    assert (tokenizer.byte_lengths is not None) == special
    assert (tokenizer.decode(tokenizer.encode(text)) == text) == special


def test_huggingface_unknown_word(prepare, write, tmp_path):
    """WikiText's <unk>, with BERT's vocabulary; the unknown token's own name within a text is text."""
    text, unknown = "the <unk> of [ UNK ]\n", wordpiece.SPECIAL.index("[UNK]")
    path = write("bert.json", wordpiece.train([text], 200, False))
    settings = {"kind": "huggingface", "path": path}
    source = f"text:{write('a.txt', text * 9)}"
    tokenizer = prepare(source, tokenizer={**settings, "unknown": "<unk>"}).tokenizer
    plain = huggingface_tokenizer.load(Path(path))
    assert tokenizer.encode(text).tolist() == [*plain.encode("the "), unknown, *plain.encode("of [ UNK ]")]
    assert pipeline.open_tokenizer(tmp_path / "run/tokenizer").encode("<unk>").tolist() == [unknown]
    assert tokenizer.fingerprint != plain.fingerprint and unknown not in plain.encode(text)
    with pytest.raises(DataError):
        prepare(source, tokenizer=settings)


@pytest.mark.parametrize("algorithm", sentencepiece_tokenizer.ALGORITHMS)
def test_sentencepiece_vocabulary_too_small(algorithm):
    with pytest.raises(DataError):
        sentencepiece_tokenizer.train([CODE], 200, algorithm, "words")


@pytest.mark.parametrize("algorithm", sentencepiece_tokenizer.ALGORITHMS)
def test_sentencepiece_little_text(algorithm, tmp_path):
    """Fewer pieces than asked for, and one for the space, which the text lacks."""
    (tmp_path / "m").write_bytes(sentencepiece_tokenizer.train(["GATTACA" * 50], 4096, algorithm, "words"))
    tokenizer = sentencepiece_tokenizer.load(tmp_path / "m")
    assert 258 < tokenizer.vocab_size < 300
    for text in ("GATTA CAT é", " a  b ", "\u2581 \u2581"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "letters"},
        {"kind": "huggingface"},
        {"kind": "huggingface", "path": "/no/such.json"},
        {"kind": "sentencepiece", "path": "/no/such.model"},
    ],
)
def test_tokenizer_mistakes(prepare, words, settings):
    with pytest.raises(DataError):
        prepare(words(3), tokenizer=settings)


def test_tokenizer_without_end(prepare, words, tmp_path):
    """As GPT's, of 2018: layouts that tell documents apart are refused."""
    settings = {"kind": "huggingface", "path": str(byte_level(tmp_path / "endless.json", tokens=("<pad>",)))}
    source, said = words(3), []
    with pytest.raises(DataError):
        prepare(source, tokenizer=settings, layout="packed")
    corpus = prepare(source, tokenizer=settings, said=said)
    assert any("no end token" in line for line in said)
    ids = corpus.tokenizer.encode(corpus.raw_bytes("train").decode())
    evaluation = corpus.evaluation("train", length=8, stride=0, batch_size=4)
    assert evaluation.tokens == corpus.stream("train").tokens - 1
    rows = [batch["targets"][batch["weights"] > 0] for batch in evaluation.batches()]
    np.testing.assert_array_equal(np.concatenate(rows)[:5], ids[1:6])
    assert evaluation.bytes == sum(corpus.tokenizer.byte_lengths[np.concatenate(rows)])


def test_tokenizer_reused(prepare, write, tmp_path):
    source = f"text:{write('code.py', CODE)}"
    settings = {"kind": "sentencepiece", "vocab_size": 350, "train_bytes": 10_000}
    first = prepare(source, tokenizer=settings).tokenizer
    again = pipeline.open_tokenizer(tmp_path / "run/tokenizer")
    assert first.fingerprint == again.fingerprint and again.vocab_size == 350
    with pytest.raises(DataError):
        prepare(source, tokenizer={**settings, "vocab_size": 360})
    (tmp_path / "run/tokenizer/sentencepiece.model").unlink()
    with pytest.raises(DataError):
        pipeline.open_tokenizer(tmp_path / "run/tokenizer")
    with pytest.raises(DataError):
        pipeline.open_tokenizer(tmp_path / "elsewhere/tokenizer")


def test_sample_without_holdout(words):
    parsed = parser.parse(words(60), "data.train")
    places = {"".join(d.chunks): d.holdout_rank for s in parsed for span in s.spans(1) for d in s.documents(span)}
    sample = list(tokenizer_store.sample(parsed, 2_000, 0.5))
    assert 2_000 <= len("".join(sample).encode()) < 3_000
    assert not [text for text in sample if places[text] < 0.5]
    assert sample == list(tokenizer_store.sample(parsed, 2_000, 0.5))
