"""Text that is scored must not be trained on, by name or by content."""

import json
import os

import pytest

from input_pipeline.errors import DataError


@pytest.mark.parametrize("split", ["validation", "test"])
def test_overlap_of_files(prepare, write, split):
    path = write("train.txt", "Text.\n" * 100)
    link = os.path.join(os.path.dirname(path), "link.txt")
    os.symlink(path, link)
    for spec in (path, f"{path}?document=line", f"{path[:-4]}*", f"{path}?bytes=5:50", link):
        with pytest.raises(DataError, match=rf"data\.{split}=text:"):
            prepare(f"text:{path}", **{split: f"text:{spec}"})
    library = f"text:{os.path.dirname(json.__file__)}/*.py"
    for train, scored in ((library, "stdlib"), ("stdlib", library), ("stdlib", "stdlib")):
        with pytest.raises(DataError, match=rf"data\.{split}="):
            prepare(train, **{split: scored})


@pytest.mark.parametrize("split", ["validation", "test"])
def test_copies_of_documents(prepare, write, split):
    """In any order, in any kind of file."""
    lines = [f"Line {number} of a text." for number in range(9)]
    train, other = write("train.txt", "\n".join(lines)), write("other.txt", "Other text, which is trained on too.")
    copies = [
        f"text:{write('copy.txt', chr(10).join(lines))}?document=line",
        f"text:{write('turned.txt', chr(10).join(reversed(lines)))}?document=line",
        f"jsonl:{write('copy.jsonl', ''.join(json.dumps({'text': line}) + chr(10) for line in lines))}",
    ]
    for copy in copies:
        with pytest.raises(DataError, match=rf"data\.{split}="):
            prepare(f"text:{train}?document=line + text:{other}", **{split: copy})
    one = f"text:{write('a/one.txt', 'Text.' * 9)}"
    as_many = f"text:{write('c/as_long.txt', 'Tales' * 9)}"  # as many tokens, bytes and words
    assert prepare(one, **{split: as_many}).splits == ("train", split)


def test_copies_of_text_that_is_partly_held_out(prepare, write):
    lines = "\n".join(f"Line {number} of a text." for number in range(60))
    train, copy = (f"text:{write(name, lines)}?document=line" for name in ("train.txt", "copy.txt"))
    assert 0 < prepare(train, holdout=0.2).stream("validation").counts.documents < 60
    with pytest.raises(DataError, match=r"data\.test="):
        prepare(train, holdout=0.2, test=copy)


def test_disjoint_bytes_of_a_file_are_splits(prepare, write):
    path = write("train.txt", "Text.\n" * 100)
    corpus = prepare(f"text:{path}?bytes=:300", validation=f"text:{path}?bytes=300:450", test=f"text:{path}?bytes=450:")
    assert [row["bytes"] for row in corpus.summary()] == [300, 150, 150]


def test_holdout_of_one_small_file(prepare, write):
    corpus = prepare(f"text:{write('book.txt', 'A line of a book.' * 40)}", holdout=0.05)
    train, validation = corpus.summary()
    assert train["bytes"] + validation["bytes"] == 17 * 40 and validation["bytes"] == 34
    assert corpus.raw_bytes("validation") == b"A line of a book." * 2


def test_holdout_leaves_something_in_both_splits(prepare, write):
    path = write("a.jsonl", '{"text": "A line."}\n')
    for holdout in (0.001, 0.99):
        with pytest.raises(DataError, match=rf"data\.holdout={holdout}"):
            prepare(f"jsonl:{path}", holdout=holdout)
