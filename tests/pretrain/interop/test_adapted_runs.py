"""A run with LoRA from another run's weights: trained, evaluated, exported, and continued."""

import json

import numpy as np
import pytest
from runs import leaves, train_here
from test_export import GPT2

import pretrain
from configs import common
from pretrain.errors import UserError
from pretrain.interop import families

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
    base, adapted = (leaves(run, 4) for run in runs)
    lora = {name for name in adapted if "lora_" in name and name.startswith("['params']")}
    assert len(lora) == 4 and all(np.abs(adapted[name]).max() > 0 for name in lora)
    for name in base:
        if name.startswith("['params']"):
            np.testing.assert_array_equal(adapted[name], base[name])
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
