"""Records without usable text: they stop a run, or are skipped, counted and listed up to a limit."""

import json
import os

import numpy as np
import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import parser

LONG = "7" * 6000  # Python reads 4,300 digits
BAD = {  # by number of the line
    3: b'{"text": "cut',
    50: b'{"body": "another field"}',
    70: b'{"text": "\\ud83d alone"}',
    71: b'{"text": "\xff"}',
    99: b"[" * 100_000,
    199: b'{"text": null}',
}
GOOD = {4: f'{{"text": "of line 4", "id": {LONG}}}'.encode(), 5: b'{"text": "\\ud83d\\ude00 and \\\\ud83d"}'}
SKIP = {"on_bad_record": "skip", "bad_records": 0.05}


@pytest.fixture
def lines(write):
    """200 lines of JSON, of which those of BAD are bad."""
    found = [BAD.get(n) or GOOD.get(n) or json.dumps({"text": f"of line {n}"}).encode() for n in range(1, 201)]
    texts = [f"of line {n}" if n != 5 else json.loads(GOOD[5])["text"] for n in range(1, 201) if n not in BAD]
    return write("a.jsonl", b"\n".join(found) + b"\n"), texts


def test_bad_records_are_skipped_and_listed(prepare, lines, tmp_path):
    path, texts = lines
    for start in ("made", "opened again"):
        said = []
        corpus = prepare(f"jsonl:{path}", said=said, **SKIP)
        assert corpus.raw_bytes("train") == "".join(texts).encode(), start
        assert [line for line in said if line.startswith("warning: 6 of 200 records")]
        listed = (tmp_path / "run/bad_records.txt").read_text().splitlines()
        assert len(listed) == 1 + len(BAD)
        for number, line in zip(BAD, listed[1:], strict=True):
            assert line.startswith(f"{path}, line {number} ")
        os.utime(path)  # its content is compared with the store's
    # A batch is read from the store, so it is the one of the same text without bad records.
    batch = next(corpus.batches(seed=1, batch_size=4, workers=0, prefetch=1))
    assert batch["tokens"].shape == (4, 8) and np.any(batch["tokens"])


def test_bad_records_above_the_limit(prepare, lines, tmp_path):
    path, _ = lines
    for how in (SKIP | {"bad_records": 0.029}, {"on_bad_record": "skip", "bad_records": 0.0}, {}):
        with pytest.raises(DataError, match=r"line 3 "):
            prepare(f"jsonl:{path}", **how)
    with pytest.raises(DataError, match=r"data\.bad_records=0\.029: 6 of 200 "):
        prepare(f"jsonl:{path}", **SKIP | {"bad_records": 0.029})
    assert not (tmp_path / "run/bad_records.txt").exists()
    corpus = prepare(f"jsonl:{path}", **SKIP | {"bad_records": 0.03})
    assert corpus.stream("train").counts.documents == 194
    with pytest.raises(DataError, match=r"data\.bad_records"):  # of the store that is there
        prepare(f"jsonl:{path}")


def test_wrong_field_is_found_at_once(prepare, write):
    path = write("a.jsonl", '{"text": "x"}\n' * 9)
    with pytest.raises(DataError, match=r"9 of 9 records.*no usable field 'body'"):
        prepare(f"jsonl:{path}?field=body", **SKIP)


def test_lone_surrogates(prepare, write):
    path = write("a.jsonl", '{"text": "a\\uD83D\\uD83D\\uDE00\\\\ud83d", "b": ["\\udc00"]}\n{"text": "bbbbbbbb"}\n')
    with pytest.raises(DataError, match=r"line 1 .*data\.replace_surrogates"):
        prepare(f"jsonl:{path}")
    skipped = prepare(f"jsonl:{path}", on_bad_record="skip", bad_records=0.5)
    replaced = prepare(f"jsonl:{path}", replace_surrogates=True)
    assert skipped.raw_bytes("train") == b"bbbbbbbb"
    assert replaced.raw_bytes("train").decode() == "a\ufffd\U0001f600\\ud83dbbbbbbbb"


def test_numbers_of_any_length(prepare, write):
    path = write("a.jsonl", f'{{"a": "x", "b": {LONG}, "c": {{"d": [-{LONG}]}}}}\n')
    (source,) = parser.parse(f"jsonl:{path}?fields=a,b", "data.train")
    (document,) = source.documents(next(source.spans(1)))
    assert ["".join(chunks) for chunks in document.texts] == ["x", LONG]


@pytest.mark.parametrize("unit", ["line", "blank_line"])
def test_text_that_is_not_utf8(prepare, write, tmp_path, unit):
    path = write("a.txt", b"one\n\nt\xffo\n\nthree\n")
    source, how = f"text:{path}?document={unit}", {"on_bad_record": "skip", "bad_records": 0.4}
    assert prepare(source, **how).raw_bytes("train") == b"onethree"
    assert f"{path}, line 3 is not UTF-8 text at byte 6." in (tmp_path / "run/bad_records.txt").read_text()


def test_pairs_that_are_not_utf8(prepare, write, tmp_path):
    write("a.en", b"one\ntwo\nthree\n")
    path = write("a.de", b"eins\n\xff\ndrei\n").replace(".de", ".{}")
    how = {"on_bad_record": "skip", "bad_records": 0.4, "layout": "texts", "objective": {"kind": "translation"}}
    assert prepare(f"parallel:{path}?fields=en,de", **how).raw_bytes("train") == b"oneeinsthreedrei"
    assert "line 2 is not UTF-8" in (tmp_path / "run/bad_records.txt").read_text()
