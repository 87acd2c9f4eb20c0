"""An epoch of fine-tuning from an imported folder: every step's loss is that of PyTorch on the same rows."""

import json

import hub
import numpy as np
import pytest
from goldens import make_models as peer
from test_task_heads import made

from pretrain import cli

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with PyTorch needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.filterwarnings("default")]

STEPS, WARMUP, ROWS = 30, 5, 8
PEAK, DECAY, CLIP, BETAS, EPSILON = 2e-3, 0.1, 1.0, (0.9, 0.98), 1e-6
LABELS = "no", "yes", "so"
RECIPE = f"""
from configs import common

def get_config(variant=""):
    config = common.base()
    config.name = "tuned"
    config.model = {{"dtype": "float32"}}
    config.objective = getattr(common, variant)()
    if variant == "classification":
        config.objective.update(texts=TEXTS, labels={LABELS})
    else:
        config.objective.update(inputs="{{text}}", targets="{{other}}", target_length=LENGTH)
    config.data.update(train="jsonl:train.jsonl", layout="examples", length=LENGTH, buckets=(8,))
    config.data.update(shuffle=False, holdout=0.0)
    config.train.update(steps={STEPS}, batch_size={ROWS}, start_from="imported")
    config.optimizer.update(b1={BETAS[0]}, b2={BETAS[1]}, epsilon={EPSILON}, weight_decay={DECAY}, clip={CLIP})
    config.schedule.update(kind="linear", peak={PEAK}, warmup={WARMUP}, end=0.0)
    config.evaluate.every = 0
    config.log.update(every=1, tensorboard=False)
    return config
"""
CASES = {  # class: case of hub's models, texts, longest row, keys of the command
    "BertForSequenceClassification": ("bert", ("text", "other"), 22, ("dropout", "dropout_attention")),
    "RobertaForSequenceClassification": ("roberta", ("text",), 20, ("dropout", "dropout_attention")),
    "GPT2ForSequenceClassification": (
        *("gpt2", ("text",), 18),
        ("dropout_embedding", "dropout_attention", "dropout_residual", "dropout_ff"),
    ),
    "T5ForConditionalGeneration": (
        *("t5", ("text", "other"), 12),
        ("dropout", "dropout_attention", "dropout_ff", "dropout_hidden"),
    ),
}


def records():
    """Texts of 7 to 10 letters and of 2 to 8, with labels that the first letter mostly gives."""
    draw = np.random.default_rng(0)
    for _ in range(STEPS * ROWS):
        text, other = ("".join(draw.choice([*"acdehot"], draw.integers(*size))) for size in ((7, 11), (2, 9)))
        yield {"text": text, "other": other, "label": LABELS["acdehot".index(text[0]) % 3]}


def theirs(model, tokenizer, texts, seq2seq, peak):
    """The loss of every step, as a training loop in PyTorch has it."""
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and "relative_attention_bias" not in name]
    rest = [p for p in model.parameters() if not any(p is one for one in matrices)]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=BETAS, eps=EPSILON)

    def rate(step):
        return (step + 1) / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    rows, losses = list(records()), []
    for step in range(STEPS):
        batch = rows[step * ROWS : (step + 1) * ROWS]
        columns = [[row[name] for row in batch] for name in texts]
        if seq2seq:
            inputs, targets = (tokenizer(column, padding=True, return_tensors="pt") for column in columns)
            labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
        else:
            inputs = tokenizer(*columns, padding=True, return_tensors="pt")
            labels = torch.tensor([LABELS.index(row["label"]) for row in batch])
        assert not inputs["attention_mask"].bool().all()  # some rows are padded
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", CASES)
def test_losses_of_an_epoch(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case, texts, length, rates = CASES[kind]
    seq2seq = case == "t5"
    if seq2seq:
        model, _ = peer.model_of(case)
        model.save_pretrained("theirs")
        hub.TOKENIZERS[case](tmp_path / "theirs")
    else:
        model = made(kind, case, tmp_path / "theirs")
    recipe = RECIPE.replace("TEXTS", repr(texts)).replace("LENGTH", str(length))
    (tmp_path / "recipe.py").write_text(recipe)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records()))
    assert cli.main(["import", "--folder=theirs", "--workdir=imported"]) == 0
    keys = [f"--config.model.{name}=0.0" for name in rates]
    if case == "gpt2":
        keys.append("--config.tokenizer.single=('$A',)")
    kind = "text" if seq2seq else "classification"
    assert cli.main(["train", f"--config=recipe.py:{kind}", "--workdir=run", *keys]) == 0
    ours = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics/train.jsonl").read_text().splitlines()]

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = "<|endoftext|>"
        model.config.pad_token_id = tokenizer.pad_token_id
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    untrained, expected = (theirs(model.eval(), tokenizer, texts, seq2seq, peak) for peak in (0.0, PEAK))
    assert len(ours) == STEPS
    print(f"parity: {case}: {np.abs(np.subtract(ours, expected)).max():.0e}")  # shown with -s
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)
    assert np.abs(np.subtract(untrained, expected))[STEPS // 2 :].mean() > 0.02  # 200 times the tolerance
