"""Hiding tokens against collators of the same task for PyTorch: from raw rows of ids to a batch of features.

    python -m benchmarks.corruption [--quick] [--format=json]

Masked language modelling of BERT's rows, of pieces and of whole words, and of RoBERTa's, whose number of masks is drawn
and which masks any token, against `DataCollatorForLanguageModeling` on the same ids, which are given to it with what it
asks for: special tokens marked, and offsets for whole words. It draws how many are masked, and never the same twice;
here places are listed, and all follows from the row's number. ALBERT's runs of words have no collator there: their peer
is the released algorithm, which works through a row's words in Python. Nor has span corruption: its peer is the
published algorithm in plain NumPy, as training scripts have it, which draws a mask for each row and then works on all
rows at once. XLNet's order and targets are measured against `DataCollatorForPermutationLanguageModeling`, which makes a
mask of every pair of places, while ours gives each place its rank, of which attention makes the mask. In CPU seconds,
one thread each, so that figures are per core.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.data import pairs
from benchmarks.report import Result, arguments, peers, ratio, show
from configs import common
from input_pipeline import corruption
from input_pipeline.batch_spec import declared, empty
from input_pipeline.packing.concat import Raw
from input_pipeline.packing.xlnet_segments import RawSegments
from input_pipeline.sources import sources
from input_pipeline.tokenizers import huggingface, wordpiece
from input_pipeline.tokenizers.extended import extended

ROWS, VOCABULARY = 256, 4096
SIZES = ((128, 20), (512, 77))  # tokens of a row, and at most so many predicted
TARGET = 2.0


def texts(size: int) -> list[str]:
    """Files of the standard library, so many bytes of them."""
    (source,) = sources.parse("stdlib", "source")
    found = []
    for span in source.spans(1 << 20):
        found += ["".join(document.chunks) for document in source.documents(span)]
        if sum(map(len, found)) > size:
            break
    return found


def raw_rows(ids: np.ndarray) -> Raw:
    """Raw rows of these ids, int32 [n, R]."""
    there = np.ones_like(ids)
    return Raw(ids, ids, there, np.arange(ids.shape[1], dtype=np.int32) * there, there.astype(bool))


def filling(section, tokenizer, ids: np.ndarray, length: int, layout: str = "concat", raw=None):
    """A function that makes another batch each time; `raw` are its rows, by default of the ids alone."""
    objective, keys = corruption.build(section.to_dict(), tokenizer), np.arange(len(ids))
    raw = raw_rows(ids) if raw is None else raw

    def fill():
        nonlocal keys
        keys = keys + len(ids)
        objective.fill(empty(declared(objective, len(ids), length, layout)), np.arange(len(ids)), raw, keys)

    return fill


ROBERTA = {"rounding": "random", "candidates": "any", "replacements": "text"}
KINDS = {"pieces": {}, "any tokens, a drawn number": ROBERTA, "whole words": {"whole_words": True}}


def masked(kind: str, length: int, most: int, tokenizer, encoded, rounds: int, collators: dict) -> list[Result]:
    """Rows/s per core, against each of the collators."""
    section, whole_words = common.masked(), kind == "whole words"
    section.update(next_sentence=False, max_predictions=most, **KINDS[kind])
    ids = np.array([row["input_ids"] for row in encoded], np.int32)
    examples = [{k: v for k, v in row.items() if whole_words or k != "offset_mapping"} for row in encoded]
    results = []
    for type_, collate in collators.items():
        ours, theirs = pairs(filling(section, tokenizer, ids, length), lambda c=collate: c(examples), rounds)
        middle, spread = ratio(ours, theirs)
        name = f"masking {kind}, rows of {length}"
        results.append(Result(name, ROWS / min(ours), "rows/s per core", f"collator, {type_}", middle, TARGET, spread))
    return results


class RunCollator:
    """Rows of ids [n, R] -> ids of which runs of whole words are masked, and labels (Lan et al. 2019, section 4.1)."""

    def __init__(self, section, tokenizer):
        self.section, self.tokenizer, self.draw = section, tokenizer, np.random.default_rng(0)
        self.framing = {tokenizer.special[name] for name in ("classifier", "separator", "end", "pad")}
        chances = 1 / np.arange(1, section.ngrams + 1)
        self.chances = chances / chances.sum()

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        labels, masked = np.full_like(ids, -100), ids.copy()
        for row, hidden, label in zip(ids.tolist(), masked, labels, strict=True):
            self.mask(row, hidden, label)
        return {"input_ids": masked, "labels": labels}

    def mask(self, row: list[int], hidden: np.ndarray, label: np.ndarray) -> None:
        """Masks one row in place: from each word on in random order a run, if it fits and meets no other."""
        words = []
        for place, token in enumerate(row):
            if token not in self.framing:
                if words and self.tokenizer.continues[token]:
                    words[-1].append(place)
                else:
                    words.append([place])
        size = min(self.section.max_predictions, max(1, round(self.section.share * len(row))))
        covered = set()
        for at in self.draw.permutation(len(words)).tolist():
            if len(covered) >= size:
                break
            number = 1 + self.draw.choice(self.section.ngrams, p=self.chances)
            places = [place for word in words[at : at + number] for place in word]
            while len(covered) + len(places) > size and number > 1:
                number -= 1
                places = [place for word in words[at : at + number] for place in word]
            if len(covered) + len(places) > size or covered.intersection(places):
                continue
            for place in places:
                covered.add(place)
                label[place], fate = row[place], self.draw.random()
                if fate < 0.8:
                    hidden[place] = self.tokenizer.special["mask"]
                elif fate < 0.9:
                    hidden[place] = self.draw.integers(self.tokenizer.vocab_size)


def runs(tokenizer, length: int, most: int, encoded, rounds: int) -> Result:
    """Rows/s per core of ALBERT's masking, against the released algorithm."""
    section = common.masked()
    section.update(next_sentence=False, max_predictions=most, whole_words=True, ngrams=3)
    ids, collate = np.array([row["input_ids"] for row in encoded], np.int32), RunCollator(section, tokenizer)
    ours, theirs = pairs(filling(section, tokenizer, ids, length), lambda: collate(ids), rounds)
    middle, spread = ratio(ours, theirs)
    name = f"masking runs of words, rows of {length}"
    return Result(name, ROWS / min(ours), "rows/s per core", "released algorithm", middle, TARGET, spread)


class SpanCollator:
    """Rows of ids [n, R] -> what an encoder reads, and what a decoder writes and reads (Raffel et al. 2019, 3.1.4)."""

    def __init__(self, section, first_sentinel: int, start: int, end: int):
        self.density, self.mean_span = section.density, section.mean_span
        self.first_sentinel, self.start, self.end = first_sentinel, start, end
        self.draw = np.random.default_rng(0)

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        taken = np.stack([self.noise(ids.shape[1]) for _ in ids])
        labels = self.without(~taken, ids)
        read = np.concatenate([np.full((len(ids), 1), self.start), labels[:, :-1]], axis=1)
        return {"input_ids": self.without(taken, ids), "labels": labels, "decoder_input_ids": read}

    def noise(self, length: int) -> np.ndarray:
        """Which of a row's tokens are taken out, bool [R]: text and spans take turns."""
        count = min(max(round(length * self.density), 1), length - 1)
        spans = max(round(count / self.mean_span), 1)
        turns = np.stack([self.parts(length - count, spans), self.parts(count, spans)], axis=1)
        return np.repeat(np.arange(2 * spans) % 2 == 1, turns.ravel())

    def parts(self, total: int, parts: int) -> np.ndarray:
        """A random way to write `total` as an ordered sum of positive numbers, int [parts]."""
        begins = np.arange(total - 1) < parts - 1
        self.draw.shuffle(begins)
        return np.bincount(np.cumsum(np.concatenate([[False], begins])), minlength=parts)

    def without(self, taken: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The rows with a sentinel for each run of `taken` tokens, and the end token."""
        begins = taken & ~np.roll(taken, 1, axis=1)  # rows begin with text and end with a span, or the other way round
        marked = np.where(begins, self.first_sentinel + 1 - np.cumsum(begins, axis=1), ids)
        left = marked[begins | ~taken].reshape(len(ids), -1)
        return np.concatenate([left, np.full((len(ids), 1), self.end)], axis=1)


def spans(tokenizer, length: int, rounds: int, ids: np.ndarray) -> Result:
    """Rows/s per core of T5's corruption, against a collator in plain NumPy."""
    section = common.spans()
    raw_length = corruption.build(section.to_dict()).raw_length(length)
    rows = np.resize(ids, (ROWS, raw_length))
    collate = SpanCollator(section, tokenizer.sentinels[0], tokenizer.special["pad"], tokenizer.special["end"])
    ours, theirs = pairs(filling(section, tokenizer, rows, length), lambda: collate(rows), rounds)
    middle, spread = ratio(ours, theirs)
    name = f"corrupting spans, rows of {length}"
    return Result(name, ROWS / min(ours), "rows/s per core", "collator, plain NumPy", middle, TARGET, spread)


def permutation(tokenizer, encoded, rounds: int, collators: dict) -> list[Result]:
    """Rows/s per core of XLNet's rows of 512, half of them read backwards, against each of the collators."""
    section, length = common.permutation(), 512
    ids = np.array([row["input_ids"] for row in encoded], np.int32)
    types, functional = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, bool)
    types[:, 384:], functional[:, [383, -2, -1]] = 1, True
    backward = np.arange(len(ids)) % 2 == 1
    raw = RawSegments(ids, types, functional, backward, np.zeros(len(ids), bool))
    fill, results = filling(section, tokenizer, ids, length, "stream", raw), []
    for kind, collate in collators.items():
        ours, theirs = pairs(fill, lambda c=collate: c([{"input_ids": row.tolist()} for row in ids]), rounds)
        middle, spread = ratio(ours, theirs)
        results.append(
            Result(
                f"an order and targets, rows of {length}",
                ROWS / min(ours),
                "rows/s per core",
                f"collator, {kind}",
                middle,
                TARGET,
                spread,
            )
        )
    return results


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch, transformers = peers("torch", "transformers")
    torch.set_num_threads(1)
    rounds = 5 if args.quick else 15
    found, results = texts(1_000_000), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(wordpiece.train(found, VOCABULARY, False))
        tokenizer = huggingface.load(path)
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("mask", "pad", "cls", "sep", "unk")}
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **names)
        for length, most in SIZES:
            encoded = theirs(
                [text * (1 + 40 * length // len(text)) for text in found[:ROWS] if text],
                truncation=True,
                max_length=length,
                return_special_tokens_mask=True,
                return_offsets_mapping=True,
                return_token_type_ids=False,
            )
            rows = [{name: encoded[name][i] for name in encoded} for i in range(len(encoded["input_ids"]))]
            rows = [row for row in rows if len(row["input_ids"]) == length]
            rows = (rows * ROWS)[:ROWS]
            for kind in KINDS:
                collators = {
                    type_: transformers.DataCollatorForLanguageModeling(
                        theirs, whole_word_mask=kind == "whole words", return_tensors=type_
                    )
                    for type_ in ("np", "pt")
                }
                results += masked(kind, length, most, tokenizer, rows, rounds, collators)
            results.append(runs(tokenizer, length, most, rows, rounds))
        collators = {
            kind: transformers.DataCollatorForPermutationLanguageModeling(theirs, return_tensors=kind)
            for kind in ("np", "pt")
        }
        results += permutation(tokenizer, rows, rounds, collators)
        sentinels = extended(tokenizer, (), 100)
        ids = np.concatenate([tokenizer.encode(text) for text in found])
        results += [spans(sentinels, length, rounds, ids) for length in (512, 1024)]
    show(results, args, [ROWS, VOCABULARY, rounds])


if __name__ == "__main__":
    main()
