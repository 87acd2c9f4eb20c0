"""A family of models, as import and export know it."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ConfigMap
from pretrain.interop.weight_map import Row

# Special ids that a config.json has.
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
NORM_NAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))  # older -> newer


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
    config_map: ConfigMap
    rows: Callable[[Mapping], Sequence[Row]]  # weight map of a `model` section
    tokenizers: tuple[str, ...]  # tokenizer kinds, in order of preference
    special: Mapping[str, str]  # key in tokenizer_config.json -> our special id
    legacy_tokenizers: Mapping[str, str] = dataclasses.field(default_factory=dict)  # model_type -> tokenizer kind
    template: tuple[tuple[str, ...], ...] = ()  # special tokens around one text and around a pair
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")  # model_input_names of the tokenizer
    padding_side: str = "right"
    task: str = ""  # `pipeline_tag` on the Hub
    generation: Mapping[str, str] = dataclasses.field(default_factory=dict)  # as `special`, for decoders' ids
    prefix: str = ""  # of tensor names, absent in files of the headless class
    renames: tuple[tuple[str, str], ...] = ()  # (pattern, newer name) of tensors in older files
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)  # tensor -> the one that it repeats
    ignored: tuple[str, ...] = ()  # patterns of buffers, and of weights that pretraining does not read
    zeros: tuple[str, ...] = ()  # ignored tensors that must be 0: our models have no such bias
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other model_types -> recipe
    pad_id: int | None = None  # required by classes that count positions from it
    # (section, tensor names) -> section: fields that config.json does not decide.
    settle: Callable[[dict, frozenset], dict] = lambda section, names: section
    # (config, config.json, tokenizer's language codes): sets the sections that follow from the model.
    complete: Callable[[ConfigDict, Mapping, Sequence[str]], None] = lambda config, given, codes: None
    extra_keys: Callable[[ConfigDict], Mapping] = lambda config: {}  # config.json keys from the whole config
    usage: Callable[[ConfigDict], Sequence[str]] = lambda config: ()  # more Python lines for the model card
    # A model that is several in Hugging Face, as ELECTRA: this part's name, the prefix of its head's tensors, its
    # own section of the whole section, and its parameter's path in the whole model.
    part: str = ""
    head_prefix: str = ""
    part_section: Callable[[Mapping], Mapping] = lambda section: section
    whole_path: Callable[[str], str] = lambda path: path

    def canonical(self, name: str, known: Mapping) -> str:
        """The weight map's name of a tensor in a file."""
        for pattern, newer in self.renames:
            name = re.sub(pattern, newer, name)
        return f"{self.prefix}{name}" if name not in known and f"{self.prefix}{name}" in known else name

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def ids(self, special: Mapping[str, int]) -> dict[str, int | None]:
        """Special ids for config.json; without padding an explicit null, since classes have their own default."""
        ids = {f"{key}_id": special.get(name) for key, name in {**self.special, **self.generation}.items()}
        return {key: i for key, i in ids.items() if i is not None and key in IDS} | {"pad_token_id": special.get("pad")}
