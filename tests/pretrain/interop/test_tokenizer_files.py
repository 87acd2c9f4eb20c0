"""Tokenizer files: what import reads or refuses, and what export writes, with equal ids of equal text."""

import json
import random

import hub
import pytest
import tokenizers

from input_pipeline import pipeline
from input_pipeline.sources import parser
from input_pipeline.tokenizers import export
from input_pipeline.tokenizers import store as tokenizer_store
from pretrain.errors import UserError
from pretrain.interop import families, tokenizer_files
from pretrain.interop.hf_import import import_folder

TEXTS = [*hub.TEXT, "", " ", "  two  spaces ", "a\n\n\tb", "naïve café", "日本語 text", "x" * 70]
SETTINGS = {"kind": "sentencepiece", "path": "", "cased": False, "sentinels": 0, "unknown": "", "vocab_size": 330}
SETTINGS |= {"algorithm": "bpe", "pieces": "words", "train_bytes": 1000_000}
NORMALIZERS, PRE_TOKENIZERS = tokenizers.normalizers, tokenizers.pre_tokenizers


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """`trained(special, **settings)`: the folder of a tokenizer trained on some text, made once."""
    root, folders = tmp_path_factory.mktemp("tokenizers"), {}
    rng, words = random.Random(0), " ".join(hub.TEXT).split()
    (root / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=9)) for _ in range(200)))
    named = {"train": parser.parse(f"text:{root}/text.txt", "data.train", ())}

    def make(special=(), **settings):
        key = repr((special, settings))
        if key not in folders:
            folders[key] = root / str(len(folders))
            tokenizer_store.make_folder(folders[key], SETTINGS | settings, named, 0.0, lambda message: None, special)
        return folders[key]

    return make


def write(source, target, model_type):
    """(our tokenizer, the written settings, what `write` returns)."""
    own = tokenizer_store.open_folder(source)
    special = tokenizer_files.write(source, own, target, families.FAMILIES[model_type], 16)
    return own, json.loads((target / "tokenizer_config.json").read_text()), special


def read(path):
    return tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "unigram"},
        {"kind": "wordpiece", "vocab_size": 120},
        {"kind": "bytes"},
        {"sentinels": 5, "special": ("pad", "end")},
        {"kind": "bytes", "sentinels": 3, "special": ("pad", "end", "mask")},
    ],
    ids=lambda settings: " ".join(f"{value}" for value in settings.values()) or "bpe",
)
def test_tokenizer_json_has_the_same_ids(trained, settings):
    source = trained(**settings)
    own = tokenizer_store.open_folder(source)
    again = tokenizers.Tokenizer.from_str(export.tokenizer_json(source).to_str())
    assert again.get_vocab_size() == own.vocab_size
    for text in TEXTS:
        ids = own.encode(text).tolist()
        assert again.encode(text, add_special_tokens=False).ids == ids, text
        if own.byte_lengths is not None:
            assert again.decode(ids) == text
    for number, i in enumerate(own.sentinels):
        assert again.token_to_id(f"<extra_id_{number}>") == i


def test_write_frames_a_text_and_a_pair(trained, tmp_path):
    own, settings, _ = write(trained(kind="wordpiece", vocab_size=120), tmp_path, "bert")
    model, the = read(tmp_path), own.encode("the").tolist()
    first, last = own.special["classifier"], own.special["separator"]
    assert model.encode("the").ids == [first, *the, last]
    pair = model.encode("the", "the")
    assert pair.ids == [first, *the, last, *the, last]
    assert pair.type_ids == [0] * (2 + len(the)) + [1] * (1 + len(the))
    assert settings["mask_token"] == "[MASK]" and settings["cls_token"] == "[CLS]"


def test_write_mbart_ends_with_a_language_code(trained, tmp_path):
    own, _, special = write(trained(("end", "mask", "fr_XX", "en_XX")), tmp_path, "mbart")
    family, code = families.FAMILIES["mbart"], own.special["fr_XX"]
    assert read(tmp_path).encode("the").ids == [*own.encode("the").tolist(), own.end_id, code]
    assert family.ids(special)["decoder_start_token_id"] == code
    assert family.ids(special)["forced_eos_token_id"] == own.end_id  # 2 by default, a piece here
    assert tokenizer_files.codes(tokenizer_files.section(tmp_path, family.tokenizers)) == ("fr_XX", "en_XX")


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "t5", "xlm", "xlnet"])
def test_write_frames_with_the_tokens_that_exist(trained, model_type, tmp_path):
    """A tokenizer for packed rows has no separators."""
    own, settings, _ = write(trained(), tmp_path, model_type)
    family = families.FAMILIES[model_type]
    ids = {"$A": own.encode("the").tolist(), "end": [own.end_id]}
    single = family.template[0] if family.template else ["$A"]
    assert read(tmp_path).encode("the").ids == [i for part in single for i in ids.get(part, ())]
    assert settings["padding_side"] == ("left" if model_type == "xlnet" else "right")


@pytest.mark.parametrize(
    ("model_type", "settings", "special", "pad", "named"),
    [
        ("xlnet", {}, ("separator", "classifier"), "unknown", {"eos"}),
        ("gpt2", {}, (), "unknown", {"bos", "eos"}),
        ("gpt2", {"kind": "bytes"}, (), "end", {"bos", "eos"}),
        ("ctrl", {}, (), "unknown", {"eos"}),  # a control code begins a text
        ("bert", {"kind": "wordpiece", "vocab_size": 120}, (), "pad", set()),
    ],
)
def test_write_names_padding_and_ends(trained, model_type, settings, special, pad, named, tmp_path):
    own, written, ids = write(trained(special, **settings), tmp_path, model_type)
    ids = families.FAMILIES[model_type].ids(ids)
    assert ids["pad_token_id"] == own.special[pad] == read(tmp_path).token_to_id(written["pad_token"])
    assert {key for key in ("bos", "eos") if f"{key}_token" in written} == named
    assert {ids[f"{key}_token_id"] for key in named} <= {own.end_id}
    assert families.FAMILIES["xlnet"].ids({"end": 2}) == {"eos_token_id": 2, "pad_token_id": None}


@pytest.mark.parametrize(
    ("model_type", "special"),
    [
        ("gpt2", ()),
        ("albert", ("classifier", "separator", "mask")),
        ("bart", ("end", "classifier")),
        ("xlnet", ("separator", "classifier")),
        ("mbart", ("end", "mask", "en_XX", "fr_XX")),
        ("xlm", ("end", "mask", "pad")),
    ],
)
def test_special_ids_round_trip(trained, model_type, special, tmp_path):
    source, family = trained(special), families.FAMILIES[model_type]
    own, _, _ = write(source, tmp_path, model_type)
    section = tokenizer_files.section(tmp_path, family.tokenizers)
    roles = tokenizer_files.roles(tmp_path, section, family, {})
    back = tokenizer_store.make_folder(tmp_path / "back", {**SETTINGS, **section}, {}, 0.0, print, special, roles=roles)
    assert back.special == own.special and back.vocab_size == own.vocab_size
    assert back.encode(TEXTS[0]).tolist() == own.encode(TEXTS[0]).tolist()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json", "config.json"])
def test_roles_by_settings(file, tmp_path):
    hub.byte_level(tmp_path, ("</s>", "<begin>", "<stop>", "<hidden>", "<nothing>"))
    section = tokenizer_files.section(tmp_path, ("huggingface",))
    given = {"pad_token_id": 4, "cls_token_id": [1]}
    if file == "config.json":
        given |= {"bos_token_id": 1, "mask_token_id": 3}
    else:
        tokens = {"bos_token": "<begin>", "eos_token": {"content": "<stop>"}, "mask_token": "<hidden>"}
        (tmp_path / file).write_text(json.dumps(tokens))
    roles = tokenizer_files.roles(tmp_path, section, families.FAMILIES["bart"], given)
    opened = tokenizer_store.make_folder(tmp_path / "run", {**SETTINGS, **section}, {}, 0.0, print, roles=roles)
    end = 0 if file == "config.json" else 2
    assert opened.special == {"end": end, "classifier": 1, "mask": 3, "pad": 4, "separator": 0}


def test_spiece_that_rewrites_text_stays_a_model(tmp_path):
    hub.spiece(tmp_path)
    hub.write_settings(tmp_path, extra_ids=None)
    assert tokenizer_files.section(tmp_path, ("sentencepiece",))["sentinels"] == 100
    source, out = tmp_path / "tokenizer", tmp_path / "out"
    settings = SETTINGS | {"path": str(tmp_path / "spiece.model"), "sentinels": 4}
    tokenizer_store.make_folder(source, settings, {}, 0.0, print)
    out.mkdir()
    with pytest.raises(UserError, match="bert"):
        write(source, out, "bert")
    own, *_ = write(source, out, "t5")
    assert (out / "tokenizer.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()
    section = tokenizer_files.section(out, families.FAMILIES["t5"].tokenizers)
    back = tokenizer_store.make_folder(tmp_path / "back", SETTINGS | section, {}, 0.0, print)
    assert back.fingerprint == own.fingerprint and back.sentinels == own.sentinels


@pytest.mark.parametrize(("kind", "class_name"), [("ctrl", "CTRLTokenizer"), ("xlm", "XLMTokenizer")])
def test_files_of_one_class_round_trip(kind, class_name, tmp_path):
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    theirs.mkdir()
    out.mkdir()
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3, "a</w>": 4}
    (theirs / "vocab.json").write_text(json.dumps(vocabulary))
    (theirs / "merges.txt").write_text("a b\nb c</w>\n")
    family = families.FAMILIES[kind]
    kinds = (*family.tokenizers, *family.legacy_tokenizers.values())
    if kind == "xlm":
        with pytest.raises(UserError):
            tokenizer_files.section(theirs, kinds)
    section = tokenizer_files.section(theirs, kinds, prepared=True)
    assert section == {"kind": kind, "path": str(theirs / "vocab.json"), "sentinels": 0}
    tokenizer_store.make_folder(tmp_path / "run", SETTINGS | section, {}, 0.0, print)
    _, written, _ = write(tmp_path / "run", out, kind)
    assert written["tokenizer_class"] == class_name
    assert json.loads((out / "vocab.json").read_text()) == vocabulary


@pytest.mark.parametrize(
    ("case", "settings", "added", "key"),
    [
        ("bert", {"do_lower_case": True, "strip_accents": False}, {}, "strip_accents=False"),
        ("bert", {"never_split": ["cat"]}, {}, "never_split"),
        ("bert", {"word_tokenizer_type": "mecab"}, {}, "word_tokenizer_type=mecab"),
        ("bert", {}, {"<new>": 67}, "<new>"),
        ("bert", {"added_tokens_decoder": {"67": {"content": "<new>"}}}, {}, "<new>"),
        ("t5", {"extra_ids": 3}, {"<extra_id_0>": 44, "<new>": 45}, "<new>"),
        ("gpt2", {}, {"<new>": 263}, "<new>"),
        ("gpt2", {"add_prefix_space": True}, {}, "add_prefix_space=True"),
        ("t5", {"add_prefix_space": False}, {}, "add_prefix_space=False"),
    ],
)
def test_settings_that_change_the_text(refuses, tmp_path, case, settings, added, key):
    theirs = hub.make(tmp_path / "theirs", case)
    hub.write_settings(theirs, **settings)
    (theirs / "added_tokens.json").write_text(json.dumps(added))
    refuses(theirs, key)


@pytest.mark.parametrize(
    ("step", "settings", "cased"),
    [
        ({"lowercase": False}, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, True),
        ({"strip_accents": True}, {"do_lower_case": True, "never_split": None}, False),
        ({"lowercase": False}, {"do_lower_case": True}, None),
    ],
)
def test_settings_against_a_tokenizer_json(refuses, tmp_path, step, settings, cased):
    """A generic class reads the file as it is; for others, settings and file must agree."""
    theirs = hub.make(tmp_path / "theirs", "bert")
    normalizer = NORMALIZERS.BertNormalizer(**{"strip_accents": None} | step)
    hub.wordpiece_json(theirs, normalizer, PRE_TOKENIZERS.BertPreTokenizer(), **settings)
    if cased is None:
        refuses(theirs, "tokenizer.json")
        return
    config = import_folder(str(theirs), str(tmp_path / "run"))
    assert (config.tokenizer.kind, config.tokenizer.cased) == ("wordpiece", cased)
    text, opened = "Ünlike don't", pipeline.open_tokenizer(tmp_path / "run" / "tokenizer")
    assert opened.encode(text).tolist() == read(theirs).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_token": "[PAD]"},
        {"additional_special_tokens": ["<new>"], "added_tokens_decoder": {"263": {"content": "<new>"}}},
        {"extra_special_tokens": {"image_token": "<new>"}},
    ],
)
def test_special_tokens_without_a_role_are_text(tmp_path, settings):
    theirs = hub.make(tmp_path / "theirs", "gpt2")
    hub.write_settings(theirs, tokenizer_class="GPT2Tokenizer", **settings)
    (theirs / "added_tokens.json").write_text(json.dumps({"<new>" if "<new>" in str(settings) else "[PAD]": 263}))
    import_folder(str(theirs), str(tmp_path / "run"))
    assert len(pipeline.open_tokenizer(tmp_path / "run" / "tokenizer").encode("<new>")) > 1


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma"])
def test_released_settings_of_decoders(model_type, tmp_path):
    hub.TOKENIZERS[model_type](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | {"add_bos_token": model_type != "qwen2", "add_eos_token": False}))
    found = tokenizer_files.section(tmp_path, ("huggingface", "sentencepiece"), False)
    assert (found["kind"], found["path"]) == ("huggingface", str(tmp_path / "tokenizer.json"))
