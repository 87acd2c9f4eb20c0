"""GPT-2, GPT and CTRL: `GPT2LMHeadModel`, `OpenAIGPTLMHeadModel`, `CTRLLMHeadModel`.

GPT and GPT-2 store kernels inputs first (TensorFlow's order), and query, key and value as one.
"""

from collections.abc import Mapping

from pretrain.interop.config_map import ACTIVATIONS, ConfigMap, Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import FLATTEN, IDENTITY, INPUTS_FIRST, Row, layers, linear, norms, rows

LAYER = "transformer.h.{layer}."
ATTENTION = "layers/attention/"
# "gelu" is the one with tanh in GPT's class, and the exact one in all others.
GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def _gpt_layers() -> list[Row]:
    return [
        *norms((f"{LAYER}ln_1", "layers/attention_norm"), (f"{LAYER}ln_2", "layers/feed_forward_norm")),
        *linear(
            (f"{LAYER}attn.c_attn", (f"{ATTENTION}query", f"{ATTENTION}key", f"{ATTENTION}value")),
            (f"{LAYER}attn.c_proj", f"{ATTENTION}output"),
            (f"{LAYER}mlp.c_fc", "layers/feed_forward/in"),
            (f"{LAYER}mlp.c_proj", "layers/feed_forward/out"),
            layout=INPUTS_FIRST,
        ),
    ]


# Tied heads have no tensor: Transformers saves the token table once.
def _head(section: Mapping) -> list[Row]:
    return [] if section["tied_head"] else rows(IDENTITY, ("lm_head.weight", "head"))


def _gpt2_rows(section: Mapping) -> list[Row]:
    tables = rows(IDENTITY, ("transformer.wte.weight", "tokens"), ("transformer.wpe.weight", "positions"))
    return [*tables, *_gpt_layers(), *norms(("transformer.ln_f", "final_norm")), *_head(section)]


def _gpt_rows(section: Mapping) -> list[Row]:
    names = ("transformer.tokens_embed.weight", "tokens"), ("transformer.positions_embed.weight", "positions")
    return [*rows(IDENTITY, *names), *_gpt_layers(), *_head(section)]


def _ctrl_rows(section: Mapping) -> list[Row]:
    return [
        *rows(IDENTITY, ("transformer.w.weight", "tokens")),
        *layers(
            LAYER,
            attention=[f"multi_head_attention.{name}" for name in ("Wq", "Wk", "Wv", "dense")],
            attention_norm="layernorm1",
            feed_forward=("ffn.0", "ffn.2"),
            feed_forward_norm="layernorm2",
        ),
        *norms(("transformer.layernorm", "final_norm")),
        *rows(FLATTEN, ("lm_head.bias", "head_bias")),
    ]


def _our_fixed(section: Mapping) -> dict[str, tuple]:
    return {
        "kv_heads": (0, section["heads"]),
        "head_size": (0, section["width"] // section["heads"]),
        "query_size": (0, section["width"] // section["heads"]),
        "final_norm_epsilon": (0.0, section["norm_epsilon"]),
    }


def _ctrl_fixed(section: Mapping) -> dict[str, tuple]:
    return _our_fixed(section) | {
        "activation": ("relu",),
        "norm_epsilon": (1e-6,),  # of every layer, whatever config.json says
        "final_norm_epsilon": (0.0, 1e-6),
        "positions": ("sinusoid_concatenated",),
        "scale_embedding": (True,),
        "head_bias": (True,),
    }


def _sizes(vocab_size: int, context: int, width: int, layers: int, heads: int) -> tuple[Key, ...]:
    """Keys of all three classes, with the defaults of one."""
    return (
        Key("vocab_size", "vocab_size", vocab_size),
        Key("n_positions", "context", context),
        Key("n_embd", "width", width),
        Key("n_layer", "layers", layers),
        Key("n_head", "heads", heads),
        Key("resid_pdrop", "dropout_residual", 0.1),
        Key("embd_pdrop", "dropout_embedding", 0.1),
        Key("initializer_range", "init_std", 0.02),
    )


GPT_KEYS = (
    Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
    Key("attn_pdrop", "dropout_attention", 0.1),
    Key("tie_word_embeddings", "tied_head", True),
)

GPT2 = Family(
    model_type="gpt2",
    kind="decoder",
    recipe="configs/gpt2.py",
    architecture=lambda section: "GPT2LMHeadModel",
    task="text-generation",
    config_map=ConfigMap(
        keys=(
            *_sizes(vocab_size=50_257, context=1024, width=768, layers=12, heads=12),
            Key("n_inner", "ff", lambda given: 4 * given["n_embd"]),
            Key("activation_function", "activation", "gelu_new", ACTIVATIONS),
            *GPT_KEYS,
        ),
        hf_fixed=lambda given: {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        our_fixed=_our_fixed,
        # n_ctx repeats n_positions; the other is an order of operations.
        ignored=("n_ctx", "reorder_and_upcast_attn"),
    ),
    rows=_gpt2_rows,
    tokenizers=("huggingface",),
    special=roles(eos="end", bos="end", unk="unknown"),
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
)
GPT = Family(
    model_type="openai-gpt",
    kind="decoder",
    recipe="configs/gpt.py",
    architecture=lambda section: "OpenAIGPTLMHeadModel",
    task="text-generation",
    config_map=ConfigMap(
        keys=(
            *_sizes(vocab_size=40_478, context=512, width=768, layers=12, heads=12),
            Key("afn", "activation", "gelu", GPT_ACTIVATIONS),
            *GPT_KEYS,
        ),
        hf_fixed=lambda given: {},
        our_fixed=lambda section: _our_fixed(section) | {"placement": ("post",), "ff": (4 * section["width"],)},
        # n_special: rows of the token table for special tokens, which vocab_size includes.
        ignored=("n_ctx", "n_special", "predict_special_tokens"),
    ),
    rows=_gpt_rows,
    tokenizers=("huggingface",),
    legacy_tokenizers={"openai-gpt": "gpt"},
    special=roles(eos="end", bos="end", unk="unknown"),
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias", r"(transformer\.)?position_ids"),
    settle=lambda section, names: section | {"ff": 4 * section["width"]},
)
CTRL = Family(
    model_type="ctrl",
    kind="decoder",
    recipe="configs/ctrl.py",
    architecture=lambda section: "CTRLLMHeadModel",
    task="text-generation",
    config_map=ConfigMap(
        keys=(
            *_sizes(vocab_size=246_534, context=256, width=1280, layers=48, heads=16),
            Key("dff", "ff", 8192),
        ),
        hf_fixed=lambda given: {"layer_norm_epsilon": (1e-6,), "tie_word_embeddings": (True,)},
        our_fixed=_ctrl_fixed,
        ignored=("n_ctx", "attn_pdrop", "from_tf"),  # attn_pdrop: the class never reads it
    ),
    rows=_ctrl_rows,
    tokenizers=("huggingface",),
    legacy_tokenizers={"ctrl": "ctrl"},
    special=roles(eos="end", unk="unknown"),  # a control code begins a text, so there is no bos
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.w.weight"},
)
