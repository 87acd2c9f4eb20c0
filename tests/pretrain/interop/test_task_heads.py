"""Classes with heads of tasks, against Hugging Face's library: logits and losses, imported and exported again."""

import json

import hub
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import make_models as peer
from test_models import assert_equal_tensors, read_json

from pretrain import config as configs
from pretrain.checkpoints.restore import Checkpoints
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

ROWS, CHOICES = "SequenceClassification", "MultipleChoice"
FAST = ("BertForSequenceClassification", "GPT2ForSequenceClassification", "XLNetForMultipleChoice")
CASES = {
    "Bert": "bert",
    "Roberta": "roberta",
    "Albert": "albert",
    "Electra": "electra",
    "DistilBert": "distilbert",
    "XLM": "xlm_languages",
    "XLNet": "xlnet",
    "GPT2": "gpt2",
    "OpenAIGPT": "gpt",
    "CTRL": "ctrl",
    "Bart": "bart",
    "MBart": "mbart",
}
LENGTHS = 11, 7  # tokens of two rows of `hub.batch`


def classes():
    for name, case in CASES.items():
        for task in (ROWS, CHOICES):
            kind = f"{name}For{task}"
            if hasattr(transformers, kind) and not (name == "XLM" and task == CHOICES):
                yield pytest.param(kind, case, marks=[] if kind in FAST else pytest.mark.slow)


def made(kind, case, folder):
    """A model of a class with drawn weights and three labels, saved in `folder` with a tokenizer."""
    torch.manual_seed(0)
    kind = getattr(transformers, kind)
    fields = {} if CHOICES in kind.__name__ else {"id2label": {0: "no", 1: "yes", 2: "so"}}
    model = kind(kind.config_class(**(peer.CASES[case][1] | fields))).eval()
    drawn = hub.weights({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    model.load_state_dict({name: torch.tensor(array) for name, array in drawn.items()}, strict=False)
    model.save_pretrained(folder)
    hub.TOKENIZERS[model.config.model_type](folder)
    return model


def rows_of(model):
    """Two rows of different lengths, padded on the right, and labels."""
    ids = hub.batch(model.config.vocab_size)["read"]
    segments = (np.arange(ids.shape[1]) < np.array(LENGTHS)[:, None]).astype(np.int32)
    pad = model.config.pad_token_id
    pad = 0 if pad is None else pad
    if (end := getattr(model.config, "eos_token_id", None)) is not None:  # BART reads the row's last end token
        ids = np.where(ids == end, 3, ids)
        ids[range(2), np.array(LENGTHS) - 1] = end
    return np.where(segments > 0, ids, pad).astype(np.int32), segments, np.array([1, 0])


def theirs(model, ids, segments, labels, choices):
    """(logits, loss) of each row by itself, as classes without a padding id need it."""
    logits, losses = [], []
    for row, used, label in zip(ids, segments.sum(1), labels, strict=True):
        inputs = {"input_ids": torch.tensor(row[None, :used])}
        if model.config.model_type == "xlm":  # ours reads the first language where none is given
            inputs["langs"] = torch.zeros_like(inputs["input_ids"])
        with torch.no_grad():
            if choices:
                again = torch.stack([inputs["input_ids"], inputs["input_ids"].flip(-1)], dim=1)
                output = model(input_ids=again, labels=torch.tensor([label]))
            else:
                output = model(**inputs, labels=torch.tensor([label]))
        logits.append(output.logits.numpy()[0])
        losses.append(output.loss.item())
    return np.array(logits), np.mean(losses)


@pytest.mark.parametrize(("kind", "case"), [*classes()])
def test_head(kind, case, tmp_path):
    lines, model = [], made(kind, case, tmp_path / "theirs")
    import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"), lines.append)
    assert not any("left out" in line or "untrained" in line for line in lines), lines
    ids, segments, labels = rows_of(model)
    config, choices = configs.saved(str(tmp_path / "run")), CHOICES in kind
    with config.unlocked():
        config.model.dtype = "float32"
    spec = TrainSpec.build(config)
    params = spec.to_global(spec.restore_params(Checkpoints(str(tmp_path / "run")), 0))
    batch = {name: np.zeros(f.shape, f.dtype) for name, f in spec.features(2, ids.shape[1]).items()}
    if choices:  # the second choice is the first one backwards
        backwards = [np.concatenate([row[:n][::-1], row[n:]]) for row, n in zip(ids, segments.sum(1), strict=True)]
        ids, segments = np.stack([ids, backwards], axis=1), np.stack([segments, segments], axis=1)
    batch |= {"tokens": ids, "segments": segments, "labels": labels, "weights": np.ones(2, np.float32)}
    batch["positions"] = np.broadcast_to(np.arange(ids.shape[-1]), ids.shape)
    sums, outputs, _ = spec.objective.evaluate(
        BoundModel(spec.model, params, spec.inputs), {name: jnp.asarray(array) for name, array in batch.items()}, {}
    )
    expected, loss = theirs(model, *rows_of(model), choices)
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(sums["loss"] / 2, loss, rtol=1e-4)

    export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    again, report = getattr(transformers, kind).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["unexpected_keys"] and not report["missing_keys"], report
    assert read_json(tmp_path / "back")["architectures"] == [kind]
    assert choices or again.config.id2label == {0: "no", 1: "yes", 2: "so"}
    assert_equal_tensors(tmp_path / "theirs", tmp_path / "back")


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_several_labels_a_row_are_refused(problem, tmp_path):
    made("BertForSequenceClassification", "bert", tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(read_json(tmp_path / "theirs") | {"problem_type": problem}))
    with pytest.raises(UserError, match=f"problem_type={problem} with 3 labels"):
        import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
