"""XLNet: `XLNetLMHeadModel`. Its attention's kernels lie there as they do here."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, SAME, Form, Row, linear, norms, rows

LAYER = "transformer.layer.{layer}."
# Ours [heads, head_size, width]; theirs [width, heads, head_size].
WIDTH_FIRST = Form(
    there=lambda array, inputs: array.transpose(2, 0, 1), back=lambda array, shape: array.transpose(1, 2, 0), axis=0
)
# One vector of [width] here, [1, 1, width] there.
ALONE = Form(there=lambda array, inputs: array[None, None], back=lambda array, shape: array[0, 0], axis=2)


def _rows(section: Mapping) -> list[Row]:
    attention = f"{LAYER}rel_attn."
    kept = {"q": "query", "k": "key", "v": "value", "r": "distance"}
    offsets = {"r_w_bias": "content_offset", "r_r_bias": "position_offset", "r_s_bias": "segment_offset"}
    return [
        *rows(SAME, ("transformer.word_embedding.weight", "tokens")),
        *rows(ALONE, ("transformer.mask_emb", "mask_vector")),
        *rows(SAME, *((f"{attention}{theirs}", f"layers/attention/{ours}/kernel") for theirs, ours in kept.items())),
        *rows(WIDTH_FIRST, (f"{attention}o", "layers/attention/output/kernel")),
        *rows(SAME, *((f"{attention}{theirs}", f"layers/attention/{ours}") for theirs, ours in offsets.items())),
        *rows(SAME, (f"{attention}seg_embed", "layers/attention/segments")),
        *norms((f"{attention}layer_norm", "layers/attention_norm")),
        *norms((f"{LAYER}ff.layer_norm", "layers/feed_forward_norm")),
        *linear(
            OUTPUTS_FIRST,
            (f"{LAYER}ff.layer_1", "layers/feed_forward/in"),
            (f"{LAYER}ff.layer_2", "layers/feed_forward/out"),
        ),
        *rows(FLAT, ("lm_loss.bias", "head_bias")),
    ]


def _settle(section: dict, names: frozenset) -> dict:
    """Rates of dropout are one there."""
    return section | {"dropout_attention": section["dropout"]}


def _complete(config: ConfigDict) -> None:
    """Text need not have a sentence a line, and need be no more than a batch of a few lanes."""
    config.data.sentences = ""
    config.train.batch_size = 32


def _says(given: Mapping, config: ConfigDict) -> list[str]:
    """How much is remembered, which is of a call there and not of the network; a recipe's rows are made for its own."""
    asked = [f"{name} = {given[name]}" for name in ("mem_len", "reuse_len") if given.get(name) is not None]
    kept = f"config.model.memory = {config.model.memory}, config.model.reuse = {config.model.reuse}"
    return [f"left out {', '.join(asked)}: the recipe's are kept, {kept}"] if asked else []


XLNET = Family(
    model_type="xlnet",
    kind="two_stream",
    recipe="configs/xlnet.py",
    architecture=lambda section: "XLNetLMHeadModel",
    task="text-generation",
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", 32_000),
            Key("d_model", "width", 1024),
            Key("n_layer", "layers", 24),
            Key("n_head", "heads", 16),
            Key("d_inner", "ff", 4096),
            Key("ff_activation", "activation", "gelu", ACTIVATIONS),
            Key("layer_norm_eps", "norm_epsilon", 1e-12),
            Key("dropout", "dropout", 0.1),
            Key("initializer_range", "init_std", 0.02),
        ),
        theirs=lambda given: {
            "attn_type": ("bi",),
            "same_length": (False,),
            "clamp_len": (-1, 0),
            "d_head": (given["d_model"] // given["n_head"],),
            "tie_word_embeddings": (True,),
            "untie_r": (True,),
            "bi_data": (False,),  # half of a batch's distances would count back to front
        },
        ours=lambda section: {
            "head_size": (0, section["width"] // section["heads"]),
            "clamp": (0,),
            "dropout_attention": (section["dropout"],),
            **{name: (section[name],) for name in ("context", "memory", "reuse")},  # of rows, not of weights
        },
        outside=(
            "mem_len",  # which an import tells of (`_says`)
            "reuse_len",
            "use_mems_eval",  # of a call too
            "use_mems_train",
            "summary_type",  # of heads for other tasks
            "summary_use_proj",
            "summary_activation",
            "summary_last_dropout",
            "start_n_top",
            "end_n_top",
            "max_position_embeddings",  # of a table that there is not
        ),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    special={
        "eos_token": "end",
        "unk_token": "unknown",
        "pad_token": "pad",
        "cls_token": "classifier",
        "sep_token": "separator",
        "mask_token": "mask",
    },
    template=(("$A", "separator", "classifier"), ("$A", "separator", "$B", "separator", "classifier")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    pads="left",
    prefix="transformer.",
    copies={"lm_loss.weight": "transformer.word_embedding.weight"},
    settle=_settle,
    complete=_complete,
    says=_says,
)
