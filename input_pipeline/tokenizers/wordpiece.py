"""BERT's WordPiece (Devlin et al. 2018): read from a vocab.txt or a tokenizer.json, or trained here.

Text is cleaned, split at white space, punctuation and CJK characters and, uncased, lower-cased without accents; each
word is then cut into the longest pieces in the vocabulary, of which all but the first begin with "##". It is stored as
a tokenizer.json.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.tokenizers.huggingface import kind_of, library

PAD, UNKNOWN, CLASSIFIER, SEPARATOR, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUING = "##"
LONGEST = 100  # characters of a word; longer ones are unknown
CHARACTERS = 1000  # in a trained vocabulary, the most frequent ones; others are unknown
LEAST = 2  # occurrences that a piece needs


def read(path: Path, settings: Mapping) -> bytes:
    """The tokenizer.json of a vocabulary or a WordPiece tokenizer.json.

    Errors: DataError for other files, or another `cased` in `settings` than the file's.
    """
    library()  # its absence is another mistake than a wrong file
    cased = has_case = settings["cased"]
    kind = ""
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            spec = json.loads(text)
            kind, has_case = kind_of(spec), not lower_cases(spec.get("normalizer"))
        else:
            pieces = [line.rstrip("\r") for line in text.split("\n")]
            vocabulary = {piece: i for i, piece in enumerate(pieces) if piece}  # of a piece's lines the last counts
            if {UNKNOWN, SEPARATOR} <= vocabulary.keys():
                kind, text = "WordPiece", _tokenizer(vocabulary, cased).to_str(pretty=True)
    except Exception:  # the library's errors have no common type
        kind = ""
    if kind != "WordPiece":
        remedy = "Set --config.tokenizer.kind=huggingface" if kind else "Give BERT's vocab.txt or tokenizer.json"
        raise DataError(f"{path} is no WordPiece vocabulary or tokenizer.json. {remedy}.")
    if has_case != cased:
        raise DataError(f"tokenizer.cased={cased} contradicts {path}. Set --config.tokenizer.cased={has_case}.")
    return text.encode("utf-8")


def lower_cases(normalizer: object) -> bool:
    """Whether the normalizer of a tokenizer.json, or one of its steps, lower-cases."""
    if not isinstance(normalizer, Mapping):
        return False
    steps = normalizer.get("normalizers")
    if isinstance(steps, list):
        return any(map(lower_cases, steps))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True


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

    It has the five special pieces, then characters, then pieces in the order in which they are made: the most frequent
    pair of pieces first. Words of more than LONGEST characters are ignored, since they are always unknown.
    Errors: DataError if `vocab_size` is too small for the characters.
    """
    parts = library()
    normalizer = parts.normalizers.BertNormalizer(lowercase=not cased)
    split = parts.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    lines = [line for text in texts for line in text.split("\n")]
    counts, words = Counter(), set()
    # The trainer's time grows with the square of a word's length, so words above LONGEST are cut or dropped.
    for i, line in enumerate(map(normalizer.normalize_str, lines)):
        found = line.split()
        if any(len(word) > LONGEST for word in found):
            found = [piece for word in found for piece, _ in split(word) if len(piece) <= LONGEST]
            lines[i] = line = " ".join(found)
        counts.update(line)
        words.update(found)
    known = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))[:CHARACTERS]
    inner = {c for word in words for piece, _ in split(word) for c in piece[1:]}.intersection(known)
    continuing = [CONTINUING + c for c in sorted(inner)]  # given explicitly: the library's own order varies
    least = len(SPECIAL) + len(known) + len(continuing)
    if vocab_size < least:
        raise DataError(
            f"tokenizer.vocab_size={vocab_size} is too small: special pieces and characters take {least}. Set that."
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
