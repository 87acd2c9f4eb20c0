"""The source grammar, and the sources that need no other package."""

import gzip
import os

import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources import base, parser


def only(spec: str) -> base.Source:
    (source,) = parser.parse(spec, "data.train")
    return source


@pytest.mark.parametrize(
    "spec",
    [
        "web:x",
        "text:x?document=line&document=file",
        "text:x?lines=1",
        "text:x?document=word",
        "text:x?bytes=5:5",
        "jsonl:x?fields=a,a",
        "parallel:x?fields=a,b",
        "text:",
        "images:x",
        "stdlib + ",
        "stdlib + stdlib",
        "/nowhere/x.jsonl",
    ],
)
def test_parse_mistakes(spec):
    with pytest.raises(DataError):
        parser.parse(spec, "data.train")


def test_glob_relative_names(write):
    write("b/2.txt", "two")
    path = write("a/1.txt", "one")
    root = path.removesuffix("a/1.txt")
    for pattern in ("*/*.txt", "**/*.txt"):
        assert [file.name for file in only(f"text:{root}{pattern}").files()] == ["a/1.txt", "b/2.txt"]
    assert [file.name for file in only(f"text:{root}a/?.txt").files()] == ["1.txt"]


def test_glob_brackets_in_name(write):
    path = write("shelf [a]/book [1].txt", "one")
    assert [file.name for file in only(f"text:{path}").files()] == ["book [1].txt"]
    assert [file.name for file in only(f"text:{os.path.dirname(path)}/*.txt").files()] == ["book [1].txt"]


def test_glob_links_read_once(write, tmp_path):
    """Else what is held out by one of them would be trained on by another."""
    paths = [write(f"{name}.txt", name) for name in "abc"]
    (tmp_path / "text/again").symlink_to(tmp_path / "text")
    (tmp_path / "text/d.txt").symlink_to(paths[0])
    assert [file.name for file in only(f"text:{tmp_path}/text/**/*.txt").files()] == ["a.txt", "b.txt", "c.txt"]


def documents(source: base.Source) -> list[tuple[float, str]]:
    return [(d.holdout_rank, "".join(d.chunks)) for span in source.spans(1 << 20) for d in source.good_documents(span)]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("text", ["".join(f"Zeile {n}\n" for n in range(100)), "ä" * 1000, "two\nlines"])
def test_holdout_of_single_file(write, name, text):
    data = text.encode()
    path = write(name, gzip.compress(data) if name.endswith(".gz") else data)
    (kept, held) = documents(only(f"text:{path}").dividing(0.1))
    assert (kept[0], held[0]) == (1.0, 0.0) and kept[1] + held[1] == text
    assert 0 < len(held[1]) <= max(0.1 * len(text), 5)
    assert kept[1].endswith("\n") or "\n" not in text[-len(text) // 10 :]


def test_holdout_of_uneven_files(write):
    """One huge file among small ones, whose name falls below the holdout, is divided; whole files would not do."""
    places = {f"{n}.txt": base.hash_to_unit(f"{n}.txt".encode()) for n in range(1000)}
    large = next(name for name, place in places.items() if place < 0.05)
    sizes = {name: 10_000 if name == large else 100 for name in [*list(places)[:20], large]}
    paths = [write(name, "x" * (size - 1) + "\n") for name, size in sizes.items()]
    found = documents(only(f"text:{os.path.dirname(paths[0])}/*.txt").dividing(0.05))
    held = sum(len(text) for place, text in found if place < 0.05)
    assert held == pytest.approx(0.05 * sum(sizes.values()), rel=0.1)
    assert sum(len(text) for _, text in found) == sum(sizes.values())


def test_text_range_beyond_end(write):
    with pytest.raises(DataError):
        only(f"text:{write('a.txt', 'x' * 100)}?bytes=100:200").files()


def test_stdlib_files():
    source = only("stdlib")
    names = [file.name for file in source.files()]
    assert "json/decoder.py" in names and names == sorted(names)
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    (span,) = [span for span in source.spans(1) if span.name == "json/decoder.py"]
    (document,) = source.good_documents(span)
    assert document.holdout_rank == base.hash_to_unit(b"json/decoder.py")
    with open(os.path.join(os.path.dirname(os.__file__), "json/decoder.py"), encoding="utf-8", newline="") as file:
        assert "".join(document.chunks) == file.read()
