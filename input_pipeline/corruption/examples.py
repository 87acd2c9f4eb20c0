"""Tasks of labelled records: a class, a number or a choice for each text or pair of texts.

Records become encoded examples, and these rows in the frames of pretraining (`tokenizer.single`, `tokenizer.pair`).
"""

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from input_pipeline.batch_spec import INTEGER, REAL, Feature, by_row, by_token
from input_pipeline.corruption.base import Objective
from input_pipeline.errors import DataError
from input_pipeline.packing.seq2seq import truncate
from input_pipeline.sources.records import value_at
from input_pipeline.tokenizers.base import Tokenizer

NUMBER = str | int | float
UNLABELLED = -(1 << 30)  # target of examples to predict alone; below every class and number
TEXTS = ("$A", "$B")  # in a frame
FIELD = re.compile(r"\{([^{}]+)\}")  # in a template


class Example(NamedTuple):
    """One row of a task, or several of which one is right.

    parts: int32 arrays, the same number in all examples of an objective; of texts their ids.
    target: the class or number. length: tokens of its longest row, before it is cut.
    """

    parts: tuple[np.ndarray, ...]
    target: float
    length: int


class Frame:
    """Special tokens around one text and around a pair, as pretraining had them.

    single, pair: names of special ids, and $A and $B for the texts. Empty: BERT's, or without its tokens an end token
    behind each text. `names` are those in use, `frames` their ids. length: of the longest rows, for windows.
    """

    TEXT = -2  # of a single text in `frames`

    def __init__(self, single: Sequence[str], pair: Sequence[str], special: Mapping[str, int], length: int = 0):
        first, last = (["classifier"], "separator") if {"classifier", "separator"} <= special.keys() else ([], "end")
        ends = [last] * (last in special)
        frames = tuple(single) or (*first, "$A", *ends), tuple(pair) or (*first, "$A", *ends, "$B", *ends)
        for name in {name for frame in frames for name in frame} - {*TEXTS, *special}:
            raise DataError(f"tokenizer.pair={tuple(pair)}: the tokenizer has no {name}. Name some of {[*special]}.")
        self.names, self.length = frames, length
        self.frames = [[TEXTS.index(name) - 2 if name in TEXTS else special[name] for name in one] for one in frames]
        # Types of tokens: 0 and 1 for the texts, each with the token behind it; XLNet's classifier at the end is 2.
        self.late_classifier = {special["classifier"]} if frames[0][-1] == "classifier" else set()

    @property
    def before(self) -> int:
        """Special tokens in front of a single text."""
        return self.names[0].index("$A")

    @property
    def is_first_special(self) -> bool:
        """Whether a pair begins with a special token."""
        return self.frames[1][0] >= 0

    def size(self, texts: int) -> int:
        """Special tokens around so many texts."""
        return len(self.frames[texts - 1]) - texts

    def sizes(self, texts: Sequence[np.ndarray], length: int) -> tuple[int, ...]:
        """Tokens that a row of `length` has of one or two texts, the longer one cut first."""
        room = length - self.size(len(texts))
        return truncate(len(texts[0]), len(texts[1]), room) if len(texts) == 2 else (min(len(texts[0]), room),)

    def fill(self, texts: Sequence[np.ndarray], tokens: np.ndarray, types: np.ndarray) -> int:
        """Writes one or two texts into a row of `tokens` and `types` [T]; returns the row's length."""
        sizes = self.sizes(texts, len(tokens))
        place = text = 0
        # Negative codes are texts, -2 and -1; all others are ids.
        for code in self.frames[len(texts) - 1]:
            if code < 0:
                text = code + 2
                tokens[place : place + sizes[text]] = texts[text][: sizes[text]]
                types[place : place + sizes[text]] = text
                place += sizes[text]
            else:
                tokens[place], types[place] = code, text
                place += 1
        if int(tokens[place - 1]) in self.late_classifier:
            types[place - 1] = 2
        return place


class Labelled(Objective):
    """Features `tokens`, `types`, `segments` and `positions` [B, T], `labels` and `weights` [B].

    Examples without a label have weight 0.
    """

    layouts = ("examples",)
    label_type = INTEGER
    labelled = "label"  # the key that names the field of the label, which records to predict may lack; or ""
    windows = False  # whether a long text becomes several rows

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None, frame: Frame | None = None):
        self.section, self.tokenizer, self.frame = section, tokenizer, frame
        self.check()

    def check(self) -> None:
        """Raises DataError for contradictory settings."""
        if not 1 <= len(self.section["texts"]) <= 2:
            raise DataError(f"objective.texts={tuple(self.section['texts'])}: must name one or two fields. Change it.")

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        features = dict.fromkeys(("tokens", "types", "segments", "positions"), by_token(batch_size, length))
        return features | {"labels": by_row(batch_size, self.label_type), "weights": by_row(batch_size, REAL)}

    def read(self, record: Mapping) -> list[Example]:
        """The examples of a record. Errors: DataError for missing fields, empty texts and unknown labels."""
        parts = tuple(map(self.tokenizer.encode, self.texts(record)))
        return [Example(parts, self.target(record), sum(map(len, parts)) + self.frame.size(len(parts)))]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of an example; () if it has none."""
        return ()

    def texts(self, record: Mapping) -> list[str]:
        """The texts that it reads of a record. Errors: DataError for missing and empty ones."""
        return [text_of(record, name) for name in self.section["texts"]]

    def notes(self, table) -> Iterator[str]:
        """Warnings about the examples of a split."""
        if cut := int((table.lengths > (length := self.frame.length)).sum()):
            yield f"{cut:,} of {len(table):,} examples are longer than data.length={length} and are cut"

    def target(self, record: Mapping) -> float:
        """The class or number of a record; UNLABELLED without one."""
        return label_of(record, self.section["label"], self.section["labels"])

    def write(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, examples: Sequence[Example]) -> None:
        """Writes examples into rows `slots` of a batch."""
        for slot, example in zip(slots.tolist(), examples, strict=True):
            self.write_row(batch, slot, example.parts)
            labelled = example.target != UNLABELLED
            batch["labels"][slot], batch["weights"][slot] = example.target * labelled, labelled

    def write_row(self, batch: Mapping[str, np.ndarray], index, texts: Sequence[np.ndarray]) -> None:
        """Writes the row of one or two texts at `index` of the features of tokens."""
        used = self.frame.fill(texts, batch["tokens"][index], batch["types"][index])
        batch["segments"][index][:used] = 1
        batch["positions"][index][:used] = np.arange(used)


class Classification(Labelled):
    """A class for each text or pair."""

    kind = "classification"

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.section["labels"])

    def check(self) -> None:
        super().check()
        if len(self.section["labels"]) < 2:
            raise DataError('objective.labels=(): name at least two classes, such as ("negative", "positive").')


class Regression(Labelled):
    """A number for each text or pair."""

    kind = "regression"
    label_type = REAL

    def target(self, record: Mapping) -> float:
        return number_of(record, self.section["label"])


class Grouped(Labelled):
    """Several rows for each example: features of tokens are [B, R, T]."""

    rows: int

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        rows = Feature((batch_size, self.rows, length), INTEGER, ("batch", None, "length"))
        return super().features(batch_size, length) | dict.fromkeys(("tokens", "types", "segments", "positions"), rows)


class Choice(Grouped):
    """One of several texts, a row for each."""

    kind = "choice"

    @property
    def rows(self) -> int:
        return self.section["number"]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.section["labels"] or map(str, range(self.section["number"])))

    def check(self) -> None:
        choices, number = self.section["choices"], self.section["number"]
        if len(choices) not in (1, number):
            raise DataError(
                f"objective.choices={tuple(choices)}: must be {number} fields (objective.number), or a list."
            )

    def read(self, record: Mapping) -> list[Example]:
        parts, asked = tuple(map(self.tokenizer.encode, self.texts(record))), len(self.asked)
        # All rows of an example have the length of its longest choice.
        longest = max(map(len, parts[asked:])) + sum(map(len, parts[:asked]))
        return [Example(parts, self.target(record), longest + self.frame.size(1 + asked))]

    @property
    def asked(self) -> tuple[str, ...]:
        """The field of what is asked, if there is one."""
        return (self.section["text"],) * bool(self.section["text"])

    def texts(self, record: Mapping) -> list[str]:
        choices, number = self.section["choices"], self.section["number"]
        if len(choices) == 1:
            texts = [str(one) for one in value_at(record, choices[0], list | tuple | np.ndarray)]
        else:
            texts = [text_of(record, one) for one in choices]
        if len(texts) != number:
            raise DataError(f"{len(texts)} choices instead of objective.number={number}. Change the key.")
        return [*(text_of(record, name) for name in self.asked), *texts]

    def target(self, record: Mapping) -> float:
        return label_of(record, self.section["label"], self.classes)

    def write_row(self, batch: Mapping[str, np.ndarray], index, texts: Sequence[np.ndarray]) -> None:
        number = self.section["number"]
        for choice, text in enumerate(texts[-number:]):
            super().write_row(batch, (index, choice), [*texts[:-number], text])


class Siamese(Grouped):
    """Two texts, each a row of its own."""

    kind = "siamese"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"loss": ("cosine", "softmax", "ranking")}
    label_type = REAL
    rows = 2

    def check(self) -> None:
        if len(self.section["texts"]) != 2:
            raise DataError(f"objective.texts={tuple(self.section['texts'])}: must name two fields. Change it.")
        if self.section["loss"] == "softmax" and len(self.section["labels"]) < 2:
            raise DataError("objective.labels=(): name at least two classes, or choose another objective.loss.")

    @property
    def labelled(self) -> str:
        return "" if self.section["loss"] == "ranking" else "label"

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.section["labels"]) if self.section["loss"] == "softmax" else ()

    def read(self, record: Mapping) -> list[Example]:
        parts = tuple(map(self.tokenizer.encode, self.texts(record)))
        return [Example(parts, self.target(record), max(map(len, parts)) + self.frame.size(1))]

    def target(self, record: Mapping) -> float:
        """The class or number; of pairs that only belong together 1."""
        if not self.labelled:
            return 1.0
        return super().target(record) if self.classes else number_of(record, self.section["label"])

    def write_row(self, batch: Mapping[str, np.ndarray], index, texts: Sequence[np.ndarray]) -> None:
        for side, text in enumerate(texts):
            super().write_row(batch, (index, side), [text])


class Tagging(Labelled):
    """A tag for each word: `labels` and `weights` are [B, T], set at the first token of a word.

    Parts of an example: ids, the number of tokens of each word, and the tag of each word.
    """

    kind = "tagging"
    labelled = "tags"

    def check(self) -> None:
        if len(self.section["labels"]) < 2:
            raise DataError('objective.labels=(): name the tags, such as ("O", "B-PER", "I-PER").')

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        marks = {"labels": by_token(batch_size, length), "weights": by_token(batch_size, length, REAL)}
        return super().features(batch_size, length) | marks

    def read(self, record: Mapping) -> list[Example]:
        words, tags = (words_of(record, self.section[name]) for name in ("words", "tags"))
        if tags and len(tags) != len(words):
            raise DataError(f"{len(words)} words and {len(tags)} tags. Give one tag for each word.")
        if not words:
            raise DataError(f"field '{self.section['words']}' has no word. Remove the record.")
        # Words behind a space, as within a text; tokenizers that split at spaces by themselves drop it.
        pieces = [self.tokenizer.encode(f"{self.space}{word}") for word in words]
        sizes = np.array([len(ids) for ids in pieces], np.int32)
        names = self.section["labels"]
        numbers = [label_of({"tag": tag}, "tag", names) for tag in tags] or [UNLABELLED] * len(words)
        ids = np.concatenate(pieces).astype(np.int32)
        target = float(bool(tags)) or UNLABELLED
        return [Example((ids, sizes, np.array(numbers, np.int32)), target, len(ids) + self.frame.size(1))]

    def texts(self, record: Mapping) -> list[str]:
        return [" ".join(map(str, words_of(record, self.section["words"])))]

    @functools.cached_property
    def space(self) -> str:
        """What is put in front of a word: a space, if it changes the ids."""
        return "" if np.array_equal(self.tokenizer.encode("a"), self.tokenizer.encode(" a")) else " "

    def write(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, examples: Sequence[Example]) -> None:
        for slot, example in zip(slots.tolist(), examples, strict=True):
            ids, _, tags = example.parts
            self.write_row(batch, slot, [ids])
            places, there = self.first_tokens(example, batch["tokens"].shape[1])
            tags = tags[there]
            batch["labels"][slot, places] = np.maximum(tags, 0)
            batch["weights"][slot, places] = tags != UNLABELLED

    def first_tokens(self, example: Example, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(places of the words' first tokens in a row of `length`, which words these are: bool [words])."""
        sizes = example.parts[1]
        # A word without a token, such as one of control characters alone, has no place.
        places = self.frame.before + np.cumsum(sizes) - sizes
        last = length - (self.frame.size(1) - self.frame.before)
        there = (places < last) & (sizes > 0)
        return places[there], there


def words_of(record: Mapping, field: str) -> list:
    """The words or tags at a field: a list, or a text with spaces between them; [] if there is none."""
    try:
        value = value_at(record, field, list | tuple | np.ndarray | str)
    except DataError:
        return []
    return value.split() if isinstance(value, str) else list(value)


def text_of(record: Mapping, name: str) -> str:
    """The text at a field of a record, or of a template such as "{title}: {body}". Errors: DataError if it is empty."""
    text = fill_template(name, record) if "{" in name else str(value_at(record, name, NUMBER))
    if not text.strip():
        raise DataError(f"field '{name}' is empty. Remove the record, or set data.on_bad_record=skip.")
    return text


def fill_template(template: str, record: Mapping) -> str:
    """A template with the values of a record: {field} in braces; {field:a|b} names the classes 0 and 1.

    Errors: DataError for unknown fields, and classes without a name.
    """

    def value(match: re.Match) -> str:
        field, _, names = match[1].partition(":")
        found = str(value_at(record, field, NUMBER))
        if not names or found in names.split("|"):
            return found
        if found.isdecimal() and int(found) < len(names.split("|")):
            return names.split("|")[int(found)]
        raise DataError(f"label '{found}' is none of {match[0]}. Name its class there.")

    return FIELD.sub(value, template)


def label_text(record: Mapping, field: str) -> str:
    """The label at a field; empty if it is missing."""
    try:
        return str(value_at(record, field, NUMBER)).strip()
    except DataError:
        return ""


def number_of(record: Mapping, field: str) -> float:
    """The number at a field; UNLABELLED if it is missing or empty. Errors: DataError if it is none."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float((value := label_text(record, field)) or UNLABELLED)):
            return number
    raise DataError(f"label '{value}' is not a number. Change objective.label.")


def label_of(record: Mapping, field: str, names: Sequence[str]) -> int:
    """The class at a field; UNLABELLED if it is missing, empty or an unnamed -1. Errors: DataError if unknown."""
    if (value := label_text(record, field)) in names:
        return list(names).index(value)
    if value in ("", "-1"):
        return UNLABELLED
    # Numbers count classes from 0, where no class is named so.
    if value.isdecimal() and int(value) < len(names):
        return int(value)
    raise DataError(f"label '{value}' is not one of {', '.join(map(str, names))}. Change objective.labels.")
