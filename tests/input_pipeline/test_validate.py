"""Mistakes in a config's data are found before any text is tokenised, and the message names the key."""

import pytest

from configs import common
from input_pipeline import corruption, pipeline, validate
from input_pipeline.errors import DataError
from input_pipeline.io import Folders


@pytest.fixture
def sections(tmp_path, write):
    """`sections(objective="masked", ...)`: data, tokenizer, objective; keywords are keys of config.data."""
    path = write("train.txt", "Text.\n" * 100)
    write("records.jsonl", '{"inputs": "one text", "targets": "another"}\n' * 5)

    def sections(objective=None, tokenizer=None, **data):
        config = common.base()
        if objective:
            kind, changes = objective
            config.objective = common.OBJECTIVES[kind]()
            config.objective.update(changes)
        data = {
            key: value.format(tmp_path / "text") if isinstance(value, str) else value for key, value in data.items()
        }
        config.data.update({"train": f"text:{path}", "length": 8, "holdout": 0.0} | data)
        config.tokenizer.update({"kind": "bytes"} | (tokenizer or {}))
        return config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()

    return sections


MASKED = ("masked", {"next_sentence": False})
CODED = ("causal", {"coded": True})
TOLD = ("masked", {"next_sentence": False, "languages": True})
RECORDS = "jsonl:{0}/records.jsonl"
TEXT = "text:{0}/train.txt"

MISTAKES = {  # words of the message: changes
    "text:/nowhere/x": {"validation": "text:/nowhere/x"},
    "data.layout=concat": {"objective": ("permutation", {})},
    "data.layout=sentences": {"layout": "sentences", "objective": MASKED},
    "data.sentences=words": {"sentences": "words"},
    "data.weights": {"weights": (1.0, 2.0)},
    "data.layout=stream": {"layout": "stream", "temperature": 2.0},
    "data.length=2": {"length": 2, "objective": ("spans", {"mean_span": 1.0})},
    "data.image": {"image": (2, 2, 1), "tokenizer": {"kind": "words"}},
    "tokenizer.algorithm": {"tokenizer": {"kind": "sentencepiece", "algorithm": "wordpiece"}},
    "tokenizer.sentinels=2": {"tokenizer": {"sentinels": 2}, "objective": ("spans", {}), "length": 512},
    "target": {"train": RECORDS + "?fields=inputs,target", "objective": ("spans", {}), "length": 32},
    "fields=inputs must be two": {"train": RECORDS + "?fields=inputs", "objective": ("spans", {}), "length": 32},
    "fields= must be two": {"objective": ("translation", {}), "layout": "texts"},
    "fields=inputs,targets": {"train": RECORDS + "?fields=inputs,targets"},
    "objective.coded=True": {"objective": CODED},
    "code=W": {"train": TEXT + "?code=W"},
    "code=W needs data.layout=concat": {"train": TEXT + "?code=W", "objective": CODED, "layout": "packed"},
    "language=en": {"train": TEXT + "?language=en"},
    "language=": {"objective": TOLD, "languages": ("en",)},
    "data.languages": {"objective": MASKED, "languages": ("en",)},
    "language de": {"train": TEXT + "?language=de", "objective": TOLD, "languages": ("en",)},
    "sw": {"train": TEXT + "?language=en", "objective": TOLD, "languages": ("en", "sw")},
    "objective.languages": {
        "train": TEXT + "?language=en",
        "objective": ("denoising", {"languages": ("de",)}),
        "length": 32,
        "languages": ("en",),
    },
}


@pytest.mark.parametrize("key", MISTAKES)
def test_check_names_the_key_of_a_mistake(sections, tmp_path, key):
    folders = Folders(tmp_path / "run/tokenizer", tmp_path / "run/data")
    with pytest.raises(DataError, match=key):
        validate.check(*sections(**MISTAKES[key]), folders)
    assert not (tmp_path / "run").exists()


def test_tokenised_text_needs_no_source(prepare, write, tmp_path):
    source = f"text:{write('a.txt', 'Text. ' * 100)}"
    assert prepare(source).summary()[0]["bytes"] == 600
    (tmp_path / "text/a.txt").unlink()
    assert prepare(source).summary()[0]["bytes"] == 600


def test_refused_tokenizer_stops_before_tokenising(sections, tmp_path):
    class RefusedError(Exception):
        pass

    def accept(tokenizer):
        assert tokenizer.vocab_size == 257
        raise RefusedError

    with pytest.raises(RefusedError):
        pipeline.prepare(*sections(), Folders(tmp_path / "run/tokenizer", tmp_path / "run/data"), accept=accept)
    assert not (tmp_path / "run/data").exists()


@pytest.mark.parametrize(
    ("objective", "layout", "least"),
    [
        (("spans", {"mean_span": 1.0}), "concat", 3),
        (("spans", {"noise": "prefix"}), "concat", 3),
        (("masked", {"next_sentence": True}), "pairs", 5),
    ],
)
def test_check_length_names_the_least_that_works(objective, layout, least):
    kind, changes = objective
    section = common.OBJECTIVES[kind]()
    section.update(changes)
    task = corruption.build(section.to_dict())
    for length in range(1, least):
        with pytest.raises(DataError, match=f"data.length={length}.*at least {least}"):
            validate.check_length("data.length", length, task)
    validate.check_length("data.length", least, task)


WORDS = {"kind": "words", "vocab_size": 100}
SPACES = "   "  # separators of words
LINES = "".join(f"A line of {n} words.\n\n" for n in range(200))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_splits_need_tokens(prepare, write, split):
    lines, empty = f"text:{write('lines.txt', LINES)}", f"text:{write('empty.txt', SPACES)}"
    with pytest.raises(DataError, match=f"data.{split}"):
        prepare(lines, tokenizer=WORDS, **{split: empty})


def test_sources_without_tokens_are_skipped(prepare, write):
    lines, empty = f"text:{write('lines.txt', LINES)}?document=blank_line", f"text:{write('empty.txt', SPACES)}"
    pairs = write("pairs.jsonl", '{"inputs": "one line", "targets": "two lines"}\n')
    corpus = prepare(
        lines,
        validation=f"{empty} + jsonl:{pairs}?fields=inputs,targets",
        objective={"kind": "spans"},
        tokenizer=WORDS | {"sentinels": 50},
        length=32,
    )
    scored = corpus.evaluation("validation", length=32, stride=32, batch_size=2)
    assert sum(batch["weights"].sum() for batch in scored.batches()) == 3
