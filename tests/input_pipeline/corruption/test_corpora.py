"""Batches of the tasks from text to features: whatever host reads them, and however long a batch is."""

import itertools

import numpy as np
import pytest

from input_pipeline.errors import DataError

WORDPIECE = {"kind": "wordpiece", "vocab_size": 150}
SENTINELS = {"kind": "bytes", "sentinels": 100}


@pytest.fixture
def sentences(write):
    """Ten documents of numbered sentences, one a line."""
    for document in range(10):
        lines = [f"w{document} s{line} " + "x " * (line % 5) for line in range(3 + 2 * document)]
        path = write(f"sentences/{document}.txt", "\n".join(lines) + "\n")
    return f"text:{path.rsplit('/', 1)[0]}/*.txt"


@pytest.fixture
def paired(prepare, sentences):
    return prepare(
        sentences,
        tokenizer=WORDPIECE,
        objective={"kind": "masked", "passes": 2},
        layout="pairs",
        sentences="lines",
        length=48,
    )


@pytest.fixture
def corrupted(prepare, words):
    return prepare(words(20), tokenizer=SENTINELS, objective={"kind": "spans"}, length=32)


def first(corpus, count, size=8, **options):
    reader = corpus.batches(seed=3, batch_size=size, workers=0, prefetch=2, **options)
    batches = list(itertools.islice(reader, count))
    reader.close()
    return batches


def restored(batch, row):
    """The tokens of a row before they were masked."""
    tokens = batch["tokens"][row].copy()
    there = batch["weights"][row] > 0
    tokens[batch["slots"][row][there]] = batch["targets"][row][there]
    return tokens


def test_pairs_are_sentences_of_the_text(paired):
    special, texts = paired.tokenizer.special, set()
    labels = []
    for batch in first(paired, 6):
        for row in range(8):
            tokens = restored(batch, row)[: batch["segments"][row].sum()]
            assert tokens[0] == special["classifier"] and tokens[-1] == special["separator"]
            (middle, _last) = np.flatnonzero(tokens == special["separator"])
            types = batch["types"][row]
            assert (
                not types[: middle + 1].any()
                and types[middle + 1 : len(tokens)].all()
                and not types[len(tokens) :].any()
            )
            assert (batch["positions"][row, : len(tokens)] == np.arange(len(tokens))).all()
            a, b = (paired.tokenizer.decode(part) for part in (tokens[1:middle], tokens[middle + 1 : -1]))
            label = batch["next"][row]
            labels.append(label)
            texts.update((a, b))
            same = a.split()[0] == b.split()[0] if len(tokens) < 48 else None  # uncut: each begins with its document
            assert label == 1 or same in (True, None)
    assert 0.3 < np.mean(labels) < 0.9 and len(texts) > 20


@pytest.mark.parametrize("name", ["paired", "corrupted"])
def test_batches_do_not_depend_on_hosts_or_on_where_reading_begins(name, request):
    corpus = request.getfixturevalue(name)
    whole = first(corpus, 4)
    for rows in (np.array([0, 1, 2]), np.array([5, 7])):
        for batch, part in zip(whole[1:], first(corpus, 3, rows=rows, start=1), strict=True):
            assert batch.keys() == part.keys()
            for feature, values in part.items():
                np.testing.assert_array_equal(values, batch[feature][rows], err_msg=feature)


@pytest.mark.parametrize("name", ["paired", "corrupted"])
def test_what_is_scored_does_not_depend_on_the_size_of_a_batch(name, request):
    corpus = request.getfixturevalue(name)
    length = {"paired": 48, "corrupted": 32}[name]
    passes = []
    for size in (4, 7):
        batches = list(corpus.evaluation("train", length=length, stride=0, batch_size=size).batches())
        rows = {feature: np.concatenate([batch[feature] for batch in batches]) for feature in batches[0]}
        passes.append({feature: values for feature, values in rows.items() if feature != "row"})
    number = min(len(rows["weights"]) for rows in passes)
    assert number > 10
    for feature, values in passes[0].items():
        np.testing.assert_array_equal(values[:number], passes[1][feature][:number])
        assert not values[number:].any() and not passes[1][feature][number:].any()


def test_spans_are_of_text_without_end_tokens(corrupted):
    tokenizer = corrupted.tokenizer
    end, sentinels = tokenizer.special["end"], tokenizer.sentinels
    for batch in first(corrupted, 3):
        assert ((batch["inputs"] == end).sum(1) == 1).all() and (batch["inputs"][:, -1] == end).all()
        assert ((batch["targets"] == end).sum(1) == 1).all()
        number = np.isin(batch["inputs"], sentinels).sum(1)
        assert (number == np.isin(batch["targets"], sentinels).sum(1)).all() and (number == number[0]).all()
        assert (batch["tokens"][:, 0] == tokenizer.special["pad"]).all()


def test_an_evaluation_of_spans_reads_all_of_the_text(corrupted):
    """The text of inputs and targets together is the split's, each token once."""
    evaluation = corrupted.evaluation("train", length=32, stride=0, batch_size=5)
    ids = []
    for batch in evaluation.batches():
        for side, segments in (("inputs", "input_segments"), ("targets", "segments")):
            ids += batch[side][batch[segments] > 0].tolist()
    text = corrupted.raw_bytes("train")
    assert sorted(i for i in ids if i < 256) == sorted(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": {"kind": "masked"}, "layout": "pairs"}, "data.layout = pairs .* set data.sentences = lines"),
        ({"objective": {"kind": "masked"}}, "data.layout is 'concat'.* choose one of: pairs"),
        (
            {"objective": {"kind": "spans", "mean_span": 1.0}, "layout": "packed"},
            "data.layout is 'packed'.*; choose one of: concat",
        ),
        (
            {"objective": {"kind": "spans", "mean_span": 1.0}},
            "takes 1 spans out of a row, and the tokenizer has 0 sentinels",
        ),
    ],
)
def test_what_cannot_be(prepare, sentences, options, words):
    with pytest.raises(DataError, match=words):
        prepare(sentences, **options)


@pytest.mark.parametrize(
    ("documents", "length", "refused"),
    [
        (["one"] * 30, 32, True),  # what does not follow is all that there is
        (["one"] * 30 + ["one\ntwo"], 32, False),
        ([f"{'one ' * 40}\ntwo"] * 30, 24, True),  # each first sentence is a segment of its own
        ([f"{'one ' * 40}\ntwo"] * 30, 96, False),
        (["one\n\n"] * 30, 32, True),
    ],
)
def test_a_next_segment_must_be_one_of_two(prepare, write, documents, length, refused):
    path = write("documents.txt", "".join(f"{document}\n\n" for document in documents))
    how = {"tokenizer": WORDPIECE, "objective": {"kind": "masked", "passes": 1}, "layout": "pairs"}
    how |= {"sentences": "lines", "length": length}
    source = f"text:{path}?document=blank_line"
    if refused:
        rule = rf"objective\.next_sentence = True asks .* shorter than rows of data\.length = {length}, .*; give text"
        with pytest.raises(DataError, match=rule) as error:
            prepare(source, **how)
        assert "\n" not in str(error.value)
    else:
        assert len(first(prepare(source, **how), 1)[0]["next"])


def test_lone_sentences_beside_others_are_paired(prepare, write, sentences):
    """A source of single sentences is refused alone, not beside one that has sentences which follow."""
    path = write("lone.txt", "one\n" * 30)
    how = {"tokenizer": WORDPIECE, "objective": {"kind": "masked", "passes": 1}, "layout": "pairs"}
    corpus = prepare(f"text:{path}?document=line + {sentences}", sentences="lines", length=32, **how)
    labels = np.concatenate([batch["next"] for batch in first(corpus, 6)])
    assert 0 < labels.mean() < 1


@pytest.mark.parametrize("kind", ["masked", "spans"])
def test_reader_processes_make_the_same_batches(prepare, sentences, kind):
    options = {"layout": "pairs", "sentences": "lines"} if kind == "masked" else {}
    objective = {"kind": kind} | ({"passes": 1} if kind == "masked" else {})
    corpus = prepare(sentences, tokenizer=WORDPIECE | {"sentinels": 20}, objective=objective, length=32, **options)
    reader = corpus.batches(seed=3, batch_size=8, workers=1, prefetch=2)
    read = list(itertools.islice(reader, 2))
    reader.close()
    for batch, same in zip(first(corpus, 2), read, strict=True):
        for feature, values in batch.items():
            np.testing.assert_array_equal(same[feature], values)


def test_counts_of_the_training_text_weigh_what_is_predicted(prepare, sentences):
    """They are kept beside the store, and a second start reads them."""
    task = {"kind": "masked", "next_sentence": False, "smoothing": 0.7, "max_predictions": 4}
    options = {"tokenizer": WORDPIECE, "objective": task, "layout": "packed", "length": 32}
    corpora = [prepare(sentences, **options) for _ in range(2)]
    stream = corpora[0].stream("train")
    ids = np.empty(stream.tokens, np.int32)
    stream.copy(0, ids)
    counts = np.bincount(ids, minlength=corpora[0].tokenizer.vocab_size)
    expected = np.maximum(counts, 1.0) ** -0.7
    expected[list(corpora[0].tokenizer.special.values())] = 0
    for corpus in corpora:
        np.testing.assert_allclose(corpus._objective.preference, expected)
    one, other = (first(corpus, 2) for corpus in corpora)
    for batch, again in zip(one, other, strict=True):
        np.testing.assert_array_equal(batch["slots"], again["slots"])
        assert batch["weights"].any()
