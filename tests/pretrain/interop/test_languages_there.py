"""Languages that an imported model is told are its own, in their order, and go back with it."""

import json

import hub
import pytest
import tokenizers

import pretrain
from pretrain.errors import UserError
from pretrain.interop.hf_import import import_folder


def xlm(folder, **keys):
    config = {**hub.answers()["xlm_languages"]["config"], **keys}
    return hub.make(folder, "xlm_languages", config=config)


@pytest.mark.parametrize(
    "keys",
    [
        {"id2lang": {"2": "fr", "0": "de", "1": "it"}, "lang2id": {"fr": 2, "de": 0, "it": 1}},
        {"lang2id": {"fr": 2, "de": 0, "it": 1}},
    ],
)
def test_xlm_has_the_names_of_its_table(keys, tmp_path):
    config = import_folder(str(xlm(tmp_path / "theirs", **keys)), str(tmp_path / "run"))
    assert config.data.languages == ("de", "it", "fr") and config.objective.languages
    assert config.data.train.count("language=") == 3 and "language=it" in config.data.train
    pretrain.to_huggingface(tmp_path / "run", tmp_path / "back")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["id2lang"] == {"0": "de", "1": "it", "2": "fr"} and written["n_langs"] == 3
    assert written["lang2id"] == {"de": 0, "it": 1, "fr": 2}


def test_xlm_without_names_has_numbers(tmp_path):
    config = import_folder(str(xlm(tmp_path / "theirs", id2lang=None, lang2id=None)), str(tmp_path / "run"))
    assert config.data.languages == ("0", "1", "2")


@pytest.mark.parametrize("names", [{"0": "en", "1": "fr"}, {"0": "en", "1": "fr", "2": "en"}])
def test_xlm_whose_names_are_not_those_of_its_table(names, tmp_path):
    with pytest.raises(UserError, match="n_langs = 3, and id2lang = "):
        import_folder(str(xlm(tmp_path / "theirs", id2lang=names)), str(tmp_path / "run"))


def test_mbart_has_the_codes_of_its_tokenizer(tmp_path):
    theirs = hub.make(tmp_path / "theirs", "mbart")
    model = tokenizers.Tokenizer.from_file(str(theirs / "tokenizer.json"))
    model.add_special_tokens(["it_IT", "en_XX"])
    model.save(str(theirs / "tokenizer.json"))
    config = import_folder(str(theirs), str(tmp_path / "run"))
    assert config.data.languages == config.objective.languages == ("it_IT", "en_XX")
    pretrain.to_huggingface(tmp_path / "run", tmp_path / "back")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["decoder_start_token_id"] == model.token_to_id("it_IT")
    said = []
    again = import_folder(str(tmp_path / "back"), str(tmp_path / "again"), said.append)
    assert again.to_dict()["objective"] == config.to_dict()["objective"]
    assert not [line for line in said if line.startswith("left out how text is written")]
    written["decoder_start_token_id"] = model.token_to_id("en_XX")  # which the tokenizer puts behind no text
    (tmp_path / "back" / "config.json").write_text(json.dumps(written))
    import_folder(str(tmp_path / "back"), str(tmp_path / "other"), said.append)
    told = [line for line in said if line.startswith("left out how text is written")]
    assert len(told) == 1 and "decoder_start_token_id of config.json" in told[0]
