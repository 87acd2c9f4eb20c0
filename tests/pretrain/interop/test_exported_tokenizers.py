"""Each kind of tokenizer and its export, opened by Transformers: the same ids and the same decoded text."""

import json

import hub
import pytest
import sentencepiece
import tokenizer_texts
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from input_pipeline.errors import DataError
from input_pipeline.sources import parser
from input_pipeline.tokenizers import export
from input_pipeline.tokenizers import store as tokenizer_store
from pretrain.interop import families, tokenizer_files

SETTINGS = {"kind": "sentencepiece", "path": "", "cased": False, "sentinels": 0, "unknown": "", "vocab_size": 700}
SETTINGS |= {"algorithm": "bpe", "pieces": "words", "train_bytes": 50_000}
# A model that keeps all text; user-defined pieces as models of code have them.
KEEPS = dict(byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False)
KEEPS |= dict(remove_extra_whitespaces=False)
PREFIXED = KEEPS | {"add_dummy_prefix": True}  # as Llama 2's
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
OWN = ["<tab>", "self.", "\u2581\u2581\u2581\u2581", "\n\n", "<mask>", "ab", "abc"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(tokenizer_texts.code(8)), encoding="utf-8")
    return path


def sentencepiece_model(**options):
    def make(folder, corpus):
        options_ = {"vocab_size": 700, "hard_vocab_limit": False, "minloglevel": 3} | options
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "m"), **options_)
        return folder / "m.model"

    return make


def byte_level(folder, corpus):
    """A tokenizer.json as GPT-2's, with an added word and settings of training."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train([str(corpus)], trainer)
    model.add_tokens(["<tab>"])
    model.enable_truncation(8)
    model.enable_padding()
    model.model.dropout = 0.5
    model.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def of_hub(make, name="tokenizer.json"):
    def write(folder, corpus):
        make(folder)
        return folder / name

    return write


# Name: (family, settings, function of a folder and a text that makes a ready file).
KINDS = {
    "bytes": ("gpt2", {"kind": "bytes"}, None),
    "BPE of words": ("gpt2", {}, None),
    "BPE of phrases": ("gpt2", {"pieces": "phrases"}, None),
    "unigram of words": ("gpt2", {"algorithm": "unigram"}, None),
    "unigram of phrases": ("gpt2", {"algorithm": "unigram", "pieces": "phrases"}, None),
    "BPE with sentinels": ("t5", {"sentinels": 5}, None),
    "unigram with sentinels": ("t5", {"sentinels": 5, "algorithm": "unigram"}, None),
    "WordPiece": ("bert", {"kind": "wordpiece"}, None),
    "WordPiece, cased": ("bert", {"kind": "wordpiece", "cased": True}, None),
    "user-defined symbols": ("gpt2", {}, sentencepiece_model(model_type="bpe", user_defined_symbols=OWN, **KEEPS)),
    "a space in front": ("gpt2", {}, sentencepiece_model(model_type="bpe", **PREFIXED)),
    "T5": ("t5", {"sentinels": 5}, sentencepiece_model(model_type="unigram", **T5)),
    "T5, BPE": ("t5", {}, sentencepiece_model(model_type="bpe", user_defined_symbols=OWN[:2], **T5)),
    "T5, other ids": ("gpt2", {}, sentencepiece_model(model_type="unigram", normalization_rule_name="identity")),
    "mT5": ("mt5", {}, of_hub(hub.spiece_mt5, "spiece.model")),
    "byte level": ("gpt2", {"kind": "huggingface"}, byte_level),
    "vocab.txt": ("bert", {"kind": "wordpiece"}, of_hub(hub.wordpiece, "vocab.txt")),
    "unigram JSON": ("albert", {"kind": "huggingface"}, of_hub(hub.unigram)),
    "unigram JSON of XLNet": ("xlnet", {"kind": "huggingface"}, of_hub(hub.unigram_xlnet)),
    "JSON of Llama": ("llama", {"kind": "huggingface"}, of_hub(hub.byte_fallback)),
    "trained for Llama": ("llama", {"vocab_size": 500}, None),
    "trained for Qwen": ("qwen3", {"kind": "bytes"}, None),
    "XLM-R": ("roberta", {"kind": "xlm_roberta"}, sentencepiece_model(model_type="unigram")),
    "CamemBERT": ("roberta", {"kind": "camembert"}, sentencepiece_model(model_type="unigram")),
}


@pytest.fixture(params=KINDS)
def both(request, corpus, tmp_path):
    """(our tokenizer of a kind, its export in Transformers)."""
    transformers = pytest.importorskip("transformers", reason="AutoTokenizer needs the extra 'oracle'")
    name, settings, make = KINDS[request.param]
    family, source, target = families.FAMILIES[name], tmp_path / "run", tmp_path / "export"
    target.mkdir()
    own = make_run(source, settings | ({"path": str(make(tmp_path, corpus))} if make else {}), corpus)
    tokenizer_files.write(source, own, target, family, 16)
    (target / "config.json").write_text(json.dumps({"model_type": family.model_type}))
    return own, transformers.AutoTokenizer.from_pretrained(target)


def make_run(folder, settings, corpus):
    named = {"train": parser.parse(f"text:{corpus}", "data.train", ())}
    return tokenizer_store.make_folder(folder, SETTINGS | settings, named, 0.0, lambda message: None)


def check(both, texts):
    """Names of special tokens are text for ours; for Transformers they are with `split_special_tokens`."""
    own, theirs = both
    names = [token.content for token in theirs.added_tokens_decoder.values() if token.special]
    for text in texts:
        ids = own.encode(text).tolist()
        assert theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] == ids, text
        if not any(name in text for name in names):
            assert theirs(text, add_special_tokens=False)["input_ids"] == ids, text
        decoded = theirs.decode(ids, skip_special_tokens=True)
        assert decoded == own.decode(ids)
        assert own.byte_lengths is None or decoded == text


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_export_reads_a_sample_as_the_run(both):
    check(both, tokenizer_texts.texts()[:-3:12])


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_export_reads_all_texts_as_the_run(both):
    texts = tokenizer_texts.texts()
    assert len(texts) > 2000
    check(both, texts)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (KEEPS | {"model_type": "unigram"}, "unigram scores"),
        (KEEPS | {"model_type": "unigram", "user_defined_symbols": ["<tab>"]}, "user_defined_symbols"),
        (PREFIXED | {"model_type": "bpe", "user_defined_symbols": ["<tab>"]}, "add_dummy_prefix"),
        ({"byte_fallback": True}, "byte pieces"),
        ({"remove_extra_whitespaces": False}, "normalizer"),
        ({"normalization_rule_name": "identity", "user_defined_symbols": ["\n"]}, "white space"),
    ],
)
def test_export_refuses_what_would_be_read_otherwise(options, reason, corpus, tmp_path):
    path = sentencepiece_model(**options)(tmp_path, corpus)
    own = make_run(tmp_path / "run", {"path": str(path)}, corpus)
    with pytest.raises(DataError, match=reason):
        tokenizer_files.write(tmp_path / "run", own, tmp_path, families.FAMILIES["gpt2"], 16)


def set_type(proto):
    proto.pieces[-1].type = proto.SentencePiece.UNUSED


def tie_scores(proto):
    """Two merged pieces of one score: SentencePiece then takes the left one first."""
    merged = [piece for piece in proto.pieces if piece.type == piece.NORMAL and len(piece.piece) == 2]
    merged[1].score = merged[0].score


def drop_letter(proto):
    """A piece is merged from a letter that is no piece itself."""
    next(piece for piece in proto.pieces if piece.piece == "e").piece = "\u0100"


@pytest.mark.parametrize(
    ("change", "reason"), [(set_type, "unused"), (tie_scores, "equal score"), (drop_letter, "'e'")]
)
def test_export_refuses_pieces_that_merge_otherwise(change, reason, corpus, tmp_path):
    path = sentencepiece_model(model_type="bpe", **KEEPS)(tmp_path, corpus)
    proto = ModelProto.FromString(path.read_bytes())
    change(proto)
    path.write_bytes(proto.SerializeToString())
    make_run(tmp_path / "run", {"path": str(path)}, corpus)
    with pytest.raises(DataError, match=reason):
        export.tokenizer_json(tmp_path / "run")


def test_export_refuses_another_name_of_the_unknown_token(corpus, tmp_path):
    hub.unigram(tmp_path)
    settings = {"kind": "huggingface", "path": str(tmp_path / "tokenizer.json")}
    for word in ("<unk>", "@@UNKNOWN@@"):
        make_run(tmp_path / word, settings | {"unknown": word}, corpus)
    assert export.tokenizer_json(tmp_path / "<unk>").encode("<unk>", add_special_tokens=False).ids == [1]
    with pytest.raises(DataError, match=r"tokenizer\.unknown=@@UNKNOWN@@"):
        export.tokenizer_json(tmp_path / "@@UNKNOWN@@")
