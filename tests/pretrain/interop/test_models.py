"""Models of Hugging Face's, imported: the same numbers as there; and exported again: the same weights, bit for bit.

The answers in goldens/models.json are its own (goldens/make_models.py); test_live.py asks it where it is.
"""

import json

import hub
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import pretrain
from configs import common
from pretrain import config as configs
from pretrain.interop import families
from pretrain.interop.exports import export_folder
from pretrain.interop.imports import import_folder

CASES = sorted(hub.answers())
# Of a `model` section: how it is run and how it starts. What weights compute does not depend on that.
RUNNING = {"kind", "attention_path", "scan", "remat", "dtype", "param_dtype", "init_gain", "head_init_std"}
RUNNING |= {"position_init_std", "norm_init_mean", "norm_init_std", "fused_glorot_init", "scale_residual_init"}
RUNNING |= {"initialiser", "init_std", "init_scale"}


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """`theirs, workdir = imported(case)`, made once."""
    made, folder = {}, tmp_path_factory.mktemp("hub")

    def one(case):
        if case not in made:
            theirs, workdir = hub.make(folder / case, case), folder / f"{case}-imported"
            import_folder(str(theirs), str(workdir))
            made[case] = theirs, workdir
        return made[case]

    return one


def asked_of_ours(run, case):
    """What make_models.ask asks, of our model."""
    rows = {name: jnp.asarray(ids) for name, ids in hub.batch(run.model.vocab_size).items()}
    inputs, targets = {"tokens": rows["read"]}, rows["read"]
    if case in hub.SEQUENCE:
        targets = rows["written"]
        inputs = {"inputs": rows["read"], "tokens": hub.shifted(case, targets)}

    if case == "xlm_languages":
        inputs["languages"] = rows["read"] % 3

    @jax.jit
    def ask(variables):
        hidden = run.model.apply(variables, **inputs).hidden
        logits = run.model.apply(variables, hidden, method="logits")
        if case in hub.CAUSAL:
            each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], targets[:, 1:])
        else:
            each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        found = {"hidden": hidden, "logits": logits, "loss": each.mean()}
        if case in hub.PAIRED:
            found["pair logits"] = run.model.apply(variables, hidden, method="pair_logits")
            pairs = optax.softmax_cross_entropy_with_integer_labels(found["pair logits"], jnp.array([0, 1]))
            found["loss"] += pairs.mean()
        return found

    return ask(run.variables)


def last_tokens(found):
    """Of hidden states and logits those of each row's last token."""
    return {what: x[:, -1] if what in ("hidden", "logits") else x for what, x in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_gives_their_numbers(imported, case):
    run, expected = pretrain.open(imported(case)[1]), hub.answers()[case]["answers"]
    found = last_tokens(asked_of_ours(run, case))
    assert found.keys() == expected.keys()
    for what, numbers in expected.items():
        tolerance = 1e-5 if what == "loss" else 1e-4
        np.testing.assert_allclose(found[what], numbers, atol=tolerance, rtol=0, err_msg=what)


@pytest.mark.parametrize("case", CASES)
def test_what_is_exported_is_what_was_imported(imported, case, tmp_path):
    theirs, workdir = imported(case)
    assert export_folder(str(workdir), str(tmp_path / "back")) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (theirs, tmp_path / "back"))
    copies = families.TYPES[old["model_type"]].copies  # a file may have a tied tensor under either of its names
    before = {name if name in after else copies.get(name, name): array for name, array in before.items()}
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    same = {"dtype": "float32"} | ({"tie_word_embeddings": False} if case == "t5_v1_1" else {})
    if case == "xlm-roberta":  # which goes back as the RoBERTa that it is
        same |= {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
    for key in old.keys() & new.keys():
        assert new[key] == same.get(key, old[key]), key
    again = import_folder(str(tmp_path / "back"), str(tmp_path / "again"))
    assert again.model.to_dict() == pretrain.open(workdir).config.model.to_dict()


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=families.FAMILIES)
def test_every_key_of_a_model_is_spoken_for(family):
    """So that none that changes what is computed is dropped on the way out."""
    section = common.MODELS[family.kind]().to_dict()
    known = {key.ours for key in family.keys.both} | family.keys.ours(section).keys() | RUNNING
    assert set(section) <= known


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=families.FAMILIES)
def test_recipes_can_be_exported(family):
    module, built = configs.recipe_module(family.recipe), set()
    for variant in module.VARIANTS:
        section = module.get_config(variant).model.to_dict()
        if section.get("head", "replaced") != "replaced":  # of ELECTRA's ablations, which that library has no class for
            continue
        chosen, written = families.of_section(section, variant)
        assert chosen is family
        back = family.keys.section(written, variant, common.MODELS[family.kind]) | {"dtype": section["dtype"]}
        assert {name: section[name] for name in back} == back
        structure = tuple(value for value in section.values() if isinstance(value, str | bool))
        if structure not in built:  # sizes apart
            families.table(family, section)  # which raises unless it covers every parameter, each once
        built.add(structure)
