"""Corruption of rows for pretraining against Hugging Face's collators: from raw ids to a batch of features.

    python -m benchmarks.corruption [--quick] [--format=json]

BERT's and RoBERTa's masking and XLNet's permutation against Hugging Face's collators, for NumPy and PyTorch, with the
inputs that they ask for. ALBERT's n-grams and T5's spans have no collator: their peers are the released algorithm,
which loops over words in Python, and the published one in plain NumPy. CPU seconds of one thread, so figures are per
core.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks import report
from configs import common
from input_pipeline import corruption
from input_pipeline.batch_spec import declared, empty
from input_pipeline.packing.concat import Raw
from input_pipeline.packing.xlnet_segments import RawSegments
from input_pipeline.sources import parser
from input_pipeline.tokenizers import huggingface, wordpiece
from input_pipeline.tokenizers.base import extend

ROWS, VOCABULARY = 256, 4096
SIZES = ((128, 20), (512, 77))  # tokens of a row, and the most that are predicted
ROBERTA = {"rounding": "random", "candidates": "any", "replacements": "text"}
KINDS = {"pieces": {}, "any tokens, a drawn number": ROBERTA, "whole words": {"whole_words": True}}


def read_texts(size: int) -> list[str]:
    """Files of the standard library, `size` bytes in all."""
    (source,) = parser.parse("stdlib", "source")
    texts = []
    for span in source.spans(1 << 20):
        texts += ["".join(document.chunks) for document in source.documents(span)]
        if sum(map(len, texts)) > size:
            break
    return texts


def filler(section, tokenizer, ids: np.ndarray, length: int, layout: str = "concat", raw=None):
    """Function that makes another batch of our features on each call."""
    objective, keys = corruption.build(section.to_dict(), tokenizer), np.arange(len(ids))
    if raw is None:
        ones = np.ones_like(ids)
        raw = Raw(ids, ids, ones, np.arange(ids.shape[1], dtype=np.int32) * ones, ones.astype(bool))

    def fill():
        nonlocal keys
        keys = keys + len(ids)  # a row's random numbers follow from its key
        objective.fill(empty(declared(objective, len(ids), length, layout)), np.arange(len(ids)), raw, keys)

    return fill


def compare(name: str, fill: Callable, peers: Mapping[str, Callable], rounds: int) -> list[report.Result]:
    """Rows per second and core, against each peer."""
    results = []
    for against, peer in peers.items():
        times = report.interleave({"ours": fill, "peer": peer}, rounds, clock=time.process_time)
        ours, theirs = times.values()
        value = ROWS / min(ours)
        results.append(report.compare(name, ours, theirs, against, unit="rows/s per core", value=value, target=2.0))
    return results


class NgramCollator:
    """The released ALBERT algorithm: masks n-grams of whole words (Lan et al. 2019, section 4.1)."""

    def __init__(self, section, tokenizer):
        self.section, self.tokenizer, self.rng = section, tokenizer, np.random.default_rng(0)
        self.framing = {tokenizer.special[name] for name in ("classifier", "separator", "end", "pad")}
        weights = 1 / np.arange(1, section.ngrams + 1)
        self.probabilities = weights / weights.sum()

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        labels, masked = np.full_like(ids, -100), ids.copy()
        for row, inputs, label in zip(ids.tolist(), masked, labels, strict=True):
            self.mask(row, inputs, label)
        return {"input_ids": masked, "labels": labels}

    def mask(self, row: list[int], inputs: np.ndarray, label: np.ndarray) -> None:
        """Mask one row in place: n-grams in random order, as long as they fit and do not overlap."""
        words = []
        for position, token in enumerate(row):
            if token not in self.framing:
                if words and self.tokenizer.continues[token]:
                    words[-1].append(position)
                else:
                    words.append([position])
        size = min(self.section.max_predictions, max(1, round(self.section.share * len(row))))
        covered = set()
        for first in self.rng.permutation(len(words)).tolist():
            if len(covered) >= size:
                break
            n = 1 + self.rng.choice(self.section.ngrams, p=self.probabilities)
            while True:
                positions = [position for word in words[first : first + n] for position in word]
                if n == 1 or len(covered) + len(positions) <= size:
                    break
                n -= 1
            if len(covered) + len(positions) > size or covered.intersection(positions):
                continue
            for position in positions:
                covered.add(position)
                label[position], draw = row[position], self.rng.random()
                if draw < 0.8:
                    inputs[position] = self.tokenizer.special["mask"]
                elif draw < 0.9:
                    inputs[position] = self.rng.integers(self.tokenizer.vocab_size)


class SpanCollator:
    """T5's span corruption in plain NumPy, as training scripts have it (Raffel et al. 2019, section 3.1.4)."""

    def __init__(self, section, tokenizer):
        self.density, self.mean_span, self.rng = section.density, section.mean_span, np.random.default_rng(0)
        self.first_sentinel = tokenizer.sentinels[0]
        self.start, self.end = tokenizer.special["pad"], tokenizer.special["end"]

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        noise = np.stack([self.noise_mask(ids.shape[1]) for _ in ids])
        labels = self.replace_spans(~noise, ids)
        decoder = np.concatenate([np.full((len(ids), 1), self.start), labels[:, :-1]], axis=1)
        return {"input_ids": self.replace_spans(noise, ids), "labels": labels, "decoder_input_ids": decoder}

    def noise_mask(self, length: int) -> np.ndarray:
        """Which tokens of a row are noise, bool [R]: text and spans alternate."""
        count = min(max(round(length * self.density), 1), length - 1)
        spans = max(round(count / self.mean_span), 1)
        lengths = np.stack([self.partition(length - count, spans), self.partition(count, spans)], axis=1)
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths.ravel())

    def partition(self, total: int, parts: int) -> np.ndarray:
        """A random composition of `total` into `parts` positive integers."""
        first = np.arange(total - 1) < parts - 1
        self.rng.shuffle(first)
        return np.bincount(np.cumsum(np.concatenate([[False], first])), minlength=parts)

    def replace_spans(self, noise: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The rows with a sentinel for each run of `noise`, and the end token."""
        first = noise & ~np.roll(noise, 1, axis=1)  # a row starts with text and ends with noise, or the reverse
        marked = np.where(first, self.first_sentinel + 1 - np.cumsum(first, axis=1), ids)
        rows = marked[first | ~noise].reshape(len(ids), -1)
        return np.concatenate([rows, np.full((len(ids), 1), self.end)], axis=1)


def encode_rows(encode, texts: list[str], length: int) -> list[dict]:
    """ROWS rows of exactly `length` tokens, as Hugging Face's tokenizer gives them."""
    encoded = encode(
        [text * (1 + 40 * length // len(text)) for text in texts[:ROWS] if text],
        truncation=True,
        max_length=length,
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        return_token_type_ids=False,
    )
    rows = [{name: encoded[name][i] for name in encoded} for i in range(len(encoded["input_ids"]))]
    return ([row for row in rows if len(row["input_ids"]) == length] * ROWS)[:ROWS]


def collators(collator: Callable, examples: list[dict], **options) -> dict[str, Callable]:
    """Hugging Face's collator, for NumPy and PyTorch."""
    return {
        f"collator, {tensors}": functools.partial(collator(return_tensors=tensors, **options), examples)
        for tensors in ("np", "pt")
    }


def compare_masking(tokenizer, length: int, most: int, rows: list[dict], rounds: int, collator) -> list[report.Result]:
    """BERT's, RoBERTa's and whole-word masking, and ALBERT's n-grams."""
    ids, results = np.array([row["input_ids"] for row in rows], np.int32), []
    for kind, keys in KINDS.items():
        section, whole_words = common.masked(), kind == "whole words"
        section.update(next_sentence=False, max_predictions=most, **keys)
        # Offsets are for whole words alone.
        examples = [{k: v for k, v in row.items() if whole_words or k != "offset_mapping"} for row in rows]
        peers = collators(collator, examples, whole_word_mask=whole_words)
        results += compare(f"masking {kind}, rows of {length}", filler(section, tokenizer, ids, length), peers, rounds)
    section = common.masked()
    section.update(next_sentence=False, max_predictions=most, whole_words=True, ngrams=3)
    peers = {"released algorithm": functools.partial(NgramCollator(section, tokenizer), ids)}
    name, fill = f"masking runs of words, rows of {length}", filler(section, tokenizer, ids, length)
    return results + compare(name, fill, peers, rounds)


def compare_permutation(tokenizer, rows: list[dict], rounds: int, collator) -> list[report.Result]:
    """XLNet's order and targets for rows of 512, half of them backwards."""
    ids = np.array([row["input_ids"] for row in rows], np.int32)
    types, functional = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, bool)
    types[:, 384:], functional[:, [383, -2, -1]] = 1, True
    raw = RawSegments(ids, types, functional, backward=np.arange(len(ids)) % 2 == 1)
    peers = collators(collator, [{"input_ids": row.tolist()} for row in ids])
    fill = filler(common.permutation(), tokenizer, ids, 512, "stream", raw)
    return compare("an order and targets, rows of 512", fill, peers, rounds)


def compare_spans(tokenizer, length: int, ids: np.ndarray, rounds: int) -> list[report.Result]:
    """T5's span corruption."""
    section = common.spans()
    rows = np.resize(ids, (ROWS, corruption.build(section.to_dict()).raw_length(length)))
    collate, fill = SpanCollator(section, tokenizer), filler(section, tokenizer, rows, length)
    name = f"corrupting spans, rows of {length}"
    return compare(name, fill, {"collator, plain NumPy": lambda: collate(rows)}, rounds)


def main() -> None:
    args = report.arguments(__doc__).parse_args()
    torch, transformers = report.peers("torch", "transformers")
    torch.set_num_threads(1)
    rounds, texts, results = 5 if args.quick else 15, read_texts(1_000_000), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(wordpiece.train(texts, VOCABULARY, False))
        tokenizer = huggingface.load(path)
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("mask", "pad", "cls", "sep", "unk")}
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **names)
    for length, most in SIZES:
        rows = encode_rows(theirs, texts, length)
        collator = functools.partial(transformers.DataCollatorForLanguageModeling, theirs)
        results += compare_masking(tokenizer, length, most, rows, rounds, collator)
    collator = functools.partial(transformers.DataCollatorForPermutationLanguageModeling, theirs)
    results += compare_permutation(tokenizer, rows, rounds, collator)
    ids = np.concatenate([tokenizer.encode(text) for text in texts])
    for length in (512, 1024):
        results += compare_spans(extend(tokenizer, (), 100), length, ids, rounds)
    report.show(results, args, [ROWS, VOCABULARY, rounds])


if __name__ == "__main__":
    main()
