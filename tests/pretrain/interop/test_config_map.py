"""config.json keys, read without weights: defaults, allowed values and unknown keys."""

import json

import hub
import pytest

from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop.config_map import DTYPE_KEYS, IGNORED, UNSUPPORTED

CASES = {  # one of each model_type, and those with other defaults
    case: families.of_config(one["config"], one["shapes"], case)
    for case, one in hub.answers().items()
    if case not in ("bert_masked", "albert_masked", "mt5_tied")
}


def section(case, given):
    return CASES[case].to_section(given, "config.json")


def known(family):
    keys = {key.hf: "relu" if key.words else 1 for key in family.keys}
    fixed = family.hf_fixed({**family.extra, **keys})
    return {*keys, *fixed, *family.extra, *family.legacy, *family.ignored_keys, *DTYPE_KEYS, *IGNORED, *UNSUPPORTED}


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("gpt2", {"activation_function": "mish"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"rope_theta": 10000.0}),
        ("gpt2", {"dtype": "float8"}),
        ("bert", {"is_decoder": True}),
        ("bert", {"pruned_heads": {"0": [1]}}),
        ("bert", {"type_vocab_size": 0}),
        ("roberta", {"hidden_act": "gelu_new"}),
        ("roberta", {"pad_token_id": 0}),
        ("albert", {"layers_to_keep": [0, 2]}),
        ("xlm", {"sinusoidal_embeddings": True}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),  # without its bounds
        ("xlnet", {"bi_data": True}),
        ("t5", {"feed_forward_proj": "gated-mish"}),
        ("t5", {"decoder_start_token_id": 2}),
        ("mt5", {"dense_act_fn": "gelu"}),
        ("bart", {"decoder_attention_heads": None}),  # 16 by default, whatever the encoder has
        ("bart", {"normalize_before": True}),
    ],
)
def test_to_section_refuses(case, keys):
    with pytest.raises(UserError, match=f"config.json: {next(iter(keys))}="):
        section(case, hub.answers()[case]["config"] | keys)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("bart", {"normalize_embedding": True, "normalize_before": False, "extra_pos_embeddings": 2}),
        ("mbart", {"normalize_before": True, "add_final_layer_norm": True, "normalize_embedding": True}),
        ("distilbert", {"tie_weights_": True}),
        ("qwen2", {"use_mrope": False, "unsloth_fixed": True}),
        ("llama", {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": None, "pretraining_tp": 2}),
        ("qwen2", {"rope_parameters": None, "rope_theta": 50, "rope_scaling": {"type": "linear", "factor": 2.5}}),
        ("qwen2", {"layer_types": None}),
    ],
)
def test_to_section_accepts_legacy_keys(case, keys):
    given = hub.answers()[case]["config"]
    assert section(case, given | keys) == section(case, given)


@pytest.mark.parametrize("model_type", ["gpt3", None])
def test_of_config_unknown_model_type(model_type):
    with pytest.raises(UserError):
        families.of_config({"model_type": model_type}, (), "config.json")


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("albert", {"width": 4096, "heads": 64, "ff": 16384, "layers": 12, "embed": 128, "activation": "gelu_tanh"}),
        ("bart", {"layers": 12, "decoder_layers": 0, "heads": 16, "ff": 4096, "width": 1024}),
        ("bert", {"width": 768, "heads": 12, "ff": 3072, "vocab_size": 30522}),
        ("camembert", {"vocab_size": 30522, "context": 510}),
        ("gemma", {"kv_heads": 0, "head_size": 256, "tied_head": True, "norm_offset": 1.0}),
        ("gpt2", {"width": 768, "ff": 3072, "tied_head": True}),
        ("mistral", {"kv_heads": 8, "attention": ("local_4096",), "head_size": 0, "rope_scaling": ()}),
        ("mt5", {"vocab_size": 250112, "layers": 8, "heads": 6, "ff": 1024, "activation": "gated_gelu_tanh"}),
        ("roberta", {"vocab_size": 50265, "context": 510}),
        ("t5", {"layers": 6, "decoder_layers": 0, "activation": "relu", "tied_head": True}),
        ("xlm", {"vocab_size": 30145, "languages": 0, "width": 2048}),
        ("xlnet", {"width": 1024, "heads": 16, "activation": "gelu_erf"}),
    ],
)
def test_to_section_defaults(model_type, expected):
    fields = families.MODEL_TYPES[model_type].to_section({"model_type": model_type}, "config.json")
    assert expected == {name: fields[name] for name in expected}


@pytest.mark.parametrize(
    ("case", "absent", "expected"),
    [
        ("bart", "decoder_layers", {"layers": 2, "decoder_layers": 12}),  # not as many as the encoder
        ("t5", "num_decoder_layers", {"layers": 2, "decoder_layers": 0}),
        ("xlnet", "d_head", {"width": 14, "heads": 7}),
    ],
)
def test_to_section_one_default(case, absent, expected):
    given = {name: value for name, value in hub.answers()[case]["config"].items() if name != absent}
    fields = section(case, given)
    assert expected == {name: fields[name] for name in expected}


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", CASES)
def test_to_section_defaults_are_those_of_the_class(case):
    """Without each key in turn, and without all: as the config that the class makes of the same file."""
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    errors = pytest.importorskip("huggingface_hub.errors", reason="parity with Hugging Face needs the extra 'oracle'")
    whole = hub.answers()[case]["config"]
    kind = transformers.CONFIG_MAPPING[whole["model_type"]]

    def read(given):
        try:
            return section(case, {"model_type": whole["model_type"], **given})
        except UserError as error:
            return str(error)

    for absent in (None, *whole, whole):
        given = {} if absent is whole else {name: value for name, value in whole.items() if name != absent}
        try:
            config = kind(**{name: given[name] for name in given if name != "model_type"})
        except errors.StrictDataclassError:
            continue
        keys = json.loads(config.to_json_string(use_diff=False))
        assert read(given) == read({name: value for name, value in keys.items() if name in known(CASES[case])}), absent


def test_rope_scaling_beside_rope_parameters():
    """Transformers reads `rope_scaling` where a file has both; the rate may stand in either."""
    given = hub.answers()["llama"]["config"] | {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}
    read = section("llama", given | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    assert (read["rope_scaling"], read["rope_theta"]) == ((4.0,), 50.0)
