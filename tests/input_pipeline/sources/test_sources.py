"""The source grammar, and the sources that need no other package."""

import gzip
import os
import pickle

import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import readers, sources


def only(spec: str) -> sources.Source:
    (source,) = sources.parse(spec, "data.train")
    return source


def test_sources_are_joined_by_plus(write):
    path = write("a.txt", "x")
    found = sources.parse(f"stdlib + text:{path} + jsonl:{path}?field=body", "data.train")
    assert [source.spec for source in found] == ["stdlib", f"text:{path}", f"jsonl:{path}?field=body"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("csv:x.txt", r"docs/coming_from.md says how CSV becomes one$"),
        ("Text:x.csv", r"unknown source kind 'Text'"),
        ("data/x.CSV.gz", r"docs/coming_from.md says how CSV becomes one"),
        ("data/x.parquet", r"docs/coming_from.md says how PARQUET becomes one"),
        ("web:x", r"unknown source kind 'web'; choose one of: stdlib, text, jsonl, parallel, images, tfds"),
        ("text:x?document=line&document=file", r"has the option 'document' twice; leave one out"),
        ("text:x?document=line&&", r"has an '&' with no option behind it; leave it out"),
        ("text:x?lines=1", r"unknown option 'lines'; a text source takes: document, bytes"),
        ("text:x?document=word", r"document=word; choose one of: file, line, blank_line"),
        ("text:x?bytes=a:b", r"bytes=a:b; write bytes=START:END"),
        ("text:x?bytes=5:5", r"bytes=5:5, which is empty"),
        ("text:", r"incomplete; write text:GLOB"),
        ("images:x", r"'images:x' reads images, but data\.image is empty; set it to their rows, columns and colours"),
        ("stdlib:x", r"incomplete; write stdlib alone"),
        ("stdlib + ", r"names an empty source"),
        ("stdlib+text:a", r"'stdlib\+text:a': join sources by ' \+ ', with spaces: stdlib \+ text:a$"),
        ("text:a.txt,jsonl:b?field=x, stdlib", r"with spaces: text:a\.txt \+ jsonl:b\?field=x \+ stdlib$"),
        ("stdlib + stdlib", r"names a source twice"),
        ("/nowhere/x.jsonl", r"and nothing is there; check the path, and write jsonl:/nowhere/x\.jsonl$"),
        ("/nowhere/x.JSONL.GZ", r"check the path, and write jsonl:/nowhere/x\.JSONL\.GZ$"),
        ("?field=x", r"has an unknown source kind '\?field=x'"),
        (__file__, rf"is a path without the kind of its source; write text:{__file__}"),
        (os.path.dirname(__file__), rf"write text:{os.path.dirname(__file__)}/\*\*/\*"),
    ],
)
def test_a_wrong_source_is_named_with_the_choices(spec, message):
    with pytest.raises(DataError, match=message):
        sources.parse(spec, "data.train")


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("a.csv", "text:", "fields of .csv; docs/coming_from.md says how CSV becomes a source of fields"),
        ("a.JSON.gz", "text:", "fields of .json; jsonl:GLOB?field=text reads a field of each line"),
        ("a.tsv", "text:", "how TSV becomes a source of fields, and jsonl:GLOB?field=text reads a field of each line"),
        ("a.txt", "text:", ""),
        ("a.json", "jsonl:", ""),
    ],
)
def test_fields_that_are_read_as_plain_text_are_told_of(prepare, write, tmp_path, name, spec, told):
    """Once, as it is tokenised."""
    text = '{"text": "one"}\n' * 9
    path = write(name, gzip.compress(text.encode()) if name.endswith(".gz") else text)
    if name == "a.tsv":
        write("b.jsonl", text)
    said = []
    for _ in range(2):
        prepare(f"{spec}{os.path.dirname(path)}/*", said=said)
    whole = [line for line in said if "is read as plain text" in line]
    assert len(whole) == bool(told) and all(line.endswith(told) for line in whole)


def test_a_path_may_hold_what_joins_sources(write):
    paths = write("c++,text/a,b+c.txt", "one"), write("b.txt", "two")
    found = sources.parse(" + ".join(f"text:{path}" for path in paths), "data.train")
    assert [len(source.files()) for source in found] == [1, 1]


def test_names_are_relative_to_the_fixed_part_of_the_glob(write):
    write("b/2.txt", "two")
    path = write("a/1.txt", "one")
    root = path.removesuffix("a/1.txt")
    for pattern in ("*/*.txt", "**/*.txt"):
        assert [file.name for file in only(f"text:{root}{pattern}").files()] == ["a/1.txt", "b/2.txt"]
    assert [file.name for file in only(f"text:{root}a/?.txt").files()] == ["1.txt"]


def test_a_file_with_several_names_is_read_once(write, tmp_path):
    """Else what is held out by one of them would be trained on by another."""
    root = tmp_path / "text"
    paths = [write(f"{name}.txt", name) for name in "abc"]
    for name in ("again", "and_again"):  # which holds itself, and by more names than could be followed
        (root / name).symlink_to(root)
    (root / "d.txt").symlink_to(paths[0])
    assert [file.name for file in only(f"text:{root}/**/*.txt").files()] == ["a.txt", "b.txt", "c.txt"]


def test_a_file_behind_more_links_than_a_system_follows_at_once(write, tmp_path):
    write("a.txt", "a")
    last = tmp_path / "b"
    last.write_text("b")
    for number in range(45):
        (tmp_path / f"link{number}").symlink_to(last)
        last = tmp_path / f"link{number}"
    (tmp_path / "text" / "b.txt").symlink_to(last)
    assert [(file.name, file.size) for file in only(f"text:{tmp_path}/text/*.txt").files()] == [
        ("a.txt", 1),
        ("b.txt", 1),
    ]


def test_no_match_is_an_error(tmp_path):
    with pytest.raises(DataError, match="matches no file; check the path"):
        only(f"text:{tmp_path}/*.txt").files()


def test_sources_are_not_joined_by_commas(tmp_path):
    with pytest.raises(DataError, match=r"matches no file; check the path; several sources are joined by ' \+ '"):
        only(f"text:{tmp_path}/a.txt,{tmp_path}/b.txt").files()


def test_a_folder_is_not_a_glob(tmp_path):
    with pytest.raises(DataError, match=rf"is a folder; name its files, such as text:{tmp_path}/\*\*/\*"):
        only(f"text:{tmp_path}/").files()


def test_json_lines_that_are_wrong_are_numbered(write):
    good = '{"text": "x"}\n\n'
    bad = {
        "no json": "is not JSON",
        '{"body": 1}': "has no field 'text'; name one of: body",
        "{}": "is an object without fields; give it 'text'",
        "[1]": "is a list, not an object",
        "NaN": "is a number, not an object",
        "null": "is null, not an object",
        "[" * 100_000: "is nested too deeply to be read",
    }
    for line, message in bad.items():
        source = only(f"jsonl:{write('a.jsonl', 3 * good + line)}")
        with pytest.raises(DataError, match=rf"a\.jsonl, line 7 {message}"):
            [list(source.documents(span)) for span in source.spans(20)]


def documents(source: sources.Source) -> list[tuple[float, str]]:
    return [(d.place, "".join(d.chunks)) for span in source.spans(1 << 20) for d in source.documents(span)]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("text", ["".join(f"Zeile {n}\n" for n in range(100)), "ä" * 1000, "two\nlines"])
def test_of_a_single_file_the_end_is_held_out(write, name, text):
    data = text.encode()
    path = write(name, gzip.compress(data) if name.endswith(".gz") else data)
    (kept, held) = documents(only(f"text:{path}").dividing(0.1))
    assert (kept[0], held[0]) == (1.0, 0.0) and kept[1] + held[1] == text
    assert 0 < len(held[1]) <= max(0.1 * len(text), 5)
    assert kept[1].endswith("\n") or "\n" not in text[-len(text) // 10 :]


def test_a_stretch_of_a_file_is_divided_within(write):
    path = write("a.txt", "0123456789" * 10)
    kept, held = documents(only(f"text:{path}?bytes=10:30").dividing(0.25))
    assert (kept[1], held[1]) == ("012345678901234", "56789")


def test_a_file_whose_name_is_held_out_is_divided_too(write):
    name = next(f"{n}.txt" for n in range(1000) if readers.place(f"{n}.txt".encode()) < 0.05)
    path = write(name, "A line.\n" * 100)
    (kept, held) = documents(only(f"text:{path}").dividing(0.05))
    assert (len(kept[1]), len(held[1])) == (96 * 8, 4 * 8)  # from the next line on


@pytest.mark.parametrize("huge", [True, False])
def test_files_that_hold_nearly_all_or_next_to_nothing_are_not_held_out_whole(write, huge):
    """Of one huge file and nineteen small ones, the huge one's name or a small one's falls below the holdout."""
    places = {f"{n}.txt": readers.place(f"{n}.txt".encode()) for n in range(1000)}
    below = next(name for name, place in places.items() if place < 0.05)
    others = [name for name, place in places.items() if place >= 0.05][:19]
    large = below if huge else others[0]
    sizes = {name: 10_000 if name == large else 100 for name in (below, *others)}
    paths = [write(name, "x" * (size - 1) + "\n") for name, size in sizes.items()]
    found = documents(only(f"text:{os.path.dirname(paths[0])}/*.txt").dividing(0.05))
    held = sum(len(text) for place, text in found if place < 0.05)
    assert held == pytest.approx(0.05 * sum(sizes.values()), rel=0.1)
    assert sum(len(text) for _, text in found) == sum(sizes.values())


def test_a_joined_file_is_divided_too(write):
    path = write("a.txt", "0123456789" * 9 + "\n012345678")
    (kept, held) = documents(only(f"text:{path}?line_ends=dropped").dividing(0.1))
    assert (kept[1], held[1]) == ("0123456789" * 9, "012345678")


def test_a_name_with_brackets_is_a_file(write):
    path = write("shelf [a]/book [1].txt", "one")
    write("shelf [a]/book 1.txt", "another")
    assert [file.name for file in only(f"text:{path}").files()] == ["book [1].txt"]
    folder = os.path.dirname(path)
    assert [file.name for file in only(f"text:{folder}/*.txt").files()] == ["book 1.txt", "book [1].txt"]
    assert [file.name for file in only(f"text:{folder}/book [0-9].txt").files()] == ["book 1.txt"]
    with pytest.raises(DataError, match=r"is a folder; name its files"):
        only(f"text:{folder}").files()


def test_a_stretch_beyond_the_end_is_named(write):
    path = write("a.txt", "x" * 100)
    with pytest.raises(DataError, match=r"begins at byte 100, but a\.txt ends at byte 100; lower START"):
        only(f"text:{path}?bytes=100:200").files()
    write("b.txt", "x" * 300)
    with pytest.raises(DataError, match=r"ends at byte 200, but a\.txt ends at byte 100; give all of it, or leave END"):
        only(f"text:{os.path.dirname(path)}/*.txt?bytes=:200").files()


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_a_stretch_beyond_the_end_of_a_compressed_file_is_named_when_it_is_read(write, unit):
    path = write("a.txt.gz", gzip.compress(b"x\n" * 50))
    for stretch, words in {
        "100:": r"begins at byte 100, but a\.txt\.gz ends at byte 100; lower START",
        "100:200": r"begins at byte 100, but a\.txt\.gz ends at byte 100; lower START",
        ":101": r"ends at byte 101, but a\.txt\.gz ends at byte 100; give all of it",
    }.items():
        with pytest.raises(DataError, match=words):
            documents(only(f"text:{path}?bytes={stretch}&document={unit}"))
    for stretch in ("99:", ":100", "99:100"):
        documents(only(f"text:{path}?bytes={stretch}&document={unit}"))


def test_options_stand_as_they_are_written():
    source = only("tfds:set?split=train+validation[5%:20%]&data_dir=/a%20b")
    assert (source.split, source.data_dir) == ("train+validation[5%:20%]", "/a%20b")


@pytest.mark.parametrize(("spec", "image"), [("images:x", ()), ("text:x", (4, 4, 3))])
def test_a_flag_is_not_told_to_change_the_run(spec, image):
    with pytest.raises(DataError, match="--data = ") as caught:
        sources.parse(spec, "--data", image)
    assert "set it" not in str(caught.value) and "leave data.image" not in str(caught.value)


def test_files_are_held_out_whole_where_they_are_a_fair_share(write):
    path, *_ = [write(f"{n}.txt", f"file {n}\nend") for n in range(100)]
    source = only(f"text:{os.path.dirname(path)}/*.txt")
    assert source.dividing(0.1) is source and source.dividing(0.0) is source
    assert only(f"text:{path}?document=line").dividing(0.1).read is readers.line_documents


def test_the_standard_library_without_tests_and_foreign_packages():
    source = only("stdlib")
    names = [file.name for file in source.files()]
    assert "json/decoder.py" in names and names == sorted(names)
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    (span,) = [span for span in source.spans(1) if span.name == "json/decoder.py"]
    (document,) = source.documents(span)
    assert document.place == readers.place(b"json/decoder.py")
    with open(os.path.join(os.path.dirname(os.__file__), "json/decoder.py"), encoding="utf-8", newline="") as file:
        assert "".join(document.chunks) == file.read()


def test_the_standard_library_skips_files_in_other_encodings(tmp_path, monkeypatch):
    (tmp_path / "good.py").write_text("x = 1")
    (tmp_path / "bad.py").write_bytes(b"# \xe9")
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path))
    source = only("stdlib")
    assert ["".join(d.chunks) for span in source.spans(1) for d in source.documents(span)] == ["x = 1"]


def test_sources_travel_to_other_processes(write):
    path = write("a.txt", "one\ntwo")
    for spec in (f"text:{path}?document=line", f"jsonl:{path}", "stdlib"):
        assert pickle.loads(pickle.dumps(only(spec))).files() == only(spec).files()
