"""Live parity with Hugging Face's tokenizers on the files that their classes read, and on the way back."""

import json
import random
import sys
import types

import hub
import pytest
import tokenizers

import pretrain
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
sentencepiece = pytest.importorskip("sentencepiece")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

SPACES = "".join(chr(i) for i in range(1, 0x3100) if chr(i).isspace())
TEXTS = [*hub.TEXT, "", " ", "  two  spaces ", "a\n\n\tb", "naïve CAFÉ", "日本語 text", "x" * 70, "don't, (stop)!"]
TEXTS += [f"a{space}cat" for space in SPACES]
CASES = {"ctrl": "ctrl", "xlm": "xlm", "openai-gpt": "gpt", "xlm-roberta": "xlm-roberta", "camembert": "xlm-roberta"}


def merged(folder, model_type):
    """vocab.json and merges.txt in the manner of `model_type`, of merges that were learnt; some pieces are left out."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if model_type == "openai-gpt":
        model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    first = (
        ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{n}>" for n in range(10))] if model_type == "xlm" else ["<unk>"]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=120, special_tokens=first, end_of_word_suffix="</w>", show_progress=False
    )
    rng, words = random.Random(0), " ".join(hub.TEXT).split()
    model.train_from_iterator([" ".join(rng.choices(words, k=9)) for _ in range(200)], trainer)
    made = json.loads(model.to_str())["model"]
    pieces = sorted(made["vocab"], key=made["vocab"].get)
    if model_type != "openai-gpt":  # of which every piece that is merged is one of the vocabulary
        pieces = [piece for place, piece in enumerate(pieces) if place < len(first) or place % 5]
    if model_type == "ctrl":
        pieces[1:] = [p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in pieces[1:]] + ["\n"]
    pairs = [" ".join(pair) if isinstance(pair, list) else pair for pair in made["merges"]]
    lines = [f"{pair} {9}" for pair in pairs] if model_type == "xlm" else ["#version: 0.2", *pairs]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("".join(f"{line}\n" for line in lines))


def unigram(folder, model_type):
    with open(folder / "sentencepiece.bpe.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(hub.TEXT), model_writer=file, vocab_size=42, model_type="unigram", minloglevel=3
        )


@pytest.fixture(params=CASES)
def theirs(request, tmp_path, monkeypatch):
    """(model_type, a folder of a model of that type with the files that its own class of tokenizers reads)."""
    model_type, case = request.param, CASES[request.param]
    sacremoses = types.ModuleType("sacremoses")  # which XLM's class imports, and uses for text that is not prepared
    sacremoses.__spec__ = types.SimpleNamespace(loader=None, origin=None)
    monkeypatch.setitem(sys.modules, "sacremoses", sacremoses)
    config = hub.answers()[case]["config"] | {"model_type": model_type, "vocab_size": 200}
    if model_type == "xlm":
        config["pad_token_id"] = 2  # of those files
    shapes = hub.answers()[case]["shapes"]
    entries = hub.answers()[case]["config"]["vocab_size"]
    shapes = {name: [200 if size == entries else size for size in shape] for name, shape in shapes.items()}
    folder = hub.make(tmp_path / "theirs", case, tensors=hub.weights(shapes), config=config, tokenizer=False)
    (unigram if "roberta" in case else merged)(folder, model_type)
    return model_type, folder


def ids(tokenizer, model_type, text):
    """What the class makes of a text; of XLM's that is prepared."""
    if model_type == "xlm":  # `tokenize` passes no options on
        return tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text, bypass_tokenizer=True))
    return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


def test_the_same_ids_there_and_back(theirs, tmp_path):
    model_type, folder = theirs
    if model_type == "xlm":
        with pytest.raises(UserError, match=r"prepare all text with XLM's tools, and import with --prepared, by which"):
            import_folder(str(folder), str(tmp_path / "run"))
    import_folder(str(folder), str(tmp_path / "run"), prepared=model_type == "xlm")
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    own = pretrain.open(tmp_path / "run").tokenizer
    there, back = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "back"))
    assert type(there).__name__.lower().startswith(model_type.replace("-", "").removesuffix("mroberta")[:5])
    for text in TEXTS:
        expected = ids(there, model_type, text)
        assert own.encode(text).tolist() == expected, text
        assert ids(back, model_type, text) == expected, text
    for text in hub.TEXT:
        found = own.encode(text).tolist()
        assert own.decode(found) == there.decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    named = {"pad": there.pad_token_id, "mask": there.mask_token_id, "unknown": there.unk_token_id}
    assert {name: own.special.get(name) for name in named} == named
