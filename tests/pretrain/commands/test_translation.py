"""The Transformer's recipe, small, on pairs of lines: trained, its translations measured, and asked for one."""

import json

import pytest

from pretrain.cli import main
from pretrain.evaluation.decoded import Written, bleu

WORDS = {"one": "eins", "two": "zwei", "red": "rot", "cat": "Katze", "sees": "sieht", "a": "eine"}
STEPS = 8
SMALL = {
    "model.layers": 1,
    "model.width": 32,
    "model.ff": 32,
    "model.heads": 2,
    "model.head_size": 16,
    "model.vocab_size": 257,
    "model.context": 96,
    "tokenizer.kind": "bytes",
    "data.length": 64,
    "train.steps": STEPS,
    "train.batch_size": 8,
    "schedule.warmup": 4,
    "checkpoint.every": 4,
    "evaluate.every": STEPS,
    "evaluate.batches": 1,
    "evaluate.batch_size": 8,
    "evaluate.decode": 3,
    "evaluate.beams": 2,
    "evaluate.beyond": 5,
    "log.tensorboard": "false",
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """`pairs % "train"`: sentences of three words, and the same in German."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, count in (("train", 200), ("val", 12), ("test", 7)):
        chosen = [[list(WORDS)[(i * k + k) % len(WORDS)] for k in (1, 3, 5)] for i in range(count)]
        (folder / f"{name}.en").write_text("".join(" ".join(words) + "\n" for words in chosen))
        german = (" ".join(WORDS[word] for word in words) for words in chosen)
        (folder / f"{name}.de").write_text("".join(words + "\n" for words in german))
    return f"parallel:{folder}/%s.{{}}?fields=en,de"


@pytest.fixture(scope="module")
def run(tmp_path_factory, pairs):
    workdir = tmp_path_factory.mktemp("run") / "run"
    keys = SMALL | {"data.train": pairs % "train", "data.validation": pairs % "val", "data.test": pairs % "test"}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    pytest.importorskip("sacrebleu", reason="BLEU needs the extra 'bleu'")
    assert main(["train", "--config=configs/transformer.py:multi30k", f"--workdir={workdir}", *flags]) == 0
    return workdir


@pytest.mark.slow
def test_from_training_to_a_measure_of_the_corpus(run, pairs, capsys):
    (row,) = map(json.loads, (run / "metrics/validation.jsonl").read_text().splitlines())
    assert {"bleu", "exact_match", "loss", "objective", "accuracy"} <= row.keys()
    capsys.readouterr()
    for options in (["--average=2"], ["--config.evaluate.beams=1"]):
        assert main(["evaluate", f"--workdir={run}", "--split=test", "--format=json", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        (task,) = found["tasks"].values()
        assert task["examples"] == 7 and 0 <= task["bleu"] <= 100
        assert task["written_length"] <= 20


@pytest.mark.slow
def test_a_text_is_written(run, capsys):
    options = ["--beams=3", "--beyond=2", "--normalisation=length", "--stopping=full", "--average=2"]
    assert main(["generate", f"--workdir={run}", "--format=json", "--prompt=one cat", *options]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["prompt"] == "one cat" and 1 <= row["tokens"] <= len("one cat") + 1 + 2


def test_bleu_is_of_the_whole_corpus():
    """By hand: 4-grams 1 of 1 and none of the other's, which alone would be 0."""
    pytest.importorskip("sacrebleu", reason="BLEU needs the extra 'bleu'")

    def one(text, reference):
        return Written((), True, text, (), reference.upper(), reference)

    assert bleu([one("a b c d", "a b c d"), one("e", "e")]) == pytest.approx(100)
    # 5 of 6 unigrams, 3 of 4 bigrams, 2 of 2 trigrams of 3, ...: of lengths 4 and 2 against 4 and 2.
    text = [one("a b c d", "a b c d"), one("e x", "e f")]
    assert bleu(text) == pytest.approx(100 * (5 / 6 * 3 / 4 * 2 / 2 * 1 / 1) ** 0.25)
