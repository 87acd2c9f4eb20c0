"""`run.hidden`, `run.embed` and `pretrain embed` on an imported encoder."""

import jax
import numpy as np
import pytest

import pretrain
from input_pipeline import corruption
from pretrain.cli import main
from pretrain.losses.objective import BoundModel
from pretrain.losses.sentences import Siamese

TEXTS = ["the cat and the dog", "words", "the rest is", "a reader", "the dog sat"]
PAIRS = [{"one": a, "two": b, "label": "1"} for a, b in zip(TEXTS, reversed(TEXTS), strict=True)]


@pytest.fixture(scope="module")
def run(imported):
    return pretrain.open(imported("bert")[1], devices=jax.devices()[:1])


def test_embed_is_what_siamese_tasks_compare(run):
    section = {"kind": "siamese", "texts": ("one", "two"), "loss": "cosine", "label": "label", "labels": ()}
    task, length = corruption.build(section, run.tokenizer, run.frame), 23
    batch = {name: np.zeros(f.shape, f.dtype) for name, f in task.features(len(PAIRS), length).items()}
    task.write(batch, np.arange(len(PAIRS)), [task.read(pair)[0] for pair in PAIRS])
    bound = BoundModel(run.model, run.local_params, ("tokens", "types", "segments"))
    objective = Siamese(metrics=(), loss="cosine", highest=1.0, scale=1.0)
    outputs = jax.jit(lambda batch: objective.evaluate(bound, batch, {})[1])(batch | {"row": np.arange(len(PAIRS))})
    ours = run.embed(TEXTS, normalize=False, batch_size=2)
    np.testing.assert_allclose(ours, outputs["embeddings"][:, 0], atol=1e-5)
    unit = run.embed(TEXTS)
    np.testing.assert_allclose(unit, ours / np.linalg.norm(ours, axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(run.hidden(TEXTS, -1, "mean"), ours, atol=1e-5)


def test_pools_of_the_tokens(run):
    tokens = run.hidden(TEXTS, [1, -1])
    assert [one.shape[:2] for one in tokens] == [(2, len(row.ids)) for row in run.reader.rows(TEXTS)]
    for pool, place in (("first", 0), ("last", -1)):
        expected = [one[1, place] for one in tokens]
        np.testing.assert_allclose(run.hidden(TEXTS, -1, pool, batch_size=2), expected, atol=1e-5)
    sizes = [[len(run.tokenizer.encode(word)) for word in text.split()] for text in TEXTS]
    assert max(map(max, sizes)) > 1
    words = run.hidden([text.split() for text in TEXTS], pool="word")
    for own, states, pieces in zip(words, tokens, sizes, strict=True):
        parts = np.split(states[1, 1:-1], np.cumsum(pieces)[:-1])
        np.testing.assert_allclose(own, [part.mean(axis=0) for part in parts], atol=1e-5)
    (cut,) = run.hidden(TEXTS[:1], pool="word", length=4)
    assert np.isfinite(cut[0]).all() and np.isnan(cut[-1]).all()


def test_command(run, imported, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    files = ["embed", f"--workdir={imported('bert')[1]}", f"--input={tmp_path}/texts.txt", f"--out={tmp_path}/x.npz"]
    assert main(files) == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npz")["states"], run.embed(TEXTS), atol=1e-5)
    assert main([*files, "--pool=word", "--layers=all", "--length=5"]) == 0
    words, expected = np.load(tmp_path / "x.npz"), run.hidden(TEXTS, "all", "word", length=5)
    np.testing.assert_array_equal(words["ends"], np.cumsum([len(text.split()) for text in TEXTS]))
    np.testing.assert_allclose(words["states"], np.concatenate(expected, axis=1), atol=1e-5)
    assert "longer than 5 tokens" in capsys.readouterr().err
    for flag in ("--layers=3", "--layers=a", "--stack=decoder", "--length=99", f"--out={tmp_path}/no/x.npz"):
        assert main([*files, flag]) == 2
        assert flag.strip("-").partition("=")[0] in capsys.readouterr().err
