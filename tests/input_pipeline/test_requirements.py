"""What is wrong with a config's data is said before anything is tokenised."""

import json
import os

import pytest

from configs import common
from input_pipeline import pipeline, requirements
from input_pipeline.errors import DataError
from input_pipeline.folders import Folders
from input_pipeline.sources.readers import place
from input_pipeline.token_store import store

COMMAND = "docs/data.md"  # where the command that makes a recipe's file is told


@pytest.fixture
def refused(tmp_path, write):
    """`refused(pattern, train=...)`: what `prepare` says, of that pattern, when it stops; nothing is written."""
    path = write("train.txt", "Text.\n" * 100)

    def refused(pattern, tokenizer=None, objective=None, **data):
        config = common.base()
        if objective:
            config.objective = objective
        config.data.update({"train": f"text:{path}", "length": 8, **data})
        config.tokenizer.update({"kind": "bytes", **(tokenizer or {})})
        with pytest.raises(DataError, match=pattern) as error:
            pipeline.prepare(
                *(section.to_dict() for section in (config.data, config.tokenizer, config.objective)),
                Folders(tmp_path / "run/tokenizer", tmp_path / "run/data"),
                report=print,
            )
        assert not (tmp_path / "run").exists()
        return str(error.value)

    return refused


@pytest.mark.parametrize("split", ["validation", "test"])
def test_files_of_every_split_are_looked_for_first(refused, split):
    refused(rf"data\.{split}: 'text:/nowhere/x' matches no file; check the path", **{split: "text:/nowhere/x"})


def test_files_of_recipes_have_a_command(refused):
    assert COMMAND in refused("matches no file", train="text:data/nowhere/train")


def test_text_that_is_laid_out_by_hand_is_not_said_to_have_a_command(refused):
    bert = "text:data/books_wikipedia/*.txt?document=blank_line"
    assert "says how to fetch or lay out" in refused("matches no file", train=bert)
    pairs = "parallel:data/nowhere/train.{}?fields=en,de"
    two = {"objective": common.translation(), "layout": "texts"}
    assert "says how to fetch or lay out" in refused("which is no file", train=pairs, **two)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "wordpiece"}, "tokenizer.algorithm is 'wordpiece'; choose one of: unigram, bpe"),
        ({"pieces": "word"}, "tokenizer.pieces is 'word'; choose one of: words, phrases"),
    ],
)
def test_choices_of_training_are_checked_first(refused, capsys, settings, sentence):
    refused(sentence, tokenizer={"kind": "sentencepiece", **settings})
    assert not capsys.readouterr().out  # no training is announced


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            "inputs,target",
            r"p\.jsonl, line 1 has no field 'target'; name .* inputs, targets, with \?fields=NAME,NAME, or",
        ),
        ("inputs", r"has for fields inputs; name two, the text that is read and the text that is written, as jsonl:"),
    ],
)
def test_fields_of_records_are_checked_first(refused, write, capsys, fields, sentence):
    path = write("p.jsonl", '{"inputs": "one text", "targets": "another"}\n' * 5000)
    trained = {"kind": "sentencepiece"}
    refused(sentence, tokenizer=trained, objective=common.spans(), train=f"jsonl:{path}?fields={fields}", length=32)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("objective", "layout"), [(common.causal(), "packed"), (common.masked(), "pairs"), (common.denoising(), "concat")]
)
def test_a_task_that_reads_one_text_refuses_documents_of_several(refused, write, objective, layout):
    path = write("p.jsonl", '{"inputs": "one text", "targets": "another"}\n' * 5)
    for code in ("en", "de"):
        write(f"pairs.{code}", "line\n" * 5)
    given = {"objective": objective, "layout": layout, "sentences": "lines", "length": 32}
    said = refused("has the fields inputs, targets, and", train=f"jsonl:{path}?fields=inputs,targets", **given)
    assert "read one of them, such as ?field=targets, or join them" in said
    said = refused("has the fields targets, and .* reads no fields", train=f"jsonl:{path}?fields=targets", **given)
    assert said.endswith("; write ?field=targets")
    pairs = f"parallel:{path[:-7]}pairs.{{}}?fields=en,de"
    assert f"objective.kind = {objective.kind} reads one text" in refused("as text:FILE", train=pairs, **given)


def test_a_layout_of_another_objective_names_it(refused):
    named = "data.layout is 'pairs', which objective.kind = masked takes and not causal; choose one of: concat, packed"
    refused(named, layout="pairs")
    masked = common.masked()
    refused("set --config.objective.next_sentence=False, or choose one of: pairs", layout="packed", objective=masked)
    refused("which objective.kind = replaced takes and not masked", layout="halves", objective=masked)
    masked.next_sentence = False
    refused("data.layout is 'pairs'; choose one of: concat, packed", layout="pairs", objective=masked)


def test_only_sets_that_recipes_name_are_said_to_have_a_command(refused):
    nowhere = "?data_dir=/nowhere"
    unprepared = "is not prepared in .* --file_format=array_record, where TensorFlow is installed"
    assert COMMAND not in refused(unprepared, train=f"tfds:imdb_reviews{nowhere}")
    assert COMMAND not in refused("TFDS knows no set 'no_such_set'; name one", train="tfds:no_such_set")
    assert COMMAND in refused(unprepared, train=f"tfds:lm1b{nowhere}")


def test_mixing_is_checked_first(refused, write):
    refused("data.weights has 2 numbers for 1 source", weights=(1.0, 2.0))
    refused("data.layout = stream does not mix", layout="stream", temperature=2.0)


def test_more_spans_than_a_tokenizer_made_here_will_have_sentinels(refused):
    """Before any text is read."""
    spans = common.OBJECTIVES["spans"]()
    said = refused("takes 28 spans .* has 2 sentinels", tokenizer={"sentinels": 2}, objective=spans, length=512)
    assert "raise objective.mean_span, or tokenizer.sentinels in a new --workdir" in said


def test_a_tokenizer_file_is_looked_for_first(refused):
    settings = {"kind": "huggingface", "path": "tokenizers/none.json"}
    assert COMMAND in refused(r"'tokenizers/none\.json' is no file", tokenizer=settings)


def test_a_tokenizer_that_does_not_fit_is_refused_before_text_is_tokenised(prepare, tmp_path, write):
    def accept(tokenizer):
        raise DataError(f"{tokenizer.vocab_size} are too many")

    config = common.base()
    config.data.train, config.tokenizer.kind = f"text:{write('a.txt', 'text' * 100)}", "bytes"
    with pytest.raises(DataError, match="257 are too many"):
        pipeline.prepare(
            *(section.to_dict() for section in (config.data, config.tokenizer, config.objective)),
            Folders(tmp_path / "run/tokenizer", tmp_path / "run/data"),
            accept=accept,
        )
    assert not (tmp_path / "run/data").exists()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_text_is_not_scored_that_was_trained_on(refused, write, split):
    path = write("train.txt", "Text.\n" * 100)
    for spec in (f"text:{path}", f"text:{path}?document=line", f"text:{path[:-4]}*", f"text:{path}?bytes=5:50"):
        refused(rf"data\.{split} = .* and data\.train = .* both read (text:)?{path}, so", **{split: spec})
    both = f"data.{split} = 'stdlib' and data.train = 'stdlib' both read stdlib, so"
    assert both in refused(rf"data\.{split}", train="stdlib", **{split: "stdlib"})
    library = f"text:{os.path.dirname(json.__file__)}/*.py"
    file = os.path.realpath(json.__file__)
    for train, scored in ((library, "stdlib"), ("stdlib", library)):
        assert f"both read {file}" in refused(rf"data\.{split}", train=train, **{split: scored})
    link = os.path.join(os.path.dirname(path), "link.txt")
    os.symlink(path, link)
    assert f"both read {path}" in refused(rf"data\.{split}", **{split: f"text:{link}"})


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_copy_of_what_was_trained_on_is_not_scored(prepare, write, split):
    """By its documents, whatever they are called, in whatever order and kind of file."""
    lines = [f"Line {number} of a text." for number in range(9)]
    train = write("train.txt", "\n".join(lines))
    copies = {
        f"text:{write('copy.txt', chr(10).join(lines))}?document=line": 9,
        f"text:{write('turned.txt', chr(10).join(reversed(lines)))}?document=line": 9,
        f"jsonl:{write('copy.jsonl', ''.join(json.dumps({'text': line}) + chr(10) for line in lines))}": 9,
    }
    other = write("other.txt", "Other text, which is trained on too.")
    for copy, count in copies.items():
        with pytest.raises(DataError) as caught:
            prepare(f"text:{train}?document=line + text:{other}", **{split: copy})
        assert str(caught.value).startswith(
            f"data.{split} = '{copy}' and data.train = 'text:{train}?document=line' both read the same {count} "
            "documents, so that text is scored that was trained on; name other text"
        )
    one = f"text:{write('a/one.txt', 'Text.' * 9)}"
    with pytest.raises(DataError, match="both read the same 1 document, so"):
        prepare(one, **{split: f"text:{write('b/another.txt', 'Text.' * 9)}"})
    as_many = f"text:{write('c/as_long.txt', 'Tales' * 9)}"  # of as many tokens, bytes and words
    assert prepare(one, **{split: as_many}).splits == ("train", split)


def test_a_copy_of_text_some_of_which_is_held_out_is_not_tested(prepare, write):
    lines = "\n".join(f"Line {number} of a text." for number in range(60))
    train, copy = (f"text:{write(name, lines)}?document=line" for name in ("train.txt", "copy.txt"))
    held = prepare(train, holdout=0.2).stream("validation").counts.documents
    assert 0 < held < 60
    with pytest.raises(DataError, match=r"data\.test = .* both read the same 60 documents, so"):
        prepare(train, holdout=0.2, test=copy)


def test_sources_of_equal_counts_are_read_once(prepare, write, monkeypatch):
    """Of a dozen such thousands of groups have equal counts, as of what was split by bytes."""
    opened, own = [], store.Shard.open
    monkeypatch.setattr(store.Shard, "open", lambda shard, what: opened.append((shard, what)) or own(shard, what))
    sources = [f"text:{write(f'p{number:02}.txt', 'Of equal length: ' + chr(97 + number) * 8)}" for number in range(12)]
    assert "validation" in prepare(" + ".join(sources), holdout=0.2).splits
    assert len(opened) <= 12 * 2 * 2 * 2  # texts and ends, kept and held, to be made and to be compared


def test_copies_under_other_names_are_not_held_out_of_one_and_trained_on_as_the_other(prepare, write):
    """Whole files are held out by their names, lines by what they say."""
    texts = [f"Text number {number}, of some length." for number in range(40)]
    for number, text in enumerate(texts):
        write(f"a/f{number}.txt", text)
        folder = os.path.dirname(os.path.dirname(write(f"b/g{number}.txt", text)))
    with pytest.raises(DataError, match="hold the same 40 documents, and what is held out of the one is trained on as"):
        prepare(f"text:{folder}/a/*.txt + text:{folder}/b/*.txt", holdout=0.2)
    assert prepare(f"text:{folder}/a/*.txt + text:{folder}/b/*.txt").splits == ("train",)  # read twice on purpose
    halves = f"text:{folder}/b/g[12]*.txt", f"text:{folder}/b/g[!12]*.txt"
    other = f"text:{write('other.txt', 'Another text.')}"
    with pytest.raises(DataError, match=r"a/\*\.txt' and '.*b/g\[12.* \+ .*b/g\[!12.* hold the same 40 documents"):
        prepare(" + ".join((f"text:{folder}/a/*.txt", other, *halves)), holdout=0.2)
    lines = [f"text:{write(name, chr(10).join(texts))}?document=line" for name in ("one.txt", "two.txt")]
    assert "validation" in prepare(" + ".join(lines), holdout=0.2).splits


def test_copies_of_all_sources_in_one_are_not_scored(prepare, write):
    one, two = (write(f"train/{name}.txt", f"Text of {name}.") for name in ("one", "two"))
    for name in ("a", "b"):
        write(f"copies/{name}.txt", f"Text of {'one' if name == 'a' else 'two'}.")
    copies = f"text:{os.path.dirname(os.path.dirname(one))}/copies/*.txt"
    with pytest.raises(DataError, match=r"data\.train = 'text:.*one\.txt \+ text:.*' both read the same 2 documents"):
        prepare(f"text:{one} + text:{two}", validation=copies)


def test_stretches_of_a_file_that_do_not_meet_may_be_splits(prepare, write):
    path = write("train.txt", "Text.\n" * 100)
    corpus = prepare(f"text:{path}?bytes=:300", validation=f"text:{path}?bytes=300:450", test=f"text:{path}?bytes=450:")
    assert [row["bytes"] for row in corpus.summary()] == [300, 150, 150]


def test_what_is_tokenised_needs_no_source_any_more(prepare, write, tmp_path):
    path = tmp_path / "text" / "train.txt"
    source = f"text:{write('train.txt', 'Text. ' * 100)}"
    assert prepare(source).summary()[0]["bytes"] == 600
    path.unlink()
    assert prepare(source).summary()[0]["bytes"] == 600


def test_one_small_file_is_enough(prepare, write):
    corpus = prepare(f"text:{write('book.txt', 'A line of a book.' * 40)}", holdout=0.05)
    train, validation = corpus.summary()
    assert train["bytes"] + validation["bytes"] == 17 * 40 and validation["bytes"] == 34
    assert corpus.raw_bytes("validation") == b"A line of a book." * 2


def test_checking_reads_no_document(write, monkeypatch, tmp_path):
    data = common.base().data.to_dict() | {"train": f"text:{write('a.txt', 'text')}", "holdout": 0.0}
    monkeypatch.setattr("input_pipeline.sources.readers.opened", None)
    folders = Folders(tmp_path / "no/tokenizer", tmp_path / "no/data")
    named = requirements.check(data, common.base().tokenizer.to_dict(), common.causal().to_dict(), folders)
    assert [source.spec for source in named["train"]] == [data["train"]]


def test_records_are_not_to_be_cut_again(prepare, write):
    path = write("a.jsonl", '{"text": "A line."}\n')
    with pytest.raises(
        DataError, match=r"holds out none of the 1 documents of data\.train; set .*, give more"
    ) as caught:
        prepare(f"jsonl:{path}", holdout=0.001)
    assert "document=" not in str(caught.value)


def test_a_tokenizer_that_cannot_be_made_leaves_no_folder(prepare, write, tmp_path):
    path = write("latin.txt", b"caf\xe9" * 100)
    with pytest.raises(DataError, match="is not UTF-8 at byte 3"):
        prepare(f"text:{path}", tokenizer={"kind": "sentencepiece"})
    assert not (tmp_path / "run/tokenizer").exists()


def test_a_file_that_was_cut_short_is_named_first(refused, write):
    path = write("enwik8", "Text.\n" * 100)
    sentence = rf"data\.test: 'text:{path}\?bytes=500:1000' ends at byte 1000, but enwik8 ends at byte 600; give all"
    said = refused(sentence, train=f"text:{path}?bytes=:500", test=f"text:{path}?bytes=500:1000")
    assert "\n" not in said


def test_a_single_document_that_is_held_out_is_said_to_be(prepare, write):
    path = write("a.jsonl", '{"text": "A line."}')
    with pytest.raises(DataError, match=r"= 0\.99 holds out the one document of data\.train, so that none is left to"):
        prepare(f"jsonl:{path}", holdout=0.99)


@pytest.mark.parametrize(("kind", "layout"), [("translation", "texts"), ("spans", "concat")])
def test_a_source_that_is_held_out_whole_beside_others_is_said_to_be(prepare, write, kind, layout):
    held = next(str(n) for n in range(99) if place(b"%d\0eins" % n) < 0.5)
    one = write("one.jsonl", json.dumps({"en": held, "de": "eins"}))
    many = write("many.jsonl", "".join(json.dumps({"en": str(n), "de": "zwei"}) + "\n" for n in range(20)))
    options = {"objective": {"kind": kind}, "layout": layout, "tokenizer": {"sentinels": 9}, "holdout": 0.5}
    options["length"] = 32
    with pytest.raises(DataError, match=r"= 0\.5 holds out all of 'jsonl:.*one\.jsonl.*; give it more text, leave it"):
        prepare(" + ".join(f"jsonl:{path}?fields=en,de" for path in (many, one)), **options)


@pytest.mark.parametrize(
    ("objective", "layout", "least"),
    [
        ({"kind": "spans", "mean_span": 1.0}, "concat", 3),
        ({"kind": "spans", "noise": "prefix"}, "concat", 3),
        ({"kind": "masked", "next_sentence": True}, "pairs", 5),
    ],
)
def test_rows_have_room_for_text(prepare, write, objective, layout, least):
    path = write("text.txt", "One line.\nAnother line.\nA\n" * 20)
    sentences = "lines" if layout == "pairs" else ""
    special = {"sentinels": 9} if objective["kind"] == "spans" else {"kind": "wordpiece", "vocab_size": 40}

    def rows_of(length):
        options = {"length": length, "layout": layout, "sentences": sentences}
        reader = prepare(f"text:{path}", tokenizer=special, objective=objective, **options).batches(
            seed=1, batch_size=2, workers=0, prefetch=1
        )
        batch = next(reader)
        reader.close()
        return batch

    for length in range(1, least):
        with pytest.raises(
            DataError, match=rf"data\.length = {length} leaves too little room .*; set at least {least}$"
        ):
            rows_of(length)
    assert rows_of(least)["weights"].any()


@pytest.mark.parametrize(
    ("objective", "settings", "most", "sentence"),
    [
        (
            common.spans,
            {"mean_span": 100.0},
            5.0,
            r"objective\.mean_span = 100\.0 tokens are more than objective\.density = 0\.15 takes out of a row of 32 "
            r"tokens, which is 5; lower it to at most that, or raise the density or the row's length$",
        ),
        (
            common.denoising,
            {"mean_span": 100.0},
            9.0,
            r"objective\.mean_span = 100\.0 words are more than objective\.share = 0\.3 takes out of a row of 32 "
            r"tokens, which is 9 at most; lower it to at most that, or raise the share or the row's length$",
        ),
        (
            common.masked,
            {"ngrams": 40, "whole_words": True},
            29,
            r"objective\.ngrams = 40 words are more than a row of 32 tokens has room for, 29; lower it to at most that",
        ),
        (
            common.permutation,
            {"longest": 60, "reuse": 12, "perm_size": 4, "predictions": 6},
            11,
            r"objective\.longest = 60 pieces are more than an n-gram can have in each half of rows of 32 tokens, of "
            r"which one has 12; lower it to at most 11, or raise objective\.reuse and the row's length$",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_spans_fit_into_rows(refused, objective, settings, most, sentence):
    layout = {"masked": "pairs", "permutation": "stream"}.get(objective.__name__, "concat")
    section = objective()
    section.update(settings)
    refused(sentence, objective=section, layout=layout, sentences="lines" * (layout == "pairs"), length=32)
    section[next(iter(settings))] = most
    requirements.check_length("data.length", 32, section.to_dict())


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        (common.spans, {"mean_span": 100.0, "noise": "prefix"}),
        (common.denoising, {"mean_span": 100.0, "noise": "deletion"}),
        (common.denoising, {"mean_span": 100.0, "share": 0.0}),
    ],
)
def test_what_makes_no_spans_may_have_them_of_any_length(objective, settings):
    section = objective()
    section.update(settings)
    requirements.check_length("data.length", 32, section.to_dict())
