"""Every family's way through: imported, trained for two updates, evaluated, made to write, and exported again."""

import json
import math
from pathlib import Path

import hub
import numpy as np
import pytest
from runs import leaves
from safetensors.numpy import load_file

import pretrain
from pretrain.cli import main
from pretrain.interop import families

TRAINED = ["--config.schedule.peak=0.01", "--config.schedule.warmup=0", "--config.train.batch_size=8"]
TRAINED += ["--config.train.steps=2", "--config.log.every=1", "--config.log.tensorboard=false"]
CASES = [case for case in hub.answers() if case not in ("bert_masked", "albert_masked", "mt5_tied")]
LENGTHS = {"t5": 24, "t5_v1_1": 24, "mt5": 24, "bert": 20, "albert": 20}
MORE = {
    "distilbert": ["--config.train.accumulate=1"],
    "xlnet": [
        *("--config.model.memory=8", "--config.model.reuse=8", "--config.objective.reuse=8"),
        *("--config.objective.perm_size=8", "--config.objective.predictions=4"),
    ],
}
WRITES = ("decoder", "encoder_decoder")


@pytest.fixture
def text(tmp_path):
    """A file of documents, for every language one."""
    lines = ["\n".join([f"text {i} of many.", *hub.TEXT]) for i in range(60)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    return tmp_path / "a.txt"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_family_there_and_back(case, text, signals, capsys, tmp_path, monkeypatch):
    theirs = hub.make(tmp_path / "theirs", case)
    monkeypatch.chdir(tmp_path)

    def run(command, *flags):
        code = main([command, "--workdir=run", *flags])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed

    said = run("import", f"--folder={theirs}").err
    config = json.loads(Path("run/config.json").read_text())
    shapes = hub.answers()[case]["shapes"]
    count = sum(math.prod(shape) for shape in shapes.values())
    assert f"{count:,} parameters, from {len(shapes)} tensors" in said
    before = params(0)
    assert sum(array.size for array in before.values()) == count

    source = f"text:{text}?document=blank_line" + "&code=Books" * (case == "ctrl")
    languages = config["data"]["languages"]
    sources = " + ".join(f"{source}&language={one}" for one in languages) or source
    data = [f"--config.data.train={sources}", f"--config.data.length={LENGTHS.get(case, 16)}"]
    said = run("train", *data, "--config.data.holdout=0.2", *TRAINED, *MORE.get(case, ())).err
    assert f"took {len(before)} of {len(before)} parameters (100.0% of the numbers) from checkpoint 0" in said
    losses = [json.loads(line)["loss"] for line in Path("run/metrics/train.jsonl").read_text().splitlines()]
    assert len(losses) == 2 and all(0 < loss < 40 for loss in losses)
    after = params(2)
    moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert {name for name in after if name.endswith("['kernel']")} <= moved
    assert all(np.isfinite(array).all() for array in after.values())

    scored = json.loads(run("evaluate", f"--data={sources}", "--batches=1", "--format=json").out)
    assert scored["step"] == 2 and 0 < scored["loss"] < 40
    first = json.loads(run("evaluate", "--step=0", f"--data={sources}", "--batches=1", "--format=json").out)
    assert first["step"] == 0 and first["loss"] != scored["loss"]

    if config["model"]["kind"] in WRITES:
        written = json.loads(run("generate", "--prompt=the", "--max_tokens=4", "--format=json").out)
        assert written["step"] == 2 and 0 < written["tokens"] <= 4
        assert max(written["ids"]) < pretrain.open("run").tokenizer.vocab_size and written["log_probability"] < 0

    assert main(["export", "--workdir=run", "--folder=back"]) == 0
    old, new = (load_file(folder / "model.safetensors") for folder in (theirs, Path("back")))
    names = families.TYPES[hub.answers()[case]["config"]["model_type"]].copies
    old = {name if name in new else names.get(name, name): array for name, array in old.items()}
    assert {name: array.shape for name, array in old.items()} == {name: array.shape for name, array in new.items()}
    assert sum(not np.array_equal(old[name], new[name]) for name in new) > len(new) / 2
    assert "after 2 of 2 updates" in Path("back/README.md").read_text()
    assert main(["import", "--folder=back", "--workdir=again"]) == 0


def params(step):
    found = leaves(Path("run").absolute(), step)
    return {name: np.asarray(leaf) for name, leaf in found.items() if name.startswith("['params']")}
