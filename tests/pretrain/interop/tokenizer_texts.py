"""Texts on which tokenizers differ: code, blanks, scripts, emoji, long runs and names of special tokens."""

import random
import sysconfig
from pathlib import Path

META_SPACE = "\u2581"  # a tokenizer.json of SentencePiece reads it as a space: the one documented exception
BLANKS = [" ", "\n", "\t", "\r\n", "\x0b", "\x85", "\u00a0", "\u2009", "\u200b", "\u2028", "\u3000", "\ufeff"]
SCRIPTS = [
    "日本語のテキスト",
    "Ελληνικά",
    "русский текст",
    "العربية نص",
    "हिन्दी पाठ",
    "ไทยข้อความ",
    "한국어 문장",
    "עברית",
]
SCRIPTS += [
    "ﬁ Ⅷ ① ½",
    "naïve café",
    "Ü ß ẞ İ",
    "\uff46\uff55\uff4c\uff4c",
    "e\u0301a\u0308",
    "\U0001d518",
    "\x00\x01\x1b",
]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🇩🇪", "✈️", "👍🏽", "🏳️‍🌈", "❤️"]
NAMES = ["<end>", "<unk>", "<s>", "</s>", "<pad>", "<mask>", "<cls>", "<sep>", "<eos>", "<separator>", "<classifier>"]
NAMES += ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<|endoftext|>", "<extra_id_0>", "<extra_id_3>", "en_XX"]
NAMES += ["<0x0A>", "<0x41>", "<0xE2>", "<tab>", "self."]
WORDS = ["the", "cat", "return", "self.x", "  ", "\n    ", "1234", "don't", "(a,b)", "==", "__init__"]
LETTERS = ' \n-=_.#"0oaé日'


def code(files=60):
    """Standard library modules, as training text too."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]
    return [path.read_text(encoding="utf-8", errors="replace").replace(META_SPACE, "") for path in paths]


def mix(rng, pool):
    parts = [
        rng.choice(["", " "]) + rng.choice(pool if rng.random() < 0.6 else WORDS) for _ in range(rng.randrange(1, 6))
    ]
    return "".join(parts)


def texts():
    """More than 2,000 texts, the same at each call; the last are whole modules."""
    rng, made = random.Random(0), []
    for module in code():
        for _ in range(9):
            start = rng.randrange(max(1, len(module) - 400))
            made.append(module[start : start + rng.randrange(1, 400)])
    for _ in range(300):
        blanks = BLANKS[:4] if rng.random() < 0.6 else BLANKS
        runs = (rng.choice(blanks) * rng.randrange(1, 6) + rng.choice(["", "a", "x = 1"]) for _ in range(4))
        made.append("".join(runs))
    for letter in LETTERS:
        for n in range(1, 40):
            made.append(rng.choice(["", "x", " "]) + letter * n + rng.choice(["", "y", " "]))
    for pool in (SCRIPTS, EMOJI, NAMES):
        made += pool + [mix(rng, pool) for _ in range(170)]
    for _ in range(100):
        points = (rng.randrange(1, 0x30000) for _ in range(rng.randrange(1, 20)))
        made.append(
            "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000 and chr(point) != META_SPACE)
        )
    return made + [module for module in code() if len(module) > 50_000]
