"""A user's own text in place of a recipe's: it alone is trained on, and a share of it is held out."""

import gzip
import json
import re

import pytest

from pretrain import config as configs
from pretrain.cli import main

OWN = [("data.train", "text:/books/*.txt")]


def test_what_belongs_to_the_recipes_text_is_left_out():
    said = []
    config = configs.load("configs/transformer_xl.py:wt103", OWN, said.append)
    assert (config.data.train, config.data.validation, config.data.test) == ("text:/books/*.txt", "", "")
    assert said == [
        "data.train is not the recipe's, so its data.validation = text:data/wikitext-103/wiki.valid.tokens and "
        "data.test = text:data/wikitext-103/wiki.test.tokens are left out: 5% of data.train is held out "
        "(data.holdout, data.validation)"
    ]
    assert configs.load("configs/gpt3.py:small", OWN).data.weights == ()


@pytest.mark.parametrize(("holdout", "end"), [("0.2", "left out: 20% of data.train is held out"), ("0", "left out")])
def test_the_share_that_is_held_out_is_the_one_that_is_given(holdout, end):
    said = []
    configs.load("configs/transformer_xl.py:wt103", [*OWN, ("data.holdout", holdout)], said.append)
    assert said[0].removesuffix(" (data.holdout, data.validation)").endswith(end)


def test_what_is_given_stays():
    said = []
    given = [*OWN, ("data.validation", "text:/other.txt"), ("data.weights", "(1.0,)")]
    for overrides in (given, list(reversed(given))):
        config = configs.load("configs/gpt3.py:small", overrides, said.append)
        assert (config.data.validation, config.data.weights) == ("text:/other.txt", (1.0,))
    configs.load("configs/quickstart.py", OWN, said.append)
    assert configs.load("configs/gpt2.py").data.validation
    assert said == []


def test_the_recipes_own_text_given_again_changes_nothing():
    said, plain = [], configs.load("configs/transformer_xl.py:wt103")
    again = configs.load("configs/transformer_xl.py:wt103", [("data.train", plain.data.train)], said.append)
    assert again == plain and said == []


@pytest.fixture
def books(tmp_path):
    """Two short books, compressed."""
    folder = tmp_path / "books"
    folder.mkdir()
    for n in range(2):
        text = "".join(f"Line {line} of book {n}, in which {line * n} sheep are counted.\n" for line in range(100))
        (folder / f"{n}.txt.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.mark.slow
def test_two_short_books_are_enough(books, tmp_path, capsys, monkeypatch):
    """README's command, with a smaller network and fewer updates."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    workdir = f"--workdir={tmp_path / 'mine'}"
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.ff": 16, "train.steps": 2}
    small |= {"schedule.warmup": 1, "log.tensorboard": "false"}
    keys = [f"--config.{key}={value}" for key, value in small.items()]
    own = f"--config.data.train=text:{books}/*.txt.gz"
    assert main(["train", "--config=configs/quickstart.py", workdir, own, *keys]) == 0
    said = capsys.readouterr()
    assert f"tokenising text:{books}" in said.err and "stdlib" not in said.err + said.out
    entries = re.search(
        r"the tokenizer has (\d+) entries and config.model.vocab_size is 4,096: all other rows", said.err
    )
    assert 40 < int(entries[1]) < 3277
    assert main(["evaluate", workdir, "--format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["tokens"] > 10 and row["bits_per_byte"] > 0


def test_a_vocabulary_that_is_too_small_is_found_before_a_tokenizer_is_made(books, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    flags = [f"--workdir={tmp_path / 'mine'}", f"--config.data.train=text:{books}/*.txt.gz"]
    assert main(["train", "--config=configs/quickstart.py", *flags, "--config.model.vocab_size=300"]) == 2
    assert "smaller than the tokenizer's 4096 entries" in capsys.readouterr().err
    assert not (tmp_path / "mine" / "tokenizer").exists()


def test_a_recipe_names_the_file_that_it_needs_at_once(books, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGHAUL_CACHE", "")
    own = f"--config.data.train=text:{books}/*.txt.gz"
    assert main(["train", "--config=configs/gpt2.py:small", f"--workdir={tmp_path / 'mine'}", own]) == 2
    *_, message = capsys.readouterr().err.strip().splitlines()
    assert message.startswith(
        "pretrain: tokenizer.path = 'tokenizers/gpt2.json' is no file; correct it, or train one: "
    )
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("recipe", ["configs/gpt2.py:small", "configs/hands_on.py"])
@pytest.mark.parametrize("path", ["--config.tokenizer.path=", "--config.tokenizer.path=/no/such.json"])
def test_the_flags_that_train_a_tokenizer_instead_are_all_that_it_takes(recipe, path, tmp_path, capsys):
    """The hands-on model's reads a word as the unknown token, which no tokenizer trained here does."""
    own = [f"--config={recipe}", "--config.data.train=stdlib", "--config.data.validation="]
    assert main(["prepare", *own, path, f"--workdir={tmp_path / 'mine'}"]) == 2
    *_, message = capsys.readouterr().err.strip().splitlines()
    flags = re.findall(r"--config\.tokenizer\S+", message)
    assert flags
    assert main(["describe", *own, path, *flags]) == 0
