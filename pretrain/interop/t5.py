"""T5, versions 1.0 and 1.1: `T5ForConditionalGeneration`. A stack's table of distances lies in its first layer."""

from collections.abc import Mapping

from pretrain.interop.family import Family
from pretrain.interop.keys import ACTIVATIONS, Key, Keys
from pretrain.interop.names import OUTPUTS_FIRST, SAME, TURNED, Row, linear, norms, rows

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


def _theirs(given: Mapping) -> dict[str, tuple]:
    named = given["feed_forward_proj"]
    plain = named.removeprefix(GATED)
    return {
        "is_encoder_decoder": (True,),
        "decoder_start_token_id": (given["pad_token_id"], None),
        "is_gated_act": (named.startswith(GATED),),
        "dense_act_fn": ("gelu_new" if named == f"{GATED}gelu" else plain, plain),
        # A head of its own is not scaled. Newer files say both, older ones the second alone.
        "tie_word_embeddings": (given["scale_decoder_outputs"], True),
    }


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


T5 = Family(
    model_type="t5",
    kind="encoder_decoder",
    recipe="configs/t5.py",
    architecture=lambda section: "T5ForConditionalGeneration",
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", 32_128),
            Key("n_positions", "context", 512),  # no part of the network, which looks at distances alone
            Key("d_model", "width", 512),
            Key("num_layers", "layers", 6),
            Key("num_decoder_layers", "decoder_layers", lambda given: given["num_layers"], like="layers"),
            Key("num_heads", "heads", 8),
            Key("d_kv", "head_size", 64),
            Key("d_ff", "ff", 2048),
            Key("relative_attention_num_buckets", "buckets", 32),
            Key("relative_attention_max_distance", "max_distance", 128),
            Key("feed_forward_proj", "activation", "relu", WORDS),
            Key("layer_norm_epsilon", "norm_epsilon", 1e-6),
            Key("dropout_rate", "dropout", 0.1),
            Key("initializer_factor", "init_scale", 1.0),
            Key("scale_decoder_outputs", "tied_head", lambda given: given["tie_word_embeddings"]),
        ),
        theirs=_theirs,
        ours=_ours,
        beside={"pad_token_id": 0, "tie_word_embeddings": True},
        outside=("output_past",),
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
