"""Metrics of tasks against literal tables, without the packages that they are compared with elsewhere."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from configs import common
from pretrain.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.metrics import Predicted, answers, classes, tagging


def test_classes_by_hand():
    predictions, labels = [1, 0, 1, 1, 0, 2], [1, 1, 0, 1, 0, 1]
    assert classes.accuracy(predictions, labels) == 3 / 6
    assert classes.f1(predictions, labels) == 2 * 2 / (3 + 4)
    # Class 0: 1 of 2 and 2; class 2 is predicted and never right.
    assert classes.macro_f1(predictions, labels) == pytest.approx((2 / 4 + 4 / 7 + 0) / 3)
    # (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn)) of the first five.
    assert classes.matthews(predictions[:5], labels[:5]) == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))


@pytest.mark.parametrize(("predictions", "labels"), [([1, 1], [1, 1]), ([0, 0, 0], [1, 0, 1]), ([1, 0], [1, 1])])
def test_matthews_of_an_empty_row_or_column(predictions, labels):
    assert classes.matthews(predictions, labels) == 0.0


def test_invalid_answers_count_as_wrong():
    answers, names = ["positive", " negative\n", "", "positive!", "Positive"], ("negative", "positive")
    labels = [[names[label]] for label in (1, 1, 1, 0, 0)]
    assert classes.to_classes(answers, names).tolist() == [1, 0, classes.INVALID, classes.INVALID, classes.INVALID]
    found = metrics.measure("text", ("accuracy", "invalid", "f1", "macro_f1"), Predicted(answers, labels, names=names))
    # INVALID is no class of its own: macro F1 is of two.
    assert found == {"accuracy": 0.2, "invalid": 0.6, "f1": 0.5, "macro_f1": 0.25}
    assert classes.to_numbers(["3.8", "x", "nan", "-inf", " 2 "]).tolist() == [3.8, -1.0, -1.0, -1.0, 2.0]


def test_correlations_by_hand():
    assert classes.mean_ranks([3.0, 1.0, 3.0, 0.0, 3.0]).tolist() == [4.0, 2.0, 4.0, 1.0, 4.0]
    assert classes.pearson([1, 2, 3], [2, 4, 6.0]) == pytest.approx(1.0)
    assert classes.spearman([1, 2, 3, 4], [1, 100, 1000, 999]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert classes.pearson([2, 2, 2], [1, 2, 3]) == classes.spearman([1, 2, 3], [5, 5, 5]) == 0.0


def test_choices_and_retrieval():
    assert classes.choose([[-3.0, -2.0], [-1.0, -1.0], [0.0, 1.0, 2.0]]).tolist() == [1, 0, 2]
    assert classes.choose([[-3.0, -2.0]], [[10, 2]]).tolist() == [0]
    source, target = np.array([[3.0, 0.0], [0.1, 1.0], [1.0, 0.9]]), np.array([[9.0, 1.0], [0.0, 2.0], [0.0, 1.0]])
    found = Predicted(None, None, embeddings=(source, target))
    found = metrics.measure("siamese", ("retrieval", "retrieval_back"), found)
    # Row 2 is nearest to target 0; targets 1 and 2 are both nearest to row 1.
    assert found == pytest.approx({"retrieval": 2 / 3, "retrieval_back": 2 / 3})


def test_standard_error_and_summary():
    assert classes.standard_error(0.5, 101) == pytest.approx(0.05)
    assert math.isnan(classes.standard_error(1.0, 1))


SPANS = [  # tags, conlleval's spans, spans of strict IOB1, IOB2 and IOBES
    ("O O", "", "", "", ""),
    ("B-PER I-PER O B-LOC", "PER02 LOC34", "PER12", "PER02 LOC34", ""),
    ("O I-PER I-PER", "PER13", "PER13", "", ""),
    ("I-PER B-PER I-LOC", "PER01 PER12 LOC23", "PER01 PER12 LOC23", "PER12", ""),
    ("B-PER I-LOC I-LOC", "PER01 LOC13", "LOC13", "PER01", ""),
    ("B-A-B I-A-B", "A-B02", "A-B12", "A-B02", ""),
    ("S-PER B-LOC E-LOC O", "PER01 LOC13", None, None, "PER01 LOC13"),
    ("B-LOC I-LOC O S-PER", "LOC02 PER34", None, None, "PER34"),
    ("E-LOC E-LOC S-LOC S-LOC", "LOC01 LOC12 LOC23 LOC34", None, None, "LOC23 LOC34"),
]


@pytest.mark.parametrize(("tags", "expected"), [(tags, expected) for tags, *expected in SPANS])
def test_spans_by_hand(tags, expected):
    for scheme, some in zip(("", "IOB1", "IOB2", "IOBES"), expected, strict=True):
        if some is not None:
            found = [f"{name}{start}{end}" for name, start, end in tagging.spans(tags.split(), scheme)]
            assert " ".join(found) == some, scheme


def test_span_table_and_cut_off_words():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC"], ["O"]]
    found = tagging.span_table([["B-PER", "I-PER"], ["I-LOC"], ["B-PER"]], gold)
    assert found["PER"] == {"precision": 0.5, "recall": 1.0, "f1": 2 / 3, "support": 1}
    assert found["LOC"] == {"precision": 1.0, "recall": 0.5, "f1": 2 / 3, "support": 2}
    assert found["micro"] == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3}
    assert found["macro"]["precision"] == 0.75
    assert tagging.span_table([["O"]], [["O"]])["micro"]["f1"] == 0.0
    assert tagging.word_accuracy([[3, 1], []], [[3, 1, 2], [5]]) == 0.5


def test_tags_by_number():
    names = ("O", "B-PER", "I-PER")
    found = Predicted([[1, 2, -1], [2]], [[1, 2, 0], [1]], names=names)
    values = metrics.measure("tagging", ("span_f1", "span_f1_strict", "span_precision", "accuracy"), found)
    # A stray I- begins a span for conlleval alone.
    assert values == {"span_f1": 1.0, "span_f1_strict": 2 / 3, "span_precision": 1.0, "accuracy": 0.5}


ANSWERS = [  # prediction, references, exact match, F1
    ("The Denver Broncos!", ["Denver Broncos"], 1.0, 1.0),
    ("Denver", ["Denver Broncos", "Carolina"], 0.0, 2 / 3),
    ("the the cat cat", ["a cat"], 0.0, 2 / 3),
    ("U.S.", ["US", "U S"], 1.0, 1.0),
    ("an", ["the"], 1.0, 0.0),
    ("", ["Denver"], 0.0, 0.0),
    ("24\u201310", ["24 10"], 0.0, 0.0),
]


@pytest.mark.parametrize(("prediction", "references", "exact", "f1"), ANSWERS)
def test_squad_by_hand(prediction, references, exact, f1):
    found = metrics.measure("extraction", ("exact", "f1"), Predicted([prediction], [references]))
    assert found == pytest.approx({"exact": exact, "f1": f1})


def test_squad_v2_by_hand():
    """Four questions: two right, a wrong one and one that ought to be empty, in the order of their scores."""
    predictions, references = ["x", "y z", "w", "v"], [["x"], ["y"], [], ["the"]]
    found = answers.squad_v2(predictions, references, [0.1, 0.2, 0.7, 0.9])
    # A reference of no words is the empty answer, of a question that counts as answerable.
    assert found["exact"] == 1 / 4
    assert found["f1"] == pytest.approx((1 + 2 / 3) / 4)
    assert (found["HasAns_total"], found["NoAns_total"], found["NoAns_f1"]) == (3, 1, 0.0)
    assert (found["best_exact"], found["best_exact_thresh"]) == (2 / 4, 0.1)
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx((2 + 2 / 3) / 4), 0.2)
    cut = answers.squad_v2(predictions, references, [0.1, 0.2, 0.7, 0.9], threshold=0.5)
    assert (cut["exact"], cut["NoAns_exact"], cut["HasAns_exact"]) == (2 / 4, 1.0, 1 / 3)
    empty = answers.squad_v2([""], [[]])
    assert empty == {"exact": 1.0, "f1": 1.0, "total": 1, "NoAns_exact": 1.0, "NoAns_f1": 1.0, "NoAns_total": 1}


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "The «Big» Apple", "big apple"),
        ("es", "¿La Casa de un Rey?", "casa de rey"),
        ("de", "Den Haag, der Hof", "haag hof"),
        ("ar", "في القاهرة", "في قاهرة"),
        ("hi", "दिल्ली।", "दिल्ली"),
        ("zh", "北京 2008年\uff0c奥运", "北 京 2008 年 奥 运"),
        ("ru", "Река «Волга»", "река волга"),
    ],
)
def test_mlqa_normalisation_by_hand(language, text, words):
    assert " ".join(answers.mlqa_tokens(text, language)) == words
    found = Predicted([text], [[words]], language=language)
    assert metrics.measure("extraction", ("mlqa_exact", "mlqa_f1"), found) == {"mlqa_exact": 1.0, "mlqa_f1": 1.0}


def test_text_exact_match_and_f1():
    found = Predicted(["A cat", "dog "], [["a cat"], ["bird", "dog"]])
    assert metrics.measure("text", ("exact_match", "squad_f1"), found) == {"exact_match": 0.5, "squad_f1": 1.0}
    numbers = Predicted(["1.0", "2.0", "?", "4.4"], [["1.2"], ["2.0"], ["0.0"], ["5.0"]])
    assert metrics.measure("text", ("spearman",), numbers)["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "name"), [("classification", "acuracy"), ("classification", "bleu"), ("tagging", "f1"), ("choice", "f1")]
)
def test_require_names_the_metric(kind, name):
    with pytest.raises(UserError, match=rf"metrics={name}: .*Choose from: .*accuracy"):
        metrics.require(kind, ("accuracy", name))


def test_require_names_the_missing_package(monkeypatch):
    metrics.require("regression", ("pearson", "spearman"))
    for module, name in (("sacrebleu", "chrf"), ("rouge_score", "rougeLsum")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=rf"metrics={name}: .*\[metrics\]"):
            metrics.require("text", ("exact_match", name))


def test_metrics_serve_the_objectives_of_configs():
    for objective in (common.classification(), common.regression(), common.choice(), common.tagging()):
        metrics.require(objective["kind"], objective["metrics"])
    assert common.tagging()["scheme"] in tagging.SCHEMES


def test_docs_name_every_metric():
    page = (Path(__file__).resolve().parents[3] / "docs" / "running.md").read_text()
    rows = {line.split("|")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for kind, table in metrics.METRICS.items():
        (row,) = (line for kinds, line in rows.items() if f"`{kind}`" in kinds)
        assert not [name for name in table if f"`{name}`" not in row], kind
