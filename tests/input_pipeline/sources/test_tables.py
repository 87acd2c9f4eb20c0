"""Parquet, Arrow, datasets on disk, CSV and TSV give the documents of the same rows in JSON lines."""

import csv
import itertools
import json
import pickle
import random
import sys

import numpy as np
import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import base, parser
from input_pipeline.token_store import build

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

FEATURES = {  # as `datasets` keeps them in a schema
    "label": {"names": ["negative", "positive"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "Sequence"},
}


def random_rows(count: int) -> list[dict]:
    draw, words = (
        random.Random(0),
        ["viér", 'say "so"', "a,b", "tab\there", "line\nbreak", "'", '""', "\r\n", "漢字", ""],
    )
    return [{"id": n, "text": f"{n} " + " ".join(draw.choices(words, k=draw.randint(1, 9)))} for n in range(count)]


def write_table(path, table, rows: int = 10) -> str:
    """Writes a table with `rows` in each row group or record batch, in the format that the name says."""
    if str(path).endswith(".parquet"):
        parquet.write_table(table, path, row_group_size=rows)
    else:
        new = ipc.new_file if str(path).endswith(".feather") else ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return str(path)


def save_to_disk(folder, shards: list) -> str:
    """Writes what `datasets.save_to_disk` writes for a dataset of these tables."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{len(shards):05d}.arrow" for n in range(len(shards))]
    for name, table in zip(names, shards, strict=True):
        write_table(folder / name, table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string", "_type": "Value"}}}))
    return str(folder)


def only(spec: str) -> base.Source:
    (source,) = parser.parse(spec, "data.train")
    return pickle.loads(pickle.dumps(source))  # as for a worker process


def read(spec: str, target: int = 1) -> list[tuple[float, tuple[str, ...]]]:
    source = only(spec)
    found = itertools.chain.from_iterable(map(source.good_documents, source.spans(target)))
    return [(document.holdout_rank, tuple("".join(chunks) for chunks in document.texts)) for document in found]


@pytest.fixture
def written(tmp_path):
    """The same 100 rows in every format, by kind of source."""
    rows = random_rows(100)
    table = pa.Table.from_pylist(rows)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = {"parquet": write_table(tmp_path / "a.parquet", table), "jsonl": f"{tmp_path}/a.jsonl"}
    stream, file = write_table(tmp_path / "a.arrow", table), write_table(tmp_path / "a.feather", table)
    for kind, delimiter in (("csv", ","), ("tsv", "\t")):
        with open(tmp_path / f"a.{kind}", "w", newline="", encoding="utf-8-sig") as out:
            writer = csv.DictWriter(out, ["id", "text"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
        paths[kind] = f"{tmp_path}/a.{kind}"
    saved = save_to_disk(tmp_path / "saved", [table[:37], table[37:]])
    return {kind: f"{kind}:{path}" for kind, path in paths.items()} | {
        "stream": f"arrow:{stream}",
        "file": f"arrow:{file}",
        "saved": f"arrow:{saved}",
    }


@pytest.mark.parametrize("kind", ["parquet", "stream", "file", "saved", "csv", "tsv"])
@pytest.mark.parametrize("query", ["", "?fields=text,id"])
def test_tables_same_documents(written, kind, query):
    wanted = read(written["jsonl"] + query)
    assert len(wanted) == 100
    for target in (1, 700, 1 << 30):
        assert read(written[kind] + query, target) == wanted
    assert len(list(only(written[kind]).spans(1))) >= 10


def test_csv_as_pyarrow_reads_it(written, tmp_path):
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ParseOptions(newlines_in_values=True)
    table = arrow_csv.read_csv(tmp_path / "a.csv", parse_options=options)
    assert [texts for _, texts in read(written["csv"])] == [(text,) for text in table["text"].to_pylist()]


def test_tables_same_token_store(written, prepare, tmp_path, monkeypatch):
    stores, batches = {}, {}
    for kind in ("jsonl", "parquet", "saved", "csv"):
        stores[kind] = prepare(written[kind], holdout=0.2, root=tmp_path / kind)
        batches[kind] = next(stores[kind].batches(seed=1, batch_size=8, workers=0, prefetch=1))
        assert stores[kind].summary() == stores["jsonl"].summary(), kind
        assert all(np.array_equal(batches[kind][name], batches["jsonl"][name]) for name in batches[kind])
    groups, original = [], parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile,
        "iter_batches",
        lambda file, *given, row_groups, **named: (
            groups.extend(row_groups) or original(file, *given, row_groups=row_groups, **named)
        ),
    )
    stores["parquet"].raw_bytes("train")
    assert groups == list(range(10))  # each is read once


@pytest.mark.slow
def test_tables_by_processes(written, prepare, tmp_path, monkeypatch):
    """Parts do not depend on the processes that make them, and a killed build continues with the missing ones."""
    monkeypatch.setattr(build, "PART_BYTES", 500)
    alone = prepare(written["parquet"], root=tmp_path / "alone", workers=build.processes(1))
    several = prepare(written["parquet"], root=tmp_path / "several", workers=build.processes(2))
    assert alone.origin == several.origin and alone.raw_bytes("train") == several.raw_bytes("train")


NESTED = [
    {
        "meta": {"text": f"text {n}", "score": n / 5},
        "answers": {"text": [f"first {n}", "second"], "start": [n, 0]},
        "turns": [{"role": "user", "content": f"hi {n}"}],
        "label": n % 2,
        "tags": [1, 0],
        "plain.name": f"dot {n}",
    }
    for n in range(5)
]


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("field=meta.text", ("text 3",)),
        ("field=answers.text.0", ("first 3",)),
        ("field=turns.0.content", ("hi 3",)),
        ("field=plain.name", ("dot 3",)),
        ("fields=meta.score,answers.start.0,answers.text.1", ("0.6", "3", "second")),
        ("fields=label,tags.0", ("positive", "B")),
        ("fields=label,tags.0&labels=ids", ("1", "1")),
    ],
)
def test_nested_fields(tmp_path, query, texts):
    schema = pa.Table.from_pylist(NESTED).schema
    score = pa.struct([("text", pa.string()), ("score", pa.float32())])
    schema = schema.set(schema.get_field_index("meta"), pa.field("meta", score))
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    table = pa.Table.from_pylist(NESTED, schema=schema)
    specs = [f"{kind}:{write_table(tmp_path / f'a.{kind}', table, 2)}?{query}" for kind in ("parquet", "arrow")]
    if "label" not in query:
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in NESTED))
        specs.append(f"jsonl:{tmp_path}/a.jsonl?{query}")
        with pytest.raises(
            DataError, match=r"answers\.text\.9.*Its fields: meta\.text, meta\.score, answers\.text\.0, "
        ):
            read(f"jsonl:{tmp_path}/a.jsonl?field=answers.text.9")
    for spec in specs:
        assert read(spec)[3][1] == texts, spec


def test_saved_dataset_with_other_files(tmp_path):
    """Of an earlier save, and of a cache, which `datasets` puts next to the data."""
    tables = [pa.table({"text": [f"{n}"]}) for n in range(3)]
    folder = save_to_disk(tmp_path / "saved/train", tables[:2])
    for name in ("data-00000-of-00001.arrow", "cache-0123456789abcdef.arrow"):
        write_table(tmp_path / "saved/train" / name, tables[2])
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert [texts for _, texts in read(f"arrow:{folder}")] == [("0",), ("1",)]
    with pytest.raises(DataError, match=r"saved/train"):
        parser.parse(f"arrow:{tmp_path}/saved", "data.train")
    (tmp_path / "saved/train/data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"00001-of-00002"):
        parser.parse(f"arrow:{folder}", "data.train")


def test_tables_bad_records(prepare, tmp_path):
    texts = ["first", None, "third"]
    table = pa.table({"text": pa.array(texts), "raw": pa.array([b"ok", b"\xff", b"ok"])})
    path, skip = write_table(tmp_path / "a.parquet", table, 2), {"on_bad_record": "skip", "bad_records": 0.5}
    assert prepare(f"parquet:{path}", **skip).raw_bytes("train") == b"firstthird"
    assert "row group 0, row 1" in (tmp_path / "run/bad_records.txt").read_text()
    with pytest.raises(DataError, match=r"on_bad_record"):
        prepare(f"parquet:{path}?field=raw", root=tmp_path / "raw")
    (tmp_path / "a.csv").write_bytes(b'text,b\nfirst,1\nsecond\nt\xff,\n"x" y,3\nlast,"\xff"\n')
    assert prepare(f"csv:{tmp_path}/a.csv", root=tmp_path / "csv", on_bad_record="skip", bad_records=0.6).raw_bytes(
        "train"
    ) == (b"firstlast")
    listed = (tmp_path / "csv/bad_records.txt").read_text().splitlines()[1:]
    for line, number, problem in zip(listed, (3, 4, 5), ("1 cells", "not UTF-8", "quotes=none"), strict=True):
        assert f"line {number} " in line and problem in line


def test_an_open_quote_costs_one_row(prepare, tmp_path):
    lines = ["text,id", *(f"row {number},{number}" for number in range(2000))]
    lines[500], lines[900] = '"open,499', '"two\nlines",899'
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    skip = {"on_bad_record": "skip", "bad_records": 0.01}
    expected = "".join(f"row {n}" if n != 899 else "two\nlines" for n in range(2000) if n != 499)
    assert prepare(f"csv:{tmp_path}/a.csv", **skip).raw_bytes("train") == expected.encode()
    with pytest.raises(DataError, match="line 501 "):
        prepare(f"csv:{tmp_path}/a.csv", root=tmp_path / "stop")


def test_a_cut_within_a_cell_is_refused(tmp_path):
    rows = (f'a 5" disk {n},{n}\n' + f'"line {n}\nsecond, line\nthird {n}",{n}\n' for n in range(40_000))
    (tmp_path / "a.csv").write_text("text,id\n" + "".join(rows))
    with pytest.raises(DataError, match="quotes=none"):
        read(f"csv:{tmp_path}/a.csv")


def test_tsv_with_quotes_as_text(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"a film\t1\n6" long\t0\n')
    assert [texts for _, texts in read(f"tsv:{tmp_path}/a.tsv?quotes=none")] == [('"a film',), ('6" long',)]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("parquet:{}/a.parquet?field=body", "field=body"),
        ("parquet:{}/a.parquet?field=text.body", "field=text.body"),
        ("arrow:{}/a.arrow?field=body", "field=body"),
        ("csv:{}/a.csv?field=body", "field=body"),
        ("parquet:{}/cut.parquet", "cut.parquet"),
        ("parquet:{}/a.csv", "a.csv"),
        ("arrow:{}/a.csv", "a.csv"),
        ("csv:{}/empty.csv", "empty.csv"),
        ("csv:{}/a.csv?quotes=no", "quotes=no"),
        ("parquet:{}/a.parquet?labels=numbers", "labels=numbers"),
    ],
)
def test_tables_mistakes(written, prepare, tmp_path, spec, problem):
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match=problem):
        prepare(spec.format(tmp_path))


def test_tables_without_pyarrow(written, prepare, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.ipc")
    with pytest.raises(DataError, match=r"\[parquet\]"):
        prepare(written["parquet"])


def test_name_of_the_hub():
    with pytest.raises(DataError) as error:
        parser.parse("org/wikitext", "data.train")
    _, fetch, read_it = str(error.value).splitlines()
    assert "load_dataset('org/wikitext'" in fetch and "save_to_disk('data/wikitext')" in fetch
    assert "--config.data.train='arrow:data/wikitext?field=text'" in read_it
