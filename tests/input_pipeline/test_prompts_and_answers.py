"""Rows of prompts and answers: what is read, what is scored, what shares a row, and what is cut."""

import json

import numpy as np
import pytest

from configs import common
from input_pipeline import pipeline
from input_pipeline.batch_spec import declared, empty
from input_pipeline.corruption import build, class_names
from input_pipeline.corruption.examples import Frame, fill_template
from input_pipeline.corruption.texts import references
from input_pipeline.errors import DataError
from input_pipeline.io import Folders
from input_pipeline.tokenizers.base import Bytes, extend

END = 256
TURNS = [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"), ("assistant", "BC")]
CHAT = {"messages": [{"role": role, "content": content} for role, content in TURNS]}


def objective(kind, **keys):
    section = common.OBJECTIVES[kind]()
    section.update(keys)
    return build(section.to_dict(), Bytes())


def rows_of(task, *groups, length=24):
    batch = empty(declared(task, len(groups), length, "packed_examples"))
    task.write_rows(batch, np.arange(len(groups)), [[task.read(record)[0] for record in group] for group in groups])
    return batch


def scored(batch, row=0):
    """The scored targets of a row as text, the end token as "$"."""
    return "".join("$" if i == END else chr(i) for i in batch["targets"][row][batch["weights"][row] > 0])


def test_prompt_and_answer_in_one_row():
    task = objective("causal", inputs="{q}:", targets=" {a}", loss_on="targets")
    batch = rows_of(task, [{"q": "ab", "a": "cd"}], [{"q": "ab", "a": "cd"}, {"q": "x", "a": "y"}])
    assert batch["tokens"][0, :7].tolist() == [END, *b"ab: cd"]
    assert batch["targets"][0, :7].tolist() == [*b"ab: cd", END]
    assert batch["prompt"].tolist() == [4, 3] and scored(batch) == " cd$" and scored(batch, 1) == " cd$ y$"
    assert batch["segments"][1].tolist() == [1] * 7 + [2] * 5 + [0] * 12
    assert batch["positions"][1, :12].tolist() == [*range(7), *range(5)]
    assert batch["tokens"][1, 7] == END  # of the second example: it begins as the first one does
    everything = rows_of(objective("causal", inputs="{q}:", targets=" {a}"), [{"q": "ab", "a": "cd"}])
    assert scored(everything) == "ab: cd$"


def test_turns_of_answers_alone_are_scored():
    task = objective("causal", turns="messages", turn="{role}>{content}\n", loss_on="targets")
    batch = rows_of(task, [CHAT], length=64)
    assert scored(batch) == "A\n$BC\n$"
    text = "system>S\nuser>U\nassistant>A\n$user>V\nassistant>BC\n$"
    assert "".join("$" if i == END else chr(i) for i in batch["targets"][0, : len(text)]) == text
    assert task.right_answers(CHAT) == ["BC"] and batch["prompt"][0] == len(text) - 3
    (begun,) = task.prompts(["U"]).begun
    assert bytes(begun[1:].tolist()) == b"user>U\nassistant>"


def test_long_prompts_lose_their_beginning_and_answers_their_end():
    task = objective("causal", inputs="q", targets="a", loss_on="targets")
    batch = rows_of(task, [{"q": "0123456789", "a": "xy"}], [{"q": "0", "a": "abcdefghijkl"}], length=8)
    assert bytes(batch["targets"][0, :5].tolist()) == b"56789" and scored(batch) == "xy$"
    assert bytes(batch["targets"][1, :7].tolist()) == b"0abcdef" and scored(batch, 1) == "abcdef$"


def test_text_to_text_has_the_frame_of_its_tokenizer():
    task = objective("text", inputs="in: {q}", targets="{a:no|yes}")
    batch = rows_of(task, [{"q": "b", "a": 1}, {"q": "c", "a": 0}], [{"q": "d", "a": -1}])
    assert batch["inputs"][0, :12].tolist() == [*b"in: b", END, *b"in: c", END]
    assert batch["targets"][0, :7].tolist() == [*b"yes", END, *b"no", END]
    assert batch["tokens"][0, :7].tolist() == [END, *b"yes", END, *b"no"]
    assert batch["segments"][0, :8].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    # Without a label: nothing is scored, and the decoder has its start.
    assert not batch["weights"][1].any() and batch["tokens"][1, 0] == END and batch["segments"][1, 0] == 1
    section = common.text()
    section.update(inputs="q", targets="a")
    tokenizer = extend(Bytes(), ("classifier", "separator"), 0)  # as BART's, whose separator is its end
    tokenizer.special["separator"] = END
    bart = build(section.to_dict(), tokenizer, Frame((), (), tokenizer.special))
    batch = rows_of(bart, [{"q": "x", "a": "y"}])
    assert batch["inputs"][0, :3].tolist() == [257, ord("x"), END]
    assert batch["tokens"][0, :3].tolist() == [END, 257, ord("y")]
    assert bart.encode_prompt("x") == (END, [257, ord("x"), END])


def test_packed_rows_hold_every_example_once(tmp_path):
    sizes = np.random.default_rng(0).integers(1, 12, 100)
    rows = [{"q": "x" * int(size), "a": str(n)} for n, size in enumerate(sizes)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = common.base()
    config.objective.update(inputs="q", targets="a", loss_on="targets")
    config.tokenizer.kind = "bytes"
    config.data.update(train=f"jsonl:{tmp_path}/train.jsonl", layout="packed_examples", length=32, holdout=0.0)
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    folders = Folders(data=tmp_path / "data", tokenizer=tmp_path / "tokenizer")
    corpus = pipeline.prepare(*sections, folders, report=lambda message: None)
    number = int(corpus.rows_per_epoch)
    assert number < 60
    how = {"seed": 1, "workers": 0, "prefetch": 1}
    batches = corpus.batches(batch_size=number, **how)
    found = next(batches)
    assert sorted("".join(scored(found, row) for row in range(number)).split("$")[:-1], key=int) == [
        *map(str, range(100))
    ]
    some = next(corpus.batches(batch_size=number, rows=np.array([3, 5]), **how))
    assert all(np.array_equal(some[name], found[name][[3, 5]]) for name in found)


@pytest.mark.parametrize(
    ("record", "targets", "found"),
    [
        ({"a": "x"}, "a", ["x"]),
        ({"a": ["x", "y"]}, "a", ["x", "y"]),
        ({"a": []}, "a", []),
        ({"b": "x"}, "a", []),
        ({"a": -1}, "a", ["-1"]),
        ({"a": -1}, "is {a:no|yes}", []),
        ({"a": "yes"}, "is {a:no|yes}", ["is yes"]),
    ],
)
def test_right_answers_of_a_record(record, targets, found):
    section = common.text()
    section.targets = targets
    assert references(record, section) == found
    assert class_names(section) == (("is no", "is yes") if ":" in targets else ())


@pytest.mark.parametrize(
    ("kind", "keys", "record", "problem"),
    [
        ("text", {"inputs": "{x}", "targets": "a"}, {"q": "b"}, "no usable field 'x'"),
        ("text", {"inputs": "q", "targets": "{a:no|yes}"}, {"q": "b", "a": 2}, "label '2' is none of {a:no|yes}"),
        ("text", {"inputs": "q", "targets": "a", "labels": ("no",)}, {"q": "b", "a": "yes"}, "label 'yes'"),
        ("causal", {"turns": "messages", "answers": ("bot",)}, CHAT, "no turn of bot"),
        ("causal", {"turns": "messages", "turn": "{name}: {content}"}, CHAT, "no usable field 'name'"),
        ("causal", {"turns": "messages", "turn": "{role}"}, CHAT, "objective.turn"),
        ("causal", {"inputs": "q"}, {"q": "b"}, "objective.targets"),
        ("causal", {"inputs": "q", "targets": "a", "loss_on": "answers"}, {"q": "b"}, "objective.loss_on"),
    ],
)
def test_mistakes_of_templates(kind, keys, record, problem):
    with pytest.raises(DataError) as caught:
        objective(kind, **keys).read(record)
    assert problem in str(caught.value)


def test_template_names_classes_by_number_or_name():
    assert fill_template("{a:no|yes}, {b}", {"a": 1, "b": 0.5}) == "yes, 0.5"
