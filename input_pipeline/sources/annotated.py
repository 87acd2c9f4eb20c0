"""Formats of annotated text, one record a sentence or question: columns of CoNLL, CoNLL-U, JSON of SQuAD."""

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.base import BadRecord, Document, Span
from input_pipeline.sources.records import Reader
from input_pipeline.sources.text import CONVERT, lines, open_bytes

DOCUMENT_START = "-DOCSTART-"
CONLLU = ("id", "words", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # its ten columns
COMMENT = re.compile(r"# *(sent_id|text) *= ?(.*)")


def conll_documents(span: Span, read: Reader, columns: Sequence[str], prefix: str) -> Iterator[Document | BadRecord]:
    """The sentences of a file with a word a line: for each of `columns` a list, one item a word.

    Cells are parted by a tab, or without one by blanks. prefix: before each first cell, which is removed (`en:` of
    WikiANN).
    """

    def parse(rows: Sequence[str]) -> dict | None:
        rows = [row for row in rows if not row.startswith(DOCUMENT_START)]
        cells = [row.split("\t") if "\t" in row else re.split(" +", row.strip(" ")) for row in rows]
        for row in cells:
            if len(row) != len(columns):
                raise DataError(f"has {len(row)} columns, not {len(columns)} ('{'|'.join(row)[:40]}'). Set columns=")
            row[0] = row[0].removeprefix(prefix)
        return dict(zip(columns, map(list, zip(*cells, strict=True)), strict=True)) if cells else None

    return _sentences(span, read, parse)


def conllu_documents(span: Span, read: Reader) -> Iterator[Document | BadRecord]:
    """The sentences of a CoNLL-U file: id, text, and a list for each column, one item a word; `head` in numbers.

    Lines of multiword tokens (3-4) and of empty nodes (5.1) are left out, so that words are as heads count them.
    """
    return _sentences(span, read, _parse_conllu)


def _parse_conllu(rows: Sequence[str]) -> dict | None:
    comments = dict(match.groups() for row in rows if (match := COMMENT.match(row)))
    cells = [row.split("\t") for row in rows if not row.startswith("#")]
    if any(len(row) != len(CONLLU) for row in cells):
        raise DataError(f"has no {len(CONLLU)} columns, as CoNLL-U has. Read it as conll:")
    words = [row for row in cells if row[0].isdecimal()]
    record = {name: [row[place] for row in words] for place, name in enumerate(CONLLU)}
    if [int(number) for number in record["id"]] != list(range(1, len(words) + 1)):
        raise DataError("has words that are not numbered 1, 2, 3. Correct it")
    if not words:
        return None
    heads = [int(head) if head.isdecimal() else None for head in record["head"]]
    return record | {"id": comments.get("sent_id", ""), "text": comments.get("text", ""), "head": heads}


def _sentences(span: Span, read: Reader, parse: Callable) -> Iterator[Document | BadRecord]:
    """The document of each group of lines between blank ones; `parse` gives its record, or None if it has no words."""
    rows, first = [], 0
    for offset, line in itertools.chain(lines(span), [(0, b"")]):
        if line.strip():
            first = first if rows else offset
            rows.append(line)
            continue
        try:
            if record := parse([row.decode("utf-8") for row in rows]):
                yield read(record)
        except UnicodeDecodeError:
            yield BadRecord(span.path, f"is not UTF-8 text. {CONVERT}", first)
        except DataError as error:
            yield BadRecord(span.path, f"{str(error).rstrip('.')}.", first)
        rows = []


def squad_documents(span: Span, read: Reader) -> Iterator[Document | BadRecord]:
    """The questions of a file of SQuAD 1.1 or 2.0, XQuAD or MLQA.

    Fields are those of the Hugging Face Hub: id, title, question, context, answers.text, answers.answer_start, and
    is_impossible. Errors: DataError for other JSON.
    """
    with open_bytes(span.path, 0) as stream:
        try:
            found = list(_questions(json.load(stream)))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is no JSON of SQuAD ({type(error).__name__}: {str(error)[:60]})"
            raise DataError(f"{span.path} {problem}. Read JSON lines as jsonl:{span.path}.") from None
    for record in found:
        try:
            yield read(record)
        except DataError as error:
            yield BadRecord(f"{span.path}, question {record['id']}:", f"{str(error).rstrip('.')}.")


def _questions(content: Mapping) -> Iterator[dict]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers") or ()
                yield {
                    "id": question["id"],
                    "title": article.get("title", ""),
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": {key: [one[key] for one in answers] for key in ("text", "answer_start")},
                    "is_impossible": question.get("is_impossible", False),
                }


def reader(kind: str, spec: str, options: Mapping[str, str], read: Reader) -> Callable[[Span], Iterator]:
    """The function that reads a span of a kind of source as its options say. Errors: DataError."""
    if kind != "conll":
        return functools.partial({"conllu": conllu_documents, "squad": squad_documents}[kind], read=read)
    columns = tuple(options.get("columns", "words,tags").split(","))
    if not all(columns) or len(set(columns)) < len(columns):
        raise DataError(f"'{spec}': write columns=NAME,NAME, each once, for all columns.")
    return functools.partial(conll_documents, read=read, columns=columns, prefix=options.get("prefix", ""))
