"""Llama and its kin, one network: Llama 2 and 3, Mistral, Qwen2, Qwen3, Gemma 1.

Classes: `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM`, `GemmaForCausalLM`.
"""

from collections.abc import Mapping, Sequence

from models.attention.patterns import Dense, Local, parse_pattern
from pretrain.interop.config_map import ACTIVATIONS, Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import under

LAYER = {
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/in": "mlp.up_proj",
    "feed_forward/out": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
NAMES = (
    {"tokens": "model.embed_tokens.weight", "final_norm": "model.norm", "head": "lm_head.weight"}
    | under("layers/", "model.layers.{layer}.", LAYER)
)  # fmt: skip
GATED = {name: f"gated_{ours}" for name, ours in ACTIVATIONS.items()}

# --- Rotary positions: `rope_theta` and `rope_scaling`, or both in `rope_parameters` of newer files -----------------

BOUNDS = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of Llama 3.1
SCALINGS = {"default": (), "linear": ("factor",), "llama3": ("factor", *BOUNDS)}  # keys of our `rope_scaling`
ROPE_KEYS = {"rope_theta", "rope_type", "type", "factor", *BOUNDS}  # "type": older


def _rope_type(rope: Mapping) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _rope(given: Mapping) -> Mapping:
    """The object that scales positions, {} for other values, which `_rope_fixed` refuses."""
    rope = given["rope_scaling"] or given["rope_parameters"]
    return rope if isinstance(rope, Mapping) else {}


def _rope_theta(given: Mapping) -> float:
    ropes = (given[name] for name in ("rope_scaling", "rope_parameters"))
    found = [rope["rope_theta"] for rope in ropes if isinstance(rope, Mapping) and rope.get("rope_theta")]
    return float(found[0] if found else given["rope_theta"])


def _rope_scaling(given: Mapping) -> tuple[float, ...]:
    rope = _rope(given)
    return tuple(float(rope[name]) for name in SCALINGS.get(_rope_type(rope), ()) if name in rope)


def _to_rope_scaling(section: Mapping) -> dict | None:
    numbers = section["rope_scaling"]
    name = next(name for name, keys in SCALINGS.items() if len(keys) == len(numbers))
    # The old context is a whole number there.
    values = (int(number) if key == BOUNDS[-1] else number for key, number in zip(SCALINGS[name], numbers, strict=True))
    return {"rope_type": name, **dict(zip(SCALINGS[name], values, strict=True))} if numbers else None


def _rope_fixed(given: Mapping) -> dict[str, tuple]:
    """Allows the types of scaling that have all their keys and no others."""
    ropes = {name: given[name] for name in ("rope_parameters", "rope_scaling") if given[name]}
    refused = [
        name
        for name, rope in ropes.items()
        if not isinstance(rope, Mapping)
        or not rope.keys() <= ROPE_KEYS
        or not {*SCALINGS.get(_rope_type(rope), ("",))} <= rope.keys()
    ]
    return dict.fromkeys(refused, tuple(SCALINGS))


# --- Sliding windows: the last W keys, as our pattern local_W -------------------------------------------------------


def _window(word: str) -> int:
    """Keys that a pattern sees: 0 for all, -1 for a pattern that no class has."""
    match parse_pattern(word):
        case Local(window=window):
            return window
        case Dense():
            return 0
    return -1


def _pattern(window: int | None) -> str:
    return f"local_{window}" if window else "dense"


def _widest(section: Mapping) -> int | None:
    return max(map(_window, section["attention"])) or None


def _one_window(section: Mapping) -> dict[str, tuple]:
    """Allows one window in all layers (Mistral)."""
    return {"attention": (section["attention"],)} if _windows(section) == 1 else {}


def _some_windows(section: Mapping) -> dict[str, tuple]:
    """Allows layers with one window and layers without (Qwen)."""
    return {"attention": (section["attention"],)} if _windows(section) else {}


def _windows(section: Mapping) -> int:
    """The number of different windows, none counted, or 0 if no class has them."""
    windows = {*map(_window, section["attention"])}
    return 0 if -1 in windows or len(windows - {0}) > 1 else len(windows)


def _qwen_attention(given: Mapping) -> tuple[str, ...]:
    """Patterns of the layers, as few as repeat."""
    window, layers = given["sliding_window"] if given["use_sliding_window"] else 0, given["num_hidden_layers"]
    first = given["max_window_layers"]
    kinds = given["layer_types"] or ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    words = [_pattern(window if kind == "sliding_attention" else 0) for kind in kinds]
    periods = (n for n in range(1, layers + 1) if layers % n == 0 and words[:n] * (layers // n) == words)
    return tuple(words[: next(periods)])


def _layer_words(section: Mapping) -> Sequence[str]:
    return section["attention"] * (section["layers"] // len(section["attention"]))


def _layer_types(section: Mapping) -> list[str]:
    return ["sliding_attention" if _window(word) else "full_attention" for word in _layer_words(section)]


def _first_window(section: Mapping) -> int:
    return [*map(bool, map(_window, _layer_words(section))), True].index(True)


QWEN_WINDOWS = (
    Key("use_sliding_window", "attention", False, value=_qwen_attention, write=lambda s: _widest(s) is not None),
    Key("sliding_window", "attention", 4096, value=_qwen_attention, write=_widest),
    Key("max_window_layers", "attention", 28, value=_qwen_attention, write=_first_window),
    Key("layer_types", "attention", None, value=_qwen_attention, write=_layer_types),
)

# --- The families ---------------------------------------------------------------------------------------------------


def _head_size(given: Mapping) -> int:
    """Ours is 0 for width / heads."""
    return 0 if given["head_dim"] * given["num_attention_heads"] == given["hidden_size"] else given["head_dim"]


def _keys(
    *more: Key,
    context: int,
    ff: int,
    vocab_size: int = 32_000,
    width: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads=lambda given: given["num_attention_heads"],
    head_size=lambda given: given["hidden_size"] // given["num_attention_heads"],
    tied: bool = False,
    activation: str = "silu",
    words: Mapping[str, str] = GATED,
) -> tuple[Key, ...]:
    """Keys of all classes, with the defaults of one."""
    return (
        Key("vocab_size", "vocab_size", vocab_size),
        Key("max_position_embeddings", "context", context),
        Key("hidden_size", "width", width),
        Key("num_hidden_layers", "layers", layers),
        Key("num_attention_heads", "heads", heads),
        Key("num_key_value_heads", "kv_heads", kv_heads, same_as="heads"),
        Key(
            "head_dim",
            "head_size",
            head_size,
            value=_head_size,
            write=lambda section: section["head_size"] or section["width"] // section["heads"],
        ),
        Key("intermediate_size", "ff", ff),
        Key("hidden_act", "activation", activation, words),
        Key("rms_norm_eps", "norm_epsilon", 1e-6),
        Key("rope_theta", "rope_theta", 10_000.0, value=_rope_theta),
        Key("rope_scaling", "rope_scaling", None, value=_rope_scaling, write=_to_rope_scaling),
        Key("tie_word_embeddings", "tied_head", tied),
        Key("attention_dropout", "dropout_attention", 0.0),
        Key("initializer_range", "init_std", 0.02),
        *more,
    )


def _fixed(**own) -> Mapping:
    return {"norm": "rms", "positions": "rotary", "ff_bias": False, **own}


BIAS = Key("attention_bias", "attention_bias", False)  # on all four projections
COMMON = {
    "kind": "decoder",
    "names": NAMES,
    "prefix": "model.",
    "tied": {"lm_head.weight": "model.embed_tokens.weight"},
    "ignored": (r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    "hf_fixed": _rope_fixed,
    "extra": {"rope_parameters": None},
    # pretraining_tp: only the order of a sum.
    "ignored_keys": ("pretraining_tp",),
    "legacy": {
        "rope_interleaved": (False,),
        "is_llama_config": (True,),
        "use_bidirectional_attention": (None, False),
        "use_mrope": (False,),
    },
    "legacy_tokenizers": dict.fromkeys(("llama", "mistral", "gemma"), "sentencepiece"),
    "special": roles(bos="start", eos="end", unk="unknown", pad="pad"),
    "task": "text-generation",
}
LLAMA = Family(
    model_type="llama",
    recipe="configs/llama.py",
    architecture=lambda section: "LlamaForCausalLM",
    keys=_keys(BIAS, Key("mlp_bias", "ff_bias", False), context=2048, ff=11_008),
    fixed=lambda section: {"norm": "rms", "positions": "rotary"},
    **COMMON,
)
MISTRAL = Family(
    model_type="mistral",
    recipe="configs/llama.py:mistral_7b",
    architecture=lambda section: "MistralForCausalLM",
    keys=_keys(
        Key(
            "sliding_window",
            "attention",
            4096,
            value=lambda given: (_pattern(given["sliding_window"]),),
            write=_widest,
            null=0,
        ),
        context=131_072,
        ff=14_336,
        kv_heads=8,
    ),
    fixed=lambda section: _fixed(attention_bias=False),
    allowed=_one_window,
    **COMMON,
)
QWEN2 = Family(
    model_type="qwen2",
    recipe="configs/llama.py:qwen2_0.5b",
    architecture=lambda section: "Qwen2ForCausalLM",
    keys=_keys(*QWEN_WINDOWS, vocab_size=151_936, context=32_768, ff=22_016, kv_heads=32),
    fixed=lambda section: _fixed(attention_bias=True, output_bias=False),
    allowed=_some_windows,
    **COMMON,
)
QWEN3 = Family(
    model_type="qwen3",
    recipe="configs/llama.py:qwen3_0.6b",
    architecture=lambda section: "Qwen3ForCausalLM",
    keys=_keys(BIAS, *QWEN_WINDOWS, vocab_size=151_936, context=32_768, ff=22_016, kv_heads=32, head_size=128),
    fixed=lambda section: _fixed(qk_norm=True),
    allowed=_some_windows,
    **COMMON,
)
GEMMA = Family(
    model_type="gemma",
    recipe="configs/llama.py:gemma_2b",
    architecture=lambda section: "GemmaForCausalLM",
    keys=_keys(
        BIAS,
        vocab_size=256_000,
        context=8192,
        width=3072,
        ff=24_576,
        layers=28,
        heads=16,
        kv_heads=16,
        head_size=256,
        tied=True,
        activation="gelu_pytorch_tanh",
        # "gelu" of the first files meant the tanh approximation.
        words={"gelu_pytorch_tanh": "gated_gelu_tanh"} | GATED | {"gelu": "gated_gelu_tanh"},
    ),
    fixed=lambda section: _fixed(norm_offset=1.0, scale_embedding=True),
    **COMMON | {"ignored_keys": ("hidden_activation",)},
)
