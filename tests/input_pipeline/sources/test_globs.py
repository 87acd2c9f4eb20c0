"""What a glob matches, beside what the standard library's says where that ends."""

import glob
import os
import random

import pytest
from flickers import each_call_fails

from input_pipeline.away import hurry
from input_pipeline.sources.globs import expanded
from input_pipeline.sources.sources import parse

NAMES = ("a", "b", "A", ".c", "[d]", "e.txt", "f.TXT", "a*")
PARTS = ("**", "**", "*", "?", "a", "[ab]", "[!a]*", "*.txt", ".*", "[[]d]", "a[*]", "**b", "e.txt")


def test_globs_match_what_they_do_elsewhere(tmp_path):
    draw = random.Random(0)
    for number in range(12):
        root = tmp_path / str(number)
        folders = [root]
        root.mkdir()
        for _ in range(14):
            path = draw.choice(folders) / draw.choice(NAMES)
            if not path.exists() and draw.random() < 0.6:
                path.mkdir()
                folders.append(path)
            elif not path.exists():
                path.touch()
        os.symlink(root / "nowhere", draw.choice(folders) / "b.txt")
        for _ in range(60):
            pattern = "/".join((glob.escape(str(root)), *draw.choices(PARTS, k=draw.randint(1, 4))))
            known = {path for path in glob.glob(pattern, recursive=True) if not path.endswith("/")}  # a start of **
            assert {path for path in expanded(pattern) if path != f"{root}/"} == known, pattern


def test_links_aside_hide_nothing(tmp_path):
    draw = random.Random(0)
    for number in range(12):
        root = tmp_path / str(number)
        folders = [root / name for name in ("a", "b", "a/a", "a/b", "b/.c", "b/.c/a")]
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "e.txt").touch()
        for link in ("l", "m"):  # from one to the next: no loops
            (root / "a" / link).symlink_to(draw.choice([*folders[4:], folders[1]]))
            (root / "a/b" / link).symlink_to(draw.choice(folders[4:]))
        for _ in range(40):
            pattern = "/".join((str(root), *draw.choices(PARTS, k=draw.randint(1, 3)), "*.txt"))
            found, known = expanded(pattern), glob.glob(pattern, recursive=True)
            assert set(map(os.path.realpath, found)) == set(map(os.path.realpath, known)), pattern
            assert set(found) <= set(known), pattern


def test_a_folder_with_many_names_is_entered_by_the_shortest(tmp_path):
    root = tmp_path / "root"
    (root / "b/c").mkdir(parents=True)
    (root / "b/c/e.txt").touch()
    for name in ("l", "m", "b/n", "b/c/o"):
        (root / name).symlink_to(root)
    (root / "z").symlink_to(root / "b/c")
    (root / "itself").symlink_to("itself")
    assert expanded(f"{root}/**/*.txt") == [f"{root}/z/e.txt"]
    assert set(expanded(f"{root}/**/b/**/e.txt")) == {f"{root}/b/c/e.txt"}


def test_a_folder_that_is_away_is_not_an_empty_one(tmp_path, monkeypatch):
    """Whichever call of the system fails."""
    for name in ("a/b/x.py", "a/y.py", "c/z.py", ".hidden/w.py", "c/[d]/v.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n")
    (tmp_path / "c" / "linked").symlink_to(tmp_path / "a")
    patterns = {"**/*.py": 4, "*/*.py": 2, "a/**/x.py": 1, "c/[[]d]/*.py": 1, "a/y.py": 1, "*/linked/*": 1}
    for pattern, count in patterns.items():
        spec = f"text:{tmp_path}/{pattern}"
        expected = parse(spec, "data.train")[0].files()
        assert len(expected) == count
        for failing in each_call_fails(monkeypatch, tmp_path):
            with failing:
                (source,) = parse(spec, "data.train")
                found = source.files()
            assert found == expected


def test_a_folder_in_brackets_that_is_away_is_no_pattern(tmp_path, monkeypatch):
    for name in ("[a]/x.txt", "a/x.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    for failing in each_call_fails(monkeypatch, tmp_path):
        with failing:
            (source,) = parse(f"text:{tmp_path}/[a]/x.txt", "data.train")
            assert source.paths() == [f"{tmp_path}/[a]/x.txt"]


def test_text_of_which_it_is_not_known_how_it_is_divided_is_not_read(tmp_path, monkeypatch):
    """It would be another text, with another share held out."""
    (tmp_path / "x.txt").write_text("one\ntwo\n" * 100)
    (source,) = parse(f"text:{tmp_path}/x.txt", "data.train")
    outcomes = set()
    for failing in each_call_fails(monkeypatch, tmp_path):
        with failing, hurry():
            divided = source.dividing(0.1)
        if divided.away:
            with pytest.raises(OSError, match="Input/output error"):
                divided.files()
            with pytest.raises(OSError, match="Input/output error"):
                next(divided.spans(1 << 20))
        else:
            assert divided.read != source.read
        outcomes.add(bool(divided.away))
    assert outcomes == {True, False}
