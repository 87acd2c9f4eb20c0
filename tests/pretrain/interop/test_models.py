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
from safetensors.numpy import load_file, save_file

import pretrain
from configs import common
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.interop import families
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder

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
    return jax.jit(question(run, case))(run.variables)


def question(run, case):
    """The same, a function of the model's variables."""
    rows = {name: jnp.asarray(ids) for name, ids in hub.batch(run.model.vocab_size).items()}
    inputs, targets = {"tokens": rows["read"]}, rows["read"]
    if case in hub.SEQUENCE:
        targets = rows["written"]
        inputs = {"inputs": rows["read"], "tokens": hub.shifted(case, targets)}

    if case == "xlm_languages":
        inputs["languages"] = rows["read"] % 3

    def ask(variables):
        hidden = run.model.apply(variables, **inputs).hidden
        if case == "electra":
            logits = run.model.apply(variables, hidden, method="replaced_logits")
            each = optax.sigmoid_binary_cross_entropy(logits, rows["read"] % 3 == 0)
            return {"hidden": hidden, "logits": logits, "loss": each.mean()}
        logits = run.model.apply(variables, hidden, method="logits")
        if case in hub.CAUSAL:
            each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], targets[:, 1:])
        else:
            each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        found = {"hidden": hidden, "logits": logits, "loss": each.mean()}
        if case in hub.SEQUENCE:
            found["encoder"] = run.model.apply(variables, rows["read"], method="encode")
        if case in hub.PAIRED:
            found["pair logits"] = run.model.apply(variables, hidden, method="pair_logits")
            pairs = optax.softmax_cross_entropy_with_integer_labels(found["pair logits"], jnp.array([0, 1]))
            found["loss"] += pairs.mean()
        return found

    return ask


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_gives_their_numbers(imported, case):
    run, expected = pretrain.open(imported(case)[1]), hub.answers()[case]["answers"]
    found = hub.last_tokens(asked_of_ours(run, case))
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
    same = {"dtype": "float32"} | ({"tie_word_embeddings": False} if case in ("t5_v1_1", "mt5") else {})
    if case in ("camembert", "xlm-roberta"):  # which goes back as the RoBERTa that it is
        same |= {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
    if case in ("gpt", "ctrl"):  # whose classes know no end, as this tokenizer has
        same |= {"eos_token_id": 0} | ({"bos_token_id": 0} if case == "gpt" else {})
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
    path, _, named = family.recipe.partition(":")
    module, built = configs.recipe_module(path), set()
    for variant in [named] if named else module.VARIANTS:
        section = module.get_config(variant).model.to_dict()
        if family.model_type == "mt5":  # which has no recipe of its own: T5 1.1 with what tells its class from that one
            section["scale_head"] = False
        if section.get("head", "replaced") != "replaced":  # of ELECTRA's ablations, which that library has no class for
            continue
        chosen, written = families.of_section(section, variant)
        if family.model_type == "distilbert" and variant in ("gpt2", "roberta"):  # small ones of those families
            assert chosen.model_type == variant
            continue
        assert chosen is family
        back = family.keys.section(written, variant, common.MODELS[family.kind]) | {"dtype": section["dtype"]}
        assert {name: section[name] for name in back} == back
        structure = tuple(value for value in section.values() if isinstance(value, str | bool))
        if structure not in built:  # sizes apart
            families.table(family, section)  # which raises unless it covers every parameter, each once
        built.add(structure)


@pytest.fixture(params=[7, 8], ids="tables {}".format)
def two_folders(request, tmp_path):
    """(discriminator, generator) as that library has them, of one training: the generator half as wide."""
    cases = hub.answers()
    one, other = (tmp_path / name for name in ("discriminator", "generator"))
    sizes = {"embedding_size": request.param, "max_position_embeddings": 23, "vocab_size": 67, "num_hidden_layers": 2}
    shapes = {}
    for case, width, heads in (("electra", 16, 2), ("electra_masked", 8, 1)):
        old = cases[case]["shapes"]
        swap, project = {7: request.param, 15: width, 29: 4 * width}, width != request.param
        shapes[case] = {
            name: [swap.get(size, size) for size in shape]
            for name, shape in old.items()
            if project or "embeddings_project" not in name
        }
        folder, config = (one, other)[case == "electra_masked"], cases[case]["config"] | sizes
        config |= {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
        hub.make(folder, case, config=config | {"hidden_act": "gelu"}, tensors=hub.weights(shapes[case]))
    return one, other


def test_electra_of_two_folders_goes_back_to_both(two_folders, tmp_path):
    one, other = two_folders
    said = []
    config = import_folder(str(one), str(tmp_path / "run"), said.append, generator=str(other))
    assert said[-1].endswith(f" tensors and those of {other}")
    assert config.model.generator_size == 0.5 and config.model.kind == "replaced_tokens"
    for folder, part in ((one, ""), (one, "discriminator"), (other, "generator")):
        back = tmp_path / f"back-{part}"
        export_folder(str(tmp_path / "run"), str(back), part=part)
        before, after = (load_file(where / "model.safetensors") for where in (folder, back))
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array, err_msg=name)
        old, new = (json.loads((where / "config.json").read_text()) for where in (folder, back))
        assert {key: old[key] for key in old.keys() & new.keys() - {"dtype"}}.items() <= new.items()


def test_a_generator_beside_its_discriminator_gives_its_own_numbers(two_folders, tmp_path):
    """Alone it is an encoder; beside the discriminator the same logits come of the shared tables."""
    one, other = two_folders
    import_folder(str(one), str(tmp_path / "both"), generator=str(other))
    import_folder(str(other), str(tmp_path / "alone"))
    both, alone = (pretrain.open(tmp_path / name) for name in ("both", "alone"))
    assert alone.config.model.kind == "encoder" and alone.config.objective.next_sentence is False
    tokens = jnp.asarray(hub.batch(67)["read"])
    hidden = both.model.apply(both.variables, tokens, method="generate").hidden
    states, matrix, bias = both.model.apply(both.variables, hidden, method="generator_inputs")
    np.testing.assert_allclose(states @ matrix.T + bias[None, None], alone.logits(np.asarray(tokens)), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tables", "has other tokens than the discriminator, and the two share them"),
        ("size", "is no generator of this discriminator, as models here have them: ff = 31, not 32"),
        ("discriminator", "leave it out, or give both"),
        ("part", "has no part 'judge'; choose one of: discriminator, generator"),
        ("none", "electra's generator: the model has none (config.model.generator_size = 0); leave --part out"),
    ],
)
def test_what_electra_cannot_be(change, words, two_folders, tmp_path):
    one, other = two_folders
    if change == "tables":
        tensors = load_file(other / "model.safetensors")
        name = "electra.embeddings.word_embeddings.weight"
        save_file(tensors | {name: tensors[name] + 1}, other / "model.safetensors")
    if change == "size":
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 31}))
    with pytest.raises(UserError) as error:
        if change in ("part", "none"):
            import_folder(str(one), str(tmp_path / "run"))
            export_folder(
                str(tmp_path / "run"), str(tmp_path / "x"), part={"part": "judge", "none": "generator"}[change]
            )
        import_folder(str(one), str(tmp_path / "new"), generator=str(one if change == "discriminator" else other))
    assert words in str(error.value)
    assert not (tmp_path / "new").exists() and not (tmp_path / "x").exists()
