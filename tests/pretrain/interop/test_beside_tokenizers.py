"""What lies beside a tokenizer's file is heeded, or refused where it has text read in another way."""

import json

import hub
import pytest
import tokenizers

from input_pipeline import pipeline
from input_pipeline.errors import DataError
from pretrain.interop import hf_import


@pytest.mark.parametrize(
    ("case", "settings", "added", "words"),
    [
        ("bert", {"do_lower_case": True, "strip_accents": False}, {}, "strip_accents = false"),
        ("bert", {"do_lower_case": False, "strip_accents": True}, {}, "strip_accents = true"),
        ("bert", {"tokenize_chinese_chars": False}, {}, "tokenize_chinese_chars = false"),
        ("bert", {"never_split": ["cat"]}, {}, 'never_split = ["cat"]'),
        ("bert", {}, {"<new>": 67}, "the token <new>"),
        ("bert", {"added_tokens_decoder": {"67": {"content": "<new>"}}}, {}, "the token <new>"),
        ("bert", {"added_tokens_decoder": {"67": "<new>"}}, {}, "the token <new>"),
        ("bert", {"do_basic_tokenize": False}, {}, "do_basic_tokenize = false"),
        ("t5", {"extra_ids": 3}, {"<extra_id_0>": 44, "<new>": 45}, "the token <new>"),
        ("gpt2", {}, {"<new>": 263}, "the token <new>"),
        ("bert", {"mask_token": "<new>"}, {}, "the token <new>"),
        ("gpt2", {"add_prefix_space": True}, {}, "add_prefix_space = true"),
    ],
)
def test_what_lies_beside_a_vocabulary(refused, tmp_path, case, settings, added, words):
    folder = hub.make(tmp_path / "theirs", case)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    refused(folder, f"adds {words} to what ", "make one tokenizer.json of both there")


@pytest.mark.parametrize(
    ("step", "settings", "keys", "words"),
    [
        ({"lowercase": False}, {"do_lower_case": True}, {}, "adds do_lower_case = true to what tokenizer.json says"),
        (
            {"lowercase": False},
            {},
            {},
            "has do_lower_case = false, and where tokenizer_config.json does not say so its",
        ),
        ({"strip_accents": False}, {"do_lower_case": True}, {}, "has strip_accents = false, and where tokenizer_confi"),
        ({"lowercase": False}, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, {}, ""),
        ({"lowercase": False}, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, {}, ""),
        ({"lowercase": False}, {}, {"tokenizer_class": "PreTrainedTokenizerFast"}, ""),
        ({"strip_accents": True}, {"do_lower_case": True}, {}, ""),
        ({"clean_text": False}, {}, {}, "has clean_text = false, and where tokenizer_config.json does not say so its"),
        ({}, {"tokenizer_class": "BertTokenizer"}, {}, ""),
    ],
)
def test_what_the_class_of_a_tokenizer_json_makes_of_its_steps(refused, tmp_path, step, settings, keys, words):
    """A class that is none of those that take the file as it is has its own defaults, whatever that says."""
    folder = hub.make(tmp_path / "theirs", "bert", config=hub.answers()["bert"]["config"] | keys)
    pieces = (folder / "vocab.txt").read_text().split()
    (folder / "vocab.txt").unlink()
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(**{"strip_accents": None} | step)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([token for token in pieces if token.startswith("[")])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if words:
        refused(folder, words)
    else:
        config = hf_import.import_folder(str(folder), str(tmp_path / "run"))
        assert config.tokenizer.cased == (not step.get("lowercase", True))


NORMALIZERS, BEFORE = tokenizers.normalizers, tokenizers.pre_tokenizers
LOWERS = NORMALIZERS.Sequence([NORMALIZERS.NFD(), NORMALIZERS.Lowercase(), NORMALIZERS.StripAccents()])


@pytest.mark.parametrize(
    ("case", "normalizer", "before", "words"),
    [
        ("bert", NORMALIZERS.Sequence([NORMALIZERS.BertNormalizer()]), BEFORE.BertPreTokenizer(), ""),
        ("bert", LOWERS, BEFORE.BertPreTokenizer(), 'has normalizer = "Sequence", and where'),
        ("bert", NORMALIZERS.Lowercase(), BEFORE.BertPreTokenizer(), 'takes "BertNormalizer"; write'),
        ("bert", None, BEFORE.BertPreTokenizer(), "has normalizer = null, and where"),
        ("bert", NORMALIZERS.BertNormalizer(), BEFORE.Whitespace(), 'has pre_tokenizer = "Whitespace", and where'),
        ("gpt2", None, BEFORE.ByteLevel(add_prefix_space=False), ""),
        ("gpt2", NORMALIZERS.NFC(), BEFORE.ByteLevel(add_prefix_space=False), 'has normalizer = "NFC", and where'),
        ("gpt2", None, BEFORE.ByteLevel(add_prefix_space=False, use_regex=False), "has use_regex = false, and where"),
    ],
)
def test_steps_of_a_tokenizer_json_that_its_class_does_not_take(refused, tmp_path, case, normalizer, before, words):
    """Each is taken as it is where the class is one that takes it so."""
    folder = hub.make(tmp_path / "theirs", case)
    if case == "bert":
        pieces = (folder / "vocab.txt").read_text().split()
        model = tokenizers.models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]")
        special = [token for token in pieces if token.startswith("[")]
    else:
        model, special = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).model, ["<|endoftext|>"]
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(special)
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = before
    made.save(str(folder / "tokenizer.json"))
    if case == "gpt2":  # as it was published, without the kind of its model
        written = json.loads((folder / "tokenizer.json").read_text())
        del written["model"]["type"]
        (folder / "tokenizer.json").write_text(json.dumps(written))
    (folder / "tokenizer_config.json").write_text("{}")
    if words:
        refused(folder, words, '"tokenizer_class": "PreTrainedTokenizerFast"')
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    hf_import.import_folder(str(folder), str(tmp_path / "run"))
    opened = pipeline.open_tokenizer(tmp_path / "run" / "tokenizer")
    assert list(opened.encode("Ünlike don't")) == made.encode("Ünlike don't", add_special_tokens=False).ids


@pytest.mark.parametrize("typed", [True, False])
def test_a_tokenizer_json_is_taken_before_a_vocabulary(tmp_path, typed):
    """Whether or not it tells the kind of its model; here only that one says that text keeps its case."""
    folder = hub.make(tmp_path / "theirs", "bert")
    pieces = (folder / "vocab.txt").read_text().split()
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = NORMALIZERS.BertNormalizer(lowercase=False)
    made.pre_tokenizer = BEFORE.BertPreTokenizer()
    made.add_special_tokens([token for token in pieces if token.startswith("[")])
    written = json.loads(made.to_str())
    if not typed:
        del written["model"]["type"]
    (folder / "tokenizer.json").write_text(json.dumps(written))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    section = hf_import.import_folder(str(folder), str(tmp_path / "run")).tokenizer
    assert (section.kind, section.cased) == ("wordpiece", True)


@pytest.mark.parametrize("content", ["{}", "[1]", '{"model": {"vocab": 3}}', "{"])
def test_a_tokenizer_json_that_is_none_is_not_passed_over(refused, tmp_path, content):
    folder = hub.make(tmp_path / "theirs", "bert")
    (folder / "tokenizer.json").write_text(content)
    refused(folder, "tokenizer.json is no tokenizer.json of the library tokenizers; fetch it again")


@pytest.mark.parametrize("settings", [{"tokenizer_class": "BertJapaneseTokenizer"}, {"word_tokenizer_type": "mecab"}])
def test_words_that_are_split_by_other_tools(refused, tmp_path, settings):
    folder = hub.make(tmp_path / "theirs", "bert")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(folder, "has the pieces of BertJapaneseTokenizer", "cannot be imported")


def test_added_tokens_that_only_look_like_what_a_setting_says(refused, tmp_path):
    folder = hub.make(tmp_path / "theirs", "bert")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_input_names": ["right"], "padding_side": "right"}))
    (folder / "added_tokens.json").write_text(json.dumps({"right": 67}))
    refused(folder, "adds the token right to what vocab.txt says")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"])
def test_settings_that_are_no_object(refused, tmp_path, name):
    folder = hub.make(tmp_path / "theirs", "bert")
    (folder / name).write_text("[[1, 2]]")
    refused(folder, f"{name} is not readable JSON of an object; fetch it again")


@pytest.mark.parametrize(
    "added",
    [
        {"pad_token": "[PAD]"},
        {"additional_special_tokens": ["<new>"]},
        {"extra_special_tokens": {"image_token": "<new>"}},
        {"additional_special_tokens": ["<new>"], "added_tokens_decoder": {"263": {"content": "<new>"}}},
    ],
)
def test_special_tokens_beside_a_vocabulary_that_have_no_part_in_a_row(tmp_path, added):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"} | added))
    (folder / "added_tokens.json").write_text(json.dumps({"<new>" if "<new>" in str(added) else "[PAD]": 263}))
    hf_import.import_folder(str(folder), str(tmp_path / "run"))
    tokenizer = pipeline.open_tokenizer(tmp_path / "run" / "tokenizer")
    assert len(tokenizer.encode("<new>")) > 1  # text, as any other


@pytest.mark.parametrize(("case", "kind"), [("gpt2", "BPE"), ("bert", "WordPiece")])
def test_a_tokenizer_json_whose_parts_are_none(tmp_path, case, kind):
    folder = hub.make(tmp_path / "theirs", case)
    made = {"normalizer": [1], "model": {"type": kind, "vocab": {"a": 0}}}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    with pytest.raises(DataError, match=r"(is no|nor a) tokenizer\.json"):
        hf_import.import_folder(str(folder), str(tmp_path / "run"))


def test_what_says_no_more_than_the_vocabulary(tmp_path):
    folder = hub.make(tmp_path / "theirs", "bert")
    settings = {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True, "never_split": None}
    settings |= {"added_tokens_decoder": {"0": {"content": "[PAD]"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert hf_import.import_folder(str(folder), str(tmp_path / "run")).tokenizer.kind == "wordpiece"
