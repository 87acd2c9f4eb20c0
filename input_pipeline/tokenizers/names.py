"""Special ids of ready tokenizer files, found by what the families call them."""

import re
from collections.abc import Callable, Mapping

# The first that a tokenizer has counts. RoBERTa and BART begin with <s> and separate by </s>. The last are those of
# tokenizers trained here.
NAMES = {
    "end": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<end>"),
    "unknown": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>", "<special1>"),  # the last XLM's
    "separator": ("[SEP]", "<sep>", "</s>", "<separator>"),
    "classifier": ("[CLS]", "<cls>", "<s>", "<classifier>"),
}
CODE = "[a-z]{2,3}_[A-Z]{2}"  # of a language, in mBART's vocabularies


def spelled(name: str) -> str:
    """What a special id made here is called in a file: a code of a language by itself, the others in brackets."""
    return name if is_code(name) else f"<{name}>"


def is_code(name: str) -> bool:
    return re.fullmatch(CODE, name) is not None


def special_ids(find: Callable[[str], int | None]) -> Mapping[str, int]:
    """The special ids by name; `find` gives the id of a special token, None where there is none."""
    found = {name: next((i for i in map(find, tokens) if i is not None), None) for name, tokens in NAMES.items()}
    return {name: i for name, i in found.items() if i is not None}


def sentinel_ids(find: Callable[[str], int | None]) -> tuple[int, ...]:
    """The ids of <extra_id_0>, <extra_id_1>, ... as T5's files have them; mT5's have a space before each."""
    for space in ("", "\u2581"):
        ids = []
        while (i := find(f"{space}<extra_id_{len(ids)}>")) is not None:
            ids.append(i)
        if ids:
            return tuple(ids)
    return ()
