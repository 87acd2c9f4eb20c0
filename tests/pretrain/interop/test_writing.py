"""What an import leaves out of how text is written there, and how much is remembered: a line that names it."""

import json

import hub
import pytest

from pretrain.errors import UserError
from pretrain.interop.generation_config import left_out
from pretrain.interop.hf_import import import_folder

SAID = "; `pretrain generate` has flags for what it can do"


@pytest.fixture
def lines(tmp_path):
    """`lines(case, beside, **keys)`: what the import of a folder says is left out."""

    def make(case, beside=None, **keys):
        folder = hub.make(tmp_path / "theirs", case, config={**hub.answers()[case]["config"], **keys})
        if beside is not None:
            text = beside if isinstance(beside, str) else json.dumps(beside)
            (folder / "generation_config.json").write_text(text)
        said = []
        import_folder(str(folder), str(tmp_path / "run"), said.append)
        return [line for line in said if line.startswith("left out")]

    return make


def test_settings_of_config_json(lines):
    asked = {"forced_bos_token_id": 0, "num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 56, "max_length": 142}
    asked |= {"early_stopping": True, "task_specific_params": {"summarization": {"num_beams": 4}}}
    names = "max_length, min_length, early_stopping, num_beams, no_repeat_ngram_size, forced_bos_token_id"
    there = f"{names}, task_specific_params of config.json"
    assert lines("bart", **asked) == [f"left out how text is written there: {there}{SAID}"]


def test_settings_of_the_file_beside_it(lines):
    beside = {"_from_model_config": True, "transformers_version": "5.23.0", "eos_token_id": 0, "max_new_tokens": 50}
    beside |= {"temperature": 0.7, "top_k": 50, "bad_words_ids": None, "pad_token_id": 5}
    there = "do_sample of config.json; max_new_tokens, temperature, pad_token_id of generation_config.json"
    assert lines("gpt2", beside, do_sample=True) == [f"left out how text is written there: {there}{SAID}"]


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("gpt2", {"max_length": 20, "num_beams": 1, "early_stopping": False, "bad_words_ids": None, "prefix": ""}),
        ("bart", {"decoder_start_token_id": 2, "forced_eos_token_id": 2}),  # which are the end's here too
        ("t5", {"decoder_start_token_id": 0}),
    ],
)
def test_what_asks_for_nothing_is_not_told(case, keys, lines):
    assert lines(case, {"_from_model_config": True, **keys}, **keys) == []


@pytest.mark.parametrize("end", [246, [0, 246]], ids=str)
def test_another_end_is_told_wherever_it_is(end, lines):
    there = "eos_token_id of config.json; eos_token_id of generation_config.json"
    assert lines("gpt2", {"eos_token_id": end}, eos_token_id=end) == [
        f"left out how text is written there: {there}{SAID}"
    ]


def test_another_beginning_is_told(lines):
    """Here a prompt begins with the end, as a document does."""
    assert lines("gpt2", bos_token_id=5) == [f"left out how text is written there: bos_token_id of config.json{SAID}"]


@pytest.mark.parametrize("end", [5, [5, 7]], ids=str)
def test_an_end_is_told_where_the_tokenizer_has_none(end, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    there = "eos_token_id of config.json; eos_token_id of generation_config.json"
    told = left_out({"eos_token_id": end}, tmp_path, {"pad_token_id": None})
    assert told == f"left out how text is written there: {there}{SAID}"
    told = left_out({}, tmp_path, {"pad_token_id": None})
    assert told == f"left out how text is written there: eos_token_id of generation_config.json{SAID}"


@pytest.mark.parametrize("content", ['{"num_beams"', "[1]"])
def test_a_damaged_file(content, lines, tmp_path):
    with pytest.raises(UserError, match=r"generation_config\.json is not readable JSON of an object; fetch it again"):
        lines("gpt2", content)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"mem_len": 512, "reuse_len": None}, "mem_len = 512"),
        ({"mem_len": 512, "reuse_len": 128}, "mem_len = 512, reuse_len = 128"),
        ({"mem_len": None, "reuse_len": None}, ""),
    ],
)
def test_how_much_xlnet_remembers(keys, asked, lines):
    kept = "the recipe's are kept, config.model.memory = 384, config.model.reuse = 256"
    assert lines("xlnet", **keys) == ([f"left out {asked}: {kept}"] if asked else [])
