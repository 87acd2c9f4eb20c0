"""GPT-2, GPT and CTRL: `GPT2LMHeadModel`, `OpenAIGPTLMHeadModel`, `CTRLLMHeadModel`."""

from pretrain.interop.config_map import ACTIVATIONS, Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import INPUTS_FIRST, under

GPT_LAYER = {
    "attention_norm": "ln_1",
    "feed_forward_norm": "ln_2",
    "attention/query": "attn.c_attn",  # one tensor for query, key and value
    "attention/key": "attn.c_attn",
    "attention/value": "attn.c_attn",
    "attention/output": "attn.c_proj",
    "feed_forward/in": "mlp.c_fc",
    "feed_forward/out": "mlp.c_proj",
}
GPT_NAMES = under("layers/", "transformer.h.{layer}.", GPT_LAYER) | {"head": "lm_head.weight"}
CTRL_LAYER = {
    "attention/query": "multi_head_attention.Wq",
    "attention/key": "multi_head_attention.Wk",
    "attention/value": "multi_head_attention.Wv",
    "attention/output": "multi_head_attention.dense",
    "attention_norm": "layernorm1",
    "feed_forward/in": "ffn.0",
    "feed_forward/out": "ffn.2",
    "feed_forward_norm": "layernorm2",
}
# "gelu" is the one with tanh in GPT's class, and the exact one in all others.
GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


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
    names={"tokens": "transformer.wte.weight", "positions": "transformer.wpe.weight", "final_norm": "transformer.ln_f"}
    | GPT_NAMES,
    kernels=INPUTS_FIRST,  # TensorFlow's order
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
    keys=(
        *_sizes(vocab_size=50_257, context=1024, width=768, layers=12, heads=12),
        Key("n_inner", "ff", lambda given: 4 * given["n_embd"]),
        Key("activation_function", "activation", "gelu_new", ACTIVATIONS),
        *GPT_KEYS,
    ),
    hf_fixed=lambda given: {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    # n_ctx repeats n_positions; the other is an order of operations.
    ignored_keys=("n_ctx", "reorder_and_upcast_attn"),
    special=roles(eos="end", bos="end", unk="unknown"),
    task="text-generation",
)
GPT = Family(
    model_type="openai-gpt",
    kind="decoder",
    recipe="configs/gpt.py",
    architecture=lambda section: "OpenAIGPTLMHeadModel",
    names={"tokens": "transformer.tokens_embed.weight", "positions": "transformer.positions_embed.weight"} | GPT_NAMES,
    kernels=INPUTS_FIRST,
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias", r"(transformer\.)?position_ids"),
    keys=(
        *_sizes(vocab_size=40_478, context=512, width=768, layers=12, heads=12),
        Key("afn", "activation", "gelu", GPT_ACTIVATIONS),
        *GPT_KEYS,
    ),
    fixed=lambda section: {"placement": "post", "ff": 4 * section["width"]},
    # n_special: rows of the token table for special tokens, which vocab_size includes.
    ignored_keys=("n_ctx", "n_special", "predict_special_tokens"),
    legacy_tokenizers={"openai-gpt": "gpt"},
    special=roles(eos="end", bos="end", unk="unknown"),
    task="text-generation",
)
CTRL = Family(
    model_type="ctrl",
    kind="decoder",
    recipe="configs/ctrl.py",
    architecture=lambda section: "CTRLLMHeadModel",
    names={"tokens": "transformer.w.weight"}
    | under("layers/", "transformer.h.{layer}.", CTRL_LAYER)
    | {"final_norm": "transformer.layernorm", "head_bias": "lm_head.bias"},
    prefix="transformer.",
    tied={"lm_head.weight": "transformer.w.weight"},
    keys=(
        *_sizes(vocab_size=246_534, context=256, width=1280, layers=48, heads=16),
        Key("dff", "ff", 8192),
    ),
    hf_fixed=lambda given: {"layer_norm_epsilon": (1e-6,), "tie_word_embeddings": (True,)},
    fixed=lambda section: {
        "activation": "relu",
        "norm_epsilon": 1e-6,  # of every layer, whatever config.json says
        "positions": "sinusoid_concatenated",
        "scale_embedding": True,
        "head_bias": True,
    },
    ignored_keys=("n_ctx", "attn_pdrop", "from_tf"),  # attn_pdrop: the class never reads it
    legacy_tokenizers={"ctrl": "ctrl"},
    special=roles(eos="end", unk="unknown"),  # a control code begins a text, so there is no bos
    task="text-generation",
)
