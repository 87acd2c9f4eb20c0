"""What cannot be imported or exported is said in one sentence that names it, and nothing is made."""

import json

import hub
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import pretrain
from input_pipeline.errors import DataError
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.interop import hf_export, hf_import, safetensors_io
from pretrain.interop.bart import BART


def changed(case, **keys):
    return {**hub.answers()[case]["config"], **keys}


@pytest.mark.parametrize(
    ("case", "keys", "words"),
    [
        ("gpt2", {"activation_function": "mish"}, ["activation_function = 'mish'", "gelu_new"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx = True"]),
        ("gpt2", {"rope_theta": 10000.0}, ["rope_theta = 10000.0", "take it out"]),
        ("gpt2", {"model_type": "umt5"}, ["model_type = 'umt5'", "did you mean 'mt5'"]),
        ("gpt2", {"model_type": "gpt3"}, ["model_type = 'gpt3'", "did you mean 'gpt2'"]),
        ("gpt2", {"model_type": "rwkv"}, ["model_type = 'rwkv'", "choose one of: albert, bart"]),
        ("gpt2", {"n_embd": "15"}, ["n_embd = '15'", "no int"]),
        ("gpt2", {"n_layer": 0}, ["n_layer = 0; it must be"]),
        ("gpt2", {"dtype": "float8"}, ["dtype = 'float8'", "bfloat16"]),
        ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type = 'relative_key'"]),
        ("bert", {"is_decoder": True}, ["is_decoder = True"]),
        ("roberta", {"pad_token_id": 0}, ["pad_token_id = 0", "which have 1"]),
        ("roberta", {"max_position_embeddings": 2}, ["max_position_embeddings = 2; it must be 2 more than a number"]),
        ("xlm-roberta", {"mlp_bias": True}, ["the key mlp_bias = True"]),
        ("bert", {"type_vocab_size": 0}, ["type_vocab_size = 0 is more than models here can do, which have 1"]),
        ("electra", {"type_vocab_size": 0}, ["type_vocab_size = 0"]),
        ("albert", {"type_vocab_size": 0}, ["type_vocab_size = 0"]),
        ("roberta", {"type_vocab_size": 0}, ["type_vocab_size = 0"]),
        ("albert", {"inner_group_num": 2}, ["inner_group_num = 2"]),
        ("albert", {"net_structure_type": 1}, ["net_structure_type = 1 is more than", "which have 0"]),
        ("albert", {"down_scale_factor": 2}, ["down_scale_factor = 2 is more than", "which have 1"]),
        ("albert", {"gap_size": 3}, ["gap_size = 3 is more than", "which have 0"]),
        ("albert", {"num_memory_blocks": 1}, ["num_memory_blocks = 1"]),
        ("albert", {"layers_to_keep": [0, 2]}, ["layers_to_keep = [0, 2] is more than", "which have []"]),
        ("bart", {"normalize_embedding": False}, ["normalize_embedding = False is more than", "which have True"]),
        ("bart", {"add_final_layer_norm": True}, ["add_final_layer_norm = True is more than", "which have False"]),
        ("bart", {"normalize_before": True}, ["normalize_before = True is more than", "which have False"]),
        ("bart", {"static_position_embeddings": True}, ["static_position_embeddings = True is more than"]),
        ("bart", {"extra_pos_embeddings": 4}, ["extra_pos_embeddings = 4 is more than", "which have 2"]),
        ("bart", {"add_bias_logits": True}, ["add_bias_logits = True is more than"]),
        ("bart", {"do_blenderbot_90_layernorm": True}, ["do_blenderbot_90_layernorm = True is more than"]),
        ("mbart", {"normalize_before": False}, ["normalize_before = False is more than", "which have True"]),
        ("mbart", {"add_final_layer_norm": False}, ["add_final_layer_norm = False is more than"]),
        ("distilbert", {"tie_weights_": False}, ["tie_weights_ = False is more than"]),
        ("xlnet", {"bi_data": True}, ["bi_data = True is more than"]),
        ("mt5", {"feed_forward_proj": "gated-mish"}, ["feed_forward_proj = 'gated-mish'"]),
        ("mt5", {"scale_decoder_outputs": True}, ["the key scale_decoder_outputs = True"]),
        ("bart", {"num_hidden_layers": 1}, ["num_hidden_layers = 1"]),
        ("mt5", {"dense_act_fn": "gelu"}, ["dense_act_fn = 'gelu' is more than", "gelu_new"]),
        (
            "bert",
            {"num_attention_heads": 4},
            ["makes a model that there is none of: num_attention_heads is 4, which does not divide hidden_size=15;"],
        ),
        (
            "albert",
            {"num_hidden_groups": 2, "num_hidden_layers": 3},
            [": num_hidden_groups is 2, which does not divide num_hidden_layers=3; use a divisor of 3"],
        ),
        ("ctrl", {"n_embd": 15, "n_head": 3}, ["pairs sine and cosine, but n_embd is 15; make it even"]),
        ("t5", {"relative_attention_num_buckets": 7}, [": relative_attention_num_buckets is 7; the encoder halves"]),
        (
            "t5",
            {"relative_attention_max_distance": 16, "relative_attention_num_buckets": 32},
            [": relative_attention_max_distance is 16, but half of relative_attention_num_buckets=32 are one"],
        ),
        ("roberta", {"hidden_act": "relu"}, ["hidden_act = 'relu'", "gelu, gelu_python"]),
        ("electra_masked", {"hidden_act": "gelu_new"}, ["hidden_act = 'gelu_new'", "gelu, gelu_python"]),
        ("xlm", {"sinusoidal_embeddings": True}, ["sinusoidal_embeddings = True"]),
        ("xlm", {"gelu_activation": False}, ["gelu_activation = False"]),
        ("xlm", {"n_langs": 4, "use_lang_emb": True}, ["1 missing: transformer.lang_embeddings.weight"]),
        ("xlm", {"pad_token_id": 5}, ["pad_token_id = 5, and padding of the tokenizer beside it is 1", "bring those"]),
        ("xlm", {"pad_index": 5}, ["pad_index = 5, and padding of the tokenizer beside it is 1"]),
        ("xlm", {"n_langs": [4]}, ["n_langs = [4] is no int"]),
        (
            "xlm_languages",
            {"id2lang": {"0": ["en"], "1": "de", "2": "fr"}},
            ["id2lang = {'0': ['en'], ", "correct them"],
        ),
        ("xlm_languages", {"lang2id": ["en"]}, ["lang2id = ['en'] is no dict; correct it"]),
        ("xlnet", {"n_head": 0}, ["n_head = 0; it must be at least 1"]),
        ("t5", {"pad_token_id": [1]}, ["pad_token_id = [1] is no int"]),
        ("t5", {"num_decoder_layers": 3}, ["missing: decoder.block.2.layer.0"]),
        ("t5", {"feed_forward_proj": "gated-mish"}, ["feed_forward_proj = 'gated-mish'"]),
        ("t5", {"decoder_start_token_id": 2}, ["decoder_start_token_id = 2"]),
        ("bart", {"decoder_start_token_id": 0}, ["decoder_start_token_id = 0, ", "with the tokenizer's end, 2; "]),
        ("t5", {"vocab_size": 50}, ["shared.weight is [61, 14]", "makes it [50, 14]"]),
    ],
)
def test_configs(case, keys, words, refused, tmp_path):
    refused(hub.make(tmp_path / "theirs", case, config=changed(case, **keys)), "config.json", *words)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("bart", {"normalize_embedding": True, "normalize_before": False, "add_final_layer_norm": False}),
        ("bart", {"add_bias_logits": False, "static_position_embeddings": False, "extra_pos_embeddings": 2}),
        ("mbart", {"normalize_before": True, "add_final_layer_norm": True, "normalize_embedding": True}),
        ("albert", {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1}),
        ("distilbert", {"tie_weights_": True}),
    ],
)
def test_keys_of_older_files_as_the_released_models_have_them(case, keys, tmp_path):
    folder = hub.make(tmp_path / "theirs", case, config=changed(case, **keys))
    assert hf_import.import_folder(str(folder), str(tmp_path / "run")).model.width > 0
    hf_export.export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    assert not keys.keys() & json.loads((tmp_path / "back" / "config.json").read_text()).keys()


def test_a_config_that_names_no_model_type(refused, tmp_path):
    config = changed("gpt2")
    del config["model_type"]
    those = "albert, bart, bert, camembert, ctrl, distilbert, electra, gpt2, mbart, mt5, openai-gpt, roberta, t5, xlm, "
    for given in (config, [config]):
        folder = hub.make(tmp_path / f"theirs-{type(given).__name__}", "gpt2", config=given)
        refused(folder, "config.json names no model_type", f"it is to be one of: {those}xlm-roberta, xlnet")


def test_xlm_without_an_id_of_padding_has_that_of_its_class(refused, tmp_path):
    config = changed("xlm")
    del config["pad_token_id"]
    folder = hub.make(tmp_path / "theirs", "xlm", config=config)
    refused(folder, "pad_token_id = 2 where it is not there, and padding of the tokenizer beside it is 1")


def test_weights_are_listed(refused, tmp_path):
    tensors = hub.weights(hub.answers()["bert"]["shapes"])
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors |= {"classifier.weight": np.zeros((2, 15), np.float32)}
    tensors["bert.pooler.dense.bias"] = np.zeros(14, np.float32)
    folder = hub.make(tmp_path / "theirs", "bert", tensors=tensors)
    refused(
        folder,
        "BertForPreTraining",
        "1 missing: bert.encoder.layer.1.output.dense.bias",
        "1 left over: classifier.weight",
        "1 of another shape: bert.pooler.dense.bias is [14], and config.json makes it [15]",
    )


def test_a_tied_head_that_is_another(refused, tmp_path):
    tensors = hub.weights(hub.answers()["gpt2"]["shapes"])
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1
    refused(
        hub.make(tmp_path / "theirs", "gpt2", tensors=tensors), "lm_head.weight differs from transformer.wte.weight"
    )


def test_a_tensor_that_is_there_under_two_names(refused, tmp_path):
    tensors = hub.weights(hub.answers()["gpt2"]["shapes"])
    tensors["wte.weight"] = tensors["transformer.wte.weight"] + 1
    refused(hub.make(tmp_path / "theirs", "gpt2", tensors=tensors), "1 left over: ", "wte.weight")


def test_folders(refused, tmp_path):
    refused(tmp_path / "nowhere", "is no folder", "hf download")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no config.json")
    folder = hub.make(tmp_path / "theirs", "gpt2")
    (folder / "model.safetensors").unlink()
    refused(folder, "holds no model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(folder, "pytorch_model.bin", "pickle", "save_pretrained")


def test_a_truncated_file(refused, tmp_path):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(folder, "model.safetensors cannot be read")


def test_without_a_tokenizer(refused, tmp_path):
    refused(hub.make(tmp_path / "theirs", "gpt2", tokenizer=False), "holds no tokenizer", "tokenizer.json")


def test_a_tokenizer_of_another_model(refused, tmp_path):
    tensors = hub.weights(hub.answers()["gpt2"]["shapes"])
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"][:200]
    config = changed("gpt2", vocab_size=200)
    refused(hub.make(tmp_path / "theirs", "gpt2", tensors=tensors, config=config), "vocab_size = 200", "tokenizer.json")


def test_weights_of_integers(refused, tmp_path):
    tensors = hub.weights(hub.answers()["gpt2"]["shapes"])
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].astype(np.int8)
    refused(hub.make(tmp_path / "theirs", "gpt2", tensors=tensors), "transformer.wpe.weight is of type I8")


def shard(folder, tensors, count=3):
    """Spreads the weights of a folder over files with an index, as `save_pretrained` does with large ones."""
    names, held = sorted(tensors), {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        some = {name: tensors[name] for name in names[number::count]}
        save_file(some, folder / file)
        held |= dict.fromkeys(some, file)
    (folder / safetensors_io.FILE).unlink()
    (folder / safetensors_io.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": held}))
    return held


def test_what_was_saved_in_float16_is_computed_in_float32(tmp_path):
    """Its weights fit there, and gradients of float16 would be lost without a scaled loss."""
    folder = hub.make(tmp_path / "theirs", "gpt2", config=changed("gpt2", dtype="float16"))
    imported = hf_import.import_folder(str(folder), str(tmp_path / "run"), print)
    assert imported.model.dtype == imported.model.param_dtype == "float32"


def test_shards_in_bfloat16_and_names_without_the_prefix(tmp_path, refused):
    """As of a model without a head, in older files; a missing file is named."""
    tensors = {
        name.removeprefix("transformer."): array.astype(ml_dtypes.bfloat16)
        for name, array in hub.weights(hub.answers()["gpt2"]["shapes"]).items()
    }
    mask = {"h.0.attn.bias": np.ones((1, 1, 19, 19), np.float32)}
    config = changed("gpt2", torch_dtype="bfloat16")
    folder = hub.make(tmp_path / "theirs", "gpt2", tensors={}, config=config)
    held = shard(folder, tensors | mask)
    said = []
    imported = hf_import.import_folder(str(folder), str(tmp_path / "run"), said.append)
    assert imported.model.dtype == "bfloat16" and imported.model.param_dtype == "float32"
    assert "left out what is no weights: h.0.attn.bias" in said
    back = tmp_path / "back"
    hf_export.export_folder(str(tmp_path / "run"), str(back))
    written = safetensors_io.Tensors(back)
    for name, array in tensors.items():
        np.testing.assert_array_equal(written.read(f"transformer.{name}"), array.astype(np.float32))
    (folder / held["wte.weight"]).unlink()
    refused(folder, safetensors_io.INDEX, held["wte.weight"], "not there")


def test_what_does_not_fit_one_file_is_written_to_several(tmp_path):
    tensors = {f"t{i}": np.full((4, i + 1), i, np.float32) for i in range(6)}  # 16, 32, ... bytes
    safetensors_io.write(
        tmp_path, {name: array.nbytes for name, array in tensors.items()}, iter(tensors.items()), shard=100
    )
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"model-{i:05}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    index = json.loads((tmp_path / safetensors_io.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tensors.values())
    back = safetensors_io.Tensors(tmp_path)
    assert list(back.shapes) == list(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(back.read(name), array)


def test_older_names_of_norms(tmp_path):
    def renamed(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    tensors = hub.weights(hub.answers()["bert"]["shapes"])
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    old = {renamed(name): array for name, array in tensors.items()}
    hf_import.import_folder(str(hub.make(tmp_path / "theirs", "bert", tensors=old)), str(tmp_path / "run"))
    hf_export.export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
    back = safetensors_io.Tensors(tmp_path / "back")
    for name in back.shapes:
        np.testing.assert_array_equal(back.read(name), hub.weights({name: back.shapes[name]})[name])


def test_nothing_is_overwritten(tmp_path):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    hf_import.import_folder(str(folder), str(tmp_path / "run"))
    for again in (
        lambda: hf_import.import_folder(str(folder), str(tmp_path / "run")),
        lambda: hf_export.export_folder(str(tmp_path / "run"), str(folder)),
    ):
        with pytest.raises(UserError, match="is there already, and nothing is overwritten"):
            again()


def test_a_model_that_tells_no_texts_apart_reads_one_text_a_row(tmp_path):
    tensors = hub.weights(hub.answers()["bert"]["shapes"])
    tensors["bert.embeddings.token_type_embeddings.weight"] = np.zeros((1, 15), np.float32)
    folder = hub.make(tmp_path / "theirs", "bert", tensors=tensors, config=changed("bert", type_vocab_size=1))
    config = hf_import.import_folder(str(folder), str(tmp_path / "run"))
    assert (config.objective.next_sentence, config.data.layout, config.model.pair_head) == (False, "packed", True)
    assert pretrain.open(tmp_path / "run").model.types == 1


@pytest.mark.parametrize("name", ["config.json", safetensors_io.INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_json_that_has_no_bottom(refused, tmp_path, name):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    (folder / name).write_text("[" * 100_000)
    if name == safetensors_io.INDEX:
        (folder / safetensors_io.FILE).unlink()
    refused(folder, name, "fetch it again")


def test_a_vocabulary_of_nothing(tmp_path):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}, "added_tokens": []}')
    with pytest.raises(DataError, match=r"tokenizer\.json is no tokenizer\.json \(its vocabulary is empty\)"):
        hf_import.import_folder(str(folder), str(tmp_path / "ours"))


def test_weights_of_two_saves(refused, tmp_path):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    shard(folder, hub.weights(hub.answers()["gpt2"]["shapes"]))
    save_file({"other": np.zeros(3, np.float32)}, folder / safetensors_io.FILE)
    refused(folder, "holds model.safetensors and model.safetensors.index.json, which are of two saves")


def test_what_has_no_like_there_is_not_exported(tmp_path):
    hf_import.import_folder(str(hub.make(tmp_path / "theirs", "gpt2")), str(tmp_path / "run"))
    file = tmp_path / "run" / "config.json"
    saved = json.loads(file.read_text())
    for keys, words in (
        ({"placement": "post"}, "config.model.placement = 'pre', not 'post'"),
        ({"attention": ["dense", "window_8"]}, "attention = ('dense', 'dense'), not ('dense', 'window_8')"),
        ({"activation": "gated_silu"}, ", not 'gated_silu'"),
    ):
        file.write_text(json.dumps(saved | {"model": saved["model"] | keys}))
        with pytest.raises(UserError) as error:
            hf_export.export_folder(str(tmp_path / "run"), str(tmp_path / "back"))
        assert words in str(error.value) and "cannot be exported as gpt2" in str(error.value)
        assert not (tmp_path / "back").exists()


def test_a_pooler_that_pretraining_never_read(tmp_path):
    """Files of the class without a head have one; it is left out, and that is said."""
    tensors = hub.weights(hub.answers()["roberta"]["shapes"])
    width = tensors["lm_head.dense.bias"].shape[0]
    tensors |= {"roberta.pooler.dense.weight": np.zeros((width, width), np.float32)}
    tensors |= {"roberta.pooler.dense.bias": np.zeros(width, np.float32)}
    said = []
    older = changed("roberta", output_past=True)
    folder = hub.make(tmp_path / "theirs", "roberta", tensors=tensors, config=older)
    hf_import.import_folder(str(folder), str(tmp_path / "run"), said.append)
    assert "left out 2 tensors that pretraining has no use for, such as roberta.pooler.dense.bias" in said


def test_a_tokenizer_whose_padding_is_another_id(tmp_path, capsys):
    """RoBERTa's class counts positions by the id of padding, so that another one would shift all of them.

    `describe` says the same sentence before, by the work folder's tokenizer.
    """
    folder, run = hub.make(tmp_path / "theirs", "roberta", tokenizer=False), tmp_path / "run"
    hub.unigram(folder)
    hf_import.import_folder(str(folder), str(run))
    said = (
        "cannot be exported as roberta, whose positions are counted by the id of padding, 1, and its tokenizer has "
        "padding of id 0; train with a tokenizer.json whose padding is id 1\n"
    )
    assert main(["describe", f"--workdir={run}"]) == 0
    assert f"export: {said}" in capsys.readouterr().out
    assert main(["export", f"--workdir={run}", f"--folder={tmp_path}/back"]) == 2
    assert capsys.readouterr().err == f"pretrain: {run} {said}"
    assert not (tmp_path / "back").exists()


def test_texts_are_prepared_for_xlm_alone(tmp_path):
    folder = hub.make(tmp_path / "theirs", "gpt2")
    with pytest.raises(UserError, match=r"--prepared is of XLM's vocab\.json, and .* is another; leave it out"):
        hf_import.import_folder(str(folder), str(tmp_path / "run"), prepared=True)
    assert not (tmp_path / "run").exists()


def test_a_bart_without_a_decoder_start_has_that_of_its_class():
    BART.check({}, "config.json", {"end": 2})
    with pytest.raises(UserError, match=r"decoder_start_token_id = 2 where it is not there, with which .* end, 5"):
        BART.check({}, "config.json", {"end": 5})
