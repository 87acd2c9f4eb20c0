"""Tasks whose answers are texts: a prompt to read and an answer to write, by templates, or conversations of turns.

A row holds one example, or with layout packed_examples as many as fit, each a segment of its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from input_pipeline.batch_spec import Feature, by_row
from input_pipeline.corruption.base import Prompts
from input_pipeline.corruption.causal import CausalLM
from input_pipeline.corruption.examples import FIELD, NUMBER, UNLABELLED, Example, Frame, fill_template, text_of
from input_pipeline.corruption.seq2seq import DECODER, ENCODER, Seq2Seq
from input_pipeline.errors import DataError
from input_pipeline.packing.seq2seq import truncate
from input_pipeline.sources.parser import EXAMPLES
from input_pipeline.sources.records import value_at
from input_pipeline.tokenizers.base import Tokenizer

CONTENT = "{content}"  # in a template of turns: what a role says


def class_names(section: Mapping) -> tuple[str, ...]:
    """Names of classes as answers spell them: `labels`, or those in a template such as "{label:negative|positive}"."""
    fields = re.findall(FIELD, section["targets"])
    if section["labels"] or len(fields) != 1 or ":" not in fields[0]:
        return tuple(section["labels"])
    names = fields[0].partition(":")[2].split("|")
    return tuple(section["targets"].replace(f"{{{fields[0]}}}", name).strip() for name in names)


def references(record: Mapping, section: Mapping) -> list[str]:
    """The right answers of a record: one of a template, several of a field with a list, [] without a label.

    Errors: DataError for a label that `objective.labels` or the template does not name.
    """
    template, fields = section["targets"], re.findall(FIELD, section["targets"])
    try:
        if fields:
            labels = [value_at(record, field.partition(":")[0], NUMBER) for field in fields]
        else:
            labels = value_at(record, template, NUMBER | list | np.ndarray)
            labels = list(labels) if isinstance(labels, list | np.ndarray) else [labels]
    except DataError:
        return []
    # A class of -1 is one that is withheld; a text may be "-1".
    withheld = ("", "-1") if ":" in template else ("",)
    if not labels or any(str(label).strip() in withheld for label in labels):
        return []
    found = [fill_template(template, record)] if fields else list(map(str, labels))
    if section["labels"] and (unknown := {one.strip() for one in found} - set(section["labels"])):
        names = ", ".join(section["labels"])
        raise DataError(f"label '{min(unknown)}' is not one of {names}. Change objective.labels.")
    return found


class PromptsAndAnswers:
    """What text to text and prompts of decoders share."""

    layouts = EXAMPLES
    labelled = "targets"
    classes = ()
    windows = False
    length = 0  # of the longest rows, for warnings

    def write(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, examples: Sequence[Example]) -> None:
        """Writes examples into rows `slots` of a batch, one a row."""
        self.write_rows(batch, slots, [[example] for example in examples])

    def texts(self, record: Mapping) -> list[str]:
        """The texts of a record, as a tokenizer is trained on them."""
        return [text_of(record, self.section["inputs"]), *references(record, self.section)[:1]]

    def notes(self, table) -> Iterator[str]:
        """Warnings about the examples of a split."""
        sizes, limits = self.needs(table.sizes, self.length)
        if cut := int((sizes > limits).any(1).sum()):
            yield f"{cut:,} of {len(table):,} examples are longer than data.length={self.length} and are cut"

    def right_answers(self, record: Mapping) -> list[str]:
        """What a decoded answer is compared with; [] without a label."""
        return references(record, self.section)

    def needs(self, parts: np.ndarray, length: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """(tokens of examples on each side, int64 [n, S], those of a row), from the sizes [n, K] of their parts."""


class TextToText(PromptsAndAnswers, Seq2Seq):
    """A text to read and a text to write, each in the frame of `tokenizer.single`; features of `Seq2Seq`.

    Targets have what the frame has in front of a text, the text and the end token: BART's begin with <s>.
    """

    kind = "text"
    uses_text_pairs = False

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None, frame: Frame | None = None):
        self.section, start = section, section["start"]
        self.special = ("end", *[start] * (start not in ("", "end")))
        self.length = frame.length if frame else 0
        if tokenizer:
            # T5 alone has sentinels, and begins with its padding id.
            self.start = start or ("pad" if tokenizer.sentinels and "pad" in tokenizer.special else "end")
            if self.start not in tokenizer.special:
                raise DataError(f"objective.start={start}: the tokenizer has no such id. Use: {[*tokenizer.special]}.")
            self.frame = frame or Frame((), (), tokenizer.special)
            # Targets end with the end token whatever the frame has there: mBART's has a language code.
            front = self.frame.frames[0][: self.frame.before]
            self.frames = [self.frame.frames[0], [*front, Frame.TEXT, tokenizer.special["end"]]]
        super().__init__(section, tokenizer)

    def target_length(self, length: int) -> int:
        return min(length, self.section["target_length"] or length)

    @property
    def target_front(self) -> list[int]:
        return self.frames[1][:-2]

    def read(self, record: Mapping) -> list[Example]:
        """The example of a record; without an answer its targets are empty."""
        found = references(record, self.section)
        answer = found[0] if found else ""
        parts = tuple(map(self.tokenizer.encode, (text_of(record, self.section["inputs"]), answer)))
        read, written = (len(part) + len(frame) - 1 for part, frame in zip(parts, self.frames, strict=True))
        return [Example(parts, 1.0 if found else UNLABELLED, max(read, self.target_length(written)))]

    def needs(self, parts: np.ndarray, length: int) -> tuple[np.ndarray, tuple[int, ...]]:
        return parts + np.array([len(frame) - 1 for frame in self.frames]), (length, self.target_length(length))

    def write_rows(self, batch: Mapping, slots: np.ndarray, groups: Sequence[Sequence[Example]]) -> None:
        """Writes groups of examples into rows `slots` of a batch, a row for each group."""
        for slot, group in zip(slots.tolist(), groups, strict=True):
            for side, frame, part in zip((ENCODER, DECODER), self.frames, range(2), strict=True):
                ids, segments, positions = (batch[name][slot] for name in side)
                place = 0
                for segment, example in enumerate(group, 1):
                    text = example.parts[part][: len(ids) - place - len(frame) + 1]
                    row = np.concatenate([text if code == Frame.TEXT else [code] for code in frame])
                    stop = place + len(row)
                    ids[place:stop], segments[place:stop], positions[place:stop] = row, segment, np.arange(len(row))
                    if part:
                        batch["weights"][slot, place:stop] = example.target != UNLABELLED
                    place = stop
        self.shift(batch, slots)

    def encode_prompt(self, text: str) -> tuple[int, list[int]]:
        ids = self.encode_gaps(text)
        return self.start_id, [i for code in self.frames[0] for i in (ids if code == Frame.TEXT else [code])]


class Answers(PromptsAndAnswers, CausalLM):
    """A prompt and its answer, or a conversation, in one row; of an example the ids, and which of them are scored.

    Rows begin as those of `CausalLM` do. `prompt` [B] is the number of tokens before the last answer of a row.
    """

    special = ("end",)
    choices: ClassVar = {"loss_on": ("all", "targets")}

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None, frame: Frame | None = None):
        self.section, self.length = section, frame.length if frame else 0
        super().__init__(section, tokenizer)
        if section["turns"] and CONTENT not in section["turn"]:
            raise DataError(f"objective.turn={section['turn']!r}: has no {CONTENT}. Add it.")
        if not (section["turns"] or section["targets"]):
            raise DataError("objective.targets='': name the field or template of the answers.")

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        return super().features(batch_size, length) | {"prompt": by_row(batch_size)}

    def read(self, record: Mapping) -> list[Example]:
        """The example of a record. Errors: DataError for missing fields and a conversation without an answer."""
        pieces, found = self.turns(record) if self.section["turns"] else self.prompt_and_answer(record)
        encoded = [(self.tokenizer.encode(text), scored) for text, scored in pieces]
        # Each answer ends with the end token: decoding stops where training has learned to.
        ids = [np.append(ids, self.tokenizer.end_id) if scored else ids for ids, scored in encoded]
        scored = np.repeat([scored for _, scored in encoded], [len(one) for one in ids])
        ids = np.concatenate(ids).astype(np.int32)
        return [Example((ids, scored.astype(np.int32)), 1.0 if found else UNLABELLED, len(ids))]

    def prompt_and_answer(self, record: Mapping) -> tuple[list[tuple[str, bool]], list[str]]:
        """(texts and whether each is scored, right answers) of a record with two fields."""
        found = references(record, self.section)
        return [(text_of(record, self.section["inputs"]), False), (found[0] if found else "", True)], found

    def turns(self, record: Mapping) -> tuple[list[tuple[str, bool]], list[str]]:
        """The same of a conversation, whose last answer is the right one."""
        before, _, after = self.section["turn"].partition(CONTENT)
        pieces, found = [], []
        for turn in value_at(record, self.section["turns"], list | np.ndarray):
            answers = value_at(turn, "role", NUMBER) in self.section["answers"]
            content = fill_template(CONTENT, turn)
            pieces += [(fill_template(before, turn), False), (content + fill_template(after, turn), answers)]
            found = [content] if answers else found
        if not found:
            roles = ", ".join(self.section["answers"])
            raise DataError(f"no turn of {roles} in '{self.section['turns']}'. Change objective.answers.")
        return pieces, found

    def texts(self, record: Mapping) -> list[str]:
        pieces, _ = self.turns(record) if self.section["turns"] else self.prompt_and_answer(record)
        return [text for text, _ in pieces]

    def right_answers(self, record: Mapping) -> list[str]:
        return (self.turns(record) if self.section["turns"] else self.prompt_and_answer(record))[1]

    def needs(self, parts: np.ndarray, length: int) -> tuple[np.ndarray, tuple[int, ...]]:
        return parts[:, :1], (length,)

    def write_rows(self, batch: Mapping, slots: np.ndarray, groups: Sequence[Sequence[Example]]) -> None:
        """Writes groups of examples into rows `slots` of a batch, a row for each group."""
        begin = self.tokenizer.end_id if self.start_id is None else self.start_id
        for slot, group in zip(slots.tolist(), groups, strict=True):
            place = 0
            for segment, example in enumerate(group, 1):
                # Every example begins as if it were alone: positions from 0, and the id that begins a row.
                ids, scored, prompt = self.cut(example, batch["tokens"].shape[1])
                row = slice(place, place + len(ids))
                batch["tokens"][slot, row] = [begin, *ids[:-1]]
                batch["targets"][slot, row] = ids
                batch["segments"][slot, row] = segment
                batch["positions"][slot, row] = np.arange(len(ids))
                scored = scored if self.section["loss_on"] == "targets" else 1
                batch["weights"][slot, row] = scored * (example.target != UNLABELLED)
                batch["prompt"][slot] = prompt + 1
                place += len(ids)

    def cut(self, example: Example, length: int) -> tuple[np.ndarray, np.ndarray, int]:
        """(ids, whether each is scored, those before the last answer) of an example, in `length` tokens.

        A prompt loses its beginning, an answer its end but for the end token.
        """
        ids, scored = example.parts
        # Where the last run of scored ids begins: turns before it are context.
        prompt = int(np.flatnonzero(np.diff(scored, prepend=0) > 0)[-1])
        before, behind = truncate(prompt, len(ids) - prompt, length)
        kept = slice(prompt - before, prompt + behind)
        whole, ids = ids, ids[kept].copy()
        # An answer that is cut still ends, as cut targets of pairs do: else it would teach to go on.
        if kept.stop < len(whole):
            ids[-1] = self.tokenizer.end_id
        return ids, scored[kept], before

    def prompts(self, texts: Sequence[str]) -> Prompts:
        if self.section["turns"]:
            # A prompt is a user's turn, and the model's turn begins.
            turn, answers = self.section["turn"], {"role": self.section["answers"][0]}
            asked = [fill_template(turn, {"role": "user", "content": text}) for text in texts]
            texts = [text + fill_template(turn.partition(CONTENT)[0], answers) for text in asked]
        return super().prompts(texts)
