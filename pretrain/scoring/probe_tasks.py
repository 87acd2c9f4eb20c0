"""Items with labels for probes of frozen states, from records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.corruption.examples import words_of
from pretrain.errors import UserError

FIELDS = {"pos": "upos", "ner": "tags", "depth": "head", "distance": "head"}  # of tasks on words
TASKS = (*FIELDS, "word_content", "length")
MIDDLE = slice(50, 150)  # ranks of the words of word_content; the most frequent are in most sentences
BINS = 6  # of length, as Conneau et al. 2018 have


class Items(NamedTuple):
    """Texts with a label each, or with one for each word.

    texts: strings or lists of words. labels: for each text a label, or a list of one a word; of trees the heads.
    kind: "class", "number" or "tree". keep: of trees, which words count, bool [W].
    """

    texts: list
    labels: list
    kind: str
    per_word: bool
    keep: list = ()


def items_of(task: str, train: Sequence[Mapping], test: Sequence[Mapping]) -> tuple[Items, Items]:
    """The items of both parts. Errors: UserError for records without the fields of the task."""
    parts = train, test
    if task in FIELDS or all("tags" in record and "words" in record for record in train):
        return tuple(_of_words(task, part) for part in parts)
    texts = [[" ".join(words_of(one, "words")) or str(one.get("text", "")) for one in part] for part in parts]
    if task == "length":
        # Bins hold about as many training texts each.
        edges = np.quantile([len(text.split()) for text in texts[0]], np.arange(1, BINS) / BINS)
        labels = [[int(np.searchsorted(edges, len(text.split()))) for text in part] for part in texts]
    elif task == "word_content":
        counts = Counter(word for text in texts[0] for word in set(text.split()))
        asked = {word for word, _ in counts.most_common()[MIDDLE]}
        found = [[asked & set(text.split()) for text in part] for part in texts]
        # Exactly one of the words, so that the label is one (Conneau et al. 2018, section 2).
        labels = [[next(iter(one)) if len(one) == 1 else None for one in part] for part in found]
    else:
        labels = [[record.get("label") for record in part] for part in parts]
    made = []
    for part, own in zip(texts, labels, strict=True):
        pairs = [(text, str(label)) for text, label in zip(part, own, strict=True) if text and label is not None]
        made.append(Items([text for text, _ in pairs], [label for _, label in pairs], "class", False))
    return _checked(task, made)


def _of_words(task: str, records: Sequence[Mapping]) -> Items:
    field = FIELDS.get(task, "tags")
    texts, labels, keep = [], [], []
    for record in records:
        words, own = list(map(str, words_of(record, "words"))), words_of(record, field)
        if field == "head" and None in own:
            continue  # no whole tree
        if words and len(own) == len(words):
            texts.append(words)
            labels.append(depths(own) if task == "depth" else own)
            keep.append(np.array([tag != "PUNCT" for tag in words_of(record, "upos")] or [True] * len(words)))
    kind = {"depth": "number", "distance": "tree"}.get(task, "class")
    return _checked(task, [Items(texts, labels, kind, True, keep)])[0]


def _checked(task: str, found: list[Items]) -> list[Items]:
    """The same. Errors: UserError if a part is empty."""
    if not all(one.texts for one in found):
        fields = f"words and {FIELDS[task]}" if task in FIELDS else "text and label, or words and tags"
        raise UserError(f"--task={task}: no record has {fields}. Name other files with --train and --test.")
    return found


def depths(heads: Sequence[int]) -> list[int]:
    """Edges from each word to the root, whose head is 0; heads count words from 1."""
    found = []
    for word in range(1, len(heads) + 1):
        depth = 0
        while (word := heads[word - 1]) and depth < len(heads):
            depth += 1
        found.append(depth)
    return found


def tree_distances(heads: Sequence[int]) -> np.ndarray:
    """Edges between every two words of a tree, float32 [W, W]."""
    size = len(heads)
    found = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
    for word, head in enumerate(heads):
        if head:
            found[word, head - 1] = found[head - 1, word] = 1
    for middle in range(size):
        found = np.minimum(found, found[:, [middle]] + found[[middle]])
    return np.where(np.isfinite(found), found, size).astype(np.float32)
