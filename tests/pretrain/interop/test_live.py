"""Parity with Hugging Face's library, both ways, on random weights and real tokenizer classes."""

import warnings

import hub
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from goldens import make_models as peer
from test_models import ask, question

import pretrain
from pretrain.decoding.sampling import generate
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
huggingface_hub = pytest.importorskip("huggingface_hub", reason="cards need the extra 'hf'")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

PRETRAINING = ("bert", "albert", "electra")
TEXTS = ["the cat, and 456 dogs", "The  silence is\tbetween words!", "naïve"]


def auto_class(case):
    if case in (*hub.CAUSAL, "xlnet"):
        return transformers.AutoModelForCausalLM
    if case in hub.SEQUENCE:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForPreTraining if case in PRETRAINING else transformers.AutoModelForMaskedLM


def imported_peer(case, folder, **options):
    """(their model with drawn weights, our import of it)."""
    model, _ = peer.model_of(case)
    model.save_pretrained(folder / "theirs", **options)
    hub.TOKENIZERS[model.config.model_type](folder / "theirs")
    import_folder(str(folder / "theirs"), str(folder / "run"))
    return model, pretrain.open(folder / "run")


# As another case but for a detail.
SLOW = ("gpt", "bert_masked", "xlm-roberta", "camembert", "xlm", "albert_masked", "t5", "mt5_tied")
CASES = [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in peer.CASES]


@pytest.fixture(scope="module", params=CASES)
def there_and_back(request, tmp_path_factory):
    """(case, model, the folder that it saved in several files, the work folder, the folder exported from that)."""
    case, folder = request.param, tmp_path_factory.mktemp(request.param)
    model, _ = imported_peer(case, folder, max_shard_size="8KB")
    assert (folder / "theirs" / "model.safetensors.index.json").is_file()
    export_folder(str(folder / "run"), str(folder / "back"))
    return case, model, folder / "theirs", folder / "run", folder / "back"


def test_import_computes_their_numbers(there_and_back):
    case, model, _, workdir, _ = there_and_back
    values, expected = ask(pretrain.open(workdir), case), peer.ask(case, model)
    assert values.keys() == expected.keys() and expected["hidden"].ndim == 3
    for name, numbers in expected.items():
        tolerance = 1e-5 if name == "loss" else 1e-4
        print(f"parity: {case}, {name}: {np.abs(values[name] - numbers).max():.0e}")  # shown with -s
        np.testing.assert_allclose(values[name], numbers, atol=tolerance, rtol=0, err_msg=name)


LAYERS = ["gpt2", "albert", "xlnet", "bart", "xlm_languages", "electra", "t5_v1_1", "qwen3"]


@pytest.mark.parametrize("there_and_back", LAYERS, indirect=True)
def test_layers_are_their_hidden_states(there_and_back):
    """Embeddings and every layer of each stack, scanned and unrolled."""
    case, model, _, workdir, _ = there_and_back
    ids = {name: torch.tensor(rows) for name, rows in hub.batch(peer.CASES[case][1]["vocab_size"]).items()}
    theirs, ours = {"input_ids": ids["read"]}, {"tokens": ids["read"].numpy()}
    if case in hub.SEQUENCE:
        shifted = hub.shifted(case, ids["written"].numpy())
        theirs["decoder_input_ids"], ours = torch.tensor(shifted), {"inputs": ours["tokens"], "tokens": shifted}
    if case == "xlm_languages":
        theirs["langs"] = ids["read"] % 3
        ours["languages"] = theirs["langs"].numpy()
    with torch.no_grad():
        output = model(**theirs, output_hidden_states=True)
    run = pretrain.open(workdir)
    sides = {"layers": output.get("hidden_states") or output.get("decoder_hidden_states")}
    sides |= {"source_layers": output.encoder_hidden_states} if case in hub.SEQUENCE else {}
    for scan in (True, False):
        found = jax.jit(run.model.clone(scan=scan).apply, static_argnames="layers")(run.variables, **ours, layers=True)
        for side, states in sides.items():
            expected = np.stack([state.numpy() for state in states])
            np.testing.assert_allclose(getattr(found, side), expected, atol=1e-4, rtol=0, err_msg=side)


def test_export_loads_and_computes_their_numbers(there_and_back):
    case, model, _, _, back = there_and_back
    again, report = auto_class(case).from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(model) or case in ("camembert", "xlm-roberta")  # exported as RoBERTa
    expected = peer.ask(case, model)
    for name, numbers in peer.ask(case, again.eval()).items():
        np.testing.assert_allclose(numbers, expected[name], atol=1e-6, rtol=0, err_msg=name)
    headless = transformers.AutoModel.from_pretrained(back)
    assert headless.get_input_embeddings().weight.equal(model.get_input_embeddings().weight)


def test_tokenizers_agree(there_and_back):
    case, _, theirs, workdir, back = there_and_back
    own = pretrain.open(workdir).tokenizer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (theirs, back))
    for text in TEXTS:
        assert other(text).input_ids == one(text).input_ids
        assert other(text, add_special_tokens=False).input_ids == own.encode(text).tolist(), text
    assert len(other) == own.vocab_size
    if case.startswith(("t5", "mt5")):
        space = "\u2581" if case.startswith("mt5") else ""
        sentinels = [other.convert_tokens_to_ids(f"{space}<extra_id_{i}>") for i in range(hub.SENTINELS)]
        assert sentinels == list(own.sentinels)
        assert other.eos_token_id == own.end_id and other.pad_token_id == own.special["pad"]


@pytest.mark.parametrize("there_and_back", ["bert", "xlnet"], indirect=True)
def test_export_takes_its_tokenizer_s_output(there_and_back):
    """Masks and types that the tokenizer adds are those of our rows."""
    case, _, _, workdir, back = there_and_back
    given = transformers.AutoTokenizer.from_pretrained(back)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        output = auto_class(case).from_pretrained(back)(**given)
    logits = output.prediction_logits if case in hub.PAIRED else output.logits
    ours = pretrain.open(workdir).logits(given["input_ids"].numpy())
    np.testing.assert_allclose(ours, logits.numpy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("there_and_back", ["gpt2", "electra", "bart", "xlm_languages"], indirect=True)
def test_card_names_a_pipeline_and_code_that_run(there_and_back, monkeypatch):
    """The code passes an XLM the first language."""
    case, _, _, workdir, back = there_and_back
    data = huggingface_hub.ModelCard.load(back / "README.md").data
    assert data.library_name == "transformers" and data.tags[0] == "longhaul"
    assert bool(data.pipeline_tag) == (case not in hub.SEQUENCE and case != "electra")
    if data.pipeline_tag:
        transformers.pipeline(data.pipeline_tag, model=str(back))
    monkeypatch.chdir(back.parent)
    lines, names = (back / "README.md").read_text().split("```python\n")[1].partition("```")[0], {}
    exec(lines, names)
    assert type(names["model"]).__name__ in lines and ("logits" in names) == (case == "xlm_languages")
    if case == "xlm_languages":
        ours = pretrain.open(workdir).logits(names["inputs"]["input_ids"].numpy())
        np.testing.assert_allclose(ours, names["logits"].detach().numpy(), atol=1e-4, rtol=0)


ACTIVATION = {"gpt2": "activation_function", "distilbert": "activation", "bart": "activation_function"}
FIXED = ("roberta", "electra_masked")  # classes with one activation in the head, whatever config.json says


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ("gpt2", "relu"),
        ("bert", "relu"),
        ("albert", "relu"),
        ("distilbert", "gelu_new"),
        ("electra", "relu"),
        ("bart", "gelu_new"),
        *((case, "relu") for case in FIXED),
    ],
)
def test_other_activations_agree_or_are_refused(case, word, tmp_path, monkeypatch):
    """In layers and in the token head."""
    name, fields = peer.CASES[case]
    monkeypatch.setitem(peer.CASES, case, (name, fields | {ACTIVATION.get(case, "hidden_act"): word}))
    try:
        model, run = imported_peer(case, tmp_path)
    except UserError as error:
        assert case in FIXED and f"'{word}'" in str(error)
        return
    np.testing.assert_allclose(ask(run, case)["logits"], peer.ask(case, model)["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("there_and_back", ["xlnet"], indirect=True)
def test_padding_changes_nothing(there_and_back):
    """XLNet's segments and distances are told apart from its mask."""
    back = there_and_back[-1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    model = transformers.AutoModelForCausalLM.from_pretrained(back).eval()
    with torch.no_grad():
        batch = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
        for row, text in zip(batch, TEXTS, strict=True):
            alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
            np.testing.assert_allclose(row[-len(alone) :], alone, atol=1e-4, rtol=0)  # padded on the left


@pytest.mark.parametrize("case", ["distilbert", "electra"])
def test_gradients_agree(case, tmp_path):
    """Of the mean loss, within 1e-3 of each parameter's largest entry."""
    model, run = imported_peer(case, tmp_path)
    loss = question(run, case)
    gradient = jax.jit(jax.grad(lambda variables: loss(variables)["loss"]))(run.variables)["params"]
    ours = flatten_dict(gradient, sep="/")
    read = torch.tensor(hub.batch(run.model.vocab_size)["read"])
    model(read, labels=(read % 3 == 0).long() if case == "electra" else read).loss.backward()
    section = run.config.model.to_dict()
    weights = families.weight_map(families.of_section(section)[0], section)
    parameters = dict(model.named_parameters())
    for path, array in weights.arrays(lambda name: parameters[name].grad.numpy()).items():
        if not path.endswith("key/bias"):  # 0 but for rounding: softmax ignores a constant
            expected = array.make()
            tolerance = 1e-3 * np.abs(expected).max()
            np.testing.assert_allclose(ours[path], expected, rtol=1e-3, atol=tolerance, err_msg=path)


def test_export_of_our_own_run(whole, tmp_path):
    """A small decoder with a tokenizer of bytes, trained here."""
    assert export_folder(str(whole), str(tmp_path / "theirs")) == 24
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(report.values()), report
    run, text = pretrain.open(whole), "def naïve(x):\n    return x"
    given = tokenizer(text, return_tensors="pt")
    np.testing.assert_array_equal(given["input_ids"][0], run.tokenizer.encode(text))
    with torch.no_grad():
        logits = model(**given).logits[0].numpy()
    np.testing.assert_allclose(run.logits(run.tokenizer.encode(text)), logits, atol=1e-4, rtol=0)
    assert tokenizer.decode(given["input_ids"][0]) == text and tokenizer.eos_token_id == run.tokenizer.end_id


WRITERS = ["gpt2", "t5", "bart", "mbart"]
WINDOWED = ("mistral", "qwen2", "qwen3")  # windows of 4 tokens, smaller than the prompt


def generation(case, model, workdir):
    """(run, options of their `generate`): ours never writes the ids above the tokenizer's."""
    run = pretrain.open(workdir, devices=jax.devices()[:1])
    unused = [*range(run.tokenizer.vocab_size, run.model.vocab_size)]
    options = {"do_sample": False, "max_new_tokens": 6, "suppress_tokens": unused}
    model.generation_config.forced_eos_token_id = None
    if case == "mbart":
        options["decoder_start_token_id"] = run.tokenizer.end_id
    return run, options


@pytest.mark.parametrize("there_and_back", [*WRITERS, "llama", "llama3", *WINDOWED, "gemma"], indirect=True)
def test_greedy_text_agrees(there_and_back):
    case, model, _, workdir, _ = there_and_back
    run, options = generation(case, model, workdir)
    ids, end = run.tokenizer.encode("the cat"), run.tokenizer.end_id
    penalties = [{}]
    if case in hub.CAUSAL:
        first = run.tokenizer.special.get("start", end)
        prompt, prefix = torch.tensor([[*[first] * (case != "ctrl"), *ids]]), "the cat"
        options |= {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
        penalties.append({"repetition_penalty": 1.7})
        skipped = prompt.shape[1]
    else:
        prompt, prefix, skipped = torch.tensor(run.prompts(["the cat"]).source["inputs"]).long(), "", 1
    for penalty in penalties:
        new = model.generate(prompt, **options, **penalty)[0, skipped:]
        ours = run.generate("the cat", max_tokens=6, temperature=0, **penalty)
        # One token at a time: a run of byte tokens that is no text is spelled differently as a whole.
        before = prompt[0].tolist() if prefix else []
        assert ours == prefix + run.tokenizer.continuation(before, new.tolist(), prefix)


BEAMS = [("best", 1.0), pytest.param("full", 0.3, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("stopping", "length_penalty"), BEAMS)
@pytest.mark.parametrize("there_and_back", WRITERS, indirect=True)
def test_beams_agree(there_and_back, stopping, length_penalty):
    """Token by token, for prompts of two lengths."""
    case, model, _, workdir, _ = there_and_back
    run, options = generation(case, model, workdir)
    end = run.tokenizer.end_id
    options |= {"num_beams": 3, "early_stopping": stopping == "full", "length_penalty": length_penalty}
    for text in (TEXTS[0][:8], "a"):
        prompt, source, continued = run.prompts([text])
        read = torch.tensor(prompt[0] if continued else source["inputs"][0]).long()[None]
        more = {"attention_mask": torch.ones_like(read), "eos_token_id": end, "pad_token_id": 0}
        skipped = len(read[0]) if continued else 1
        expected = model.generate(read, **options, **more)[0, skipped:].tolist()
        [(ids, _)] = generate(
            run.model,
            run.local_params,
            prompt,
            max_tokens=6,
            temperature=0.0,
            beams=3,
            length_penalty=length_penalty,
            normalisation="length",
            stopping=stopping,
            end_id=end,
            vocabulary=run.tokenizer.vocab_size,
            source=source,
        )
        assert ids.tolist() == expected, text
