"""What is asked of a pretrained encoder: it tells what can be told of words, and no more."""

import gzip

import jax
import numpy as np
import pytest

from benchmarks import probes

WORDS = ("a", "film", "of", "good", "bad")


class OfWords:
    """An encoder whose states are those of words alone."""

    length = 6

    def encode(self, text):
        return [WORDS.index(word) for word in text.split()]

    def variables(self, seed):
        return jax.random.normal(jax.random.key(seed), (len(WORDS), 8))

    def hidden(self, variables, tokens):
        return variables[tokens.clip(0)]


@pytest.fixture
def write(tmp_path):
    def write(name, lines):
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        return str(tmp_path / name)

    return write


def test_labels_that_a_word_tells_are_told_after_tuning(write, monkeypatch):
    """And those that nothing tells are guessed; what is longer than a row is cut off."""
    monkeypatch.setattr(probes, "RATES", (1e-4, 0.3))
    random = np.random.default_rng(0)

    def sentences(count, told):
        for label in random.integers(2, size=count):
            words = [*random.choice(WORDS[:3], 4), WORDS[3 + label] if told else "of", *["a"] * random.integers(9)]
            yield f"{' '.join(words)}\t{label}"

    for told in (True, False):
        files = [write(f"{name}.tsv.gz", sentences(count, told)) for name, count in (("a", 330), ("b", 70), ("c", 70))]
        shares = probes.tuned(OfWords(), files)
        assert len(shares) == probes.STARTS
        assert min(shares) == 1 if told else 0.3 < np.mean(shares) < 0.7


def test_parts_of_speech_that_a_word_tells_are_told_as_it_is(write):
    tags = {"a": "DET", "film": "NOUN", "of": "ADP", "good": "ADJ", "bad": "ADJ"}
    sentences = ("a good film", "bad film of a film of good", "a film of a bad film")
    lines = [
        "\n".join(["# text", *(f"{i}\t{w}\t_\t{tags[w]}" for i, w in enumerate(one.split(), 1)), "1-2\tx\t_\tX", ""])
        for one in sentences
    ]
    known = write("a.conllu.gz", lines)
    assert probes.tagged(known)[0] == [("a", "DET"), ("good", "ADJ"), ("film", "NOUN")]
    assert probes.probed(OfWords(), [known, known]) == 1
