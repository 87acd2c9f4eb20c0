"""Characters that each token came from: properties of every kind of tokenizer, and Transformers' `offset_mapping`."""

import io
import unicodedata

import hub
import numpy as np
import pytest
import sentencepiece
import test_exported_tokenizers as exported
import tokenizer_texts
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from test_exported_tokenizers import corpus  # noqa: F401, a fixture
from test_live_tokenizers import write_merges

from input_pipeline.tokenizers import counts, export, offsets
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer

META_SPACE = tokenizer_texts.META_SPACE
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # as Llama 3's


def byte_level(normalizer=None, prefix=False):
    """A tokenizer.json as those of Llama 3, Qwen (NFC) and, with a space in front, RoBERTa."""

    def make(folder, text):
        parts, model = tokenizers.pre_tokenizers, tokenizers.Tokenizer(tokenizers.models.BPE())
        step = parts.ByteLevel(add_prefix_space=prefix, use_regex=prefix)
        model.pre_tokenizer = parts.Sequence([*[parts.Split(tokenizers.Regex(LETTERS), "isolated")][prefix:], step])
        model.normalizer, model.decoder = normalizer, tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=700, initial_alphabet=parts.ByteLevel.alphabet(), show_progress=False
        )
        model.train([str(text)], trainer)
        model.save(str(folder / "tokenizer.json"))
        return folder / "tokenizer.json"

    return make


def albert(folder, text):
    """A unigram tokenizer.json with ALBERT's normalizer."""
    content, parts = io.BytesIO(), tokenizers.normalizers
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 9), model_writer=content, vocab_size=6, hard_vocab_limit=False, minloglevel=3
    )
    rules = ModelProto.FromString(content.getvalue()).normalizer_spec.precompiled_charsmap
    steps = [parts.Replace("``", '"'), parts.Replace("''", '"'), parts.NFKD(), parts.StripAccents()]
    steps += [parts.Lowercase(), parts.Precompiled(rules), parts.Replace(tokenizers.Regex(" {2,}"), " ")]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    model.normalizer, model.pre_tokenizer = parts.Sequence(steps), tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<pad>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    model.train([str(text)], trainer)
    model.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def exported_json(name):
    """The tokenizer.json that a SentencePiece model with byte fallback is exported to."""

    def make(folder, text):
        _, settings, make = exported.KINDS[name]
        settings = settings | ({"path": str(make(folder, text))} if make else {})
        exported.make_run(folder / "exported", settings, text)
        export.tokenizer_json(folder / "exported").save(str(folder / "tokenizer.json"))
        return folder / "tokenizer.json"

    return make


def merges(model_type):
    def make(folder, text):
        write_merges(folder, model_type)
        return folder / "vocab.json"

    return make


JSON = {"kind": "huggingface"}
KINDS = exported.KINDS | {
    "Llama 3": ("llama", JSON, byte_level()),
    "Qwen": ("llama", JSON, byte_level(tokenizers.normalizers.NFC())),
    "byte level, NFKC": ("llama", JSON, byte_level(tokenizers.normalizers.NFKC())),
    "RoBERTa": ("roberta", JSON, byte_level(prefix=True)),
    "ALBERT": ("albert", JSON, albert),
    "JSON of unigram": ("llama", JSON, exported_json("unigram of words")),
    "JSON of BPE": ("llama", JSON, exported_json("a space in front")),
    "unknown word": ("albert", JSON | {"unknown": "cat"}, exported.of_hub(hub.unigram)),
    "words": ("", {"kind": "words"}, None),
    "symbols": ("", {"kind": "symbols"}, None),
    "XLM": ("", {"kind": "xlm"}, merges("xlm")),
    "CTRL": ("", {"kind": "ctrl"}, merges("ctrl")),
    "GPT": ("", {"kind": "gpt"}, merges("openai-gpt")),
}


@pytest.fixture(params=KINDS)
def own(request, corpus, tmp_path):  # noqa: F811
    _, settings, make = KINDS[request.param]
    settings = settings | ({"path": str(make(tmp_path, corpus))} if make else {})
    return exported.make_run(tmp_path / "run", settings, corpus)


def normalizer(own):
    """The tokenizer's own normalization of a part of a text, without white space at its ends."""
    model = getattr(own, "_model", None)
    if own.byte_lengths is not None or model is None:
        return str.strip
    apply = model.normalize if isinstance(model, sentencepiece.SentencePieceProcessor) else str
    if isinstance(model, tokenizers.Tokenizer) and model.normalizer:
        apply = model.normalizer.normalize_str
    return lambda text: apply(text).replace(META_SPACE, " ").strip()


def check(own, texts):
    normalize = normalizer(own)
    if isinstance(own, counts.Symbols):
        known = set(b"".join(own.texts))
        texts = ["".join(letter for letter in text if known >= set(letter.encode())) for text in texts]
    for text in texts:
        ids, starts, ends = own.encode_with_offsets(text)
        assert ids.tolist() == own.encode(text).tolist() and ids.shape == starts.shape == ends.shape
        assert {ids.dtype, starts.dtype, ends.dtype} == {np.dtype(np.int32)}
        assert (starts <= ends).all() and (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all(), text
        assert not len(ids) or (starts.min() >= 0 and ends.max() <= len(text))
        covered = np.zeros(len(text), bool)
        for start, end in zip(starts, ends, strict=True):
            covered[start:end] = True
            assert text[start:end].strip() == text[start:end]
        # Every character is of some token, but for white space and what the normalizer drops.
        assert not [letter for letter, is_in in zip(text, covered, strict=True) if not is_in and normalize(letter)], (
            text
        )
        for place, (token, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
            piece = own.texts[token].decode("utf-8", "replace").strip() if token < len(own.texts) else ""
            if not piece or "\ufffd" in piece:  # unknown, white space, or a part of a character
                continue
            alone = not place or ends[place - 1] <= start
            alone &= place + 1 == len(ids) or end <= starts[place + 1]
            found = normalize(text[start:end])
            assert found == piece if alone else piece in found, (text, piece)


def test_offsets_of_a_sample(own):
    check(own, ["", " ", "\x0b\x01a", *tokenizer_texts.texts()[:-4:25]])


@pytest.mark.slow
def test_offsets_of_all_texts(own):
    texts = tokenizer_texts.texts()[:-4]
    assert len(texts) > 2000
    check(own, texts)


# A dropped or a control character, a ligature of two letters, an accent of its own, a capital with one.
HARD = "\x0b x\x01\ufb01 e\u0301\u00c9"
BY_HAND = {
    "bytes": [(1, 1), (2, 2), (2, 3), (3, 4), *[(4, 5)] * 3, (6, 6), (6, 7), *[(7, 8)] * 2, *[(8, 9)] * 2],
    "T5": [(2, 2), (2, 3), (4, 5), (4, 5), (6, 6), (6, 9)],  # an unknown token is last
    "WordPiece": [(2, 5), (6, 7), (8, 9)],  # it drops accents, and "xfi" is unknown
    "XLM-R": [(2, 2), (2, 3), (4, 5), (4, 5), (6, 6), (6, 9)],
    "unknown word": [],
}


@pytest.mark.parametrize("own", BY_HAND, indirect=True)
def test_offsets_by_hand(own, request):
    if expected := BY_HAND[request.node.callspec.params["own"]]:
        _, starts, ends = own.encode_with_offsets(HARD)
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
    else:
        ids, starts, ends = own.encode_with_offsets("acat a")
        assert (1, 4) in zip(starts[ids == own.special["unknown"]], ends[ids == own.special["unknown"]], strict=True)


# What the library leaves out: characters joined to the one before, and all after a first character that is dropped.
ALIKE = ["WordPiece", "WordPiece, cased", "vocab.txt", "byte level", "Llama 3", "Qwen", "RoBERTa", "trained for Qwen"]
ALIKE += ["JSON of Llama", "a space in front", "BPE of words", "XLM-R", "CamemBERT", "unigram JSON", "ALBERT"]


def is_exact_in_library(text):
    return unicodedata.is_normalized("NFC", text) and text[:1] != "\x0b" and not ("``" in text or "''" in text)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("own", ALIKE, indirect=True)
def test_offsets_equal_those_of_transformers(own, tmp_path):
    """Equal, except for white space at the ends and in front, where there may be no character of its own."""
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=export.tokenizer_json(tmp_path / "run"))
    # T5 and others read such a file by SentencePiece's own library.
    direct = sentencepiece_tokenizer.load(tmp_path / "m.model") if (tmp_path / "m.model").exists() else None
    compared = parted = 0
    for text in filter(is_exact_in_library, tokenizer_texts.texts()[:-4:5]):
        ids, *ranges = own.encode_with_offsets(text)
        found = theirs(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        assert found["input_ids"] == ids.tolist()
        expected = offsets.trim(text, *np.array(found["offset_mapping"], np.int32).reshape(-1, 2).T)
        seen = np.array([not own.texts or not own.texts[i] or bool(own.texts[i].strip()) for i in ids], bool)
        assert np.array_equal(np.array(expected)[:, seen], np.array(ranges)[:, seen]), text
        compared += seen.sum()
        if direct is not None:
            # The libraries part some runs of a letter, whose pieces are equally likely, in another way.
            again, *others = direct.encode_with_offsets(text)
            if [direct.texts[i] for i in again] == [own.texts[i] for i in ids]:
                assert np.array_equal(np.array(others)[:, seen], np.array(ranges)[:, seen]), text
                parted += seen.sum()
    assert compared > 8_000 and (direct is None or parted > 8_000)
