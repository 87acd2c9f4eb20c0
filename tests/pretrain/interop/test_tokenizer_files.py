"""Tokenizers of ours as a tokenizer.json: the same ids of the same text, and the text of the ids."""

import json
import random

import hub
import pytest
import tokenizers

from input_pipeline import pipeline
from input_pipeline.errors import DataError
from input_pipeline.tokenizers import exported, folder, saved
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop import tokenizers as interop

TEXTS = [*hub.TEXT, "", " ", "  two  spaces ", "a\n\n\tb", "naïve café", "日本語 text", "x" * 70]
SETTINGS = {"kind": "sentencepiece", "path": "", "cased": False, "sentinels": 0, "unknown": "", "vocab_size": 330}
SETTINGS |= {"algorithm": "bpe", "pieces": "words", "train_bytes": 1000_000}


@pytest.fixture
def made(tmp_path):
    """`made(special, **settings)`: the folder of a tokenizer made from some text."""
    rng, words = random.Random(0), " ".join(hub.TEXT).split()
    text = "\n".join(" ".join(rng.choices(words, k=9)) for _ in range(200))
    (tmp_path / "text.txt").write_text(text)

    def make(special=(), **settings):
        from input_pipeline.sources import sources

        named = {"train": sources.parse(f"text:{tmp_path}/text.txt", "data.train", ())}
        folder.make_folder(tmp_path / "tokenizer", SETTINGS | settings, named, 0.0, lambda message: None, special)
        return tmp_path / "tokenizer"

    return make


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pieces": "phrases"},
        {"algorithm": "unigram"},
        {"kind": "wordpiece", "vocab_size": 120, "cased": True},
        {"kind": "wordpiece", "vocab_size": 120},
        {"kind": "bytes"},
        {"sentinels": 5, "special": ("pad", "end")},
        {"kind": "bytes", "sentinels": 3, "special": ("pad", "end", "mask")},
    ],
    ids=lambda settings: " ".join(f"{value}" for value in settings.values()) or "bpe",
)
def test_the_same_ids(made, settings):
    source = made(**settings)
    own, file = saved.open_folder(source), exported.tokenizer_json(source)
    again = tokenizers.Tokenizer.from_str(file.to_str())
    assert again.get_vocab_size() == own.vocab_size
    for text in TEXTS:
        ids = own.encode(text).tolist()
        assert again.encode(text, add_special_tokens=False).ids == ids, text
        if own.byte_lengths is not None:
            assert again.decode(ids) == text
    for number, i in enumerate(own.sentinels):
        assert again.token_to_id(f"<extra_id_{number}>") == i


def test_special_tokens_around_a_text_and_a_pair(made, tmp_path):
    source = made(kind="wordpiece", vocab_size=120)
    own = saved.open_folder(source)
    interop.write(source, own, tmp_path, families.FAMILIES["bert"], 16)
    model = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    the = own.encode("the").tolist()
    first, last = own.special["classifier"], own.special["separator"]
    assert model.encode("the").ids == [first, *the, last]
    pair = model.encode("the", "the")
    assert pair.ids == [first, *the, last, *the, last]
    assert pair.type_ids == [0] * (2 + len(the)) + [1] * (1 + len(the))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["mask_token"] == "[MASK]" and settings["cls_token"] == "[CLS]"


def test_what_no_tokenizer_json_can_be(made):
    with pytest.raises(DataError, match=r"of kind words, which no tokenizer\.json can be"):
        exported.tokenizer_json(made(kind="words", vocab_size=20))


def test_a_model_that_rewrites_text_goes_with_t5_alone(tmp_path):
    hub.spiece(tmp_path)
    settings = SETTINGS | {"path": str(tmp_path / "spiece.model"), "sentinels": 4}
    own = folder.make_folder(tmp_path / "run" / "tokenizer", settings, {}, 0.0, print)
    source, out = tmp_path / "run" / "tokenizer", tmp_path / "out"
    out.mkdir()
    with pytest.raises(UserError, match="with T5 and mT5 alone"):
        interop.write(source, own, out, families.FAMILIES["gpt2"], 16)
    interop.write(source, own, out, families.FAMILIES["t5"], 16)
    assert json.loads((out / "tokenizer_config.json").read_text())["extra_ids"] == 4
    assert (out / "spiece.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()
    assert pipeline.open_tokenizer(source).vocab_size == own.vocab_size


@pytest.mark.parametrize(
    ("model_type", "special"),
    [
        ("gpt2", ()),
        ("openai-gpt", ()),
        ("ctrl", ()),
        ("albert", ("classifier", "separator", "mask")),
        ("bart", ("end", "classifier")),
        ("xlnet", ("separator", "classifier")),
        ("mbart", ("end", "mask", "en_XX", "fr_XX")),
        ("xlm", ("end", "mask", "pad")),
    ],
)
def test_a_tokenizer_made_here_comes_back_with_its_special_ids(made, model_type, special, tmp_path):
    source, out, family = made(special), tmp_path / "out", families.FAMILIES[model_type]
    own = saved.open_folder(source)
    out.mkdir()
    interop.write(source, own, out, family, 16)
    section = interop.section(out, family.tokenizers)
    roles = interop.roles(out, section, family, {})
    settings = {**SETTINGS, **section}
    back = folder.make_folder(tmp_path / "back", settings, {}, 0.0, print, special, roles=roles)
    assert back.special == own.special and back.vocab_size == own.vocab_size
    assert folder.make_folder(tmp_path / "back", settings, {}, 0.0, print, special).special == own.special  # goes on
    assert back.encode(TEXTS[0]).tolist() == own.encode(TEXTS[0]).tolist()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json", "config.json"])
def test_special_ids_by_what_they_are_for(file, tmp_path):
    """Not by the names, which are unusual."""
    hub.byte_level(tmp_path, ("</s>", "<begin>", "<stop>", "<hidden>", "<nothing>"))
    section = interop.section(tmp_path, ("huggingface",))
    named = {"bos_token": "<begin>", "eos_token": {"content": "<stop>"}, "mask_token": "<hidden>"}
    given = {"pad_token_id": 4, "cls_token_id": [1]}  # of several, none is meant
    if file == "config.json":
        given |= {"bos_token_id": 1, "mask_token_id": 3}
    else:
        (tmp_path / file).write_text(json.dumps(named))
    roles = interop.roles(tmp_path, section, families.FAMILIES["bart"], given)
    made = folder.make_folder(tmp_path / "run", {**SETTINGS, **section}, {}, 0.0, print, roles=roles)
    end = 0 if file == "config.json" else 2
    assert made.special == {"end": end, "classifier": 1, "mask": 3, "pad": 4, "separator": 0}
    unlike = folder.make_folder(tmp_path / "other", {**SETTINGS, **section}, {}, 0.0, print)
    assert unlike.special == {"end": 0, "separator": 0} and unlike.fingerprint != made.fingerprint


@pytest.mark.parametrize("model_type", ["gpt2", "openai-gpt"])
def test_a_begin_that_is_no_end(model_type, tmp_path):
    """What ends a text was once taken to be what begins one, where settings named both."""
    hub.byte_level(tmp_path, ("<s>", "<pad>", "</s>"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    section = interop.section(tmp_path, ("huggingface",))
    assert interop.roles(tmp_path, section, families.FAMILIES[model_type], {}) == {"end": "</s>"}


def test_padding_is_on_the_side_where_the_family_has_it(made, tmp_path):
    source = made(("end", "pad", "separator", "classifier", "mask"))
    for model_type, side in (("xlnet", "left"), ("gpt2", "right")):
        interop.write(source, saved.open_folder(source), tmp_path, families.FAMILIES[model_type], 16)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["padding_side"] == side


@pytest.mark.parametrize("count", [100.0, "4", -3, True])
def test_sentinels_that_are_no_number(count, tmp_path):
    hub.spiece(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": count}))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: extra_ids = {count!r} is no number of sentinels"):
        interop.section(tmp_path, ("sentencepiece",))


def test_sentinels_of_which_nothing_is_said_are_the_usual(tmp_path):
    hub.spiece(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": None}))
    assert interop.section(tmp_path, ("sentencepiece",))["sentinels"] == 100


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize("model_type", sorted(families.FAMILIES))
def test_a_tokenizer_that_frames_nothing_is_written_by_every_family(made, kind, model_type, tmp_path):
    """Of rows without separators, as those of layouts packed and concat are: its model read none."""
    source, family = made((), kind=kind), families.FAMILIES[model_type]
    own = saved.open_folder(source)
    interop.write(source, own, tmp_path, family, 16)
    model = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    known = {"$A": own.encode("the").tolist(), "end": [own.end_id]}
    single = family.template[0] if family.template else ["$A"]
    assert model.encode("the").ids == [i for part in single for i in known.get(part, ())]


def test_mbart_reads_an_end_and_a_code_behind_a_text(made, tmp_path):
    source = made(("end", "mask", "fr_XX", "en_XX"))
    own, family = saved.open_folder(source), families.FAMILIES["mbart"]
    special = interop.write(source, own, tmp_path, family, 16)
    model = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    code, the = own.special["fr_XX"], own.encode("the").tolist()
    assert model.encode("the").ids == [*the, own.end_id, code] and model.token_to_id("fr_XX") == code
    assert family.ids(special)["decoder_start_token_id"] == code
    assert family.ids(special)["forced_eos_token_id"] == own.end_id  # of the class it is 2, which is a piece here
    assert interop.codes(interop.section(tmp_path, family.tokenizers)) == ("fr_XX", "en_XX")


@pytest.mark.parametrize(
    ("model_type", "settings", "special", "pad"),
    [
        ("xlnet", {}, ("separator", "classifier"), "unknown"),
        ("gpt2", {}, (), "unknown"),
        ("gpt2", {"kind": "bytes"}, (), "end"),
        ("bert", {"kind": "wordpiece", "vocab_size": 120}, (), "pad"),
    ],
)
def test_a_tokenizer_made_here_has_what_pads(made, model_type, settings, special, pad, tmp_path):
    source, family = made(special, **settings), families.FAMILIES[model_type]
    own = saved.open_folder(source)
    assert family.ids(interop.write(source, own, tmp_path, family, 16))["pad_token_id"] == own.special[pad]
    token = json.loads((tmp_path / "tokenizer_config.json").read_text())["pad_token"]
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id(token) == own.special[pad]


@pytest.mark.parametrize(("model_type", "named"), [("gpt2", "be"), ("openai-gpt", "be"), ("ctrl", "e")])
def test_the_end_that_documents_have_is_named(made, model_type, named, tmp_path):
    """So that `generate` there ends a text, and a prompt can begin as a document does; CTRL's begins with a code."""
    source, family = made(()), families.FAMILIES[model_type]
    own = saved.open_folder(source)
    ids = family.ids(interop.write(source, own, tmp_path, family, 16))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    keys = {"b": "bos_token", "e": "eos_token"}
    assert {key for key in keys.values() if key in settings} == {keys[letter] for letter in named}
    assert {ids.get(f"{keys[letter]}_id") for letter in named} == {own.end_id}


def test_no_padding_is_not_that_of_the_class():
    assert families.FAMILIES["xlnet"].ids({"end": 2}) == {"eos_token_id": 2, "pad_token_id": None}


@pytest.mark.parametrize("content", ['{"a"', "[1]", '{"added_tokens": [{"content": "x"}]}'])
def test_a_damaged_tokenizer_json_is_one_sentence(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"is no tokenizer\.json of the library tokenizers; fetch it again"):
        interop.codes({"kind": "huggingface", "path": str(path)})


def test_files_that_one_class_reads_alone(tmp_path):
    """CTRL's and XLM's go back as they came; XLM's are refused unless texts are prepared."""
    for kind, settings in (("ctrl", "CTRLTokenizer"), ("xlm", "XLMTokenizer")):
        theirs, run, out = (tmp_path / kind / name for name in ("theirs", "run", "out"))
        theirs.mkdir(parents=True)
        out.mkdir()
        (theirs / "vocab.json").write_text(json.dumps({"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3, "a</w>": 4}))
        (theirs / "merges.txt").write_text("a b\nb c</w>\n")
        family = families.FAMILIES[kind]
        kinds = (*family.tokenizers, *family.files.values())
        if kind == "xlm":
            with pytest.raises(UserError, match=r"prepare all text with XLM's tools, and import with --prepared"):
                interop.section(theirs, kinds)
        section = interop.section(theirs, kinds, prepared=True)
        assert section == {"kind": kind, "path": str(theirs / "vocab.json"), "sentinels": 0}
        own = folder.make_folder(run, SETTINGS | section, {}, 0.0, print)
        interop.write(run, own, out, family, 16)
        assert json.loads((out / "tokenizer_config.json").read_text())["tokenizer_class"] == settings
        assert json.loads((out / "vocab.json").read_text()) == json.loads((theirs / "vocab.json").read_text())
        more = folder.make_folder(tmp_path / kind / "more", SETTINGS | section | {"sentinels": 2}, {}, 0.0, print)
        with pytest.raises(DataError, match=r"with ids on top of its file's \(<extra_id_1>, <extra_id_0>\), which its"):
            interop.write(tmp_path / kind / "more", more, out, family, 16)
