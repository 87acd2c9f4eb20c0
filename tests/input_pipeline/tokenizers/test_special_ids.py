"""Special ids by name: those of ready files, and those that a task's tokenizer gets on top of its own."""

from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from configs import common
from input_pipeline.errors import DataError
from input_pipeline.sources import parser
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Bytes, extend
from input_pipeline.tokenizers.settings import known_size

TEXT = "a few words, and more of a few words é\n" * 30


def make(tmp_path, source, special=(), **settings):
    """The tokenizer of these settings, for a task that needs the ids `special`."""
    config = common.base().tokenizer.to_dict() | {"kind": "bytes", **settings}
    named = {"train": parser.parse(source, "data.train")}
    return tokenizer_store.make_folder(tmp_path / "tokenizer", config, named, 0.0, lambda line: None, special), config


def foreign(path, **settings) -> str:
    """Saves a model as T5's or ALBERT's, and gives its path."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"few words, {n} of {n * n}" for n in range(300)),
        model_prefix=str(path),
        vocab_size=50,
        minloglevel=3,
        **settings,
    )
    return f"{path}.model"


def test_extend_ids():
    base = Bytes()
    tokenizer = extend(base, ("mask", "separator"), 3)
    assert tokenizer.special == {"end": 256, "mask": 257, "separator": 258} and tokenizer.end_id == 256
    assert tokenizer.vocab_size == 262 and tokenizer.sentinels == (261, 260, 259)
    ids = tokenizer.encode("é b")
    assert ids.tolist() == base.encode("é b").tolist()
    mixed = [257, *ids[:1], 261, *ids[1:], 258]
    assert tokenizer.decode(mixed) == "é b" and tokenizer.decode([262]) == "\ufffd"
    assert tokenizer.continuation([257], mixed) == "é b"
    assert tokenizer.byte_lengths.tolist() == [1] * 256 + [0] * 6
    assert tokenizer.continues[ids].tolist() == [True, True, False, True] and not tokenizer.continues[256:].any()
    assert extend(base, (), 0) is base
    prints = {extend(base, *more).fingerprint for more in [((), 0), (("mask",), 0), (("pad",), 0), ((), 1)]}
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("settings", "size", "own"),
    [
        ({"kind": "bytes"}, 257, {"end": 256}),
        ({"kind": "words", "vocab_size": 9}, 9, {"end": 0}),
        ({"kind": "sentencepiece", "vocab_size": 300}, 300, {"end": 1, "unknown": 0}),
    ],
)
def test_special_added_for_task(tmp_path, write, settings, size, own):
    source = f"text:{write('a.txt', TEXT)}"
    needed = ("end", "mask", "pad")
    tokenizer, config = make(tmp_path, source, needed, sentinels=2, **settings)
    assert tokenizer.special | own == tokenizer.special
    assert (tokenizer.special["mask"], tokenizer.special["pad"]) == (size, size + 1)
    assert tokenizer.sentinels == (size + 3, size + 2)
    assert tokenizer.vocab_size == size + 4 == known_size(config, needed)
    again = tokenizer_store.open_folder(tmp_path / "tokenizer")
    assert (again.special, again.sentinels, again.fingerprint) == (
        tokenizer.special, tokenizer.sentinels, tokenizer.fingerprint
    )  # fmt: skip
    with pytest.raises(DataError):
        make(tmp_path, source, ("mask",), sentinels=2, **settings)


def test_special_of_file(tmp_path, write):
    path = foreign(tmp_path / "t5", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    source = f"text:{write('a.txt', TEXT)}"
    with pytest.raises(DataError):
        make(tmp_path, source, ("end", "mask", "pad"), kind="sentencepiece", path=path)
    tokenizer, _ = make(tmp_path, source, ("end", "pad"), kind="sentencepiece", path=path, sentinels=100)
    assert tokenizer.special == {"end": 1, "unknown": 2, "pad": 0, "separator": 1}
    assert (tokenizer.sentinels[0], tokenizer.sentinels[-1]) == (149, 50) and tokenizer.vocab_size == 150
    words = tokenizer.encode("few words").tolist()
    assert not tokenizer.continues[words[0]] and tokenizer.continues[tokenizer.encode("words,")[-1]]


def test_special_by_piece_name(tmp_path):
    path = foreign(tmp_path / "albert", control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"], pad_id=3)
    special = sentencepiece_tokenizer.load(tmp_path / "albert.model").special
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    assert special == {
        "end": model.eos_id(), "unknown": model.unk_id(), "pad": 3,
        **{name: model.piece_to_id(piece) for name, piece in
           (("classifier", "[CLS]"), ("separator", "[SEP]"), ("mask", "[MASK]"))},
    }  # fmt: skip


def test_sentinels_of_file(tmp_path, write):
    symbols = [f"<extra_id_{n}>" for n in (2, 1, 0)]
    path, source = foreign(tmp_path / "own", user_defined_symbols=symbols), f"text:{write('a.txt', TEXT)}"
    with pytest.raises(DataError):
        make(tmp_path, source, kind="sentencepiece", path=path, sentinels=5)
    tokenizer, _ = make(tmp_path, source, kind="sentencepiece", path=path)
    assert np.diff(tokenizer.sentinels).tolist() == [-1, -1] and tokenizer.vocab_size == 50
    assert not set(tokenizer.sentinels) & set(tokenizer.encode("a <extra_id_0> b<extra_id_1>").tolist())
    assert tokenizer.decode([*tokenizer.encode("words"), *tokenizer.sentinels]) == "words"


def test_sentinels_of_mt5(tmp_path):
    """Pieces that were added to its file by hand: the highest id is the first."""
    path = Path(foreign(tmp_path / "many"))
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    for number in (2, 1, 0):
        proto.pieces.add(piece=f"\u2581<extra_id_{number}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    path.write_bytes(proto.SerializeToString())
    tokenizer = sentencepiece_tokenizer.load(path)
    assert tokenizer.sentinels == (52, 51, 50) and tokenizer.vocab_size == 53
    assert not set(tokenizer.sentinels) & set(tokenizer.encode("a <extra_id_0> b<extra_id_1>").tolist())
