"""Sources of annotated text: columns of CoNLL, CoNLL-U and JSON of SQuAD, as whole records and as text."""

import json
from collections import Counter
from pathlib import Path

import pytest

from input_pipeline.errors import DataError
from input_pipeline.sources.base import BadRecords
from input_pipeline.sources.parser import parse

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects  VBZ B-VP O

-DOCSTART- -X- -X- O
# NN I-NP O

"""
CONLLU = """# sent_id = a-1
# text = vámonos al # mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tvan\tir\tVERB\t_\t_\t_\t_\t1:conj\t_
3\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\tSpaceAfter=No

# newpar
# sent_id = a-2
1\tNew York\t_\tPROPN\t_\t_\t_\t_\t_\t_"""
QUESTION = {"id": "q1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 4}]}
EMPTY = {"id": "q2", "question": "When?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "x"}]}
SQUAD = {"data": [{"title": "Ada", "paragraphs": [{"context": "It: Ada.", "qas": [QUESTION, EMPTY]}]}]}


def records(spec, whole=True):
    (source,) = parse(spec, "data.train", (), whole)
    return [document.record for span in source.spans(1 << 20) for document in source.good_documents(span)]


def texts(spec):
    (source,) = parse(spec, "data.train")
    return ["".join(one.chunks) for span in source.spans(1 << 20) for one in source.good_documents(span)]


@pytest.fixture
def write(tmp_path):
    def write(text, name="file.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return write


def test_conll_columns(write):
    found = records(f"conll:{write(CONLL)}?columns=words,pos,chunk,tags")
    assert found == [
        {"words": ["EU", "rejects"], "pos": ["NNP", "VBZ"], "chunk": ["B-NP", "B-VP"], "tags": ["B-ORG", "O"]},
        {"words": ["#"], "pos": ["NN"], "chunk": ["I-NP"], "tags": ["O"]},
    ]


def test_conll_tabs_and_prefix(write):
    path = write("\ufeffen:a b\tB-LOC\r\nen:\xa0c\tO\r\n\r\nen:\tO")
    assert records(f"conll:{path}?prefix=en:") == [
        {"words": ["a b", "\xa0c"], "tags": ["B-LOC", "O"]},
        {"words": [""], "tags": ["O"]},
    ]


def test_conllu_words_alone(write):
    first, second = records(f"conllu:{write(CONLLU)}")
    assert (first["id"], first["text"]) == ("a-1", "vámonos al # mar")
    assert first["words"] == ["vamos", "nos", "mar"] and first["upos"] == ["VERB", "PRON", "NOUN"]
    assert first["head"] == [0, 1, 1] and first["deprel"] == ["root", "obj", "obl"]
    assert (second["id"], second["words"], second["head"]) == ("a-2", ["New York"], [None])
    assert texts(f"conllu:{write(CONLLU)}?field=text") == ["vámonos al # mar", ""]


def test_squad_questions(write):
    found = records(f"squad:{write(json.dumps(SQUAD))}")
    assert found[0] == {
        "id": "q1",
        "title": "Ada",
        "question": "Who?",
        "context": "It: Ada.",
        "answers": {"text": ["Ada"], "answer_start": [4]},
        "is_impossible": False,
    }
    assert found[1]["answers"] == {"text": [], "answer_start": []} and found[1]["is_impossible"]
    assert texts(f"squad:{write(json.dumps(SQUAD))}?fields=question,context") == ["Who?It: Ada.", "When?It: Ada."]


@pytest.mark.parametrize(
    ("spec", "text", "words"),
    [
        ("conll:{}", CONLL, "line 3 has 4 columns, not 2"),
        ("conll:{}?columns=words,words", CONLL, "columns=NAME"),
        ("conllu:{}", CONLL, "line 1 has no 10 columns"),
        ("conllu:{}", CONLLU.replace("\n2\t", "\n4\t"), "line 1 has words that are not numbered"),
        ("conll:{}", b"a O\n\nb\xff O\n", "line 3 is not UTF-8"),
        ("squad:{}", '{"question": 1}\n{}', "is no JSON of SQuAD"),
        ("squad:{}", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "KeyError"),
    ],
)
def test_unusable_file(write, spec, text, words):
    with pytest.raises(DataError, match=words):
        records(spec.format(write(text)))


def test_bad_sentences_are_skipped(write):
    (source,) = parse(f"conll:{write('a O' + chr(10) * 2 + 'b' + chr(10) * 2 + 'c O')}", "data.train", (), True)
    bad, (span,) = BadRecords(), source.spans(1)
    object.__setattr__(source, "bad_records", 0.5)
    assert [document.record["words"] for document in source.good_documents(span, bad)] == [["a"], ["c"]]
    assert bad.count == 1


@pytest.mark.parametrize(
    ("spec", "count", "words"),
    [
        ("conllu:{}/tagging/ud_english_ewt/en_ewt-ud-test.conllu.gz", 2077, 25094),
        ("conll:{}/tagging/wikiann/nl/dev.txt.gz?prefix=nl:", 10000, 84146),
        ("squad:{}/qa/squad_v1.1/dev-v1.1.json.gz", 10570, 0),
        ("squad:{}/qa/xquad/*.json.gz", 7 * 1190, 0),
    ],
)
def test_real_data(spec, count, words):
    """The counts that the data's authors and its description give."""
    if not DATA.is_dir():
        pytest.skip("shared/data is not there")
    found = records(spec.format(DATA))
    assert (len(found), sum(len(one.get("words", ())) for one in found)) == (count, words)
    for one in found if "context" in found[0] else ():
        pairs = zip(one["answers"]["text"], one["answers"]["answer_start"], strict=True)
        assert all(one["context"].startswith(text, start) for text, start in pairs)
    if "tags" in found[0]:
        assert set(Counter(tag for one in found for tag in one["tags"])) == {
            "O",
            *(f"{prefix}-{name}" for prefix in "BI" for name in ("PER", "LOC", "ORG")),
        }
