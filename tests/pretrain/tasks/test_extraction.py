"""Answers cut from texts: windows, the best spans of rows, and what they make over all windows of a question."""

import itertools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from input_pipeline.batch_spec import empty
from input_pipeline.corruption.examples import UNLABELLED, Frame
from input_pipeline.corruption.extraction import BEGINS, INSIDE, NOWHERE, OUTSIDE, Extraction
from input_pipeline.errors import DataError
from input_pipeline.examples.table import from_examples
from input_pipeline.tokenizers.base import Bytes
from pretrain.losses.nbest import LOWEST, best_spans
from pretrain.tasks.predictions import ExtractedAnswers

LENGTH, QUESTION = 32, 9
TEXT = "In May 1852 Ada Lovelace, born Byron, wrote of engines that weave. \u00c9mile read it."


def objective(length=LENGTH, **keys):
    section = common.extraction().to_dict() | {"question": QUESTION, "stride": 8, "max_answer": 12, "best": 6} | keys
    tokenizer = Bytes()
    return Extraction(section, tokenizer, Frame((), (), tokenizer.special, length))


def record(answer="Ada Lovelace", begin=None, question="Who?"):
    begin = TEXT.index(answer) if begin is None else begin
    return {"question": question, "context": TEXT, "answers": {"text": [answer], "answer_start": [begin]}}


def rows(task, examples, length=LENGTH):
    batch = empty(task.features(len(examples), length))
    task.write(batch, np.arange(len(examples)), examples)
    return batch


def test_windows_cover_the_text_and_hold_the_answer():
    task = objective()
    examples = task.read(record())
    batch = rows(task, examples)
    room = LENGTH - 2 - len("Who?")
    begins = [int(one.parts[2][2]) for one in examples]
    size = len(TEXT.encode())
    assert begins == list(range(0, 8 * len(begins), 8)) and begins[-1] < size - room + 8
    # Each token begins answers in one window alone.
    places = [one.parts[2][2] + np.arange(*one.parts[2][3:]) for one in examples]
    assert np.concatenate(places).tolist() == list(range(size))
    assert (batch["context"] == BEGINS).sum() == size
    inside = [one.target == INSIDE for one in examples]
    assert 0 < sum(inside) < len(examples) and {one.target for one in examples} == {INSIDE, OUTSIDE}
    for row, is_in in enumerate(inside):
        first, last = batch["labels"][row]
        tokens = batch["tokens"][row, first : last + 1]
        # A byte tokenizer has no token in front: a window without the answer points to the last one.
        assert task.tokenizer.decode(tokens) == ("Ada Lovelace" if is_in else "")
        assert is_in or (first == last == batch["nowhere"][row] == (batch["segments"][row] > 0).sum() - 1)
    assert batch["weights"].all()


def test_shorter_rows_cut_windows_and_their_labels():
    task = objective()
    examples = task.read(record())
    batch = rows(task, examples, length=24)
    for row in np.flatnonzero(batch["labels"][:, 0] != batch["nowhere"]):
        first, last = batch["labels"][row]
        assert task.tokenizer.decode(batch["tokens"][row, first : last + 1]) == "Ada Lovelace"
    assert ((batch["context"] > 0) <= (batch["tokens"] != task.tokenizer.special["end"])).all()


@pytest.mark.parametrize(
    ("answers", "no_answer", "target", "note"),
    [
        (record("Ada", 3)["answers"], False, NOWHERE, "1 of 1 answers are not in their text"),
        ([{"text": "Ada", "answer_start": TEXT.index("Ada")}], False, INSIDE, ""),
        ({"text": [], "answer_start": []}, False, UNLABELLED, "1 of 1 questions have no answer"),
        ({"text": [], "answer_start": []}, True, OUTSIDE, ""),
        (None, True, UNLABELLED, "1 of 1 questions have no answer"),
    ],
)
def test_questions_without_an_answer(answers, no_answer, target, note):
    task = objective(no_answer=no_answer)
    given = {"id": "q7", "question": "Who?", "context": TEXT, "answers": answers}
    examples = task.read(given)
    assert target in {one.target for one in examples} <= {target, OUTSIDE}
    assert (rows(task, examples)["weights"] == (target >= OUTSIDE)).all()
    notes = list(task.notes(from_examples(examples, [0] * len(examples), [given])))
    assert [note] * bool(note) == [one[: len(note)] for one in notes]
    assert target != NOWHERE or notes[0].endswith("q7")


def test_answers_of_another_form_are_refused():
    with pytest.raises(DataError, match="field 'answers'"):
        objective().read(record() | {"answers": [{"answer": "Ada"}]})


def brute_force(start, end, begins, ends, width):
    """(score, first, last) of every span of a row, best first."""
    pairs = itertools.product(np.flatnonzero(begins), np.flatnonzero(ends))
    spans = [(float(start[i] + end[j]), int(i), int(j)) for i, j in pairs if i <= j < i + width]
    return sorted(spans, reverse=True)


@pytest.mark.parametrize(("T", "width", "number"), [(40, 7, 12), (9, 30, 20), (25, 1, 5)])
def test_best_spans_are_those_of_all_pairs(T, width, number):
    draw = np.random.default_rng(0)
    start, end = draw.normal(size=(2, 30, T)).astype(np.float32)
    begins, ends = draw.random((2, 30, T)) < 0.6
    found = best_spans(*map(jnp.asarray, (start, end, begins, ends)), width, number)
    for row, (scores, first, last) in enumerate(zip(*map(np.asarray, found), strict=True)):
        expected = brute_force(start[row], end[row], begins[row], ends[row], width)[: len(scores)]
        assert len(scores) == min(number, T) and (scores[len(expected) :] < LOWEST / 2).all()
        assert [*zip(first.tolist(), last.tolist(), strict=True)][: len(expected)] == [one[1:] for one in expected]
        np.testing.assert_allclose(scores[: len(expected)], [one[0] for one in expected], rtol=1e-6)


def test_answers_are_the_best_of_all_windows():
    """Against all spans of all windows in Python, for questions in another order than the data's."""
    draw, task = np.random.default_rng(1), objective(no_answer=True, metrics=("exact", "best_exact"))
    records = [record(question="Who?" + "?" * n) for n in range(3)] + [record() | {"answers": {}}]
    examples = [task.read(one) for one in records]
    numbers = np.repeat(np.arange(4), [len(some) for some in examples])
    examples = list(itertools.chain.from_iterable(examples))
    table, order = from_examples(examples, numbers, records), draw.permutation(len(examples))
    batch = rows(task, [examples[one] for one in order])
    start, end = draw.normal(size=(2, *batch["tokens"].shape)).astype(np.float32)
    context, nowhere = batch["context"], batch["nowhere"]
    places = np.arange(len(order))
    none = start[places, nowhere] + end[places, nowhere]
    spans = best_spans(*map(jnp.asarray, (start, end, context == BEGINS, context > 0)), 12, 6)
    begin = (context > 0).argmax(1)[:, None]
    outputs = {"scores": spans[0], "first": spans[1] - begin, "last": spans[2] - begin, "no_answer": none}
    data = SimpleNamespace(table=table, order=order, passes=SimpleNamespace())
    data.passes.context = SimpleNamespace(objective=task, batch_size=len(order))
    answers = ExtractedAnswers(task.section, data, [outputs])
    _, starts, ends = task.tokenizer.encode_with_offsets(TEXT)
    for question in range(4):
        mine = [row for row, one in enumerate(order) if numbers[one] == question]
        found = {}
        for row in mine:
            shift = examples[order[row]].parts[2][2] - begin[row, 0]
            for score, first, last in brute_force(start[row], end[row], context[row] == BEGINS, context[row] > 0, 12):
                text = TEXT[starts[first + shift] : ends[last + shift]]
                found[text] = max(score, found.get(text, LOWEST))
        row = answers.row(question)
        best = sorted((score, text) for text, score in found.items() if text)[::-1][:6]
        assert [one["text"] for one in row["answers"]] == [text for _, text in best]
        no_answer = min(none[mine]) - best[0][0]
        assert row["no_answer"] == pytest.approx(no_answer, abs=1e-3)
        assert row["prediction"] == ("" if no_answer > 0 else best[0][1])
        assert row["label"] == (["Ada Lovelace"] if question < 3 else [])
    assert answers.measures().keys() == {"exact", "best_exact"}
    shown = []
    for threshold in (-1e9, 1e9):
        answers.section = answers.section | {"threshold": threshold}
        shown.append(answers.row(0)["prediction"])
    assert shown[0] == "" != shown[1]
