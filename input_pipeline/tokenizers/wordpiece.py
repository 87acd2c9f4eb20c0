"""WordPiece as BERT has it (Devlin et al. 2018): read from a vocab.txt or a tokenizer.json, or trained here.

Text is cleaned, split at white space, punctuation and CJK characters and, uncased, lower-cased without accents; each
word is then cut into the longest pieces that the vocabulary has, of which all but the first begin with "##". Whatever
it comes from, it is kept as a tokenizer.json, which says all of that.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.tokenizers.huggingface import kind_of, library

PAD, UNKNOWN, CLASSIFIER, SEPARATOR, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUING = "##"
LONGEST = 100  # characters of a word; a longer one is unknown
CHARACTERS = 1000  # at most so many enter a vocabulary trained here, the most frequent ones; others are unknown
LEAST = 2  # occurrences of what becomes a piece


def read(path: Path, cased: bool) -> bytes:
    """The tokenizer.json of a file. Errors: DataError where it is neither a vocabulary nor a WordPiece tokenizer.json,
    or one that is not `cased` as asked."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _neither(path) from None
    if not text.lstrip().startswith("{"):
        return _from_vocabulary(path, text.split("\n"), cased)
    try:
        spec = json.loads(text)
        kind, lowercase = kind_of(spec), lower_cases(spec.get("normalizer"))
    except DataError:
        raise
    except Exception:  # the library raises nothing more precise
        raise _neither(path) from None
    if kind != "WordPiece":
        raise DataError(f"{path} is a tokenizer.json of {kind}, not WordPiece; set --config.tokenizer.kind=huggingface")
    if lowercase == cased:
        raise DataError(
            f"tokenizer.cased = {cased}, but {path} {'lower-cases' if lowercase else 'keeps the case of'} its text; "
            f"set --config.tokenizer.cased={not cased}"
        )
    return text.encode("utf-8")


def lower_cases(normalizer: object) -> bool:
    """Whether the normalizer of a tokenizer.json, or one of its steps, lower-cases."""
    if not isinstance(normalizer, Mapping):
        return False
    steps = normalizer.get("normalizers")
    if isinstance(steps, list):
        return any(map(lower_cases, steps))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True


def _neither(path: Path) -> DataError:
    return DataError(
        f"{path} is neither a vocabulary of one piece a line nor a tokenizer.json; give BERT's vocab.txt, or what "
        "tokenizer.save(...) wrote"
    )


def _from_vocabulary(path: Path, lines: list[str], cased: bool) -> bytes:
    pieces = [line.rstrip("\r") for line in lines]
    vocabulary = {piece: i for i, piece in enumerate(pieces) if piece}
    for piece in (UNKNOWN, SEPARATOR):
        if piece not in vocabulary:
            raise DataError(f"{path} has no line {piece}, which BERT's vocabularies have; give one of those")
    return _tokenizer(vocabulary, cased).to_str(pretty=True).encode("utf-8")


def _tokenizer(vocabulary: Mapping[str, int], cased: bool):
    """The library's tokenizer of a vocabulary; its special pieces within a text are text."""
    parts = library()
    model = parts.models.WordPiece(
        dict(vocabulary),
        unk_token=UNKNOWN,
        max_input_chars_per_word=LONGEST,
        continuing_subword_prefix=CONTINUING,
    )
    tokenizer = parts.Tokenizer(model)
    tokenizer.normalizer = parts.normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = parts.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = parts.decoders.WordPiece(prefix=CONTINUING)
    tokenizer.add_special_tokens([piece for piece in SPECIAL if piece in vocabulary])
    return tokenizer


def train(texts: Iterable[str], vocab_size: int, cased: bool) -> bytes:
    """Trains a vocabulary on `texts` and returns its tokenizer.json: the same for the same texts on any machine.

    It has the five special pieces, then characters, then pieces by the order in which they are made: the most frequent
    pair of pieces first. Words of more than LONGEST characters, which are unknown however they begin, teach it nothing.
    Errors: DataError where the characters alone are too many.
    """
    parts = library()
    normalizer = parts.normalizers.BertNormalizer(lowercase=not cased)
    split = parts.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    lines = [line for text in texts for line in text.split("\n")]
    counts, words = Counter(), set()
    for i, line in enumerate(map(normalizer.normalize_str, lines)):
        found = line.split()
        if any(len(word) > LONGEST for word in found):  # the trainer's time grows with the square of a word's length
            found = [piece for word in found for piece, _ in split(word) if len(piece) <= LONGEST]
            lines[i] = line = " ".join(found)
        counts.update(line)
        words.update(found)
    if not words:
        raise DataError("there is no text in data.train to train the tokenizer on; check the source")
    known = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))[:CHARACTERS]
    inner = {c for word in words for piece, _ in split(word) for c in piece[1:]}.intersection(known)
    continuing = [CONTINUING + c for c in sorted(inner)]  # given, since the library would number them by chance
    least = len(SPECIAL) + len(known) + len(continuing)
    if vocab_size < least:
        raise DataError(
            f"tokenizer.vocab_size = {vocab_size} is too small to train: special pieces and frequent characters alone "
            f"take {least}; set it to that or more"
        )
    tokenizer = _tokenizer({UNKNOWN: 0}, cased)
    trainer = parts.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST,
        special_tokens=[*SPECIAL, *continuing],
        initial_alphabet=known,
        limit_alphabet=len(known),
        continuing_subword_prefix=CONTINUING,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return _tokenizer(tokenizer.get_vocab(with_added_tokens=False), cased).to_str(pretty=True).encode("utf-8")
