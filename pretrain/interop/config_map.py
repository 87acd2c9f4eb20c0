"""Tables of config.json keys and our `model` fields, read in both directions.

Nothing is dropped silently: a config.json key must be in a family's table or in `IGNORED`, and every field of ours must
have a value that the Hugging Face class computes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pretrain.errors import UserError
from pretrain.interop.generation_config import SETTINGS

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
    "classif_dropout", "qa_dropout", "seq_classif_dropout",
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
    "scale_residual_init",
))
# fmt: on
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
    keys.
    """

    hf: str
    field: str
    default: Any
    words: Mapping[str, str] | None = None
    offset: int = 0
    same_as: str = ""
    value: Callable[[Mapping], Any] | None = None


@dataclasses.dataclass(frozen=True)
class ConfigMap:
    """All that a family's config.json can say.

    keys: those with a field of ours. hf_fixed: allowed values of other keys, given all that was read; an export writes
    the first. our_fixed: allowed values of our other fields, where not only the default of `configs.common`. extra:
    other keys that these functions read, with their defaults. legacy: keys that only older files have, with the values
    of the released models. ignored: keys without effect, besides `IGNORED`.
    """

    keys: tuple[Key, ...]
    hf_fixed: Callable[[Mapping], Mapping[str, tuple]]
    our_fixed: Callable[[Mapping], Mapping[str, tuple]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    legacy: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def to_section(self, given: Mapping, source: str, declared: Mapping) -> dict:
        """Fields of our `model` section from a config.json.

        `declared` is that section's defaults, for their types. Errors: UserError for an unknown key or value.
        """
        read = self._read(given)
        allowed = {**UNSUPPORTED, **self.legacy, **self.hf_fixed(read)}
        known = IGNORED | allowed.keys() | read.keys() | {*self.ignored, *DTYPE_KEYS}
        for name, value in given.items():
            if name not in known:
                raise UserError(f"{source}: {name}={value!r:.60}: unknown key. Remove it if it changes no number.")
        # Words before fixed values: an unknown activation is named by the key that the user knows.
        section = {}
        for key in self.keys:
            value = key.value(read) if key.value else read[key.hf]
            if key.words:
                section[key.field] = _translate(key.hf, value, key.words, source)
            else:
                section[key.field] = type(declared[key.field])(value - key.offset)
        for name, value in {**given, **read}.items():
            if name in allowed and value not in allowed[name]:
                choices = " or ".join(dict.fromkeys(map(repr, allowed[name])))
                raise UserError(f"{source}: {name}={value!r:.60}: only {choices} can be imported. Use another model.")
        # Ours is 0 for "as another field", so that equal sizes give one config.
        for key in self.keys:
            if key.same_as and section[key.field] == section[key.same_as]:
                section[key.field] = 0
        dtype = next((given[name] for name in DTYPE_KEYS if given.get(name)), "float32")
        return section | {"dtype": _translate("dtype", dtype, DTYPES, source)}

    def _read(self, given: Mapping) -> dict:
        """{key: value or default} of the keys that describe the model."""
        read = {name: default if given.get(name) is None else given[name] for name, default in self.extra.items()}
        for key in sorted(self.keys, key=lambda key: callable(key.default)):  # computed defaults read the others
            default = key.default(read) if callable(key.default) else key.default
            read[key.hf] = default if given.get(key.hf) is None else given[key.hf]
        return read

    def to_config(self, section: Mapping, declared: Mapping) -> dict:
        """config.json keys of a `model` section, whose defaults are `declared`.

        Errors: UserError for a field that the class cannot express.
        """
        mapped = {key.field for key in self.keys}
        # A field that no key expresses keeps its default, which is BERT's, GPT-2's or T5's own.
        fixed = {name: (value,) for name, value in declared.items() if name not in RUNTIME | mapped}
        fixed |= {"attention": (("dense",) * len(section.get("attention", ())),)} | self.our_fixed(section)
        allowed = {name: fixed[name] for name in section if name in fixed and section[name] not in fixed[name]}
        config = {}
        for key in self.keys:
            value = (section[key.field] or section[key.same_as]) if key.same_as else section[key.field]
            if key.words:
                names = [hf for hf, ours in key.words.items() if ours == value]
                if not names:
                    allowed[key.field] = tuple(dict.fromkeys(key.words.values()))
                    continue
                value = names[0]
            config[key.hf] = value + key.offset if key.offset else value
        for name, values in allowed.items():
            choices = " or ".join(map(repr, values))
            raise UserError(
                f"config.model.{name}={section[name]!r}: the Hugging Face class has {choices}. Train with that."
            )
        return config | {name: values[0] for name, values in self.hf_fixed({**self.extra, **config}).items()}


def _translate(name: str, value, words: Mapping[str, str], source: str) -> str:
    if value not in words:
        raise UserError(f"{source}: {name}={value!r:.60} is not supported. Choose one of: {', '.join(words)}.")
    return words[value]
