"""Labelled records as batches: every example once an epoch, rows of one length together, frames, and what is kept."""

import json

import numpy as np
import pytest

from configs import common
from input_pipeline import pipeline
from input_pipeline.corruption.examples import UNLABELLED, Frame, label_of, number_of
from input_pipeline.errors import DataError
from input_pipeline.examples.batches import WINDOW
from input_pipeline.io import Folders

SIZES = [1 + (7 * n) % 40 for n in range(200)]


@pytest.fixture
def prepare(tmp_path):
    """A corpus of 200 records of 1 to 40 bytes, as a config has them."""
    source = tmp_path / "train.jsonl"
    rows = [{"id": n, "text": "x" * size, "label": ("no", "yes")[size % 2]} for n, size in enumerate(SIZES)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(tokenizer="bytes", seed=0, **data):
        config = common.base()
        config.objective = common.classification()
        config.objective.labels = ("no", "yes")
        config.tokenizer.update(kind=tokenizer, vocab_size=40)
        config.data.update(train=f"jsonl:{source}", **{"layout": "examples", "length": 48, "holdout": 0.0} | data)
        sections = config.data.to_dict() | {"seed": seed}, config.tokenizer.to_dict(), config.objective.to_dict()
        folders = Folders(data=tmp_path / "data", tokenizer=tmp_path / "tokenizer")
        return pipeline.prepare(*sections, folders, report=lambda message: None)

    return make


def read(corpus, number, **options):
    batches = corpus.batches(seed=3, batch_size=8, workers=0, prefetch=2, **options)
    found = [next(batches) for _ in range(number)]
    batches.close()
    return found


def test_every_example_once_an_epoch(prepare):
    """64 batches of 8 are 512 examples of 200: two epochs whole, and a part of the third."""
    batches = read(prepare(), WINDOW)
    seen = np.concatenate([(batch["segments"] > 0).sum(1) - 1 for batch in batches])  # less the end token
    counts = np.bincount(seen, minlength=41)
    once = np.bincount(SIZES, minlength=41)
    assert (counts >= 2 * once).all() and (counts <= 3 * once).all()


def test_drawn_examples_depend_on_the_seed_alone(prepare):
    drawn = [prepare(examples=60, balanced=True, seed=seed).examples("train") for seed in (1, 1, 2)]
    assert [np.bincount(table.targets.astype(int)).tolist() for table in drawn] == [[30, 30]] * 3
    assert drawn[0].identity == drawn[1].identity != drawn[2].identity
    labels = [drawn[0].record(number)["label"] for number in drawn[0].numbers.tolist()]
    assert [("no", "yes").index(label) for label in labels] == drawn[0].targets.tolist()
    larger = prepare(examples=120, balanced=True, seed=1).examples("train")
    ids = [{table.record(number)["id"] for number in range(len(table))} for table in (drawn[0], larger)]
    assert ids[0] < ids[1] and len(ids[1]) == 120
    assert len(prepare(examples=60).examples("train")) == 60


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"examples": 201}, "200 records"),
        ({"examples": 61, "balanced": True}, "2 labels"),
        ({"examples": 250, "balanced": True}, "records of no"),
    ],
)
def test_too_few_examples_to_draw(prepare, data, problem):
    with pytest.raises(DataError, match=f"data.examples={data['examples']}: .*{problem}"):
        prepare(**data)


def test_tokenizer_is_trained_on_the_texts_of_a_task(prepare):
    """Not on labels: the only letter is x."""
    corpus = prepare(tokenizer="wordpiece", holdout=0.2)
    unknown = corpus.tokenizer.special["unknown"]
    assert unknown not in corpus.tokenizer.encode("xx") and unknown in corpus.tokenizer.encode("no")
    assert 0 < len(corpus.examples("validation")) < 100


def test_batches_have_the_least_length_that_holds_their_rows(prepare):
    batches = read(prepare(buckets=(16, 32)), 20)
    longest = [int((batch["segments"] > 0).sum(1).max()) for batch in batches]
    lengths = [batch["tokens"].shape[1] for batch in batches]
    assert lengths == [next(size for size in (16, 32, 48) if size >= most) for most in longest]
    assert set(lengths) == {16, 32, 48}


def test_batches_depend_on_seed_and_number_alone(prepare):
    corpus = prepare()
    whole, later = read(corpus, 6), read(corpus, 2, start=4)
    host = read(corpus, 6, rows=np.array([1, 6]))
    for a, b in zip(whole[4:], later, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    for a, b in zip(whole, host, strict=True):
        assert all(np.array_equal(a[name][[1, 6]], b[name]) for name in a)


def test_evaluation_reads_each_example_once_in_order_of_length(prepare):
    data = prepare().evaluation("train", length=48, stride=48, batch_size=64)
    batches = list(data.batches())
    used = [(batch["segments"] > 0).sum(1) for batch in batches]
    assert [batch["weights"].sum() for batch in batches] == [64, 64, 64, 8]
    sizes = np.concatenate(used)[:200] - 1
    assert sizes.tolist() == sorted(SIZES) and [SIZES[n] for n in data.order] == sizes.tolist()
    assert data.scope == "all 200 examples"


def test_held_out_records_are_the_others_of_the_source(prepare):
    whole, parts = prepare().examples("train"), prepare(holdout=0.3)
    found = [parts.examples(split) for split in ("train", "validation")]
    held = whole.holdout_ranks() < 0.3
    assert 0 < held.sum() < len(whole)  # equal records are held out together
    for table, wanted in zip(found, (~held, held), strict=True):
        assert len(table) == wanted.sum()
        for one, other in enumerate(np.flatnonzero(wanted).tolist()):
            assert table.record(one) == whole.record(other) and table[one].target == whole[other].target
            assert np.array_equal(table[one].parts[0], whole[other].parts[0])


def test_examples_outlive_their_source(prepare, tmp_path):
    before = prepare().identity("train")
    (tmp_path / "train.jsonl").unlink()
    assert prepare().identity("train") == before
    (tmp_path / "train.jsonl").write_text('{"text": "other", "label": 1}\n')
    assert prepare().identity("train") != before


SPECIAL = {"classifier": 1, "separator": 2, "end": 3}


@pytest.mark.parametrize(
    ("frames", "texts", "tokens", "types"),
    [
        (((), ()), ([7, 8],), [1, 7, 8, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]),
        (((), ()), ([7, 8], [9]), [1, 7, 8, 2, 9, 2, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]),
        (((), ()), ([7] * 5, [9] * 3), [1, 7, 7, 7, 2, 9, 9, 2], [0, 0, 0, 0, 0, 1, 1, 1]),
        (  # XLNet's
            (("$A", "separator", "classifier"), ("$A", "separator", "$B", "separator", "classifier")),
            ([7, 8], [9]),
            [7, 8, 2, 9, 2, 1, 0, 0],
            [0, 0, 0, 1, 1, 2, 0, 0],
        ),
        (
            ((), ("classifier", "$A", "separator", "separator", "$B", "separator")),
            ([7], [9]),
            [1, 7, 2, 2, 9, 2, 0, 0],
            [0, 0, 0, 0, 1, 1, 0, 0],
        ),
    ],
)
def test_frames(frames, texts, tokens, types):
    rows = np.zeros((2, 8), np.int32)
    used = Frame(*frames, SPECIAL).fill([np.array(text) for text in texts], *rows)
    assert rows[0].tolist() == tokens and used == sum(token > 0 for token in tokens)
    assert rows[1].tolist() == types


def test_frame_names_what_the_tokenizer_lacks():
    with pytest.raises(DataError, match="has no classifier"):
        Frame(("classifier", "$A"), (), {"end": 3})


def test_label_of_names_before_numbers():
    """A class may be named -1; else -1 is a label that is withheld."""
    signs = ("-1", "0", "1")
    assert [label_of({"label": value}, "label", signs) for value in (-1, "0", 1)] == [0, 1, 2]
    assert label_of({"label": -1}, "label", ("no", "yes")) == UNLABELLED
    assert label_of({"label": 1}, "label", ("no", "yes")) == 1


@pytest.mark.parametrize("value", ["nan", float("inf"), "high"])
def test_number_of_refuses_what_is_no_number(value):
    with pytest.raises(DataError, match="not a number"):
        number_of({"label": value}, "label")
