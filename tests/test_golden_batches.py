"""Golden batches of every recipe and objective, and golden ids of trained tokenizers.

`python -m tests.test_golden_batches --write` makes tests/goldens/batches.json again. Do that only if training data
is meant to change: existing runs then continue with other batches.
"""

import hashlib
import importlib
import itertools
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs import common
from input_pipeline import pipeline
from input_pipeline.io import Folders
from pretrain.recipes import model_recipes

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "goldens" / "batches.json"
LENGTH, BATCH = 32, 4
TRAINING = (0, 1, 7)  # numbers of the compared batches
IMAGE = (4, 4, 3)

# Tokenizer files of recipes are not in the repository, so a small tokenizer of a related kind is trained instead.
TRAINED = {"huggingface": "sentencepiece"}

# Every objective with every layout: name -> (objective, data). Tokens are bytes.
LINES = {"sentences": "lines"}
WORDS = {"whole_words": True, "next_sentence": False}
CASES = {
    "causal, concat": ({"kind": "causal"}, {"layout": "concat"}),
    "causal, concat, in order": ({"kind": "causal"}, {"layout": "concat", "shuffle": False}),
    "causal, concat, mixed": ({"kind": "causal"}, {"layout": "concat", "weights": (0.8, 0.2)}),
    "causal, packed": ({"kind": "causal"}, {"layout": "packed"}),
    "causal, packed, tempered": ({"kind": "causal"}, {"layout": "packed", "temperature": 3.0, "cap": 10}),
    "causal, stream": ({"kind": "causal"}, {"layout": "stream"}),
    "causal, document": ({"kind": "causal"}, {"layout": "document", "image": IMAGE}),
    "causal, coded": ({"kind": "causal", "coded": True}, {"layout": "concat"}),
    "masked, pairs": ({"kind": "masked"}, {"layout": "pairs"} | LINES),
    "masked, swapped pairs": ({"kind": "masked", "swapped_pairs": True, "passes": 2}, {"layout": "pairs"} | LINES),
    "masked, concat": ({"kind": "masked", "next_sentence": False}, {"layout": "concat"}),
    "masked, packed": ({"kind": "masked", "next_sentence": False}, {"layout": "packed"}),
    "masked, sentences": ({"kind": "masked", "next_sentence": False}, {"layout": "sentences"} | LINES),
    "masked, static": ({"kind": "masked", "next_sentence": False, "masks": 3}, {"layout": "concat"}),
    "masked, coins": ({"kind": "masked", "next_sentence": False, "rounding": "coins"}, {"layout": "concat"}),
    "masked, n-grams": ({"kind": "masked", "ngrams": 3, **WORDS}, {"layout": "concat"}),
    "masked, smoothed": ({"kind": "masked", "next_sentence": False, "smoothing": 0.7}, {"layout": "concat"}),
    "masked, any of text": (
        {"kind": "masked", "next_sentence": False, "candidates": "any", "replacements": "text", "rounding": "random"},
        {"layout": "packed"},
    ),
    "spans, concat": ({"kind": "spans"}, {"layout": "concat"}),
    "spans, prefix": ({"kind": "spans", "noise": "prefix"}, {"layout": "concat"}),
    "replaced, packed": ({"kind": "replaced"}, {"layout": "packed"}),
    "replaced, concat": ({"kind": "replaced", "scored": "masked"}, {"layout": "concat"}),
    "replaced, halves": ({"kind": "replaced", "share": 0.25}, {"layout": "halves"} | LINES),
    "translation, texts": (
        {"kind": "translation"},
        {"layout": "texts", "train": "parallel:data/pairs.{}?fields=en,de"},
    ),
    "spans, pairs of texts": (
        {"kind": "spans"},
        {"layout": "concat", "train": "parallel:data/pairs.{}?fields=en,de + text:data/*.txt?document=line"},
    ),
    "permutation, stream": ({"kind": "permutation"}, {"layout": "stream"} | LINES),
    "permutation, one way": ({"kind": "permutation", "both_ways": False}, {"layout": "stream"} | LINES),
    "denoising, infilling": ({"kind": "denoising"}, {"layout": "concat"}),
    "denoising, masking": ({"kind": "denoising", "noise": "masking", "rotation": 0.5}, {"layout": "concat"}),
    "denoising, deletion": ({"kind": "denoising", "noise": "deletion", "permutation": 0.0}, {"layout": "concat"}),
}

# Trained on one text; the goldens are the ids of SENTENCES.
TOKENIZERS = {
    "sentencepiece, bpe": {"kind": "sentencepiece", "vocab_size": 360},
    "sentencepiece, unigram": {"kind": "sentencepiece", "vocab_size": 360, "algorithm": "unigram"},
    "sentencepiece, phrases": {"kind": "sentencepiece", "vocab_size": 360, "pieces": "phrases"},
    "sentencepiece, sentinels": {"kind": "sentencepiece", "vocab_size": 360, "sentinels": 5},
    "wordpiece, cased": {"kind": "wordpiece", "vocab_size": 360, "cased": True},
    "wordpiece, uncased": {"kind": "wordpiece", "vocab_size": 360},
    "words": {"kind": "words", "vocab_size": 360},
    "bytes": {"kind": "bytes"},
}
SENTENCES = ("Die Brücke trägt  den Fluß.", "a stone and the bird, over water\n", "naïve 42 日本 <unk>")

NOUNS = ["river", "bridge", "stone", "Brücke", "Fluß", "bird", "water", "house", "letter", "winter", "17", "garden"]
VERBS = ["carries", "holds", "finds", "trägt", "sees", "under", "over", "builds", "reads", "is", "has", "and", "not"]


def make_text(seed: int, documents: int = 24, sentences: int = 5) -> str:
    """Documents of one sentence a line, with blank lines between them."""
    draw = random.Random(seed)  # only `random()` is used, whose values no version of Python changes

    def pick(words):
        return words[int(draw.random() ** 2 * len(words))]  # squared: frequent and rare words, as real text has

    def sentence() -> str:
        words = [pick((NOUNS, VERBS)[index % 2]) for index in range(3 + int(draw.random() * 8))]
        return " ".join([words[0].capitalize(), *words[1:]]) + "."

    paragraphs = ("\n".join(sentence() for _ in range(1 + int(draw.random() * sentences))) for _ in range(documents))
    return "\n\n".join(paragraphs) + "\n"


def shrink_source(spec: str, number: int, folder: Path) -> str:
    """Write tiny files for the source `spec` of a recipe; return the source that reads them."""
    kind, _, rest = spec.partition(":")
    options = dict(option.split("=", 1) for option in rest.partition("?")[2].split("&") if option)
    if kind == "tfds":
        options = {"document": "blank_line"} | {k: v for k, v in options.items() if k in ("code", "language")}
    options.pop("bytes", None)
    path = folder / f"{number}.txt"
    if kind == "parallel":
        lines = [line for line in make_text(number).split("\n") if line]
        for index, field in enumerate(options["fields"].split(",")):
            translated = lines if index == 0 else [" ".join(reversed(line.split())) for line in lines]
            (folder / f"{number}.{field}").write_text("\n".join(translated) + "\n", "utf-8")
        path = folder / f"{number}.{{}}"
    else:
        kind = "text"
        path.write_text(make_text(number), "utf-8")
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{kind}:{path}" + (f"?{query}" if query else "")


def write_images(folder: Path) -> str:
    """Write tiny random images; return the source that reads them."""
    for number in range(20):
        draw = random.Random(number)
        pixels = np.array([int(draw.random() * 256) for _ in range(np.prod(IMAGE))], np.uint8).reshape(IMAGE)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return f"images:{folder}/*.png"


def load_recipe(name: str):
    recipe, variant = name.split(":")
    return importlib.import_module(f"configs.{recipe}").get_config(variant)


def shrink(config, folder: Path):
    """Give the config tiny text, a tiny tokenizer and tiny sizes, with its objective and layout."""
    data, tokenizer, objective = config.data, config.tokenizer, config.objective
    with config.unlocked():
        specs, held_out = re.split(r" \+ ", data.train), not data.validation
        if data.image:
            data.image, data.length = IMAGE, int(np.prod(IMAGE))
            data.train = write_images(folder)
        else:
            data.length = LENGTH
            data.train = " + ".join(shrink_source(spec, number, folder) for number, spec in enumerate(specs))
        data.validation = "" if held_out or data.image else shrink_source(specs[0], 100, folder)
        data.test, data.holdout = "", 0.2 if held_out or data.image else 0.0
        tokenizer.kind = TRAINED.get(tokenizer.kind, tokenizer.kind)
        tokenizer.update(path="", unknown="", vocab_size=360, train_bytes=100_000)
        tokenizer.sentinels = 12 if objective.kind == "spans" else 0
        if objective.kind == "masked":
            objective.max_predictions = 6
        if objective.kind == "permutation":
            objective.update(reuse=16, perm_size=8, predictions=6)
    return config


def prepare(config, folder: Path):
    """Prepare the data of a config in `folder`."""
    sections = (section.to_dict() for section in (config.data, config.tokenizer, config.objective))
    return pipeline.prepare(*sections, Folders(folder / "tokenizer", folder / "data"), report=lambda line: None)


def checksum_features(batches) -> dict[str, str]:
    """Checksum each feature over the batches in order: dtypes, shapes and bytes, by name."""
    sums = {}
    for batch in batches:
        for name, array in batch.items():
            array = np.ascontiguousarray(array)
            checksum = sums.setdefault(name, hashlib.blake2b(digest_size=8))
            checksum.update(f"{array.dtype.str}{list(array.shape)}".encode() + array.tobytes())
    return {name: checksum.hexdigest() for name, checksum in sorted(sums.items())}


def checksum_batches(config, folder: Path) -> dict[str, dict[str, str]]:
    """Checksum training batches 0, 1 and 7, and the first validation batch."""
    data = prepare(config, folder)
    reader = data.batches(seed=config.seed, batch_size=BATCH, workers=0, prefetch=2)
    training = list(itertools.islice(reader, TRAINING[-1] + 1))
    reader.close()
    windows = config.objective.kind == "causal" and config.data.layout == "concat"
    stride = config.data.length // 4 if windows and config.evaluate.stride else 0
    scored = data.evaluation("validation", length=config.data.length, stride=stride, batch_size=BATCH)
    return {
        "training": checksum_features(training[number] for number in TRAINING),
        "validation": checksum_features(itertools.islice(scored.batches(), 1)),
    }


def make_case(name: str, folder: Path):
    """The shrunk config of one of CASES."""
    objective, data = CASES[name]
    config = common.base()
    config.objective = common.OBJECTIVES[objective["kind"]]()
    config.objective.update(objective)
    code = "&code=" if objective.get("coded") else ""
    sources = [f"text:data/{n}?document=blank_line" + (f"{code}{n}" if code else "") for n in ("Books", "Links")]
    config.data.update({"train": " + ".join(sources), "length": LENGTH} | data)
    config.tokenizer.kind = "bytes"
    return shrink(config, folder)


def encode_sentences(name: str, folder: Path) -> dict[str, list[int]]:
    """Train one of TOKENIZERS and encode SENTENCES."""
    config = common.base()
    config.data.update(train="text:data/Books?document=blank_line", length=LENGTH, layout="stream")
    config = shrink(config, folder)
    config.tokenizer.update(TOKENIZERS[name])
    tokenizer = prepare(config, folder).tokenizer
    return {"vocab_size": tokenizer.vocab_size} | {line: list(map(int, tokenizer.encode(line))) for line in SENTENCES}


def list_recipes() -> list[str]:
    """Names `recipe:variant`; of variants whose data differs in sizes alone, only the first."""
    names = {}
    for path in model_recipes().values():
        for variant in getattr(importlib.import_module(f"configs.{path.stem}"), "VARIANTS", ()):
            name = f"{path.stem}:{variant}"
            with tempfile.TemporaryDirectory() as folder:
                config = shrink(load_recipe(name), Path(folder))
                sections = [config.data, config.tokenizer, config.objective, bool(config.evaluate.stride)]
                names.setdefault(str(sections).replace(folder, ""), name)
    return list(names.values())


# By kind: (names to write, function of a name and a folder).
KINDS = {
    "recipes": (list_recipes, lambda name, folder: checksum_batches(shrink(load_recipe(name), folder), folder)),
    "cases": (lambda: CASES, lambda name, folder: checksum_batches(make_case(name, folder), folder)),
    "tokenizers": (lambda: TOKENIZERS, encode_sentences),
}
GOLDENS = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {"recipes": {}}
NAMES = {"recipes": GOLDENS["recipes"], "cases": CASES, "tokenizers": TOKENIZERS}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_golden(kind, name, tmp_path):
    assert KINDS[kind][1](name, tmp_path) == GOLDENS[kind][name]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_golden_batches --write")
    goldens = {}
    for kind, (names, make) in KINDS.items():
        for name in names():
            with tempfile.TemporaryDirectory() as folder:
                goldens.setdefault(kind, {})[name] = make(name, Path(folder))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n", "utf-8")
