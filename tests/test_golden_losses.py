"""The first three training losses of a tiny model of each family.

`python -m tests.test_golden_losses --write` makes tests/goldens/losses.json again. Do that only if a change of the
numerics is meant.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.golden import GOLDENS, TEXT, overrides, pretrain, read_metrics

FILE = GOLDENS / "losses.json"
COMMON = {
    "data.train": f"text:{TEXT}/*.txt?document=blank_line",
    "data.validation": "",
    "data.holdout": 0.0,
    "data.length": 32,
    "train.steps": 3,
    "train.batch_size": 8,
    "train.compare_every": 0,
    "evaluate.length": 0,
    "log.every": 1,
    "log.tensorboard": "false",
    # High from the first update on, so that losses 2 and 3 show what the optimizer does.
    "schedule.warmup": 1,
    "schedule.peak": 0.01,
}
SIZES = {"model.context": 32, "model.layers": 2, "model.width": 32, "model.heads": 2, "model.ff": 64}
BYTES = {"tokenizer.kind": "bytes", "tokenizer.path": "", "model.vocab_size": 257}
FLOAT32 = {"model.dtype": "float32"}
PIECES = {"tokenizer.vocab_size": 320, "model.vocab_size": 340}
MODELS = {  # recipe and overrides, by family
    "gpt": ("gpt.py", SIZES | BYTES | FLOAT32),
    "bert": ("bert.py:mini_stdlib", SIZES | PIECES | {"objective.max_predictions": 6}),
    "t5": (
        "t5.py:mini_stdlib",
        SIZES | PIECES | {"model.head_size": 16, "tokenizer.sentinels": 12, "schedule.hold": 100},
    ),
    "transformer_xl": ("transformer_xl.py:tiny", SIZES | {"model.memory": 32}),
    "xlnet": (
        "xlnet.py:mini_stdlib",
        SIZES
        | PIECES
        | {"model.memory": 16, "model.reuse": 16, "objective.reuse": 16, "objective.perm_size": 8}
        | {"objective.predictions": 6},
    ),
    "electra": ("electra.py:mini_stdlib", SIZES | PIECES | {"model.embed": 16, "model.generator_size": 0.5}),
    "sparse_transformer": (
        "sparse_transformer.py:tiny",
        SIZES | {"model.position_axes": "(4,8)", "model.attention": "('fixed_8_2_by_head',)"},
    ),
    "bart": ("bart.py:mini_stdlib", SIZES | PIECES | {"model.head_size": 16}),
    "albert": ("albert.py:mini_stdlib", SIZES | PIECES | {"model.embed": 16, "objective.max_predictions": 6}),
    "roberta": ("roberta.py:mini_stdlib", SIZES | PIECES | {"objective.max_predictions": 6}),
    "quickstart": ("quickstart.py:tiny", SIZES | PIECES),
}
# Electra has BERT's encoder twice; the others have parity tests of their own in tests/models.
SLOW = ("bert", "xlnet", "sparse_transformer", "bart", "albert", "roberta", "quickstart")


def train(name: str, folder: Path) -> dict[str, list[float]]:
    """Make three updates; return their losses and norms of gradients."""
    recipe, changes = MODELS[name]
    pretrain(folder, "train", f"--config=configs/{recipe}", "--workdir=run", *overrides(COMMON, changes))
    rows = read_metrics(folder / "run", "train")
    return {key: [rows[step][key] for step in (1, 2, 3)] for key in ("loss", "grad_norm")}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS])
def test_losses_golden(name, tmp_path):
    metrics, golden = train(name, tmp_path), json.loads(FILE.read_text())[name]
    # float32 sums in another order differ by 1e-6 of the loss; gradients are differences of larger numbers.
    assert metrics["loss"] == pytest.approx(golden["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(golden["grad_norm"], rel=1e-4)


def make_goldens() -> dict:
    """The metrics of all models, by family."""
    goldens = {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            goldens[name] = train(name, Path(folder))
    return goldens


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_golden_losses --write")
    FILE.write_text(json.dumps(make_goldens(), indent=1) + "\n")
