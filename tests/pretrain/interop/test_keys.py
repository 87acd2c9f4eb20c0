"""Keys of config.json, read without weights: of any value a sentence or a model, and what they are where absent."""

import json

import hub
import pytest

from configs.common import MODELS
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop.config_map import DTYPE, OUTSIDE, PLAIN

CASES = {  # of each model_type one; those of one family with other defaults too
    case: families.of_type(one["config"]["model_type"], one["shapes"], case)
    for case, one in hub.answers().items()
    if case not in ("bert_masked", "albert_masked", "mt5_tied")
}
VALUES = (None, "3", [1], {"a": [1]}, 0, -1, 0.5, 10**12, True)


def section(case, given):
    """The keys of our section that a config.json decides."""
    return CASES[case].keys.section(given, "config.json", MODELS[CASES[case].kind])


def config_of(case, **changes):
    return {**hub.answers()[case]["config"], **changes}


def known(family):
    keys = family.keys
    both = {key.theirs: "relu" if key.words else 1 for key in keys.both}
    return {*both, *keys.theirs({**keys.beside, **both}), *keys.beside, *keys.older, *keys.outside, *DTYPE}


@pytest.mark.parametrize("case", CASES)
def test_any_value_of_any_key_is_a_model_or_a_sentence(case):
    family = CASES[case]
    names = known(family) | ({*OUTSIDE, *PLAIN} if case == "bert" else set())
    refused = 0
    for name in sorted(names):
        for value in VALUES:
            given = config_of(case, **{name: value})
            try:
                family.settle(section(case, given), frozenset(hub.answers()[case]["shapes"]))
            except UserError as error:
                assert str(error).startswith("config.json"), (name, value)
                refused += 1
        given = config_of(case)
        given.pop(name, None)
        try:
            section(case, given)
        except UserError as error:
            assert "more than models here can do" in str(error), name
    assert refused > 5 * len(family.keys.both)


@pytest.mark.parametrize("value", VALUES)
def test_any_model_type_that_there_is_not_is_a_sentence(value):
    with pytest.raises(UserError, match=r"model_type = .* cannot be imported"):
        families.of_type(value, (), "config.json")


@pytest.mark.parametrize(
    ("case", "keys", "words"),
    [
        ("xlm", {"n_langs": "2"}, "n_langs = '2' is no int; correct it"),
        ("xlm", {"n_langs": [2]}, "n_langs = [2] is no int; correct it"),
        ("xlm", {"use_lang_emb": "yes"}, "use_lang_emb = 'yes' is no bool; correct it"),
        ("xlnet", {"n_head": 0}, "n_head = 0; it must be at least 1"),
        ("xlnet", {"d_model": "14"}, "d_model = '14' is no int; correct it"),
        ("t5", {"feed_forward_proj": 3}, "feed_forward_proj = 3 is no str; correct it"),
        ("t5", {"pad_token_id": [1]}, "pad_token_id = [1] is no int; correct it"),
        (
            "bert",
            {"pruned_heads": {"0": [1]}},
            "pruned_heads = {'0': [1]} is more than models here can do, which have {}",
        ),
        ("bart", {"decoder_attention_heads": None}, "decoder_attention_heads = 16 is more than models here can do"),
    ],
)
def test_values_that_models_do_not_have(case, keys, words):
    with pytest.raises(UserError) as error:
        section(case, config_of(case, **keys))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("albert", {"width": 4096, "heads": 64, "ff": 16384, "layers": 12, "embed": 128}),
        ("bart", {"layers": 12, "decoder_layers": 0, "heads": 16, "ff": 4096, "width": 1024}),
        ("bert", {"width": 768, "heads": 12, "ff": 3072, "vocab_size": 30522}),
        ("camembert", {"vocab_size": 30522, "context": 510}),
        ("gpt2", {"width": 768, "ff": 3072, "tied_head": True}),
        ("mt5", {"vocab_size": 250112, "layers": 8, "heads": 6, "ff": 1024, "activation": "gated_gelu_tanh"}),
        ("roberta", {"vocab_size": 50265, "context": 510}),
        ("t5", {"layers": 6, "decoder_layers": 0, "activation": "relu", "tied_head": True}),
        ("xlm", {"vocab_size": 30145, "languages": 0, "width": 2048}),
        ("xlm-roberta", {"vocab_size": 30522, "context": 510}),
        ("xlnet", {"width": 1024, "heads": 16, "activation": "gelu_erf"}),
    ],
)
def test_keys_that_are_not_there(model_type, expected):
    """They are what the class has without them."""
    keys, kind = families.TYPES[model_type].keys, families.TYPES[model_type].kind
    found = keys.section({"model_type": model_type}, "config.json", MODELS[kind])
    assert expected == {name: found[name] for name in expected}


@pytest.mark.parametrize(
    ("case", "absent", "expected"),
    [
        ("bart", "decoder_layers", {"layers": 2, "decoder_layers": 12}),  # not as many as the encoder
        ("bart", "decoder_attention_heads", "decoder_attention_heads = 16 where it is not there is more than"),
        ("mbart", "decoder_ffn_dim", "decoder_ffn_dim = 4096 where it is not there is more than"),
        ("t5", "num_decoder_layers", {"layers": 2, "decoder_layers": 0}),
        ("xlnet", "d_head", {"width": 14, "heads": 7}),
    ],
)
def test_one_key_that_is_not_there(case, absent, expected):
    given = {name: value for name, value in config_of(case).items() if name != absent}
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            section(case, given)
    else:
        found = section(case, given)
        assert expected == {name: found[name] for name in expected}


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", CASES)
def test_absent_keys_are_what_their_class_has(case):
    """Each in turn, and all of them: what is read is what is read of the file that their class makes of it."""
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    errors = pytest.importorskip("huggingface_hub.errors", reason="parity with Hugging Face needs the extra 'oracle'")
    whole = config_of(case)
    kind = transformers.CONFIG_MAPPING[whole["model_type"]]

    def read(given):
        try:
            return section(case, {"model_type": whole["model_type"], **given})
        except UserError as error:
            return str(error).replace(" where it is not there", "")

    for absent in (None, *whole, whole):
        given = {} if absent is whole else {name: value for name, value in whole.items() if name != absent}
        try:
            made = kind(**{name: given[name] for name in given if name != "model_type"})
        except errors.StrictDataclassError:  # which names no key that we could hold ours against
            assert isinstance(read(given), str), absent
            continue
        made = json.loads(made.to_json_string(use_diff=False))
        made = {name: value for name, value in made.items() if name in known(CASES[case]) | OUTSIDE | {*PLAIN}}
        assert read(given) == read(made), absent
