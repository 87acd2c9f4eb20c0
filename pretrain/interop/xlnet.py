"""XLNet: `XLNetLMHeadModel`."""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, ConfigMap, Key
from pretrain.interop.family import MASK_ROLES, Family, roles
from pretrain.interop.weight_map import FLATTEN, IDENTITY, Layout, Row, linear, norms, rows

LAYER = "transformer.layer.{layer}."
ATTENTION = f"{LAYER}rel_attn."
# Ours [heads, head_size, width]; theirs [width, heads, head_size].
WIDTH_FIRST = Layout(lambda array, inputs: array.transpose(2, 0, 1), lambda array, shape: array.transpose(1, 2, 0))
# Ours [width]; theirs [1, 1, width].
ROW_VECTOR = Layout(lambda array, inputs: array[None, None], lambda array, shape: array[0, 0], axis=2)
# Query, key, value and distance kernels are [width, heads, head_size] in both.
KERNELS = {"q": "query", "k": "key", "v": "value", "r": "distance"}
VECTORS = {
    "r_w_bias": "content_offset",
    "r_r_bias": "position_offset",
    "r_s_bias": "segment_offset",
    "seg_embed": "segments",
}


def _rows(section: Mapping) -> list[Row]:
    return [
        *rows(IDENTITY, ("transformer.word_embedding.weight", "tokens")),
        *rows(ROW_VECTOR, ("transformer.mask_emb", "mask_vector")),
        *rows(IDENTITY, *((f"{ATTENTION}{hf}", f"layers/attention/{ours}/kernel") for hf, ours in KERNELS.items())),
        *rows(WIDTH_FIRST, (f"{ATTENTION}o", "layers/attention/output/kernel")),
        *rows(IDENTITY, *((f"{ATTENTION}{hf}", f"layers/attention/{ours}") for hf, ours in VECTORS.items())),
        *norms(
            (f"{ATTENTION}layer_norm", "layers/attention_norm"), (f"{LAYER}ff.layer_norm", "layers/feed_forward_norm")
        ),
        *linear((f"{LAYER}ff.layer_1", "layers/feed_forward/in"), (f"{LAYER}ff.layer_2", "layers/feed_forward/out")),
        *rows(FLATTEN, ("lm_loss.bias", "head_bias")),
    ]


def _complete(config: ConfigDict, given: Mapping, codes: Sequence[str]) -> None:
    """Accepts text without sentence marks and batches of a few lanes."""
    config.data.sentences = ""
    config.train.batch_size = 32


XLNET = Family(
    model_type="xlnet",
    kind="two_stream",
    recipe="configs/xlnet.py",
    architecture=lambda section: "XLNetLMHeadModel",
    task="text-generation",
    config_map=ConfigMap(
        keys=(
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
        hf_fixed=lambda given: {
            "attn_type": ("bi",),
            "same_length": (False,),
            "clamp_len": (-1, 0),
            "d_head": (given["d_model"] // given["n_head"],),
            "tie_word_embeddings": (True,),
            "untie_r": (True,),
            "bi_data": (False,),  # True reverses the distances of half of a batch
        },
        our_fixed=lambda section: {
            "head_size": (0, section["width"] // section["heads"]),
            "dropout_attention": (section["dropout"],),
            **{name: (section[name],) for name in ("context", "memory", "reuse")},  # of rows, not of weights
        },
        # Lengths of memory are the recipe's here, and there is no table of positions.
        ignored=("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "max_position_embeddings"),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    special=roles(eos="end") | MASK_ROLES,
    template=(("$A", "separator", "classifier"), ("$A", "separator", "$B", "separator", "classifier")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    padding_side="left",
    prefix="transformer.",
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    settle=lambda section, names: section | {"dropout_attention": section["dropout"]},  # one rate there
    complete=_complete,
)
