"""Live parity with Hugging Face's library, both ways: what it saved gives its numbers here, and loads there again."""

import warnings

import hub
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from goldens import make_models as asked
from test_models import asked_of_ours, question

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

AUTO = {"gpt2": "AutoModelForCausalLM", "bert": "AutoModelForPreTraining", "bert_masked": "AutoModelForMaskedLM"}
AUTO |= {"distilbert": "AutoModelForMaskedLM", "electra": "AutoModelForPreTraining"}
AUTO |= {"electra_masked": "AutoModelForMaskedLM"}
AUTO |= {"xlnet": "AutoModelForCausalLM"}
AUTO |= {"gpt": "AutoModelForCausalLM", "ctrl": "AutoModelForCausalLM"}
AUTO |= {"albert": "AutoModelForPreTraining", "albert_masked": "AutoModelForMaskedLM"}
AUTO |= {"roberta": "AutoModelForMaskedLM", "xlm-roberta": "AutoModelForMaskedLM"}
AUTO |= {"xlm": "AutoModelForMaskedLM", "xlm_languages": "AutoModelForMaskedLM"}
AUTO |= {"bart": "AutoModelForSeq2SeqLM", "mbart": "AutoModelForSeq2SeqLM"}
AUTO |= {"camembert": "AutoModelForMaskedLM", "mt5": "AutoModelForSeq2SeqLM", "mt5_tied": "AutoModelForSeq2SeqLM"}
AUTO |= {"t5": "AutoModelForSeq2SeqLM", "t5_v1_1": "AutoModelForSeq2SeqLM"}
TEXTS = ["the cat, and 456 dogs", "The  silence is\tbetween words!", "naïve"]


@pytest.fixture(scope="module", params=asked.CASES)
def there_and_back(request, tmp_path_factory):
    """(case, model, the folder that it saved in several files, the work folder, the folder exported from that)."""
    case, folder = request.param, tmp_path_factory.mktemp(request.param)
    model, _ = asked.model_of(case)
    model.save_pretrained(folder / "theirs", max_shard_size="8KB")
    assert (folder / "theirs" / "model.safetensors.index.json").is_file()
    hub.TOKENIZERS[model.config.model_type](folder / "theirs")
    import_folder(str(folder / "theirs"), str(folder / "run"))
    export_folder(str(folder / "run"), str(folder / "back"))
    return case, model, folder / "theirs", folder / "run", folder / "back"


def test_ours_is_theirs(there_and_back):
    case, model, _, workdir, _ = there_and_back
    found, expected = asked_of_ours(pretrain.open(workdir), case), asked.ask(case, model)
    assert found.keys() == expected.keys() and expected["hidden"].ndim == 3
    for what, numbers in expected.items():
        tolerance = 1e-5 if what == "loss" else 1e-4
        print(f"parity: {case}, {what}: {np.abs(found[what] - numbers).max():.0e}")  # `-s` shows it
        np.testing.assert_allclose(found[what], numbers, atol=tolerance, rtol=0, err_msg=what)


def test_theirs_is_ours(there_and_back):
    case, model, _, _, back = there_and_back
    again, report = getattr(transformers, AUTO[case]).from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(model) or case in (
        "camembert",
        "xlm-roberta",
    )  # which goes back as the RoBERTa that it is
    for what, numbers in asked.ask(case, again.eval()).items():
        np.testing.assert_allclose(numbers, asked.ask(case, model)[what], atol=1e-6, rtol=0, err_msg=what)
    headless = transformers.AutoModel.from_pretrained(back)
    assert headless.get_input_embeddings().weight.equal(model.get_input_embeddings().weight)


def test_the_card_is_read_as_the_hub_does(there_and_back):
    """The pipeline that it names, if any, is one that takes the folder."""
    case, _, _, _, back = there_and_back
    data = huggingface_hub.ModelCard.load(back / "README.md").data
    assert data.library_name == "transformers" and data.tags[0] == "longhaul"
    assert bool(data.pipeline_tag) == (case not in hub.SEQUENCE and case != "electra")
    if data.pipeline_tag:
        transformers.pipeline(data.pipeline_tag, model=str(back))


def test_tokenizers_read_alike(there_and_back):
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


def test_a_model_takes_what_its_tokenizer_gives(there_and_back):
    case, _, _, workdir, back = there_and_back
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    model = getattr(transformers, AUTO[case]).from_pretrained(back)
    given = tokenizer(TEXTS[0], return_tensors="pt")
    ids, inputs = given["input_ids"].numpy(), {}
    if case in hub.SEQUENCE:
        inputs, ids = {"inputs": ids}, np.zeros((1, 1), np.int32)
        given["decoder_input_ids"] = torch.tensor(ids.astype(int))
    if case == "xlm_languages":  # of which none is not the first there
        given["langs"] = torch.zeros_like(given["input_ids"])
    with torch.no_grad():
        output = model(**given)
    logits = output.prediction_logits if case in hub.PAIRED else output.logits
    run = pretrain.open(workdir)
    if case == "electra":  # whose logits are none of a vocabulary
        hidden = run.model.apply(run.variables, ids).hidden
        found = run.model.apply(run.variables, hidden, method="replaced_logits")
    else:
        found = run.logits(ids, **inputs)
    np.testing.assert_allclose(found, logits.numpy(), atol=1e-4, rtol=0)


def test_the_lines_of_the_card_run(there_and_back, monkeypatch):
    """And tell an XLM the language of each token: the first."""
    case, _, _, workdir, back = there_and_back
    monkeypatch.chdir(back.parent)
    lines, found = (back / "README.md").read_text().split("```python\n")[1].partition("```")[0], {}
    exec(lines, found)
    assert type(found["model"]).__name__ in lines
    if case == "xlm_languages":
        ours = pretrain.open(workdir).logits(found["inputs"]["input_ids"].numpy())
        np.testing.assert_allclose(ours, found["logits"].detach().numpy(), atol=1e-4, rtol=0)
    else:
        assert "logits" not in found


ACTIVATION = {"gpt2": "activation_function", "distilbert": "activation", "xlnet": "ff_activation"}
ACTIVATION |= {"bart": "activation_function"}
FIXED = ("roberta", "camembert", "xlm-roberta", "electra_masked", "xlnet")  # whose code has one whatever they say


@pytest.mark.parametrize("word", ["relu", "gelu_new"])
@pytest.mark.parametrize("case", [*dict.fromkeys([*ACTIVATION, *FIXED, "bert", "albert", "electra"])])
def test_another_activation_is_theirs_or_refused(case, word, tmp_path, monkeypatch):
    """In layers and in the head of tokens."""
    name, fields = asked.CASES[case]
    monkeypatch.setitem(asked.CASES, case, (name, fields | {ACTIVATION.get(case, "hidden_act"): word}))
    model, _ = asked.model_of(case)
    model.save_pretrained(tmp_path / "theirs")
    hub.TOKENIZERS[model.config.model_type](tmp_path / "theirs")
    try:
        import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"))
    except UserError as error:
        assert case in FIXED and f"'{word}'" in str(error)
        return
    found = asked_of_ours(pretrain.open(tmp_path / "run"), case)
    np.testing.assert_allclose(found["logits"], asked.ask(case, model)["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side, there_and_back):
    """Of an exported XLNet, whose segments and distances are told beside the mask."""
    case, _, _, _, back = there_and_back
    if case != "xlnet":
        pytest.skip("the others are told of padding by the mask alone")
    tokenizer = transformers.AutoTokenizer.from_pretrained(back, padding_side=side)
    model = transformers.AutoModelForCausalLM.from_pretrained(back).eval()
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        batch = model(**given).logits
        for row, text in zip(batch, TEXTS, strict=True):
            alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
            there = row[: len(alone)] if side == "right" else row[-len(alone) :]
            np.testing.assert_allclose(there, alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["distilbert", "electra", "electra_masked"])
def test_gradients_are_theirs(case, tmp_path):
    """Of the mean loss, by every parameter, within 1e-3 of the largest entry of each."""
    model, _ = asked.model_of(case)
    model.save_pretrained(tmp_path / "theirs")
    hub.TOKENIZERS[model.config.model_type](tmp_path / "theirs")
    import_folder(str(tmp_path / "theirs"), str(tmp_path / "run"))
    run = pretrain.open(tmp_path / "run")
    ask = question(run, case)
    found = flatten_dict(jax.jit(jax.grad(lambda variables: ask(variables)["loss"]))(run.variables)["params"], sep="/")
    read = torch.tensor(hub.batch(run.model.vocab_size)["read"])
    model(read, labels=(read % 3 == 0).long() if case == "electra" else read).loss.backward()
    family, section = families.of_section(run.config.model.to_dict(), "")[0], run.config.model.to_dict()
    parameters = dict(model.named_parameters())
    for path, make in families.table(family, section).ours(lambda name: parameters[name].grad.numpy()).items():
        if not path.endswith("key/bias"):  # which is 0 but for rounding
            wanted = make()
            tolerance = 1e-3 * np.abs(wanted).max()
            np.testing.assert_allclose(found[path], wanted, rtol=1e-3, atol=tolerance, err_msg=path)


def test_a_run_of_our_own(whole, tmp_path):
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


def writing(case, model, workdir):
    """(run, what both begin with, theirs; options of theirs): ours does not write the ids that are no tokens."""
    run = pretrain.open(workdir, devices=jax.devices()[:1])
    if run.config.model.kind in ("encoder", "two_stream", "replaced_tokens"):
        pytest.skip("it writes no text")
    known = run.tokenizer.vocab_size  # the model has rows for more ids, which ours does not write
    options = {"do_sample": False, "max_new_tokens": 6, "suppress_tokens": [*range(known, run.model.vocab_size)]}
    model.generation_config.forced_eos_token_id = None
    if case == "mbart":
        options["decoder_start_token_id"] = run.tokenizer.end_id
    return run, options


def test_greedy_text(there_and_back):
    case, model, _, workdir, _ = there_and_back
    run, options = writing(case, model, workdir)
    ids, end = run.tokenizer.encode("the cat"), run.tokenizer.end_id
    if case in hub.CAUSAL:
        begun, shown = torch.tensor([[*[end] * (case != "ctrl"), *ids]]), "the cat"
        options |= {"attention_mask": torch.ones_like(begun), "pad_token_id": 0}
        new = model.generate(begun, **options)[0, begun.shape[1] :]
    else:
        read = torch.tensor(run.prompts(["the cat"]).source["inputs"]).long()
        new, shown = model.generate(read, **options)[0, 1:], ""
    assert run.generate("the cat", max_tokens=6, temperature=0) == shown + run.tokenizer.decode(new.tolist())
    if case in hub.CAUSAL:  # what the prompt has or was written is less likely, as there
        options |= {"repetition_penalty": 1.7}
        new = model.generate(begun, **options)[0, begun.shape[1] :]
        written = run.generate("the cat", max_tokens=6, temperature=0, repetition_penalty=1.7)
        assert written == shown + run.tokenizer.decode(new.tolist())


@pytest.mark.parametrize(("stopping", "early_stopping"), [("best", False), ("full", True)])
@pytest.mark.parametrize("length_penalty", [1.0, 0.3])
def test_beams(there_and_back, stopping, early_stopping, length_penalty):
    """Token by token, of texts of different lengths; one's end is the likeliest of some beams' next."""
    case, model, _, workdir, _ = there_and_back
    run, options = writing(case, model, workdir)
    end = run.tokenizer.end_id
    options |= {"num_beams": 3, "early_stopping": early_stopping, "length_penalty": length_penalty}
    for text in (*(one[:8] for one in TEXTS), "a"):
        begun, source, continued = run.prompts([text])
        read = torch.tensor(begun[0] if continued else source["inputs"][0]).long()[None]
        more = {"attention_mask": torch.ones_like(read), "eos_token_id": end, "pad_token_id": 0}
        skipped = len(read[0]) if continued else 1
        expected = model.generate(read, **options, **more)[0, skipped:].tolist()
        [(ids, _)] = generate(
            run.model,
            run.local_params,
            begun,
            max_tokens=6,
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            beams=3,
            length_penalty=length_penalty,
            normalisation="length",
            stopping=stopping,
            end_id=end,
            vocabulary=run.tokenizer.vocab_size,
            seed=0,
            source=source,
        )
        assert ids.tolist() == expected, text
