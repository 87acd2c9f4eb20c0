"""What a family of models is, for going to Hugging Face's and back."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import Keys
from pretrain.interop.weight_map import Row

# Those that a config.json gives.
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of model that both know; all that is known of it is here."""

    model_type: str  # what config.json calls it
    kind: str  # of our `model` section
    recipe: str  # whose other sections an imported model gets
    architecture: Callable[[Mapping], str]  # of a section: the class that is exported
    keys: Keys  # of config.json
    rows: Callable[[Mapping], Sequence[Row]]  # of a section: the table of names
    tokenizers: tuple[str, ...]  # kinds that its tokenizers are of, the usual first
    special: Mapping[str, str]  # what a tokenizer's settings call our special ids
    # The kind of the files that its class of tokenizers reads in its own way, by model_type.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: tuple[tuple[str, ...], ...] = ()  # what one text becomes, and a pair (`exported.tokenizer_json`)
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")  # what its tokenizers give
    pads: str = "right"  # the side of a text on which its tokenizers put padding
    task: str = ""  # what the Hub calls its use (`pipeline_tag`), where it plainly has one
    # What a decoder that writes text starts with, and what is put at the end of one that is cut: special ids.
    writes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""  # begins names in files of the class with a head, and not of that without
    renamed: tuple[tuple[str, str], ...] = ()  # (pattern, name) of what older files call otherwise
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # tensors that are another again: that one
    buffers: tuple[str, ...] = ()  # patterns of tensors that are no weights
    zeros: tuple[str, ...] = ()  # those of them that must be 0 everywhere, since ours has nothing in their place
    unused: tuple[str, ...] = ()  # patterns of weights that files can have and pretraining has no use for
    also: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other model_types of the same: their recipes
    pad: int | None = None  # the id that its tokenizers must have for padding, where positions are counted by it
    # Of a section and the names that the files have, the section that those are of.
    settle: Callable[[dict, frozenset], dict] = lambda section, names: section
    # Sets what of a whole config follows from its model.
    complete: Callable[[ConfigDict], None] = lambda config: None
    # Sets the languages of a whole config: of config.json, read from where it says, and of the tokenizer's codes.
    speak: Callable[[ConfigDict, Mapping, str, Sequence[str]], None] = lambda config, given, source, codes: None
    # Raises UserError where a config.json, read from where it says, cannot be of a tokenizer with these special ids.
    check: Callable[[Mapping, str, Mapping[str, int]], None] = lambda given, source, special: None
    # What there is to say of a config.json where a whole config has something else.
    says: Callable[[Mapping, ConfigDict], Sequence[str]] = lambda given, config: ()
    # Keys of config.json that a whole config gives, beside those of the `model` section.
    more: Callable[[ConfigDict], Mapping] = lambda config: {}
    # Lines of Python that call `model` with what `tokenizer` does not give, for the card.
    call: Callable[[ConfigDict], Sequence[str]] = lambda config: ()
    # Of models that are several there: the name of this part; how the names of tensors begin by which its files are
    # told from those of other parts; of a section, that of the part; and of a parameter of the part, which one of the
    # whole it is.
    part: str = ""
    mark: str = ""
    section_of: Callable[[Mapping], Mapping] = lambda section: section
    path_of: Callable[[str], str] = lambda path: path

    def canonical(self, name: str, known: Mapping) -> str:
        """What the table calls a tensor that a file calls `name`."""
        for pattern, better in self.renamed:
            name = re.sub(pattern, better, name)
        return f"{self.prefix}{name}" if name not in known and f"{self.prefix}{name}" in known else name

    def is_buffer(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.buffers)

    def is_unused(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.unused)

    def ids(self, special: Mapping[str, int]) -> dict[str, int | None]:
        """The special ids that a config.json gives; for padding null where there is none, and not the class's own."""
        named = {**self.special, **self.writes}
        found = {f"{key}_id": special.get(name) for key, name in named.items()}
        given = {key: i for key, i in found.items() if i is not None and key in IDS}
        return given | {"pad_token_id": special.get("pad")}
