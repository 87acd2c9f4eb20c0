"""A family of models, as import and export know it: tables of weights and of config.json keys, and its tokenizer."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs.common import MODELS
from pretrain.errors import UserError, lookup
from pretrain.interop.config_map import DTYPE_KEYS, DTYPES, IGNORED, IMPLIED, RUNTIME, UNSUPPORTED, Key
from pretrain.interop.weight_map import OUTPUTS_FIRST, Layout

# Special ids that a config.json has.
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
NORM_NAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))  # older -> newer
EMPTY: Mapping = {}
BASE = "base"  # the part of every model that its base class is


def roles(**names: str) -> dict[str, str]:
    """{key of tokenizer_config.json: our name of a special id}, of keyword arguments such as eos="end"."""
    return {f"{key}_token": name for key, name in names.items()}


MASK_ROLES = roles(pad="pad", unk="unknown", cls="classifier", sep="separator", mask="mask")


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of model that both libraries have."""

    model_type: str  # in config.json
    kind: str  # of our `model` section
    recipe: str  # gives an imported model its other sections
    architecture: Callable[[Mapping], str]  # class to export a `model` section as

    # Weights: names of ours -> theirs, or those of a `model` section, as `weight_map.WeightMap` reads them.
    names: Mapping[str, str] | Callable[[Mapping], Mapping[str, str]]
    kernels: Layout = OUTPUTS_FIRST
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
    prefix: str = ""  # of tensor names of the base class; others are heads. Its own files lack it
    stacks: tuple[str, ...] = ()  # prefixes of names, of which a file may lack one as a whole
    renames: tuple[tuple[str, str], ...] = ()  # (pattern, newer name) of tensors in older files
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)  # tensor -> the one that it repeats
    fallbacks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # tensor -> the one to read without it
    ignored: tuple[str, ...] = ()  # patterns of buffers, and of weights that pretraining does not read
    zeros: tuple[str, ...] = ()  # ignored tensors that must be 0: our models have no such bias

    # config.json: keys with a field of ours.
    keys: tuple[Key, ...] = ()
    # Allowed values of other keys, given all that was read; an export writes the first.
    hf_fixed: Callable[[Mapping], Mapping[str, tuple]] = lambda given: EMPTY
    # Other fields of ours as the class has them: set by an import, required by an export.
    fixed: Callable[[Mapping], Mapping[str, Any]] = lambda section: EMPTY
    # Allowed values of fields, where not only the default of `configs.common`.
    allowed: Callable[[Mapping], Mapping[str, tuple]] = lambda section: EMPTY
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # other keys that these read -> default
    legacy: Mapping[str, tuple] = dataclasses.field(default_factory=dict)  # keys of older files -> values as released
    ignored_keys: tuple[str, ...] = ()  # without effect, besides `IGNORED`
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other model_types -> recipe
    # (section, tensor names) -> section: fields that config.json does not decide.
    settle: Callable[[dict, frozenset], dict] = lambda section, names: section
    # (config, config.json, tokenizer's language codes, untrained modules): sets sections that follow from the model.
    complete: Callable[[ConfigDict, Mapping, Sequence[str], Collection[str]], None] = (
        lambda config, given, codes, untrained: None
    )
    extra_keys: Callable[[ConfigDict], Mapping] = lambda config: EMPTY  # config.json keys from the whole config

    # Tokenizer: kinds in order of preference, and those of older files by model_type.
    tokenizers: tuple[str, ...] = ("huggingface",)
    legacy_tokenizers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    special: Mapping[str, str] = dataclasses.field(default_factory=dict)  # key in tokenizer_config.json -> special id
    generation: Mapping[str, str] = dataclasses.field(default_factory=dict)  # as `special`, for decoders' ids
    template: tuple[tuple[str, ...], ...] = ()  # special tokens around one text and around a pair
    summary: tuple[str, ...] | None = None  # `model.summary` of its classes of tasks; None: the default
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")  # model_input_names of the tokenizer
    padding_side: str = "right"
    pad_id: int | None = None  # required by classes that count positions from it

    # Model card.
    task: str = ""  # `pipeline_tag` on the Hub
    usage: Callable[[ConfigDict], Sequence[str]] = lambda config: ()  # more Python lines

    # A model that is several in Hugging Face, as ELECTRA: this part's name, the prefix of its head's tensors, its
    # own section of the whole section, and its parameter's path in the whole model.
    part: str = ""
    head_prefix: str = ""
    part_section: Callable[[Mapping], Mapping] = lambda section: section
    whole_path: Callable[[str], str] = lambda path: path

    def newer_name(self, name: str) -> str:
        """The name in newer files of a tensor in older ones."""
        for pattern, newer in self.renames:
            name = re.sub(pattern, newer, name)
        return name

    def is_head(self, name: str) -> bool:
        """Whether a tensor of the weight map is a head's, which the base class lacks."""
        return not name.startswith(self.prefix) or bool(self.head_prefix and name.startswith(self.head_prefix))

    def base(self) -> "Family":
        """The base class, as a part to export: no heads, and names without the prefix."""

        def names(section: Mapping) -> dict[str, str]:
            return {
                ours: name.removeprefix(self.prefix)
                for ours, name in self.table(section).items()
                if not self.is_head(name)
            }

        return dataclasses.replace(
            self,
            part=BASE,
            names=names,
            architecture=lambda section: re.sub(r"(LMHead|For|WithLMHead).*", "Model", self.architecture(section)),
            task="feature-extraction",
            usage=lambda config: [line.replace("logits", "last_hidden_state") for line in self.usage(config)],
        )

    def table(self, section: Mapping) -> Mapping[str, str]:
        """`names` of a `model` section."""
        return self.names(section) if callable(self.names) else self.names

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def ids(self, special: Mapping[str, int]) -> dict[str, int | None]:
        """Special ids for config.json; without padding an explicit null, since classes have their own default."""
        ids = {f"{key}_id": special.get(name) for key, name in {**self.special, **self.generation}.items()}
        return {key: i for key, i in ids.items() if i is not None and key in IDS} | {"pad_token_id": special.get("pad")}

    def to_section(self, given: Mapping, source: str, tensors: frozenset = frozenset()) -> dict:
        """Fields of our `model` section from a config.json, read from `source`, and the names of the weights.

        Errors: UserError for an unknown key or value.
        """
        declared, read = MODELS[self.kind](), self._read(given)
        allowed = {**UNSUPPORTED, **self.legacy, **self.hf_fixed(read)}
        known = IGNORED | allowed.keys() | read.keys() | {*self.ignored_keys, *DTYPE_KEYS}
        for name, value in given.items():
            if name not in known:
                raise UserError(f"{source}: {name}={value!r:.60}: unknown key. Remove it if it has no effect.")
        # Words before fixed values: an unknown activation is named by the key that the user knows.
        section = {}
        for key in self.keys:
            value = key.value(read) if key.value else read[key.hf]
            if key.value:
                section[key.field] = value
            elif key.words:
                section[key.field] = lookup(f"{source}: {key.hf}", str(value), key.words)
            else:
                section[key.field] = type(declared[key.field])(value - key.offset)
        for name, value in {**given, **read}.items():
            if name in allowed and value not in allowed[name]:
                choices = " or ".join(dict.fromkeys(map(repr, allowed[name])))
                raise UserError(f"{source}: {name}={value!r:.60}: only {choices} is supported. Use another model.")
        # Ours is 0 for "as another field", so that equal sizes give one config.
        for key in self.keys:
            if key.same_as and section[key.field] == section[key.same_as]:
                section[key.field] = 0
        dtype = next((given[name] for name in DTYPE_KEYS if given.get(name)), "float32")
        section |= {"dtype": lookup(f"{source}: dtype", str(dtype), DTYPES)} | dict(self.fixed(section))
        section |= {} if self.summary is None else {"summary": self.summary}
        return self.settle(section, tensors)

    def _read(self, given: Mapping) -> dict:
        """{key: value or default} of the keys that describe the model."""
        read = {name: default if given.get(name) is None else given[name] for name, default in self.extra.items()}
        for key in sorted(self.keys, key=lambda key: callable(key.default)):  # computed defaults read the others
            default = key.default(read) if callable(key.default) else key.default
            default = key.null if key.null is not None and key.hf in given else default
            read[key.hf] = default if given.get(key.hf) is None else given[key.hf]
        return read

    def to_config(self, section: Mapping) -> dict:
        """config.json keys of a `model` section. Errors: UserError for a field that the class cannot express."""
        mapped = {key.field for key in self.keys}
        # A field that no key expresses keeps its default, which is BERT's, GPT-2's or T5's own.
        allowed = {name: (value,) for name, value in MODELS[section["kind"]]().items() if name not in RUNTIME | mapped}
        allowed |= {name: (0, value(section)) for name, value in IMPLIED.items() if allowed.get(name) == (0,)}
        allowed |= {"attention": (("dense",) * len(section.get("attention", ())),)} | dict(self.allowed(section))
        allowed |= {name: (value,) for name, value in self.fixed(section).items()}
        refused = {name: allowed[name] for name in section if name in allowed and section[name] not in allowed[name]}
        config = {}
        for key in self.keys:
            if key.write:
                config[key.hf] = key.write(section)
                continue
            value = (section[key.field] or section[key.same_as]) if key.same_as else section[key.field]
            if key.words:
                names = [hf for hf, ours in key.words.items() if ours == value]
                if not names:
                    refused[key.field] = tuple(dict.fromkeys(key.words.values()))
                    continue
                value = names[0]
            config[key.hf] = value + key.offset if key.offset else value
        for name, values in refused.items():
            choices = " or ".join(map(repr, values))
            raise UserError(
                f"config.model.{name}={section[name]!r}: the Hugging Face class has {choices}. Train with that."
            )
        return config | {name: values[0] for name, values in self.hf_fixed({**self.extra, **config}).items()}
