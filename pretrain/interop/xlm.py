"""XLM: `XLMWithLMHeadModel`. Its attentions, norms and feed-forwards are separate lists."""

import json
from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import under

NAMES = {
    "tokens": "embeddings.weight",
    "positions": "position_embeddings.weight",
    "languages": "lang_embeddings.weight",
    "embedding_norm": "layer_norm_emb",
    "layers/attention/query": "attentions.{layer}.q_lin",
    "layers/attention/key": "attentions.{layer}.k_lin",
    "layers/attention/value": "attentions.{layer}.v_lin",
    "layers/attention/output": "attentions.{layer}.out_lin",
    "layers/attention_norm": "layer_norm1.{layer}",
    "layers/feed_forward/in": "ffns.{layer}.lin1",
    "layers/feed_forward/out": "ffns.{layer}.lin2",
    "layers/feed_forward_norm": "layer_norm2.{layer}",
}
# Ours for every XLM; config.json has no keys for these.
FIXED = {"activation": "gelu_erf", "types": 0, "pair_head": False, "head_transform": False, "zero_padding": True}


def _languages(given: Mapping) -> int:
    """Rows of the language table, which the class makes only of two or more languages."""
    return given["n_langs"] if given["use_lang_emb"] and given["n_langs"] != 1 else 0


def _hf_fixed(given: Mapping) -> dict[str, tuple]:
    return {
        "n_langs": (given["n_langs"] or 1,),  # a model without the table has one language there
        "use_lang_emb": (given["n_langs"] > 1, True, False),
        "gelu_activation": (True,),
        "sinusoidal_embeddings": (False,),
        "causal": (False,),
        "asm": (False,),
        "is_encoder": (True,),
        "tie_word_embeddings": (True,),
    }


def _complete(config: ConfigDict, given: Mapping, codes: Sequence[str], untrained: Collection[str]) -> None:
    """Names languages in the order of the table's rows, by number if config.json has no names."""
    if config.model.languages:
        # JSON keys are strings: id2lang has "0", "1", ...
        numbers = given.get("id2lang") or {i: name for name, i in (given.get("lang2id") or {}).items()}
        names = {int(i): name for i, name in numbers.items()}
        languages = tuple(names.get(row, str(row)) for row in range(config.model.languages))
        config.objective.languages, config.data.languages = True, languages
        config.data.train = " + ".join(f"text:data/xlm/{one}.txt?document=line&language={one}" for one in languages)
    else:
        config.objective.languages = False
        config.data.update(languages=(), train="text:data/xlm/en.txt?document=line")


def _language_names(config: ConfigDict) -> list[str]:
    """Names in the order of the table's rows, numbers for rows without one."""
    return [*config.data.languages, *map(str, range(len(config.data.languages), config.model.languages))]


def _extra_keys(config: ConfigDict) -> dict:
    if not config.model.languages:
        return {}
    names = _language_names(config)
    return {"id2lang": dict(enumerate(names)), "lang2id": {name: i for i, name in enumerate(names)}}


def _usage(config: ConfigDict) -> tuple[str, ...]:
    """Calls the model with the first language: without `langs` the class adds no language row."""
    if not config.model.languages:
        return ()
    language = f"model.config.lang2id[{json.dumps(_language_names(config)[0])}]"
    return (
        "",
        'inputs = tokenizer("TEXT", return_tensors="pt")',
        f'langs = inputs["input_ids"].new_full(inputs["input_ids"].shape, {language})  # the language of each token',
        "logits = model(**inputs, langs=langs).logits",
    )


XLM = Family(
    model_type="xlm",
    kind="encoder",
    recipe="configs/xlm.py",
    architecture=lambda section: "XLMWithLMHeadModel",
    names=under("", "transformer.", NAMES) | {"head_bias": "pred_layer.proj.bias"},
    prefix="transformer.",
    tied={"pred_layer.proj.weight": "transformer.embeddings.weight"},
    ignored=(r"(transformer\.)?position_ids",),
    keys=(
        Key("vocab_size", "vocab_size", lambda given: given["n_words"]),
        Key("max_position_embeddings", "context", 512),
        Key("n_langs", "languages", 1, value=_languages),
        Key("emb_dim", "width", 2048),
        Key("n_layers", "layers", 12),
        Key("n_heads", "heads", 16),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "dropout_attention", 0.1),
        Key("embed_init_std", "init_std", 2048**-0.5),
    ),
    hf_fixed=_hf_fixed,
    fixed=lambda section: FIXED | {"ff": 4 * section["width"]},
    summary=(),
    allowed=lambda section: {"languages": (section["languages"] if section["languages"] != 1 else 0,)},
    extra={"n_words": 30_145, "use_lang_emb": True, "id2lang": {}, "lang2id": {}},  # n_words: older vocab_size
    # Special ids come from the tokenizer; init_std and lang_id change no number.
    ignored_keys=("init_std", "lang_id", "bos_index", "eos_index", "pad_index", "unk_index", "mask_index"),
    settle=lambda section, names: section | {"initialiser": "fan_in"},
    complete=_complete,
    extra_keys=_extra_keys,
    legacy_tokenizers={"xlm": "xlm"},
    special=roles(bos="classifier", eos="end", cls="end", sep="end", pad="pad", unk="unknown", mask="mask"),
    template=(("end", "$A", "end"), ("end", "$A", "end", "$B", "end")),
    task="fill-mask",
    usage=_usage,
)
