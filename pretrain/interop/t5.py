"""T5 1.0 and 1.1, and mT5: `T5ForConditionalGeneration`, `MT5ForConditionalGeneration`."""

import dataclasses
from collections.abc import Mapping

from pretrain.interop.config_map import ACTIVATIONS, Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import TRANSPOSE, under

GATED = "gated-"
# "gated-gelu" is the tanh approximation in T5's classes, though "gelu" alone is exact.
WORDS = {
    **ACTIVATIONS,
    "gated-gelu": "gated_gelu_tanh",
    **{f"{GATED}{name}": f"gated_{ours}" for name, ours in ACTIVATIONS.items() if name != "gelu"},
}
ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
BRANCHES = {"attention": "SelfAttention", "cross_attention": "EncDecAttention"}
STACKS = {"encoder": ("attention",), "decoder": ("attention", "cross_attention")}


def _names(section: Mapping) -> dict[str, str]:
    names = {"tokens": "shared.weight", "head": "lm_head.weight"}
    # A gated layer has two input kernels: wi_0 goes through the activation and multiplies wi_1.
    gated = section["activation"].startswith("gated_")
    feed_forward = {"gate": "wi_0", "in": "wi_1" if gated else "wi", "out": "wo"}
    for stack, branches in STACKS.items():
        layer = {}
        for number, branch in enumerate(branches):
            layer |= under(f"{branch}/", f"{number}.{BRANCHES[branch]}.", ATTENTION)
            layer |= {f"{branch}_norm": f"{number}.layer_norm"}
        last = len(branches)
        layer |= under("feed_forward/", f"{last}.DenseReluDense.", feed_forward)
        layer |= {"feed_forward_norm": f"{last}.layer_norm"}
        names |= under(f"{stack}/layers/", f"{stack}.block.{{layer}}.layer.", layer) | {
            f"{stack}_norm": f"{stack}.final_layer_norm",
            # All layers of a stack share one table of distances, stored in the first layer.
            f"{stack}_bias": f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        }
    return names


def _activation_fixed(given: Mapping) -> dict[str, tuple]:
    """Newer files repeat `feed_forward_proj` in two more keys."""
    name = given["feed_forward_proj"]
    return {
        "is_encoder_decoder": (True, False),  # False in files of the encoder alone
        "decoder_start_token_id": (given["pad_token_id"], None),
        "is_gated_act": (name.startswith(GATED),),
        "dense_act_fn": ("gelu_new" if name == f"{GATED}gelu" else name.removeprefix(GATED),),
    }


def _t5_fixed(given: Mapping) -> dict[str, tuple]:
    # An untied head is not scaled. Newer files have both keys, older ones only the second.
    return _activation_fixed(given) | {"tie_word_embeddings": (given["scale_decoder_outputs"], True)}


def _mt5_fixed(given: Mapping) -> dict[str, tuple]:
    # The released files have an untied head and say so; the class says True whatever it loaded.
    return _activation_fixed(given) | {"tie_word_embeddings": (given["tie_word_embeddings"], True, False)}


def _one_dropout(section: Mapping) -> dict:
    """T5 has one dropout rate for all places."""
    return dict.fromkeys(("dropout_attention", "dropout_ff", "dropout_hidden"), section["dropout"])


def _keys(vocab_size: int, context: int, layers: int, heads: int, ff: int, activation: str) -> tuple[Key, ...]:
    """Keys of both classes, with the defaults of one."""
    return (
        Key("vocab_size", "vocab_size", vocab_size),
        Key("n_positions", "context", context),  # a length of rows: the network only sees distances
        Key("d_model", "width", 512),
        Key("num_layers", "layers", layers),
        Key("num_decoder_layers", "decoder_layers", lambda given: given["num_layers"], same_as="layers"),
        Key("num_heads", "heads", heads),
        Key("d_kv", "head_size", 64),
        Key("d_ff", "ff", ff),
        Key("relative_attention_num_buckets", "buckets", 32),
        Key("relative_attention_max_distance", "max_distance", 128),
        Key("feed_forward_proj", "activation", activation, WORDS),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-6),
        Key("dropout_rate", "dropout", 0.1),
        Key("initializer_factor", "init_scale", 1.0),
    )


T5 = Family(
    model_type="t5",
    kind="encoder_decoder",
    recipe="configs/t5.py",
    architecture=lambda section: "T5ForConditionalGeneration",
    names=_names,
    stacks=("encoder.", "decoder."),
    head_prefix="lm_head.",
    layouts={"encoder_bias": TRANSPOSE, "decoder_bias": TRANSPOSE},
    tied=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
    fallbacks={"lm_head.weight": "shared.weight"},
    # The first releases hold a table of distances for cross-attention, which nothing reads.
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    keys=(
        *_keys(vocab_size=32_128, context=512, layers=6, heads=8, ff=2048, activation="relu"),
        Key("scale_decoder_outputs", "tied_head", lambda given: given["tie_word_embeddings"]),
    ),
    hf_fixed=_t5_fixed,
    fixed=_one_dropout,
    extra={"pad_token_id": 0, "tie_word_embeddings": True},
    tokenizers=("sentencepiece", "huggingface"),
    special=roles(pad="pad", eos="end", unk="unknown"),
    generation=roles(decoder_start="pad"),
    template=(("$A", "end"), ("$A", "end", "$B", "end")),
)
# mT5 is T5 1.1 without head scaling; that tells the two apart on export.
MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    recipe="configs/t5.py:base_v1_1",
    architecture=lambda section: "MT5ForConditionalGeneration",
    keys=(
        # Rows of 1,024 tokens (Xue et al. 2021, section 3.2); config.json does not say.
        *_keys(vocab_size=250_112, context=1024, layers=8, heads=6, ff=1024, activation="gated-gelu"),
        Key("tie_word_embeddings", "tied_head", True),
    ),
    hf_fixed=_mt5_fixed,
    fixed=lambda section: _one_dropout(section) | {"scale_head": False},
    extra={"pad_token_id": 0},
    # A head in the files is mT5's own; without one the token table is used, unscaled too.
    settle=lambda section, names: section | {"tied_head": not any(name.endswith("lm_head.weight") for name in names)},
)
