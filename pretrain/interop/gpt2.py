"""GPT-2: `GPT2LMHeadModel`. Its products are stored inputs first; query, key and value are one."""

from collections.abc import Mapping

from pretrain.interop.config_map import ACTIVATIONS, SUMMARY, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import INPUTS_FIRST, SAME, Row, linear, norms, rows

LAYER = "transformer.h.{layer}."


def blocks() -> list[Row]:
    """The rows of GPT's and GPT-2's layers."""
    attention = tuple(f"layers/attention/{name}" for name in ("query", "key", "value"))
    return [
        *norms((f"{LAYER}ln_1", "layers/attention_norm")),
        *linear(
            INPUTS_FIRST,
            (f"{LAYER}attn.c_attn", attention),
            (f"{LAYER}attn.c_proj", "layers/attention/output"),
        ),
        *norms((f"{LAYER}ln_2", "layers/feed_forward_norm")),
        *linear(
            INPUTS_FIRST,
            (f"{LAYER}mlp.c_fc", "layers/feed_forward/in"),
            (f"{LAYER}mlp.c_proj", "layers/feed_forward/out"),
        ),
    ]


def _rows(section: Mapping) -> list[Row]:
    head = [] if section["tied_head"] else rows(SAME, ("lm_head.weight", "head"))
    return [
        *rows(SAME, ("transformer.wte.weight", "tokens"), ("transformer.wpe.weight", "positions")),
        *blocks(),
        *norms(("transformer.ln_f", "final_norm")),
        *head,
    ]


def plain(section: Mapping) -> dict[str, tuple]:
    """What a decoder of theirs has: keys of ours, and the values of which each must have one."""
    return {
        "kv_heads": (0, section["heads"]),
        "head_size": (0, section["width"] // section["heads"]),
        "query_size": (0, section["width"] // section["heads"]),
        "norm": ("layer",),
        "final_norm_epsilon": (0.0, section["norm_epsilon"]),
        "scale_embedding": (False,),
        "bidirectional": (False,),
        "placement": ("pre",),
        "positions": ("learned",),
        "position_axes": ((),),
        "start_row": (False,),
        "attention": (("dense",) * len(section["attention"]),),
        "attention_bias": (True,),
        "ff_bias": (True,),
        "head_bias": (False,),
        "dropout_ff": (0.0,),
    }


def sizes(vocab_size: int, context: int, width: int, layers: int, heads: int) -> tuple[Key, ...]:
    """Keys that the decoders of theirs have in common, with a class's defaults of those that differ."""
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


GPT2 = Family(
    model_type="gpt2",
    kind="decoder",
    recipe="configs/gpt2.py",
    architecture=lambda section: "GPT2LMHeadModel",
    task="text-generation",
    keys=Keys(
        both=(
            *sizes(vocab_size=50_257, context=1024, width=768, layers=12, heads=12),
            Key("n_inner", "ff", lambda given: 4 * given["n_embd"]),
            Key("activation_function", "activation", "gelu_new", ACTIVATIONS),
            Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
            Key("attn_pdrop", "dropout_attention", 0.1),
            Key("tie_word_embeddings", "tied_head", True),
        ),
        theirs=lambda config: {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        ours=plain,
        outside=(
            "n_ctx",  # the same as n_positions, which alone is read there too
            "reorder_and_upcast_attn",  # in which order and precision the same is computed
            *SUMMARY,
        ),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    special={"eos_token": "end", "bos_token": "end", "unk_token": "unknown"},
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    buffers=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
)
