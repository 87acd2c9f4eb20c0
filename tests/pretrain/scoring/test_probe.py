"""Probes: ridge against scikit-learn, the structural probe on states that hold a tree, tasks, the command."""

import json

import numpy as np
import pytest

from pretrain.cli import main
from pretrain.scoring.probe import Ridge, control_labels, probe, probe_mix, score_classes, spanning_tree
from pretrain.scoring.probe_tasks import Items, depths, items_of, tree_distances

HEADS = [2, 0, 2, 5, 3]  # of five words; the second is the root


def test_ridge_is_that_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model", reason="needs scikit-learn")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 7)) * 3 + 1, rng.standard_normal((40, 7))
    labels = np.array(["a", "b", "c"])[(x @ rng.standard_normal((7, 3))).argmax(1)]
    ridge = Ridge(x)
    targets = rng.standard_normal((80, 2))
    own = linear.Ridge(alpha=1.0).fit(ridge.standardise(x), targets).predict(ridge.standardise(y))
    np.testing.assert_allclose(ridge.predict(targets, y), own, atol=1e-9)
    classes = linear.RidgeClassifier(alpha=1.0).fit(ridge.standardise(x), labels).predict(ridge.standardise(y))
    assert score_classes(ridge, labels, y, classes) == 1


def test_trees():
    assert depths(HEADS) == [1, 0, 1, 3, 2]
    expected = [[0, 1, 2, 4, 3], [1, 0, 1, 3, 2], [2, 1, 0, 2, 1], [4, 3, 2, 0, 1], [3, 2, 1, 1, 0]]
    np.testing.assert_array_equal(tree_distances(HEADS), expected)
    edges = {tuple(sorted(edge)) for edge in spanning_tree(tree_distances(HEADS))}
    assert edges == {
        (word, head - 1) if word < head - 1 else (head - 1, word) for word, head in enumerate(HEADS) if head
    }


def test_structural_probe_finds_trees_in_states_and_none_in_noise():
    rng = np.random.default_rng(1)
    heads = [[0] + [int(rng.integers(1, word + 1)) for word in range(1, rng.integers(5, 12))] for _ in range(96)]
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0]

    def embed(own):
        # Squared distances of sums of the edges to the root are distances in the tree.
        states = np.zeros((len(own), 16))
        for word, head in enumerate(own):
            states[word] = states[head - 1] * (head > 0) + np.eye(16)[word]
        return (states @ turn).astype(np.float32)

    words = [[str(n) for n in range(len(own))] for own in heads]
    items = [
        Items(words[part], heads[part], "tree", True, [np.ones(len(w), bool) for w in words[part]])
        for part in (slice(0, 64), slice(64, 96))
    ]
    states = [embed(own) for own in heads]
    found = probe(*items, states[:64], states[64:], False, 0, 16)
    noise = [rng.standard_normal(one.shape).astype(np.float32) for one in states]
    other = probe(*items, noise[:64], noise[64:], False, 0, 16)
    assert found["uuas"] > 0.95 > 0.5 > other["uuas"] and found["spearman"] > 0.9 > 0.5 > other["spearman"]


@pytest.mark.parametrize("numeric", [False, True])
def test_mix_weighs_the_layer_that_knows(numeric):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((4, 600, 8)) * 2 + 1, rng.standard_normal((4, 200, 8)) * 2 + 1
    known, asked = ((part[2, :, 0] if numeric else part[2, :, :3].argmax(1)) for part in (x, y))
    found = probe_mix(x.astype(np.float32), known, y.astype(np.float32), asked, numeric, 0)
    assert found.score > 0.9 and found.weights[2] > 0.8 and sum(found.weights) == pytest.approx(1)
    assert found.centre([0, 2, 4, 6]) == pytest.approx(np.dot(found.weights, [0, 2, 4, 6]))


def test_control_labels_are_those_of_types():
    words = [str(n % 40) for n in range(400)]
    drawn = control_labels(words, ["a"] * 3 + ["b"], 0)
    assert len({*zip(words, drawn, strict=True)}) == 40 and drawn == control_labels(words, ["a"] * 3 + ["b"], 0)
    assert 0.5 < np.mean(np.array(drawn) == "a") < 0.95


def test_items():
    record = {"words": ["a", "b", "c", "d", "e"], "upos": ["X"] * 4 + ["PUNCT"], "head": HEADS}
    (distance, _), (length, _) = items_of("distance", [record], [record]), items_of("length", [record], [record])
    assert distance.labels == [HEADS] and distance.keep[0].tolist() == [True] * 4 + [False]
    assert length.texts == ["a b c d e"] and not length.per_word


def test_command(tmp_path, whole, capsys, signals):
    lines = [{"words": f"x{n % 7} y z".split(), "tags": [str(n % 2), "s", "t"]} for n in range(40)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["probe", f"--workdir={whole}", f"--task={tmp_path}/mine.jsonl", "--control", "--mix", "--shots=4,all"]
    capsys.readouterr()
    assert main([*asked, "--format=json", f"--out={tmp_path}/p.json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "p.json").read_text()) and result["train"] == 32
    assert [(row["layer"], row["shots"]) for row in result["rows"][:3]] == [(0, "4"), (0, "all"), (1, "4")]
    assert all(row["accuracy"] - row["control"] == row["selectivity"] for row in result["rows"])
    assert result["rows"][1]["accuracy"] >= 2 / 3 and result["mix"]["accuracy"] >= 2 / 3
    assert len(result["mix"]["weights"]) == len(result["rows"]) / 2
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    assert main([*asked, f"--plot={tmp_path}/p.svg"]) == 0
    names = [f"{score}, {shots} texts" for score in ("accuracy", "control", "selectivity") for shots in ("4", "all")]
    picture = (tmp_path / "p.svg").read_text()
    assert all(f"<!-- {name} -->" in picture for name in names)
