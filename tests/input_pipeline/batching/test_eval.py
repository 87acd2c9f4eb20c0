"""Evaluation passes: every token once, with the context promised, and the totals to divide by."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import common
from input_pipeline import batch_spec, pipeline
from input_pipeline.batching.eval import EvalRows
from input_pipeline.corruption.causal import CausalLM
from input_pipeline.errors import DataError
from input_pipeline.io import Folders

TEXTS = [f"Document {n}: " + "wörter und Worte " * (n % 7) for n in range(23)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scoring")
    for n, text in enumerate(TEXTS):
        (folder / f"{n:02d}.txt").write_text(text, encoding="utf-8")
    config = common.base()
    train = folder / "train.text"
    train.write_text("Text to train on.")
    config.data.update(train=f"text:{train}", validation=f"text:{folder}/*.txt", length=8)
    config.tokenizer.kind = "bytes"
    return pipeline.prepare(
        config.data.to_dict(),
        config.tokenizer.to_dict(),
        config.objective.to_dict(),
        Folders(folder / "run/tokenizer", folder / "run/data"),
        report=lambda _: None,
    )


STREAM = [token for text in TEXTS for token in (256, *text.encode())] + [256]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_windows_score_each_token_once_with_context(corpus, length, stride, batch_size):
    stride = min(stride, length)
    scored = corpus.evaluation("validation", length=length, stride=stride, batch_size=batch_size)
    targets, contexts = [], []
    for batch in scored.batches():
        assert batch["tokens"].shape == (batch_size, length)
        for row in range(batch_size):
            counted = np.flatnonzero(batch["weights"][row])
            targets += batch["targets"][row, counted].tolist()
            contexts += counted.tolist()
            assert (batch["segments"][row, counted] == 1).all()
    assert targets == STREAM[1:]
    assert all(context >= min(place, length - stride) for place, context in enumerate(contexts))
    assert scored.tokens == len(STREAM) - 1


@pytest.mark.parametrize("layout", ["concat", "packed", "stream"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_totals_of_a_split(corpus, layout, batch_size):
    scored = corpus.evaluation("validation", length=16, stride=0, batch_size=batch_size, layout=layout)
    batches = list(scored.batches())
    assert len(batches) == len(scored)
    features = batch_spec.declared(CausalLM(common.causal()), batch_size, 16, layout)
    declared = {name: feature[:2] for name, feature in features.items()}
    assert all({name: (v.shape, v.dtype) for name, v in batch.items()} == declared for batch in batches)
    targets = np.concatenate([batch["targets"][batch["weights"] > 0] for batch in batches])
    assert sorted(targets.tolist()) == sorted(STREAM[1:])
    assert scored.tokens == len(targets)
    assert scored.bytes == len("".join(TEXTS).encode()) == corpus.tokenizer.byte_lengths[targets].sum()
    assert scored.words == sum(len(text.split()) + 1 for text in TEXTS)  # each is a line
    for batch in batches:  # padding is nothing
        assert not batch["tokens"][batch["segments"] == 0].any()
        assert not batch["weights"][batch["segments"] == 0].any()


def test_stream_rows_beyond_the_batch_are_padding(corpus):
    """Three lanes on devices that share eight rows."""
    options = {"length": 10, "stride": 0, "batch_size": 3, "layout": "stream"}
    exact = list(corpus.evaluation("validation", **options).batches())
    filled = list(corpus.evaluation("validation", rows=np.arange(8), **options).batches())
    for batch, full in zip(exact, filled, strict=True):
        for name in batch:
            assert np.array_equal(batch[name], full[name][:3])
        assert not full["weights"][3:].any() and not full["segments"][3:].any()
    assert [b["reset"].tolist() for b in exact] == [[n == 0] * 3 for n in range(len(exact))]
    lanes = [np.concatenate([b["targets"][r][b["weights"][r] > 0] for b in exact]) for r in range(3)]
    assert np.concatenate(lanes).tolist() == STREAM[1:]


def test_totals_of_a_limited_pass(corpus):
    scored = corpus.evaluation("validation", length=16, stride=4, batch_size=2, limit=3)
    batches = list(scored.batches())
    targets = np.concatenate([batch["targets"][batch["weights"] > 0] for batch in batches])
    assert len(batches) == len(scored) == 3
    assert (scored.tokens, scored.words) == (len(targets), None)
    assert scored.bytes == (targets < 256).sum()
    assert corpus.evaluation("validation", length=16, stride=4, batch_size=2, limit=10**6).words is not None


def test_hosts_read_parts_of_batches(corpus):
    options = {"length": 16, "stride": 8, "batch_size": 4}
    whole = corpus.evaluation("validation", **options)
    halves = [corpus.evaluation("validation", rows=np.arange(4)[half], **options) for half in (slice(2), slice(2, 4))]
    for batch, *parts in zip(whole.batches(), *(half.batches() for half in halves), strict=True):
        for name in batch:
            assert np.array_equal(batch[name], np.concatenate([part[name] for part in parts]))
    assert {half.tokens for half in halves} == {whole.tokens}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"split": "test"}, "--split=test"),
        ({"stride": 4, "layout": "packed"}, "evaluate.stride=4"),
        ({"layout": "document"}, "data.layout=document"),
    ],
)
def test_evaluation_names_the_key_of_a_mistake(corpus, options, key):
    with pytest.raises(DataError, match=key):
        corpus.evaluation(**{"split": "validation", "length": 16, "stride": 0, "batch_size": 2, **options})


class Numbered:
    """Rows that are numbers from `first` on."""

    def __init__(self, first: int, rows: int):
        self.first, self.rows = first, rows

    def __len__(self):
        return self.rows

    def read(self, rows):
        return self.first + rows


def test_eval_rows_interleave_sources():
    """A limited pass over a mixture measures all of its sources."""
    context = SimpleNamespace(
        batch_size=4,
        rows=np.arange(4),
        empty=lambda: {"read": np.full(4, -1)},
        keys=lambda numbers: numbers,
        objective=SimpleNamespace(fill=lambda batch, slots, raw, keys: batch["read"].put(slots, raw)),
    )

    def batches(*sources):
        rows = EvalRows(context, sources)
        return [rows[n]["read"].tolist() for n in range(len(rows))]

    assert batches(Numbered(10, 3), Numbered(20, 6)) == [[20, 10, 21, 22], [11, 23, 24, 12], [25, -1, -1, -1]]
    assert batches(Numbered(10, 5)) == [[10, 11, 12, 13], [14, -1, -1, -1]]
