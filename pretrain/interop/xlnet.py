"""XLNet: `XLNetLMHeadModel`."""

from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, Key
from pretrain.interop.family import MASK_ROLES, Family, roles
from pretrain.interop.weight_map import IDENTITY, Layout, under

LAYER = {
    "attention/query/kernel": "rel_attn.q",
    "attention/key/kernel": "rel_attn.k",
    "attention/value/kernel": "rel_attn.v",
    "attention/distance/kernel": "rel_attn.r",
    "attention/output/kernel": "rel_attn.o",
    "attention/content_offset": "rel_attn.r_w_bias",
    "attention/position_offset": "rel_attn.r_r_bias",
    "attention/segment_offset": "rel_attn.r_s_bias",
    "attention/segments": "rel_attn.seg_embed",
    "attention_norm": "rel_attn.layer_norm",
    "feed_forward_norm": "ff.layer_norm",
    "feed_forward/in": "ff.layer_1",
    "feed_forward/out": "ff.layer_2",
}
LAYOUTS = {
    # [width, heads, head_size] in both.
    **{f"layers/attention/{name}/kernel": IDENTITY for name in ("query", "key", "value", "distance")},
    # Ours [heads, head_size, width]; theirs [width, heads, head_size].
    "layers/attention/output/kernel": Layout(
        lambda array, inputs: array.transpose(2, 0, 1), lambda array, shape: array.transpose(1, 2, 0)
    ),
    # Ours [width]; theirs [1, 1, width].
    "mask_vector": Layout(lambda array, inputs: array[None, None], lambda array, shape: array[0, 0], axis=2),
}


def _hf_fixed(given: Mapping) -> dict[str, tuple]:
    return {
        "attn_type": ("bi",),
        "same_length": (False,),
        "clamp_len": (-1, 0),
        "d_head": (given["d_model"] // given["n_head"],),
        "tie_word_embeddings": (True,),
        "untie_r": (True,),
        "bi_data": (False,),  # True reverses the distances of half of a batch
    }


def _complete(config: ConfigDict, given: Mapping, codes: Sequence[str], untrained: Collection[str]) -> None:
    """Accepts text without sentence marks and batches of a few lanes."""
    config.data.sentences = ""
    config.train.batch_size = 32


XLNET = Family(
    model_type="xlnet",
    kind="two_stream",
    recipe="configs/xlnet.py",
    architecture=lambda section: "XLNetLMHeadModel",
    names={"tokens": "transformer.word_embedding.weight", "mask_vector": "transformer.mask_emb"}
    | under("layers/", "transformer.layer.{layer}.", LAYER)
    | {"head_bias": "lm_loss.bias"},
    layouts=LAYOUTS,
    prefix="transformer.",
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
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
    hf_fixed=_hf_fixed,
    fixed=lambda section: {"dropout_attention": section["dropout"]},  # one rate there
    allowed=lambda section: {name: (section[name],) for name in ("context", "memory", "reuse")},  # of rows
    # Lengths of memory are the recipe's here, and there is no table of positions.
    ignored_keys=("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "max_position_embeddings"),
    complete=_complete,
    special=roles(eos="end") | MASK_ROLES,
    template=(("$A", "separator", "classifier"), ("$A", "separator", "$B", "separator", "classifier")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    padding_side="left",
    task="text-generation",
)
