"""BART and mBART, which is pre-norm: `BartForConditionalGeneration`, `MBartForConditionalGeneration`."""

from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from input_pipeline.tokenizers.export import LANGUAGE
from pretrain.interop.config_map import ACTIVATIONS, Key
from pretrain.interop.family import MASK_ROLES, Family, roles
from pretrain.interop.weight_map import under

OFFSET = 2  # unused first rows of the position tables, as in fairseq
ATTENTION = {
    "/query": ".q_proj",
    "/key": ".k_proj",
    "/value": ".v_proj",
    "/output": ".out_proj",
    "_norm": "_layer_norm",
}
ENCODER = under("attention", "self_attn", ATTENTION) | {
    "feed_forward/in": "fc1",
    "feed_forward/out": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
STACKS = {"encoder": ENCODER, "decoder": ENCODER | under("cross_attention", "encoder_attn", ATTENTION)}
NAMES = {"tokens": "model.shared.weight"}
for _stack, _layer in STACKS.items():
    NAMES |= under(f"{_stack}/layers/", f"model.{_stack}.layers.{{layer}}.", _layer) | {
        f"{_stack}_positions": f"model.{_stack}.embed_positions.weight",
        f"{_stack}_embedding_norm": f"model.{_stack}.layernorm_embedding",
        f"{_stack}_norm": f"model.{_stack}.layer_norm",  # ends mBART's stacks, which are pre-norm
    }


def _hf_fixed(given: Mapping) -> dict[str, tuple]:
    return {
        "is_encoder_decoder": (True, False),  # False, and is_decoder, in files of the decoder alone
        "is_decoder": (False, True),
        "decoder_attention_heads": (given["encoder_attention_heads"],),
        "decoder_ffn_dim": (given["encoder_ffn_dim"],),
        "num_hidden_layers": (given["encoder_layers"], None),  # another name of encoder_layers
        "encoder_layerdrop": (0.0,),
        "decoder_layerdrop": (0.0,),
        "tie_word_embeddings": (True,),
    }


def _bart_fixed(given: Mapping) -> dict[str, tuple]:
    # Our decoder starts with the end token, as fairseq's.
    return _hf_fixed(given) | {"decoder_start_token_id": (given["eos_token_id"], None)}


KEYS = (
    Key("vocab_size", "vocab_size", 50_265),
    Key("max_position_embeddings", "context", 1024),
    Key("d_model", "width", 1024),
    Key("encoder_layers", "layers", 12),
    Key("decoder_layers", "decoder_layers", 12, same_as="layers"),
    Key("encoder_attention_heads", "heads", 16),
    Key("encoder_ffn_dim", "ff", 4096),
    Key("activation_function", "activation", "gelu", ACTIVATIONS),
    Key("scale_embedding", "scale_embedding", False),
    Key("dropout", "dropout", 0.1),
    Key("attention_dropout", "dropout_attention", 0.0),
    Key("activation_dropout", "dropout_ff", 0.0),
    Key("init_std", "init_scale", 0.02),
)
EXTRA = {"decoder_attention_heads": 16, "decoder_ffn_dim": 4096}  # the class's defaults, whatever the encoder has
# In the first files one class was BART, mBART and Blenderbot; no class reads these keys now.
LEGACY = {
    "add_bias_logits": (False,),
    "normalize_embedding": (True,),
    "static_position_embeddings": (False,),
    "extra_pos_embeddings": (OFFSET,),
    "do_blenderbot_90_layernorm": (False,),
}
IGNORED = ("force_bos_token_to_be_generated", "save_step")


def _fixed(section: Mapping) -> dict:
    return {
        "norm": "layer",
        "norm_epsilon": 1e-5,
        "placement": "post",
        "final_norm": False,
        "embedding_norm": True,
        "positions": "learned",
        "position_offset": OFFSET,
        "head_size": section["width"] // section["heads"],
        "dropout_hidden": 0.0,
        **dict.fromkeys(("attention_bias", "ff_bias", "scale_scores"), True),
        "scale_head": False,
    }


def _complete_mbart(config: ConfigDict, given: Mapping, codes: Sequence[str], untrained: Collection[str]) -> None:
    """Texts are of the languages whose codes the tokenizer has, one file each."""
    texts = [f"text:data/cc25/{code.split('_')[0]}.txt?document=line&language={code}" for code in codes]
    config.objective.languages = config.data.languages = tuple(codes)
    config.data.train = " + ".join(texts) or "text:data/cc25/*.txt?document=line"


COMMON = {
    "kind": "encoder_decoder",
    "names": NAMES,
    "prefix": "model.",
    "stacks": ("model.encoder.", "model.decoder."),
    "tied": dict.fromkeys(
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "model.shared.weight",
    ),
    "ignored": ("final_logits_bias",),
    "zeros": ("final_logits_bias",),
    "keys": KEYS,
    # Any value: these models have no relative positions.
    "allowed": lambda section: {name: (section[name],) for name in ("buckets", "max_distance")},
    "special": roles(bos="classifier", eos="end") | MASK_ROLES,
}
BART = Family(
    model_type="bart",
    recipe="configs/bart.py",
    architecture=lambda section: "BartForConditionalGeneration",
    hf_fixed=_bart_fixed,
    fixed=_fixed,
    extra=EXTRA | {"eos_token_id": 2, "decoder_start_token_id": 2},
    legacy=LEGACY | {"normalize_before": (False,), "add_final_layer_norm": (False,)},
    ignored_keys=IGNORED,
    generation=roles(decoder_start="end", forced_eos="end"),
    template=(("classifier", "$A", "end"), ("classifier", "$A", "end", "end", "$B", "end")),
    **COMMON,
)
MBART = Family(
    model_type="mbart",
    recipe="configs/mbart.py",
    architecture=lambda section: "MBartForConditionalGeneration",
    hf_fixed=_hf_fixed,
    fixed=lambda section: _fixed(section) | {"placement": "pre", "final_norm": True},
    extra=EXTRA,
    legacy=LEGACY | {"normalize_before": (True,), "add_final_layer_norm": (True,)},
    ignored_keys=("decoder_start_token_id", *IGNORED),  # a language code, which the tokenizer has
    generation=roles(decoder_start=LANGUAGE, forced_eos="end"),
    template=(("$A", "end", LANGUAGE), ("$A", "$B", "end", LANGUAGE)),
    complete=_complete_mbart,
    **COMMON,
)
