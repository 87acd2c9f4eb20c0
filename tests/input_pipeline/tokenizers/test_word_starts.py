"""Where words begin in text with and without spaces, in the pieces of every kind of tokenizer that marks words."""

import itertools
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece

from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import wordpiece
from input_pipeline.tokenizers.base import Bytes, extend
from input_pipeline.tokenizers.word_starts import APART, NONE, WordStarts, character_classes

library = pytest.importorskip("tokenizers", reason="needs the extra hf")

# Words as they should be found; one without a space before it follows a letter of a script without spaces.
WORDS = " The caté a B2B 他|说|Python|很|好|。 2024|年 𠮷|野 か|な|カー|ド ก็|ดี น|ะ ລ|າ|ວ ខ្|មែ|រ မြ|န်|မာ Да 한국어"
TEXT, WORDS = WORDS.replace("|", ""), re.split(r"[ |]", WORDS.strip())
SAMPLE = ["".join(random.Random(n).sample(TEXT, len(TEXT))) for n in range(60)]  # so that few pieces span letters
ENGLISH = ["The cat and a Python, and the other cat"] * 20


def save_byte_level(path, lines, normalizes):
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    if normalizes:  # as Qwen's
        model.normalizer = library.normalizers.NFC()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(lines, library.trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    model.save(str(path))


def save_fallback(path):
    """As Llama's: SentencePiece's space in a tokenizer.json, and bytes for characters that it lacks."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *sorted(set("".join(ENGLISH)) - {" "})]
    model = library.models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    model = library.Tokenizer(model)
    model.pre_tokenizer = library.pre_tokenizers.Metaspace("\u2581", "always")
    steps = [library.decoders.ByteFallback(), library.decoders.Fuse(), library.decoders.Metaspace("\u2581", "always")]
    model.decoder = library.decoders.Sequence(steps)
    model.save(str(path))


def make(kind: str, path):
    if kind == "bytes":
        return Bytes()
    if kind.startswith("byte level"):
        save_byte_level(path, ENGLISH if "English" in kind else SAMPLE, "normalizing" in kind)
    elif kind == "wordpiece":
        path.write_bytes(wordpiece.train(SAMPLE, 300, cased=True))
    elif kind == "byte fallback":
        save_fallback(path)
    elif kind.startswith("sentencepiece"):
        path.write_bytes(sentencepiece_tokenizer.train(ENGLISH if "English" in kind else SAMPLE, 340, "bpe", "words"))
        return sentencepiece_tokenizer.load(path)
    else:  # as XLNet's or T5's
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SAMPLE), model_prefix=str(path), vocab_size=90, minloglevel=3
        )
        return sentencepiece_tokenizer.load(path.with_name(f"{path.name}.model"))
    return huggingface_tokenizer.load(path)


KINDS = ("bytes", "byte level", "byte level of English", "wordpiece", "byte fallback", "normalizing")
KINDS += ("byte level normalizing", "sentencepiece", "sentencepiece of English")


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_every_tokenizer(kind, tmp_path):
    tokenizer = extend(make(kind, tmp_path / "tokenizer"), ("mask",), 2)

    def size(ids) -> int | None:
        """Characters but spaces of ids; None if they end within a character."""
        text = re.sub(r"\s|##", "", tokenizer.decode(ids))
        return None if text.endswith("\ufffd") else len(text)

    ids = tokenizer.encode(TEXT)
    starts = np.flatnonzero(WordStarts(tokenizer.continues, tokenizer.texts)(np.stack([ids, ids[::-1]]))[0])
    assert size(ids) == len("".join(WORDS)) and tokenizer.special.get("unknown") not in ids
    found = {0, *(size(ids[:place]) for place in starts)}  # a row's first id may continue a word
    cuts = {size(ids[:place]) for place in range(len(ids))}
    assert len(cuts) > 50
    assert found == set(itertools.accumulate(map(len, WORDS[:-1]), initial=0)) & cuts


def test_words_are_those_of_bert(tmp_path):
    """BERT's own splitting makes each ideograph and each mark a word; its pieces without "##" begin words."""
    text = "The caté (a B2B) 他说:Python很好。2024年,𠮷野家 한국어 don't 第3章"
    (tmp_path / "tokenizer").write_bytes(wordpiece.train([text, " ".join(text)], 84, cased=True))
    tokenizer = huggingface_tokenizer.load(tmp_path / "tokenizer")
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer")).encode(text, add_special_tokens=False)
    starts = WordStarts(tokenizer.continues, tokenizer.texts)(np.array([theirs.ids]))[0]
    assert starts.tolist() == [
        place == 0 or word != theirs.word_ids[place - 1] for place, word in enumerate(theirs.word_ids)
    ]
    assert 25 < starts.sum() < len(starts)


def test_truncated_characters():
    """A row may begin and end within a character; bytes that are not UTF-8 raise nothing."""
    tokenizer = Bytes()
    starts = WordStarts(tokenizer.continues, tokenizer.texts)
    data = "他说".encode()
    assert starts(np.array([[*data[1:]]])).tolist() == [[False, False, True, False, False]]
    assert not starts(np.array([[*data[1:5]]])).any()
    random_bytes = np.random.default_rng(0).integers(0, 257, (50, 99))
    assert starts(random_bytes)[random_bytes == 32].all()
    latin = np.frombuffer("naïve “déjà vu” — größer".encode(), np.uint8)[None]
    np.testing.assert_array_equal(starts(latin), ~tokenizer.continues[latin])


@pytest.mark.oracle
def test_classes_are_those_of_unicode():
    """Scripts and line breaks of the package `regex`, which has Unicode's own tables."""
    regex = pytest.importorskip("regex")
    names = ["Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tai_Le", "New_Tai_Lue"]
    scripts = regex.compile(
        "|".join(rf"\p{{{name}}}" for name in [*names, "Tai_Tham", "Tai_Viet", "Ahom", "Ideographic"])
    )
    classes = character_classes()
    for code in range(0x40000):
        letter = chr(code)
        if unicodedata.category(letter) == "Lo" and code != 0x303C:  # the masu mark, of no script
            assert (classes[code] == APART) == bool(scripts.match(letter)), hex(code)
        if unicodedata.combining(letter):
            assert classes[code] == NONE, hex(code)
    assert all(classes[ord(letter)] == APART for letter in "。「」\uff0c\uff01\u3007\u3000")
