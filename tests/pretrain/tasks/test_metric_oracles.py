"""Metrics of tasks equal those of scikit-learn, SciPy, seqeval, sacrebleu and rouge-score on random and odd cases."""

import warnings

import numpy as np
import pytest

from pretrain.tasks.metrics import Predicted, answers, classes, measure, tagging, texts

pytestmark = pytest.mark.oracle
CASES = 1000
WORDS = [
    "a",
    "an",
    "the",
    "cat",
    "cats",
    "sat,",
    "on",
    "mat.",
    "Mat!",
    "running",
    "runs",
    "U.S.",
    "24-10",
    "北京",
    "der",
]


def drawn(cases=CASES):
    """(number, generator) of each case."""
    return ((case, np.random.default_rng(case)) for case in range(cases))


@pytest.mark.slow
def test_classes_equal_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    for case, draw in drawn():
        size, number = draw.integers(1, 40), draw.integers(1, 5)
        # Few classes among few examples: empty rows and columns, and a single class, are common.
        predictions, labels = draw.integers(0, number, (2, size))
        mine = measure("classification", ("accuracy", "f1", "macro_f1", "matthews"), Predicted(predictions, labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = {
                "accuracy": sklearn.accuracy_score(labels, predictions),
                "f1": sklearn.f1_score(labels == 1, predictions == 1, zero_division=0),
                "macro_f1": sklearn.f1_score(labels, predictions, average="macro", zero_division=0),
                "matthews": sklearn.matthews_corrcoef(labels, predictions),
            }
        assert mine == pytest.approx(theirs, abs=1e-12), case


def test_correlations_equal_scipy():
    stats = pytest.importorskip("scipy.stats")
    for case, draw in drawn():
        size = draw.integers(2, 40)
        x, y = draw.normal(size=(2, size)) * 10.0 ** draw.integers(-6, 6)
        if case % 2:  # ties, and now and then a constant
            x, y = draw.integers(0, 4, (2, size))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = stats.pearsonr(x, y)[0], stats.spearmanr(x, y)[0]
        mine = classes.pearson(x, y), classes.spearman(x, y)
        assert mine == pytest.approx(np.nan_to_num(theirs), abs=1e-10), case
        assert np.array_equal(classes.mean_ranks(x), stats.rankdata(x))


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES"])
def test_spans_equal_seqeval(scheme):
    seqeval = pytest.importorskip("seqeval.metrics")
    schemes = pytest.importorskip("seqeval.scheme")
    prefixes = "BIES" if scheme == "IOBES" else "BI"
    tags = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in ("PER", "LOC"))]
    for case, draw in drawn():
        lengths = draw.integers(1, 9, draw.integers(1, 5))
        gold = [[tags[tag] for tag in draw.integers(0, len(tags), length)] for length in lengths]
        wrong = draw.random() / 2
        mine = [[tag if draw.random() > wrong else tags[draw.integers(len(tags))] for tag in row] for row in gold]
        for options, strict in (({}, ""), ({"mode": "strict", "scheme": getattr(schemes, scheme)}, scheme)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = seqeval.classification_report(gold, mine, output_dict=True, zero_division=0, **options)
            table = tagging.span_table(mine, gold, strict)
            names = {"micro": "micro avg", "macro": "macro avg", "PER": "PER", "LOC": "LOC"}
            for name in table if len(table) > 2 else ():  # of no spans, seqeval's macro averages are nan
                theirs = report[names[name]]
                expected = {"precision": theirs["precision"], "recall": theirs["recall"], "f1": theirs["f1-score"]}
                assert table[name] == pytest.approx(expected | {"support": theirs["support"]}), (case, strict, name)


def sentences(draw, size):
    return [" ".join(draw.choice(WORDS, draw.integers(0, 9))) for _ in range(size)]


@pytest.mark.parametrize("name", ["bleu", "chrf", "chrf++"])
def test_scores_equal_sacrebleu(name):
    sacrebleu = pytest.importorskip("sacrebleu")
    for case, draw in drawn():
        size, many = draw.integers(1, 6), draw.integers(1, 4)
        mine, streams = sentences(draw, size), [sentences(draw, size) for _ in range(many)]
        if name == "bleu":
            theirs = sacrebleu.corpus_bleu(mine, streams)
        else:
            theirs = sacrebleu.corpus_chrf(mine, streams, word_order=2 if name == "chrf++" else 0)
        references = list(zip(*streams, strict=True))
        assert measure("text", (name,), Predicted(mine, references))[name] == pytest.approx(theirs.score, abs=1e-9), (
            case
        )
    signature = texts.signature(name, mine, references)
    assert f"nrefs:{many}|" in signature and signature.endswith(sacrebleu.__version__)
    assert "tok:zh" in texts.signature("bleu", mine, references, "zh")


def test_sacrebleu_takes_different_numbers_of_references():
    pytest.importorskip("sacrebleu")
    both = texts.sacrebleu_score("bleu", ["a b c d e", "f g h i j"], [["x"], ["f g h i k", "f g h i j"]])
    assert both == pytest.approx(texts.sacrebleu_score("bleu", ["a b c d e", "f g h i j"], [["x"], ["f g h i j"]]))


@pytest.mark.parametrize("name", ["rouge1", "rouge2", "rougeLsum"])
def test_scores_equal_rouge_score(name):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
    for case, draw in drawn():
        mine, gold = (["\n".join(sentences(draw, 3)) for _ in range(3)] for _ in range(2))
        theirs = np.mean([scorer.score(one, other)[name].fmeasure for one, other in zip(gold, mine, strict=True)])
        assert texts.rouge(name, mine, [[one] for one in gold]) == pytest.approx(theirs), case


def test_best_threshold_equals_all_thresholds():
    """SQuAD v2.0: the best of answering those up to each score; distinct scores, answers of words alone."""
    for case, draw in drawn(300):
        size = draw.integers(1, 12)
        predictions = ["" if draw.random() < 0.3 else " ".join(draw.choice(["x", "y", "z"], 3)) for _ in range(size)]
        references = [[] if draw.random() < 0.5 else [" ".join(draw.choice(["x", "y", "z"], 2))] for _ in range(size)]
        scores = draw.permutation(size) / size
        table = answers.squad_v2(predictions, references, scores)
        for name in ("exact", "f1"):
            some = [answers.squad_v2(predictions, references, scores, threshold)[name] for threshold in (-1, *scores)]
            assert table[f"best_{name}"] == pytest.approx(max(some)), case
            threshold = table[f"best_{name}_thresh"]
            lowest = -1 if some[0] >= max(some) - 1e-9 else threshold
            assert answers.squad_v2(predictions, references, scores, lowest)[name] == pytest.approx(max(some)), case
