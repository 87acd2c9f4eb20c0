"""The file of a tokenizer: taken from one that is ready, or made from text."""

import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from input_pipeline.remote import at, local
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers import converted, saved, subwords
from input_pipeline.tokenizers import counted as counted_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import wordpiece as wordpiece_tokenizer
from input_pipeline.tokenizers.base import Tokenizer
from input_pipeline.tokenizers.settings import TRAINED

TRAIN = {"sentencepiece": sentencepiece_tokenizer.train, "wordpiece": wordpiece_tokenizer.train}
# Kinds whose ready files are kept in another form: what makes that of a file.
READ = dict.fromkeys(("ctrl", "xlm"), subwords.read) | dict.fromkeys(("gpt", *converted.BEFORE), converted.read)


def take(file: Path, config: Mapping, made: Mapping, other: Path | None) -> Tokenizer:
    """Writes what is kept of a ready tokenizer into `file`, and opens it.

    That is the one in `other`, the folder of another run's, or else the file that `config` names; `made` is what is
    recorded of it. Errors: DataError where it is no tokenizer.
    """
    kind = config["kind"]
    path = saved.whole(other, saved.made(other)) if other else local(at(config["path"]).expanduser())
    if kind == "wordpiece":
        file.write_bytes(wordpiece_tokenizer.read(path, config["cased"]))
    elif kind in READ and not other:
        file.write_bytes(READ[kind](path, kind))
    else:
        opened = saved.own(path, made)  # what is no tokenizer is not kept, and is named where the user has it
        shutil.copyfile(path, file)
        return opened
    return saved.own(file, made)


def train(
    file: Path, config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, report: Callable[[str], None]
) -> None:
    """Makes a tokenizer from the sources of each split, `named`, and writes it into `file`.

    Symbols are counted in all of them, all else in what is trained on, but for the share `holdout` of it.
    """
    kind = config["kind"]
    counted = named.values() if kind == "symbols" else [named["train"]]
    sources = list({source.spec: source for found in counted for source in found}.values())
    specs = " + ".join(source.spec for source in sources)
    if kind in TRAIN:
        report(f"training a tokenizer of {config['vocab_size']} pieces on {specs}")
        texts = sample(sources, config["train_bytes"], holdout)
        file.write_bytes(TRAIN[kind](texts, *(config[name] for name in TRAINED[kind])))
        return
    report(f"counting the {kind} of {specs}")
    if kind == "symbols":
        found = counted_tokenizer.count_symbols(sample(sources, math.inf, 0.0))
    else:
        found = counted_tokenizer.count_words(sample(sources, math.inf, holdout), config["vocab_size"])
    counted_tokenizer.save(file, found)


def sample(sources: Sequence[Source], budget: float, holdout: float) -> Iterator[str]:
    """Text of about `budget` bytes, whole documents from all over the sources, none of them held out.

    The choice depends on the sources alone. Of large sources a part is read: spans in random order.
    """
    total = sum(file.size for source in sources for file in source.files())
    target = max(1 << 16, total >> 16)  # bytes of a file read in a row, where it can be cut: at most 65,536 spans
    spans = [(source, span) for source in sources for span in source.spans(target)]
    random.Random(0).shuffle(spans)
    for source, span in spans:
        for document in source.documents(span):
            if document.place < holdout:
                continue
            for text in document.chunks:
                if budget <= 0:
                    return
                yield text
                budget -= len(text.encode("utf-8"))
