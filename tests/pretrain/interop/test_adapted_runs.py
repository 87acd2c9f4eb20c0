"""A run with LoRA from another run's weights: trained, evaluated, exported, and continued."""

import json
import shutil

import jax
import numpy as np
import pytest
from runs import assert_same_leaves, leaves, train_here
from test_export import GPT2

import pretrain
from configs import common
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.workdir import POSITION

RECIPE = "configs/gpt2.py:small"
LORA = {"model.lora": 2, "model.lora_alpha": 8, "schedule.peak": 0.1, "schedule.warmup": 0, "model.dtype": "float32"}


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory):
    """(base, adapted): both of four updates."""
    base, adapted = (tmp_path_factory.mktemp("lora") / name for name in ("base", "adapted"))
    assert train_here(base, text, recipe=RECIPE, small=GPT2) == 0
    assert train_here(adapted, text, recipe=RECIPE, small=GPT2 | LORA | {"train.start_from": str(base)}) == 0
    return base, adapted


def test_lora_run_keeps_the_base(runs):
    """Its checkpoints hold what learns, and its parameters are those of the base and these."""
    base, adapted = (leaves(run, 4) for run in runs)
    lora = {name for name in adapted if name.startswith("['params']")}
    assert len(lora) == 4 and all("lora_" in name and np.abs(adapted[name]).max() > 0 for name in lora)
    whole = jax.tree_util.tree_leaves_with_path(pretrain.open(runs[1]).variables)
    whole = {jax.tree_util.keystr(path): leaf for path, leaf in whole}
    assert whole.keys() == lora | {name for name in base if name.startswith("['params']")}
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, (adapted if name in lora else base)[name])
    sizes = [sum(f.stat().st_size for f in (run / "checkpoints/4/state").rglob("*") if f.is_file()) for run in runs]
    assert sizes[1] < sizes[0] / 2
    moments = [name for name in adapted if name.startswith("['opt_state']") and adapted[name].ndim]
    assert len(moments) == 8 and all("lora_" in name for name in moments)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_lora_export_has_the_runs_logits(runs, tmp_path):
    torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    tokens, logits = np.arange(24).reshape(2, 12) * 7 % 257, []
    for run in runs:
        pretrain.to_huggingface(run, tmp_path / run.name)
        theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / run.name).eval()
        with torch.no_grad():
            logits.append(theirs(torch.tensor(tokens)).logits.numpy())
    ours = np.asarray(pretrain.open(runs[1]).logits(tokens))
    np.testing.assert_allclose(logits[1], ours, atol=1e-5)
    assert np.abs(logits[1] - logits[0]).max() > 0.01  # the base's
    assert "lora" not in json.dumps(json.loads((tmp_path / "adapted" / "config.json").read_text()))


def test_lora_run_resumes_to_the_bit(runs, text, tmp_path):
    shutil.copytree(runs[1], tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/4")
    keys = GPT2 | LORA | {"train.start_from": str(runs[0])}
    assert train_here(tmp_path / "again", text, recipe=RECIPE, small=keys) == 0
    assert_same_leaves(leaves(runs[1], 4), leaves(tmp_path / "again", 4), least=12)


@pytest.mark.parametrize("change", ["is missing", "has changed", "is damaged"])
def test_base_is_needed_as_it_was(change, runs, tmp_path, capsys):
    base, run = tmp_path / "base", tmp_path / "run"
    for folder, copy in zip(runs, (base, run), strict=True):
        shutil.copytree(folder, copy)
    note = run / "checkpoints/4" / POSITION
    note.write_text(note.read_text().replace(f"{runs[0]}/checkpoints", f"{base}/checkpoints"))
    (run / "checkpoints/4/files.json").unlink()  # without it checksums are not compared
    assert main(["evaluate", f"--workdir={run}", "--batches=1"]) == 0
    if change == "is missing":
        base.rename(tmp_path / "other")
    elif change == "has changed":
        record = base / "checkpoints/4/files.json"
        files = json.loads(record.read_text())
        files[max(files)][1] ^= 1
        record.write_text(json.dumps(files))
    else:
        file = max((base / "checkpoints/4/state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
        file.write_bytes(file.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["evaluate", f"--workdir={run}", "--batches=1"]) == 2
    error = capsys.readouterr().err
    assert change in error and "Traceback" not in error


def test_plain_run_from_a_lora_run_is_refused(runs, text, tmp_path, capsys):
    keys = GPT2 | {"train.start_from": str(runs[1])}
    assert train_here(tmp_path / "new", text, recipe=RECIPE, small=keys) == 2
    assert "model.lora=2" in capsys.readouterr().err


def test_adapters_have_no_hugging_face_class():
    with pytest.raises(UserError, match="adapter=4"):
        families.of_section(common.MODELS["decoder"]().to_dict() | {"adapter": 4})


def test_lora_run_generates(runs):
    """Decoding on a CPU transposes the kernels and leaves A and B."""
    run = pretrain.open(runs[1])
    tokens = list(run.prompts(["import "])[0][0])
    for _ in range(6):
        tokens.append(int(np.asarray(run.logits(np.array(tokens)))[-1].argmax()))
    assert run.generate("import ", temperature=0, max_tokens=6) == run.tokenizer.decode(tokens)


@pytest.mark.slow
def test_base_in_the_own_folder_moves_with_it(runs, text, tmp_path):
    """A run from weights that were imported into its work folder: trained, moved, continued."""
    pretrain.to_huggingface(runs[0], tmp_path / "theirs")
    assert main(["import", f"--folder={tmp_path / 'theirs'}", f"--workdir={tmp_path / 'run'}"]) == 0
    keys = GPT2 | {"optimizer.frozen": "('*', '!layers/feed_forward')", "model.dtype": "float32"}
    keys |= {"tokenizer.kind": "huggingface", "tokenizer.path": str(tmp_path / "theirs/tokenizer.json")}
    assert train_here(tmp_path / "run", text, recipe=RECIPE, small=keys | {"train.steps": 2}) == 0
    before = leaves(tmp_path / "run", 2)
    assert not any("tokens" in name for name in before)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert train_here(tmp_path / "moved", text, recipe=RECIPE, small=keys) == 0
    variables = pretrain.open(tmp_path / "moved").variables["params"]
    np.testing.assert_array_equal(variables["tokens"], leaves(runs[0], 4)["['params']['tokens']"])
    assert before.keys() == leaves(tmp_path / "moved", 4).keys()


def test_base_is_not_pruned_by_its_own_run(runs, text, tmp_path):
    base, adapted = tmp_path / "base", tmp_path / "adapted"
    shutil.copytree(runs[0], base)
    keys = GPT2 | LORA | {"train.start_from": str(base)}
    assert train_here(adapted, text, recipe=RECIPE, small=keys) == 0
    longer = {"train.steps": 12, "checkpoint.every": 2, "checkpoint.keep": 1, "checkpoint.keep_best": "false"}
    assert train_here(base, text, "--allow=schedule", recipe=RECIPE, small=GPT2 | longer) == 0
    assert sorted(int(path.name) for path in (base / "checkpoints").iterdir() if path.name.isdigit()) == [4, 12]
    pretrain.open(adapted).generate("import ", max_tokens=1)
