"""CTRL: `CTRLLMHeadModel`."""

from collections.abc import Mapping

from pretrain.interop.config_map import SUMMARY, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.gpt2 import plain, sizes
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, SAME, Row, linear, norms, rows

LAYER = "transformer.h.{layer}."


def _rows(section: Mapping) -> list[Row]:
    return [
        *rows(SAME, ("transformer.w.weight", "tokens")),
        *norms((f"{LAYER}layernorm1", "layers/attention_norm"), (f"{LAYER}layernorm2", "layers/feed_forward_norm")),
        *linear(
            OUTPUTS_FIRST,
            (f"{LAYER}multi_head_attention.Wq", "layers/attention/query"),
            (f"{LAYER}multi_head_attention.Wk", "layers/attention/key"),
            (f"{LAYER}multi_head_attention.Wv", "layers/attention/value"),
            (f"{LAYER}multi_head_attention.dense", "layers/attention/output"),
            (f"{LAYER}ffn.0", "layers/feed_forward/in"),
            (f"{LAYER}ffn.2", "layers/feed_forward/out"),
        ),
        *norms(("transformer.layernorm", "final_norm")),
        *rows(FLAT, ("lm_head.bias", "head_bias")),
    ]


def _ours(section: Mapping) -> dict[str, tuple]:
    return plain(section) | {
        "activation": ("relu",),
        "norm_epsilon": (1e-6,),  # of every layer's, whatever config.json says
        "final_norm_epsilon": (0.0, 1e-6),
        "positions": ("sinusoid_concatenated",),
        "scale_embedding": (True,),
        "tied_head": (True,),
        "head_bias": (True,),
        "dropout_attention": (0.0,),
    }


CTRL = Family(
    model_type="ctrl",
    kind="decoder",
    recipe="configs/ctrl.py",
    architecture=lambda section: "CTRLLMHeadModel",
    task="text-generation",
    keys=Keys(
        both=(
            *sizes(vocab_size=246_534, context=256, width=1280, layers=48, heads=16),
            Key("dff", "ff", 8192),
        ),
        theirs=lambda config: {"layer_norm_epsilon": (1e-6,), "tie_word_embeddings": (True,)},
        ours=_ours,
        outside=(
            "n_ctx",  # the same as n_positions, which alone is read there too
            "attn_pdrop",  # of older files, and read by nothing there
            "from_tf",
            *SUMMARY,
        ),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    files={"ctrl": "ctrl"},
    special={"eos_token": "end", "unk_token": "unknown"},  # its own tokenizer has no end, and a code begins a text
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.w.weight"},
)
