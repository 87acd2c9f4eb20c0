"""Folders that import refuses, and older or split files that it reads."""

import contextlib
import functools
import json

import hub
import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from flax import linen as nn
from runs import leaves
from safetensors.numpy import save_file

import pretrain
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop import safetensors_io
from pretrain.interop.config_map import ignored_settings
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder
from pretrain.step.train_step import init_params


def weights(case):
    return hub.weights(hub.answers()[case]["shapes"])


def split(folder, tensors, count=3):
    """Writes `tensors` to several files with an index; returns {tensor: file}."""
    names, index = sorted(tensors), {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[number::count]}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / safetensors_io.FILE).unlink()
    (folder / safetensors_io.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


@pytest.mark.parametrize(
    ("case", "keys", "key"),
    [
        ("gpt2", {"model_type": "gpt3"}, "model_type='gpt3'"),
        ("gpt2", {"rope_theta": 10000.0}, "rope_theta=10000.0"),
        ("bert", {"num_attention_heads": 4}, "heads"),
        ("t5", {"num_decoder_layers": 3}, "missing: decoder.block.2.layer.0"),
        ("xlm", {"n_langs": 4, "use_lang_emb": True}, "missing: transformer.lang_embeddings.weight"),
        ("t5", {"vocab_size": 50}, "shared.weight is [61, 14], not [50, 14]"),
    ],
)
def test_import_refuses_configs(case, keys, key, refuses, tmp_path):
    refuses(hub.make(tmp_path / "theirs", case, keys=keys), key)


def test_import_lists_weights(refuses, tmp_path):
    tensors = weights("bert")
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors |= {"bert.encoder.layer.2.output.dense.bias": np.zeros(15, np.float32)}
    folder = hub.make(tmp_path / "theirs", "bert", tensors=tensors)
    missing = "1 missing: bert.encoder.layer.1.output.dense.bias"
    refuses(folder, f"{missing}; 1 unexpected: bert.encoder.layer.2.output.dense.bias")


@pytest.mark.parametrize(
    ("case", "name", "other"),
    [
        ("gpt2", "lm_head.weight", lambda tensors: tensors["transformer.wte.weight"] + 1),  # tied in the class
        ("bart", "final_logits_bias", lambda tensors: np.ones((1, 271), np.float32)),  # a bias that ours lacks
    ],
)
def test_import_refuses_unequal_weights(case, name, other, refuses, tmp_path):
    tensors = weights(case)
    refuses(hub.make(tmp_path / "theirs", case, tensors=tensors | {name: other(tensors)}), name)


def test_import_refuses_folders(refuses, tmp_path):
    refuses(tmp_path / "nowhere", "config.json")
    folder = hub.make(tmp_path / "theirs", "gpt2", tokenizer=False)
    refuses(folder, "tokenizer.json")
    (folder / "model.safetensors").unlink()
    refuses(folder, "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refuses(folder, "pytorch_model.bin")


def test_import_refuses_a_larger_tokenizer(refuses, tmp_path):
    tensors = weights("gpt2")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"][:200]
    refuses(hub.make(tmp_path / "theirs", "gpt2", tensors=tensors, keys={"vocab_size": 200}), "vocab_size=200")


def test_import_split_bfloat16_without_prefix(refuses, tmp_path):
    """As files of the headless class; a missing file is named."""
    tensors = {
        name.removeprefix("transformer."): array.astype(ml_dtypes.bfloat16) for name, array in weights("gpt2").items()
    }
    mask = {"h.0.attn.bias": np.ones((1, 1, 19, 19), np.float32)}
    folder = hub.make(tmp_path / "theirs", "gpt2", tensors={}, keys={"torch_dtype": "bfloat16", "dtype": None})
    index, lines = split(folder, tensors | mask), []
    config = import_folder(str(folder), str(tmp_path / "run"), lines.append)
    assert config.model.dtype == "bfloat16" and config.model.param_dtype == "float32"
    assert any("h.0.attn.bias" in line for line in lines)
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    back = safetensors_io.Tensors(tmp_path / "back")
    for name, array in tensors.items():
        np.testing.assert_array_equal(back.read(f"transformer.{name}"), array.astype(np.float32))
    (folder / index["wte.weight"]).unlink()
    refuses(folder, index["wte.weight"])


def test_safetensors_write_splits(tmp_path):
    tensors = {f"t{i}": np.full((4, i + 1), i, np.float32) for i in range(6)}  # 16, 32, ... bytes
    sizes = {name: array.nbytes for name, array in tensors.items()}
    safetensors_io.write(tmp_path, sizes, iter(tensors.items()), max_bytes=100)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"model-{i:05}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    index = json.loads((tmp_path / safetensors_io.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(sizes.values())
    back = safetensors_io.Tensors(tmp_path)
    assert set(back.shapes) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(back.read(name), array)


def test_import_older_names_of_norms(imported, tmp_path):
    tensors = weights("bert")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in tensors.items()
    }
    import_folder(str(hub.make(tmp_path / "theirs", "bert", tensors=older)), str(tmp_path / "run"))
    one, other = (leaves(run, 0) for run in (tmp_path / "run", imported("bert")[1]))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def headless(prefix="bert."):
    """Weights of a fine-tuned BERT, whose encoder has another prefix."""
    kept = {name: array for name, array in weights("bert").items() if name.startswith("bert.")}
    kept = {name.replace("bert.", prefix, 1): array for name, array in kept.items()}
    return kept | {"classifier.weight": np.ones((2, 15), np.float32), "classifier.bias": np.ones(2, np.float32)}


@pytest.mark.parametrize("prefix", ["", "bert.", "module.bert.", "encoder.model."])
def test_import_without_pretraining_heads(prefix, imported, capsys, tmp_path):
    lines, folder = [], hub.make(tmp_path / "theirs", "bert", tensors=headless(prefix))
    config = import_folder(str(folder), str(tmp_path / "run"), lines.append)
    assert config.model.pair_head and not config.objective.next_sentence  # the pooler is kept, its head is untrained
    assert any("classifier.weight" in line for line in lines)
    untrained = "head_bias, pairs, transform, transform_norm"
    assert any(untrained in line for line in lines)
    run, other = pretrain.open(tmp_path / "run"), pretrain.open(imported("bert")[1])
    assert untrained in capsys.readouterr().err
    tokens, ours, theirs = hub.batch(67)["read"], run.variables["params"], other.variables["params"]
    hidden = [one.model.apply(one.variables, tokens).hidden for one in (run, other)]
    np.testing.assert_array_equal(*hidden)
    initial = init_params(run.model, jax.random.split(jax.random.key(config.seed))[0])
    for name in untrained.split(", "):
        close = functools.partial(np.testing.assert_allclose, rtol=1e-6)  # one is compiled
        jax.tree.map(close, ours[name], nn.unbox(initial)[name])
        assert np.any(jax.tree.leaves(ours[name])[-1] != jax.tree.leaves(theirs[name])[-1])
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"), part="base", report=lines.append)
    assert "untrained" not in capsys.readouterr().err
    assert "Untrained" not in (tmp_path / "back" / "README.md").read_text()
    before = {name.removeprefix(prefix): array for name, array in headless(prefix).items() if "classifier" not in name}
    after = safetensors_io.Tensors(tmp_path / "back")
    assert after.shapes.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after.read(name), array, err_msg=name)
    export_folder(str(tmp_path / "run"), str(tmp_path / "whole"))
    assert "`pairs`, `transform`" in (tmp_path / "whole" / "README.md").read_text()


@pytest.mark.parametrize("change", ["part of a head", "two models", "adapter", "no layer"])
def test_import_refuses_a_part_of_a_head_or_of_a_base(change, refuses, tmp_path):
    tensors = weights("bert") if change == "part of a head" else headless()
    name = "bert.encoder.layer.1.output.dense.bias"
    if change == "part of a head":
        name = "cls.predictions.transform.dense.bias"
    if change in ("part of a head", "no layer"):
        del tensors[name]
    if change == "two models":
        name = "other.embeddings.word_embeddings.weight"
        tensors[name] = tensors["bert.embeddings.word_embeddings.weight"]
    if change == "adapter":
        name = "bert.encoder.layer.1.output.adapter.up.weight"
        tensors[name] = np.ones((15, 2), np.float32)
    refuses(hub.make(tmp_path / "theirs", "bert", tensors=tensors), name)


def test_import_skips_an_unused_pooler(tmp_path):
    tensors = weights("roberta")
    tensors |= {"roberta.pooler.dense.weight": np.zeros((15, 15), np.float32)}
    tensors |= {"roberta.pooler.dense.bias": np.zeros(15, np.float32)}
    lines = []
    folder = hub.make(tmp_path / "theirs", "roberta", tensors=tensors, keys={"output_past": True})
    import_folder(str(folder), str(tmp_path / "run"), lines.append)
    assert any("roberta.pooler.dense.bias" in line for line in lines)


@pytest.mark.parametrize(
    ("keys", "beside", "ids", "ignored"),
    [
        ({"num_beams": 4}, {"temperature": 0.7, "top_k": 50, "use_cache": True}, {}, ["num_beams", "temperature"]),
        ({"max_length": 20, "num_beams": 1, "bad_words_ids": None, "prefix": ""}, {}, {}, []),
        ({"decoder_start_token_id": 0}, {"decoder_start_token_id": 0}, {"decoder_start_token_id": 0}, []),
        ({"eos_token_id": 5}, {"eos_token_id": 5}, {"eos_token_id": 0}, ["eos_token_id"]),
        ({"bos_token_id": 5}, {}, {"bos_token_id": 0, "eos_token_id": 0}, ["bos_token_id"]),
    ],
)
def test_ignored_settings(keys, beside, ids, ignored, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(beside))
    line = ignored_settings({"eos_token_id": None, **keys}, tmp_path, ids)
    assert all(name in line for name in ignored) and bool(line) == bool(ignored)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"id2lang": {"2": "fr", "0": "de", "1": "it"}, "lang2id": {"fr": 2, "de": 0, "it": 1}}, ("de", "it", "fr")),
        ({"id2lang": None, "lang2id": None}, ("0", "1", "2")),
    ],
)
def test_xlm_languages_round_trip(keys, names, tmp_path):
    config = import_folder(str(hub.make(tmp_path / "theirs", "xlm_languages", keys=keys)), str(tmp_path / "run"))
    assert config.data.languages == names and config.objective.languages
    assert [name in config.data.train for name in names] == [True] * 3 and config.data.train.count("language=") == 3
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["id2lang"] == {str(i): name for i, name in enumerate(names)} and written["n_langs"] == 3
    assert written["lang2id"] == {name: i for i, name in enumerate(names)}


def test_mbart_languages_round_trip(tmp_path):
    theirs = hub.make(tmp_path / "theirs", "mbart")
    model = tokenizers.Tokenizer.from_file(str(theirs / "tokenizer.json"))
    model.add_special_tokens(["it_IT", "en_XX"])
    model.save(str(theirs / "tokenizer.json"))
    config = import_folder(str(theirs), str(tmp_path / "run"))
    assert config.data.languages == config.objective.languages == ("it_IT", "en_XX")
    export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["decoder_start_token_id"] == model.token_to_id("it_IT")
    lines = []
    again = import_folder(str(tmp_path / "back"), str(tmp_path / "again"), lines.append)
    assert again.to_dict()["objective"] == config.to_dict()["objective"]
    assert not any("decoder_start_token_id" in line for line in lines)


def test_import_and_export_overwrite_nothing(imported, tmp_path):
    theirs, run = imported("gpt2")
    with pytest.raises(UserError):
        import_folder(str(theirs), str(run))
    with pytest.raises(UserError):
        export_folder(str(run), str(theirs))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    export_folder(str(run), str(tmp_path / "link"))  # an empty folder is free, a link is followed
    assert (tmp_path / "empty" / "config.json").is_file() and len([*tmp_path.iterdir()]) == 2


def test_import_tuned_and_scored_as_a_task(imported, tmp_path, capsys):
    """Its small vocabulary is the tokenizer's, and labels in another order are refused."""
    (tmp_path / "task.py").write_text(TASK.format(labels=("cats", "dogs")))
    (tmp_path / "reversed.py").write_text(TASK.format(labels=("dogs", "cats")))
    rows = [{"text": f"the {name} sat", "label": f"{name}s"} for name in ("cat", "dog")] * 4
    for name in ("rows", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.chdir(tmp_path):
        start = f"--config.train.start_from={imported('bert')[1]}"
        assert main(["train", "--config=task.py", start, "--workdir=run"]) == 0
        assert main(["evaluate", "--workdir=run", "--task=task.py", "--format=json"]) == 0
        assert main(["evaluate", "--workdir=run", "--task=reversed.py"]) == 2
        assert "another order" in capsys.readouterr().err
        assert main(["train", "--config=reversed.py", "--config.train.start_from=run", "--workdir=again"]) == 2
        assert "another order" in capsys.readouterr().err
        assert not (tmp_path / "again" / "checkpoints").exists()


TASK = """
from configs import common

def get_config(variant=""):
    config = common.base()
    config.name = "animals"
    config.model = {{}}
    config.objective = common.classification()
    config.objective.update(texts=("text",), labels={labels})
    config.data.update(train="jsonl:rows.jsonl", layout="examples", length=16)
    config.data.validation = "jsonl:dev.jsonl"
    config.train.update(steps=2, batch_size=8)
    config.schedule.update(warmup=0)
    config.evaluate.every = 2
    config.log.tensorboard = False
    return config
"""
