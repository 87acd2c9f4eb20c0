"""Classes with heads of tasks, against Hugging Face's library: logits and losses, imported and exported again."""

import dataclasses
import json

import hub
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from goldens import make_models as peer
from test_models import assert_equal_tensors, read_json

from pretrain import cli
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
TOKENS, SPANS, SIMPLE = "TokenClassification", "QuestionAnswering", "QuestionAnsweringSimple"
JOINT = ("XLM", "XLNet")  # whose class QuestionAnswering predicts the end given the start
FAST = (
    *("BertForQuestionAnswering", "XLNetForQuestionAnsweringSimple", "GPT2ForTokenClassification"),
    "BertForSequenceClassification",
    "GPT2ForSequenceClassification",
    "XLNetForMultipleChoice",
)
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
    has_labels = kind.__name__.endswith((ROWS, TOKENS))
    fields = {"id2label": {0: "no", 1: "yes", 2: "so"}} if has_labels else {}
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


def imported(folder):
    """(spec of the run that an import of `folder`/theirs is, model bound to its parameters)."""
    lines = []
    import_folder(str(folder / "theirs"), str(folder / "run"), lines.append)
    assert not any("left out" in line or "untrained" in line for line in lines), lines
    config = configs.saved(str(folder / "run"))
    with config.unlocked():
        config.model.dtype = "float32"
    spec = TrainSpec.build(config)
    params = spec.to_global(spec.restore_params(Checkpoints(str(folder / "run")), 0))
    return spec, BoundModel(spec.model, params, spec.inputs)


def assert_exported(kind, folder):
    """The run's export is the same model of the same class."""
    export_folder(str(folder / "run"), str(folder / "back"))
    again, report = getattr(transformers, kind).from_pretrained(folder / "back", output_loading_info=True)
    assert not report["unexpected_keys"] and not report["missing_keys"], report
    assert read_json(folder / "back")["architectures"] == [kind]
    assert not kind.endswith((ROWS, TOKENS)) or again.config.id2label == {0: "no", 1: "yes", 2: "so"}
    assert_equal_tensors(folder / "theirs", folder / "back")


@pytest.mark.parametrize(("kind", "case"), [*classes()])
def test_head(kind, case, tmp_path):
    model, choices = made(kind, case, tmp_path / "theirs"), CHOICES in kind
    spec, bound = imported(tmp_path)
    ids, segments, labels = rows_of(model)
    batch = {name: np.zeros(f.shape, f.dtype) for name, f in spec.features(2, ids.shape[1]).items()}
    if choices:  # the second choice is the first one backwards
        backwards = [np.concatenate([row[:n][::-1], row[n:]]) for row, n in zip(ids, segments.sum(1), strict=True)]
        ids, segments = np.stack([ids, backwards], axis=1), np.stack([segments, segments], axis=1)
    batch |= {"tokens": ids, "segments": segments, "labels": labels, "weights": np.ones(2, np.float32)}
    batch["positions"] = np.broadcast_to(np.arange(ids.shape[-1]), ids.shape)
    sums, outputs, _ = spec.objective.evaluate(bound, {name: jnp.asarray(array) for name, array in batch.items()}, {})
    expected, loss = theirs(model, *rows_of(model), choices)
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(sums["loss"] / 2, loss, rtol=1e-4)
    assert_exported(kind, tmp_path)


def classes_of_tokens():
    for name, case in CASES.items():
        for task in (TOKENS, SIMPLE if name in JOINT else SPANS):
            kind = f"{name}For{task}"
            if hasattr(transformers, kind):
                yield pytest.param(kind, case, marks=[] if kind in FAST else pytest.mark.slow)


def their_tokens(model, batch, labels):
    """(logits, loss) of each row by itself: where rows are padded, their loss of spans scores padding too."""
    found = []
    for row, used in enumerate(LENGTHS):
        inputs = {"input_ids": torch.tensor(batch["tokens"][row : row + 1, :used])}
        if model.config.model_type == "xlm":
            inputs["langs"] = torch.zeros_like(inputs["input_ids"])
        if getattr(model.config, "type_vocab_size", 0) > 1 or model.config.model_type == "xlnet":
            inputs["token_type_ids"] = torch.tensor(batch["types"][row : row + 1, :used])
        for name, array in labels.items():
            value = torch.tensor(array[row : row + 1]).long()
            inputs[name] = value if value.ndim == 1 else value[:, :used]
        with torch.no_grad():
            output = model(**inputs)
        if "labels" in labels:
            found.append((output.logits[0].numpy(), output.loss.item() * used))
        else:
            logits = torch.stack([output.start_logits[0], output.end_logits[0]], dim=-1)
            found.append((logits.numpy(), output.loss.item()))
    return zip(*found, strict=True)


@pytest.mark.parametrize(("kind", "case"), [*classes_of_tokens()])
def test_head_of_tokens(kind, case, tmp_path):
    """Logits of all tokens and the loss, of rows with two types and padding."""
    model = made(kind, case, tmp_path / "theirs")
    spec, bound = imported(tmp_path)
    ids, segments, _ = rows_of(model)
    batch = {name: np.zeros(f.shape, f.dtype) for name, f in spec.features(2, ids.shape[1]).items()}
    batch |= {"tokens": ids, "segments": segments, "types": segments * (np.arange(ids.shape[1]) >= 4)}
    batch["positions"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    if TOKENS in kind:
        batch |= {"labels": ids % 3 * segments, "weights": segments.astype(np.float32)}
        labels = {"labels": batch["labels"]}
    else:
        batch |= {"labels": np.array([[5, 8], [0, 0]]), "weights": np.ones(2, np.float32)}
        labels = {"start_positions": batch["labels"][:, 0], "end_positions": batch["labels"][:, 1]}
    batch = {name: jnp.asarray(array) for name, array in batch.items()}
    sums, _, _ = spec.objective.evaluate(bound, batch, {})
    hidden, _ = spec.objective.states(bound, batch, {}, None)
    logits = bound.predict(hidden, None, batch["row"], None)
    expected, loss = their_tokens(model, {name: np.asarray(array) for name, array in batch.items()}, labels)
    for ours, theirs, used in zip(logits, expected, LENGTHS, strict=True):
        np.testing.assert_allclose(ours[:used], theirs, atol=1e-4, rtol=0)
    np.testing.assert_allclose(sums["loss"], sum(loss), rtol=1e-5)
    assert_exported(kind, tmp_path)


@pytest.mark.parametrize(("kind", "case"), [("XLNetForQuestionAnswering", "xlnet"), ("XLMForQuestionAnswering", "xlm")])
def test_joint_head_of_spans(kind, case, tmp_path):
    """Loss with the right start and whether there is an answer; ends given the best starts; the class exported."""
    model = made(kind, case, tmp_path / "theirs")
    spec, bound = imported(tmp_path)
    assert spec.objective.beams == model.config.start_n_top
    ids, segments, _ = rows_of(model)
    batch = {name: np.zeros(f.shape, f.dtype) for name, f in spec.features(2, ids.shape[1]).items()}
    batch |= {"tokens": ids, "segments": segments, "labels": np.array([[5, 8], [2, 2]]), "context": 2 * segments}
    batch |= {"weights": np.ones(2, np.float32), "nowhere": np.array([1, 2])}
    batch["positions"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    objective = dataclasses.replace(spec.objective, no_answer=True)
    batch = {name: jnp.asarray(array) for name, array in batch.items()}
    sums, outputs, _ = objective.evaluate(bound, batch, {})
    hidden, _ = objective.states(bound, batch, {}, None)
    spans = {"real": batch["segments"] > 0, "begins": batch["context"] > 0, "nowhere": batch["nowhere"]}
    found = bound.predict(hidden, None, batch["row"], None, spans | {"starts": None, "number": objective.beams})
    loss = []
    for row, used in enumerate(LENGTHS):
        inputs = {"input_ids": torch.tensor(ids[row : row + 1, :used]), "cls_index": torch.tensor([[1], [2]][row])}
        if case == "xlnet":
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        first, last = batch["labels"][row].tolist()
        right = {"start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])}
        with torch.no_grad():
            loss.append(model(**inputs, **right, is_impossible=torch.tensor([float(row)])).loss.item())
            theirs = model(**inputs)
        start, starts, end, none = (np.asarray(one[row], np.float64) for one in found)
        np.testing.assert_allclose(none, theirs.cls_logits[0], atol=1e-4)
        np.testing.assert_array_equal(starts, theirs.start_top_index[0])
        probabilities = np.exp(start - np.logaddexp.reduce(start))
        np.testing.assert_allclose(probabilities[starts.astype(int)], theirs.start_top_log_probs[0], atol=1e-5)
        ends = np.exp(end - np.logaddexp.reduce(end, axis=1, keepdims=True))
        best = theirs.end_top_log_probs[0].reshape(model.config.end_n_top, model.config.start_n_top)
        np.testing.assert_allclose(-np.sort(-ends, axis=1)[:, : len(best)].T, best, atol=1e-5)
        # The best span of all pairs of these starts and any end behind them.
        scores = np.log(probabilities[starts.astype(int)])[:, None] + np.log(np.maximum(ends, 1e-300))
        behind = np.arange(end.shape[1])[None] - starts[:, None]
        scores[(behind < 0) | (behind >= objective.width)] = -np.inf
        np.testing.assert_allclose(outputs["scores"][row, 0], scores.max(), atol=1e-4)
    np.testing.assert_allclose(sums["loss"], sum(loss), rtol=1e-5)
    assert_exported(kind, tmp_path)
    assert read_json(tmp_path / "back")["start_n_top"] == model.config.start_n_top


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_several_labels_a_row_are_refused(problem, tmp_path):
    made("BertForSequenceClassification", "bert", tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(read_json(tmp_path / "theirs") | {"problem_type": problem}))
    with pytest.raises(UserError, match=f"problem_type={problem} with 3 labels"):
        import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


MIXED = {"BertForSequenceClassification": "bert", "GPT2ForSequenceClassification": "gpt2"}


@pytest.mark.parametrize("mix", ["plain", "normed"])
@pytest.mark.parametrize("kind", MIXED)
def test_mix_of_hidden_states(kind, mix, tmp_path):
    """gamma times the weighted sum of `output_hidden_states`, read by the class's head; layers scanned and not."""
    model = made(kind, MIXED[kind], tmp_path / "theirs")
    import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"))
    ids, segments, labels = rows_of(model)
    config = configs.saved(str(tmp_path / "run"))
    params = TrainSpec.build(config).restore_params(Checkpoints(str(tmp_path / "run")), 0)
    weights, gamma = np.random.default_rng(1).standard_normal(model.config.num_hidden_layers + 1), 1.7
    params["scalar_mix"] = {"weights": jnp.float32(weights), "gamma": jnp.float32(gamma)}

    with torch.no_grad():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(segments)}
        output = model.base_model(**given, output_hidden_states=True)
        states = torch.stack(output.hidden_states)
        if mix == "normed":
            norm = model.config.layer_norm_eps if kind.startswith("Bert") else model.config.layer_norm_epsilon
            states = torch.nn.functional.layer_norm(states, states.shape[-1:], eps=norm)
        mixed = gamma * torch.einsum("l,lbtd->btd", torch.softmax(torch.tensor(weights).float(), 0), states)
        if kind.startswith("Bert"):
            expected = model.classifier(model.bert.pooler(mixed))
        else:
            expected = model.score(mixed[range(2), np.array(LENGTHS) - 1])
    for scan in (True, False):
        with config.unlocked():
            config.model.update(dtype="float32", mix=mix, scan=scan)
        spec = TrainSpec.build(config)
        batch = {name: jnp.zeros(f.shape, f.dtype) for name, f in spec.features(2, ids.shape[1]).items()}
        batch |= {"tokens": jnp.asarray(ids), "segments": jnp.asarray(segments), "labels": jnp.asarray(labels)}
        batch["positions"] = jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)
        _, outputs, _ = spec.objective.evaluate(BoundModel(spec.model, params, spec.inputs), batch, {})
        np.testing.assert_allclose(outputs["logits"], expected.numpy(), atol=1e-4, rtol=0)


def scores_of_folder(folder, texts):
    """Scores that Transformers' class and tokenizer give in a folder."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1).numpy()[0] for text in texts]


@pytest.mark.parametrize("processor", ["none", "bytes", "start"])
def test_decoder_reads_what_its_tokenizer_gives(processor, tmp_path, monkeypatch):
    """Scores of texts: of the source, of its import, and of the import's export and after training here."""
    made("GPT2ForSequenceClassification", "gpt2", tmp_path / "theirs")
    parts = tokenizers.processors
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "theirs/tokenizer.json"))
    if processor == "bytes":
        backend.post_processor = parts.ByteLevel(trim_offsets=False)
    elif processor == "start":
        end = ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))
        backend.post_processor = parts.TemplateProcessing("<|endoftext|> $A", special_tokens=[end])
    backend.save(str(tmp_path / "theirs/tokenizer.json"))
    settings = {"add_bos_token": False, "add_prefix_space": False, "eos_token": "<|endoftext|>"}
    hub.write_settings(tmp_path / "theirs", **settings)
    monkeypatch.chdir(tmp_path)
    texts = ["hi x", "so it goes", "a"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert cli.main(["import", "--folder=theirs", "--workdir=run"]) == 0
    assert cli.main(["evaluate", "--workdir=run", "--data=jsonl:rows.jsonl", "--predictions=out.jsonl"]) == 0
    ours = [[*json.loads(line)["scores"].values()] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert np.allclose(ours, scores_of_folder(tmp_path / "theirs", texts), atol=1e-4)
    assert cli.main(["export", "--workdir=run", "--folder=back"]) == 0
    assert np.allclose(ours, scores_of_folder(tmp_path / "back", texts), atol=1e-4)
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["tokenizer"].update(single=["$A", "end"], pair=["$A", "end", "$B", "end"])  # as trained here by default
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert cli.main(["export", "--workdir=run", "--folder=framed"]) == 0
    framed = tokenizers.Tokenizer.from_file(str(tmp_path / "framed/tokenizer.json"))
    assert framed.encode("a").ids == [
        *backend.encode("a", add_special_tokens=False).ids,
        framed.token_to_id("<|endoftext|>"),
    ]
