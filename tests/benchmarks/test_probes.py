"""Probe of an encoder whose states are those of words alone."""

import gzip

import jax
import pytest

from benchmarks import probes

WORDS = ("a", "film", "of", "good", "bad")


class WordEncoder:
    """An encoder whose states are those of words, without context."""

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


def test_probe_finds_parts_of_speech(write):
    tags = {"a": "DET", "film": "NOUN", "of": "ADP", "good": "ADJ", "bad": "ADJ"}
    sentences = ("a good film", "bad film of a film of good", "a film of a bad film")
    lines = [
        "\n".join(["# text", *(f"{i}\t{w}\t_\t{tags[w]}" for i, w in enumerate(one.split(), 1)), "1-2\tx\t_\tX", ""])
        for one in sentences
    ]
    file = write("a.conllu.gz", lines)
    assert probes.read_tags(file)[0] == [("a", "DET"), ("good", "ADJ"), ("film", "NOUN")]
    assert probes.probe(WordEncoder(), [file, file]) == 1
