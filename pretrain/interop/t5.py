"""T5, versions 1.0 and 1.1: `T5ForConditionalGeneration`; and mT5, which is 1.1 with words of many languages:
`MT5ForConditionalGeneration`. A stack's table of distances lies in its first layer.
"""

import dataclasses
from collections.abc import Mapping

from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import OUTPUTS_FIRST, SAME, TURNED, Row, linear, norms, rows

GATED = "gated-"
# "gated-gelu" is read as version 1.1 has it, with tanh; the word for erf is another one there.
WORDS = {
    **ACTIVATIONS,
    "gated-gelu": "gated_gelu_tanh",
    **{f"{GATED}{there}": f"gated_{ours}" for there, ours in ACTIVATIONS.items() if there != "gelu"},
}


def _rows(section: Mapping) -> list[Row]:
    table = rows(SAME, ("shared.weight", "tokens"))
    if not section["tied_head"]:
        table.append(Row("lm_head.weight", ("head",), SAME, otherwise="shared.weight"))
    gated = section["activation"].startswith("gated_")
    for stack, branches in (
        ("encoder", (("SelfAttention", "attention"),)),
        ("decoder", (("SelfAttention", "attention"), ("EncDecAttention", "cross_attention"))),
    ):
        block = f"{stack}.block.{{layer}}.layer."
        own = f"{stack}/layers"
        for number, (there, name) in enumerate(branches):
            parts = [(f"{block}{number}.{there}.{one[0]}", f"{own}/{name}/{one}") for one in ("query", "key", "value")]
            parts.append((f"{block}{number}.{there}.o", f"{own}/{name}/output"))
            table += linear(OUTPUTS_FIRST, *parts, bias=False)
            table += norms((f"{block}{number}.layer_norm", f"{own}/{name}_norm"), bias=False)
        last = f"{block}{len(branches)}"
        wide = (("wi_0", "gate"), ("wi_1", "in")) if gated else (("wi", "in"),)
        for there, name in (*wide, ("wo", "out")):
            table += linear(OUTPUTS_FIRST, (f"{last}.DenseReluDense.{there}", f"{own}/feed_forward/{name}"), bias=False)
        table += norms((f"{last}.layer_norm", f"{own}/feed_forward_norm"), bias=False)
        table += norms((f"{stack}.final_layer_norm", f"{stack}_norm"), bias=False)
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table += rows(TURNED, (bias, f"{stack}_bias"))
    return table


def _gated(given: Mapping) -> dict[str, tuple]:
    """What newer files say of the feed-forward besides its name."""
    named = given["feed_forward_proj"]
    plain = named.removeprefix(GATED)
    return {
        "is_encoder_decoder": (True,),
        "decoder_start_token_id": (given["pad_token_id"], None),
        "is_gated_act": (named.startswith(GATED),),
        "dense_act_fn": ("gelu_new" if named == f"{GATED}gelu" else plain,),
    }


def _theirs(given: Mapping) -> dict[str, tuple]:
    # A head of its own is not scaled. Newer files say both, older ones the second alone.
    return _gated(given) | {"tie_word_embeddings": (given["scale_decoder_outputs"], True)}


def _theirs_of_mt5(given: Mapping) -> dict[str, tuple]:
    # The released files have a head of their own and say so, the class ties and says so whatever it loaded.
    return _gated(given) | {"tie_word_embeddings": (given["tie_word_embeddings"], True, False)}


def _ours(section: Mapping) -> dict[str, tuple]:
    plain = ("attention_bias", "ff_bias", "head_bias", "embedding_norm", "scale_embedding", "scale_scores")
    return dict.fromkeys(plain, (False,)) | {
        "norm": ("rms",),
        "placement": ("pre",),
        "final_norm": (True,),
        "positions": ("buckets",),
        "position_offset": (0,),
        "scale_head": (True,),
        "attention": (("dense",) * len(section["attention"]),),
        **dict.fromkeys(("dropout_attention", "dropout_ff", "dropout_hidden"), (section["dropout"],)),
    }


def _settle(section: dict, names: frozenset) -> dict:
    """There is one rate for all places."""
    return section | dict.fromkeys(("dropout_attention", "dropout_ff", "dropout_hidden"), section["dropout"])


def _settle_mt5(section: dict, names: frozenset) -> dict:
    """A head in the files is its own; without one the token table is, which is not scaled either."""
    return _settle(section, names) | {"tied_head": "lm_head.weight" not in names, "scale_head": False}


def _keys(vocab_size: int, context: int, layers: int, heads: int, ff: int, activation: str) -> tuple[Key, ...]:
    """Keys of both classes, with one's defaults of those that differ."""
    return (
        Key("vocab_size", "vocab_size", vocab_size),
        Key("n_positions", "context", context),  # no part of the network, which looks at distances alone
        Key("d_model", "width", 512),
        Key("num_layers", "layers", layers),
        Key("num_decoder_layers", "decoder_layers", lambda given: given["num_layers"], like="layers"),
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
    keys=Keys(
        both=(
            *_keys(vocab_size=32_128, context=512, layers=6, heads=8, ff=2048, activation="relu"),
            Key("scale_decoder_outputs", "tied_head", lambda given: given["tie_word_embeddings"]),
        ),
        theirs=_theirs,
        ours=_ours,
        beside={"pad_token_id": 0, "tie_word_embeddings": True},
        outside=("output_past",),  # what is returned
    ),
    rows=_rows,
    tokenizers=("sentencepiece", "huggingface"),
    special={"pad_token": "pad", "eos_token": "end", "unk_token": "unknown"},
    writes={"decoder_start_token": "pad"},
    template=(("$A", "end"), ("$A", "end", "$B", "end")),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    settle=_settle,
    # The first releases hold a table for cross-attention, which nothing reads.
    buffers=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
# Version 1.1's network, whose class scales nothing (`scale_head`): by that a model is this one on the way out.
MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    recipe="configs/t5.py:base_v1_1",
    architecture=lambda section: "MT5ForConditionalGeneration",
    keys=Keys(
        both=(
            # Its text was read in rows of 1,024 (Xue et al. 2021, section 3.2); no file says so.
            *_keys(vocab_size=250_112, context=1024, layers=8, heads=6, ff=1024, activation="gated-gelu"),
            Key("tie_word_embeddings", "tied_head", True),
        ),
        theirs=_theirs_of_mt5,
        ours=lambda section: _ours(section) | {"scale_head": (False,)},
        beside={"pad_token_id": 0},
        outside=T5.keys.outside,
    ),
    settle=_settle_mt5,
)
