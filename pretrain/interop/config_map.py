"""A config.json and the `model` section of ours, key by key, both ways: what both have, and what one of them fixes.

Nothing is passed over: a key that is neither in a family's lists nor in `OUTSIDE` is refused by name, and so is a value
that the other side cannot have.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from pretrain.errors import UserError
from pretrain.interop.generation_config import SETTINGS

# Those of `SETTINGS` that only families whose decoder writes of what an encoder reads have, and list themselves.
OF_TWO_TEXTS = {"decoder_start_token_id", "force_bos_token_to_be_generated"}
# Keys of any config.json that say nothing about what a pretraining model computes: where it comes from, what text is
# written with it, what is returned beside logits, heads for other tasks.
# fmt: off
OUTSIDE = frozenset((
    "architectures", "model_type", "transformers_version", "_name_or_path", "tokenizer_class", "problem_type",
    "finetuning_task", "id2label", "label2id", "num_labels", "classifier_dropout", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_scores", "return_dict_in_generate", "torchscript",
    "tf_legacy_loss", "use_bfloat16", "gradient_checkpointing", "chunk_size_feed_forward",
    "_attn_implementation_autoset", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", *(SETTINGS.keys() - OF_TWO_TEXTS),
))
# fmt: on
# What no model of ours does, and keys of any config.json can ask for.
PLAIN = {
    "pruned_heads": ({}, None),
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "quantization_config": (None,),
}
# Keys of what heads of other tasks make of a text's states, in config.json of those models that name them so.
SUMMARY = ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout")
# Words for activations; the first of each of ours is the one that is written.
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
# The same where the head of tokens has this one whatever is written down.
GELU = {name: ours for name, ours in ACTIVATIONS.items() if ours == "gelu_erf"}
DTYPE = ("dtype", "torch_dtype")  # now, and before
DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float32"}  # float16 needs its loss scaled


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of theirs and the one of ours that means the same.

        Key("hidden_size", "width", 768)                              64 is 64; 768 where theirs is not there
        Key("hidden_act", "activation", "gelu", words=ACTIVATIONS)    "gelu_new" is "gelu_tanh"
        Key("max_position_embeddings", "context", 514, more=2)        514 is 512
        Key("embedding_size", "embed", 128, like="width")             128 is 128; in a model 128 wide it is 0

    default: what stands for a key that is absent or null, as theirs has it; a function is given the other keys.
    words: the words that ours are there, where they differ. more: how much larger a number is there. like: the key of
    ours that says it where ours is 0.
    seen: of all keys, the value that is meant, where more than this key says so.
    Such functions find every key of `Keys.both` and `Keys.beside`, each of its type.
    """

    theirs: str
    ours: str
    default: Any
    words: Mapping[str, str] | None = None
    more: int = 0
    like: str = ""
    seen: Callable[[Mapping], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Keys:
    """What a family's config.json can say.

    both: keys that both have. theirs: of a config.json, the values of which others must have one (the first is
    written); ours: the same of a section of ours. beside: keys that functions here read besides, or that are held
    against `theirs` even where they are absent or null, and what each is then. older: keys of older files that asked
    for another network once, which the classes read no more: the values that the released models have. outside: keys of
    theirs that say nothing about the network, besides `OUTSIDE`.
    """

    both: tuple[Key, ...]
    theirs: Callable[[Mapping], Mapping[str, tuple]]
    ours: Callable[[Mapping], Mapping[str, tuple]]
    beside: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    older: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    outside: tuple[str, ...] = ()

    def section(self, given: Mapping, source: str, declared: Callable) -> dict:
        """The keys of our `model` section that a config.json, read from `source`, decides.

        `declared` makes that section, with its `ranges` (configs.common). Errors: UserError for a key that is unknown,
        and for a value that no model of ours has.
        """
        kinds = declared()
        read = self._read(given, source, kinds)
        section = {key.ours: _ours(key, read, source, type(kinds[key.ours]), declared.ranges) for key in self.both}
        fixed = {**PLAIN, **self.older, **self.theirs(read)}
        known = OUTSIDE | fixed.keys() | read.keys() | {*self.outside, *DTYPE}
        for name, value in given.items():
            if name not in known:
                raise UserError(
                    f"{source} has the key {name} = {value!r:.60}, which may change what the model computes and is not "
                    "known here; take it out where it does not"
                )
        for key in self.both:
            if key.like and section[key.ours] == section[key.like]:
                section[key.ours] = 0
        held = {name: value for name, value in given.items() if name not in read} | read
        for name, value in held.items():
            if name in fixed and value not in fixed[name]:
                raise UserError(
                    f"{source}: {name} = {value!r:.60}{'' if name in given else ' where it is not there'} is more than "
                    f"models here can do, which have {' or '.join(dict.fromkeys(map(repr, fixed[name])))}; only a "
                    "model with that can be imported"
                )
        dtype = next((given[name] for name in DTYPE if given.get(name)), "float32")
        return section | {"dtype": _word("dtype", dtype, DTYPES, source)}

    def _read(self, given: Mapping, source: str, kinds: Mapping) -> dict:
        """The keys of theirs that a model is read from, each of its type: {name: value}."""
        read = {name: _typed(name, given, default, type(default), source) for name, default in self.beside.items()}
        for key in sorted(self.both, key=lambda key: callable(key.default)):  # which are given the others
            default = key.default(read) if callable(key.default) else key.default
            wanted = str if key.words else type(kinds[key.ours])
            read[key.theirs] = _typed(key.theirs, given, default, wanted, source)
        return read

    def in_theirs(self, sentence: str) -> str:
        """`sentence`, with the names of their keys in the place of ours, model.NAME, that mean the same."""
        names = {key.ours: key.theirs for key in self.both}
        return re.sub(r"\bmodel\.(\w+)", lambda found: names.get(found[1], found[0]), sentence)

    def config(self, section: Mapping, refused: str) -> dict:
        """The config.json of a `model` section. Errors: UserError, which begins with `refused`, of what has no word."""
        unfit = {name: values for name, values in self.ours(section).items() if section[name] not in values}
        written = {}
        for key in self.both:
            value = section[key.ours] or section[key.like] if key.like else section[key.ours]
            if key.words:
                fitting = [theirs for theirs, ours in key.words.items() if ours == value]
                if not fitting:
                    unfit[key.ours] = dict.fromkeys(key.words.values())
                    continue
                value = fitting[0]
            written[key.theirs] = value + key.more if key.more else value
        if unfit:
            name, values = next(iter(unfit.items()))
            has = " or ".join(map(repr, values))
            others = ", among others" * (len(unfit) > 1)
            differs = f"config.model.{name} = {has}, not {section[name]!r}{others}"
            raise UserError(f"{refused}: such a model has {differs}; train one that has")
        return written | {name: values[0] for name, values in self.theirs({**self.beside, **written}).items()}


def _typed(name: str, given: Mapping, default, wanted: type, source: str):
    """The value of one of their keys. Errors: UserError where it is of another type."""
    value = default if given.get(name) is None else given[name]
    number = wanted is float and isinstance(value, int)  # as JSON may have a whole number
    if not (isinstance(value, wanted) or number) or isinstance(value, bool) != (wanted is bool):
        raise UserError(f"{source}: {name} = {value!r:.60} is no {wanted.__name__}; correct it")
    return value


def _ours(key: Key, read: Mapping, source: str, wanted: type, ranges: Mapping):
    """What one of their keys is here. Errors: UserError where no model of ours has that."""
    value = key.seen(read) if key.seen else read[key.theirs]
    if key.words:
        return _word(key.theirs, value, key.words, source)
    ours = wanted(value - key.more) if key.more else wanted(value)
    if key.ours in ranges and (rule := ranges[key.ours].violation(ours)):
        more = f" {key.more} more than a number that is" if key.more else ""
        raise UserError(f"{source}: {key.theirs} = {value!r:.60}; it must be{more} {rule}")
    return ours


def _word(name: str, value, words: Mapping[str, str], source: str) -> str:
    if not isinstance(value, str) or value not in words:
        raise UserError(
            f"{source}: {name} = {value!r:.60} cannot be imported; of such models only these can: {', '.join(words)}"
        )
    return words[value]
