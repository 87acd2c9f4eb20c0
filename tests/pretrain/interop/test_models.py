"""Imported models compute Hugging Face's numbers and are exported with the same weights, bit for bit.

The answers in goldens/models.json come from goldens/make_models.py; test_live.py asks the library itself.
"""

import json

import hub
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

import pretrain
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder

FAST = ("gpt2", "llama3", "qwen3", "gemma", "ctrl", "bert", "albert", "xlm_languages")
FAST += ("electra", "xlnet", "mbart", "t5_v1_1")
CASES = [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in sorted(hub.answers())]
SETTLED = {"pair_head", "tied_head", "initialiser", "generator_size"}  # not by config.json alone


def ask(run, case):
    """Our numbers for make_models.ask's questions."""
    return jax.jit(question(run, case))(run.variables)


def question(run, case):
    """The same as a function of the model's variables."""
    rows = {name: jnp.asarray(ids) for name, ids in hub.batch(run.model.vocab_size).items()}
    inputs, targets = {"tokens": rows["read"]}, rows["read"]
    if case in hub.SEQUENCE:
        targets = rows["written"]
        inputs = {"inputs": rows["read"], "tokens": hub.shifted(case, targets)}
    if case == "xlm_languages":
        inputs["languages"] = rows["read"] % 3

    def answer(variables):
        hidden = run.model.apply(variables, **inputs).hidden
        if case == "electra":
            logits = run.model.apply(variables, hidden, method="replaced_logits")
            losses = optax.sigmoid_binary_cross_entropy(logits, rows["read"] % 3 == 0)
            return {"hidden": hidden, "logits": logits, "loss": losses.mean()}
        logits = run.model.apply(variables, hidden, method="logits")
        if case in hub.CAUSAL:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], targets[:, 1:])
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        values = {"hidden": hidden, "logits": logits, "loss": losses.mean()}
        if case in hub.SEQUENCE:
            values["encoder"] = run.model.apply(variables, rows["read"], method="encode")
        if case in hub.PAIRED:
            values["pair logits"] = run.model.apply(variables, hidden, method="pair_logits")
            pairs = optax.softmax_cross_entropy_with_integer_labels(values["pair logits"], jnp.array([0, 1]))
            values["loss"] += pairs.mean()
        return values

    return answer


def assert_equal_tensors(one, other, tied=()):
    """Equal weights of two folders; `tied` renames tensors of the first to those of the second."""
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    before = {name if name in after else dict(tied).get(name, name): array for name, array in before.items()}
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def read_json(folder, name="config.json"):
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("case", CASES)
def test_import_numbers(imported, case):
    run, expected = pretrain.open(imported(case)[1]), hub.answers()[case]["answers"]
    values = hub.last_tokens(ask(run, case))
    assert values.keys() == expected.keys()
    for name, numbers in expected.items():
        tolerance = 1e-5 if name == "loss" else 1e-4
        np.testing.assert_allclose(values[name], numbers, atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_export_round_trip(imported, case, tmp_path):
    theirs, workdir = imported(case)
    assert export_folder(str(workdir), str(tmp_path / "back")) == 0
    old, new = read_json(theirs), read_json(tmp_path / "back")
    family = families.MODEL_TYPES[old["model_type"]]
    assert_equal_tensors(theirs, tmp_path / "back", family.tied)
    changes = {"dtype": "float32"} | ({"tie_word_embeddings": False} if case in ("t5_v1_1", "mt5") else {})
    if case in ("camembert", "xlm-roberta"):  # one network with RoBERTa
        changes |= {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
    if case in ("gpt", "ctrl", "qwen2", "qwen3"):  # whose classes name no end token, as this tokenizer does
        changes |= {"eos_token_id": 0} | ({"bos_token_id": 0} if case != "ctrl" else {})
    if case == "gemma":  # has other ids than this tokenizer
        changes |= {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": None}
    for key in old.keys() & new.keys():
        assert new[key] == changes.get(key, old[key]), key
    names = frozenset(load_file(tmp_path / "back" / "model.safetensors"))
    family, saved = families.of_config(new, names, ""), pretrain.open(workdir).config.model.to_dict()
    again = family.to_section(new, "", names)
    assert {name: saved[name] for name in again} == again


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=families.FAMILIES)
def test_recipes_export_as_their_family(family):
    path, _, only = family.recipe.partition(":")
    module, built = configs.recipe_module(path), set()
    for variant in [only] if only else module.VARIANTS:
        if path == "configs/llama.py" and not variant.startswith((family.model_type, "mini")):  # several families
            continue
        section = module.get_config(variant).model.to_dict()
        if family.model_type == "mt5":  # T5 1.1 with the field that tells its class apart
            section["scale_head"] = False
        if section.get("head", "replaced") != "replaced":  # ELECTRA's ablations have no class
            continue
        chosen, config = families.of_section(section)
        if family.model_type == "distilbert" and variant in ("gpt2", "roberta"):
            assert chosen.model_type == variant
            continue
        assert chosen is family
        back = family.to_section(config, variant)
        decided = {"dtype": section["dtype"]} | {name: section[name] for name in SETTLED & back.keys()}
        assert {name: section[name] for name in back} == back | decided
        structure = tuple(value for value in section.values() if isinstance(value, str | bool))
        if structure not in built:  # variants differ mostly in sizes
            families.weight_map(family, section)  # asserts that each parameter is in one row
        built.add(structure)


@pytest.fixture(params=[7, 8], ids="tables {}".format)
def electra(request, tmp_path):
    """(discriminator, generator) of one training: the generator half as wide."""
    folders = [tmp_path / name for name in ("discriminator", "generator")]
    sizes = {"embedding_size": request.param, "max_position_embeddings": 23, "vocab_size": 67, "num_hidden_layers": 2}
    for folder, case, width, heads in zip(folders, ("electra", "electra_masked"), (16, 8), (2, 1), strict=True):
        resize = {7: request.param, 15: width, 29: 4 * width}
        shapes = {
            name: [resize.get(size, size) for size in shape]
            for name, shape in hub.answers()[case]["shapes"].items()
            if width != request.param or "embeddings_project" not in name
        }
        keys = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
        hub.make(folder, case, keys=sizes | keys | {"hidden_act": "gelu"}, tensors=hub.weights(shapes))
    return folders


def test_electra_two_folders_round_trip(electra, tmp_path):
    discriminator, generator = electra
    config = import_folder(str(discriminator), str(tmp_path / "run"), generator=str(generator))
    assert config.model.generator_size == 0.5 and config.model.kind == "replaced_tokens"
    for folder, part in ((discriminator, ""), (discriminator, "discriminator"), (generator, "generator")):
        back = tmp_path / f"back-{part}"
        export_folder(str(tmp_path / "run"), str(back), part=part)
        assert_equal_tensors(folder, back)
        old, new = read_json(folder), read_json(back)
        assert {key: old[key] for key in old.keys() & new.keys() - {"dtype"}}.items() <= new.items()
    with pytest.raises(UserError):
        export_folder(str(tmp_path / "run"), str(tmp_path / "x"), part="judge")


@pytest.mark.parametrize("electra", [7], indirect=True)
def test_electra_generator_alone_has_the_same_logits(electra, tmp_path):
    discriminator, generator = electra
    import_folder(str(discriminator), str(tmp_path / "both"), generator=str(generator))
    import_folder(str(generator), str(tmp_path / "alone"))
    both, alone = (pretrain.open(tmp_path / name) for name in ("both", "alone"))
    assert alone.config.model.kind == "encoder" and alone.config.objective.next_sentence is False
    tokens = jnp.asarray(hub.batch(67)["read"])
    hidden = both.model.apply(both.variables, tokens, method="generate").hidden
    states, matrix, bias = both.model.apply(both.variables, hidden, method="generator_inputs")
    np.testing.assert_allclose(states @ matrix.T + bias[None, None], alone.logits(np.asarray(tokens)), atol=1e-5)


@pytest.mark.parametrize("change", ["tables", "intermediate_size", "--generator"])
@pytest.mark.parametrize("electra", [7], indirect=True)
def test_electra_refusals(change, electra, refuses):
    discriminator, generator = electra
    if change == "tables":
        tensors, name = load_file(generator / "model.safetensors"), "electra.embeddings.word_embeddings.weight"
        save_file(tensors | {name: tensors[name] + 1}, generator / "model.safetensors")
    if change == "intermediate_size":
        (generator / "config.json").write_text(json.dumps(read_json(generator) | {"intermediate_size": 31}))
    key = {"tables": "tokens", "intermediate_size": "ff=31"}.get(change, change)
    refuses(discriminator, key, generator=str(discriminator if change == "--generator" else generator))
