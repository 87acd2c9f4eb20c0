"""config.json keys and our `model` fields: the entries of a family's table, and what all families share.

Nothing is dropped silently: a config.json key must be in a family's table or in `IGNORED`, and every field of ours must
have a value that the Hugging Face class computes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from input_pipeline.io import read_json
from pretrain.workdir import CONFIG

GENERATION = "generation_config.json"
# Generation settings that older models have in config.json, with Hugging Face's defaults. Here they are flags.
SETTINGS = (
    {"max_length": 20, "top_k": 50}
    | dict.fromkeys(("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty"), 0)
    | dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "temperature", "top_p", "typical_p"), 1)
    | dict.fromkeys(("repetition_penalty", "length_penalty"), 1)
    | dict.fromkeys(("do_sample", "early_stopping", "remove_invalid_values", "force_bos_token_to_be_generated"), False)
    | dict.fromkeys(("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"))
    | dict.fromkeys(("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix"))
    | {"task_specific_params": None}
)
# Keys of generation_config.json without effect on the text.
NEUTRAL = ("_from_model_config", "transformers_version", "use_cache", "return_dict_in_generate")
NEUTRAL += ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# Keys without effect on a pretraining model's numbers: provenance, generation, outputs, heads of other tasks.
# `decoder_start_token_id` is for each encoder-decoder family to judge.
# fmt: off
IGNORED = frozenset((
    "architectures", "model_type", "transformers_version", "_name_or_path", "tokenizer_class", "problem_type",
    "finetuning_task", "id2label", "label2id", "num_labels", "classifier_dropout", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_scores", "return_dict_in_generate", "torchscript",
    "tf_legacy_loss", "use_bfloat16", "gradient_checkpointing", "chunk_size_feed_forward",
    "_attn_implementation_autoset", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", "output_past", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", "summary_last_dropout", "start_n_top", "end_n_top", "classifier_dropout_prob",
    "classif_dropout", "qa_dropout", "seq_classif_dropout", "_num_labels", "num_choices", "directionality",
    "transformers.js_config", "unsloth_fixed", "unsloth_version", "sentence_transformers", "language", "name",
    "sbert_ce_default_activation_function", "sbert_ce_default_activation_fn", "eos_token_ids", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    *(SETTINGS.keys() - {"decoder_start_token_id", "force_bos_token_to_be_generated"}),
))
# fmt: on
# Keys of any config.json that ask for what no model here does, with the values that are harmless.
UNSUPPORTED = {
    "pruned_heads": ({}, None),
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "quantization_config": (None,),
}
# Activations by Hugging Face's names; an export writes the first name of each of ours.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "quick_gelu": "gelu_sigmoid",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# For classes whose token head always has the exact GELU, whatever config.json says.
GELU = {name: ours for name, ours in ACTIVATIONS.items() if ours == "gelu_erf"}
# Fields of ours that change how a model runs or starts, not what its weights compute.
# fmt: off
RUNTIME = frozenset((
    "kind", "attention_path", "scan", "remat", "dtype", "param_dtype", "initialiser", "init_std", "init_scale",
    "init_gain", "head_init_std", "position_init_std", "norm_init_mean", "norm_init_std", "fused_glorot_init",
    "scale_residual_init", "summary",
))
# fmt: on
# Fields that may be 0 for a value that follows from others.
IMPLIED = {
    "embed": lambda section: section["width"],
    "groups": lambda section: section["layers"],
    "kv_heads": lambda section: section["heads"],
    "head_size": lambda section: section["width"] // section["heads"],
    "query_size": lambda section: section["width"] // section["heads"],
    "final_norm_epsilon": lambda section: section["norm_epsilon"],
}
DTYPE_KEYS = ("dtype", "torch_dtype")  # newer, older
DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float32"}  # float16 would need loss scaling


@dataclasses.dataclass(frozen=True)
class Key:
    """A config.json key and the field of our `model` section with the same meaning.

        Key("hidden_size", "width", 768)                            64 <-> 64; 768 if absent or null
        Key("hidden_act", "activation", "gelu", words=ACTIVATIONS)  "gelu_new" <-> "gelu_tanh"
        Key("max_position_embeddings", "context", 514, offset=2)    514 <-> 512
        Key("embedding_size", "embed", 128, same_as="width")        equal to `width` <-> 0

    default: the class's own; a function computes it from the other keys. value: computes what is read from several
    keys; write: the inverse, of our `model` section. null: what an explicit null means, if not the default.
    """

    hf: str
    field: str
    default: Any
    words: Mapping[str, str] | None = None
    offset: int = 0
    same_as: str = ""
    value: Callable[[Mapping], Any] | None = None
    write: Callable[[Mapping], Any] | None = None
    null: Any = None


def ignored_settings(given: Mapping, folder: Path, ids: Mapping[str, int | None]) -> str:
    """A line that names the generation settings of a config.json and its folder, or "" if they are the defaults.

    `ids` are the special ids that generation uses here, by config.json key.
    """
    ends = ("bos_token_id", "eos_token_id")
    # The tokenizer here decides where a text ends, and where it begins if it has such a token.
    ours = {"eos_token_id": ids.get("eos_token_id")} | {name: ids[name] for name in ends if name in ids}
    path = folder / GENERATION
    beside = {name: value for name, value in (read_json(path) if path.is_file() else {}).items() if name not in NEUTRAL}
    known = {**ids, **{name: given[name] for name in ("pad_token_id", *ends, *ids) if given.get(name) is not None}}
    parts = [
        (CONFIG, _unusual({name: given.get(name) for name in (*SETTINGS, *ours)}, ids)),
        (GENERATION, _unusual(beside, known | ours)),
    ]
    settings = "; ".join(f"{', '.join(names)} of {file}" for file, names in parts if names)
    return f"ignored generation settings: {settings}. Use the flags of `pretrain generate`." if settings else ""


def _unusual(settings: Mapping, known: Mapping) -> list[str]:
    """Names of settings that are neither empty, nor the default, nor the `known` value."""
    return [
        name
        for name, value in settings.items()
        if value not in (None, "", {}, []) and value != SETTINGS.get(name) and value != known.get(name)
    ]
