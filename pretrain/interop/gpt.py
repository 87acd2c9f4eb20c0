"""GPT: `OpenAIGPTLMHeadModel`. Its layers are stored as GPT-2's; their feed-forward is always 4 times as wide."""

from collections.abc import Mapping

from pretrain.interop.config_map import SUMMARY, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.gpt2 import blocks, plain, sizes
from pretrain.interop.weight_map import SAME, Row, rows

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # its "gelu" is that with tanh


def _rows(section: Mapping) -> list[Row]:
    head = [] if section["tied_head"] else rows(SAME, ("lm_head.weight", "head"))
    tables = ("transformer.tokens_embed.weight", "tokens"), ("transformer.positions_embed.weight", "positions")
    return [*rows(SAME, *tables), *blocks(), *head]


GPT = Family(
    model_type="openai-gpt",
    kind="decoder",
    recipe="configs/gpt.py",
    architecture=lambda section: "OpenAIGPTLMHeadModel",
    task="text-generation",
    keys=Keys(
        both=(
            *sizes(vocab_size=40_478, context=512, width=768, layers=12, heads=12),
            Key("afn", "activation", "gelu", ACTIVATIONS),
            Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
            Key("attn_pdrop", "dropout_attention", 0.1),
            Key("tie_word_embeddings", "tied_head", True),
        ),
        theirs=lambda config: {},
        ours=lambda section: plain(section) | {"placement": ("post",), "ff": (4 * section["width"],)},
        outside=(
            "n_ctx",  # the same as n_positions, which alone is read there too
            "n_special",  # of older files: rows of the table for special tokens, which vocab_size counts
            "predict_special_tokens",
            *SUMMARY,
        ),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    files={"openai-gpt": "gpt"},
    special={"eos_token": "end", "bos_token": "end", "unk_token": "unknown"},  # its own tokenizer has no end
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
    buffers=(r"(transformer\.)?h\.\d+\.attn\.bias", r"(transformer\.)?position_ids"),
    settle=lambda section, names: section | {"ff": 4 * section["width"]},
)
