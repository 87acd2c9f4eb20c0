"""XLM: `XLMWithLMHeadModel`. Its attentions, norms and feed-forwards are separate lists."""

import json
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ConfigMap, Key
from pretrain.interop.family import Family, roles
from pretrain.interop.weight_map import FLATTEN, IDENTITY, Row, layers, norms, rows

PREFIX = "transformer."
# Ours for every XLM; config.json has no keys for these.
FIXED = {"activation": "gelu_erf", "types": 0, "pair_head": False, "head_transform": False, "zero_padding": True}


def _languages(given: Mapping) -> int:
    """Rows of the language table, which the class makes only of two or more languages."""
    return given["n_langs"] if given["use_lang_emb"] and given["n_langs"] != 1 else 0


def _rows(section: Mapping) -> list[Row]:
    tables = {"embeddings": "tokens", "position_embeddings": "positions"}
    if section["languages"]:
        tables["lang_embeddings"] = "languages"
    return [
        *rows(IDENTITY, *((f"{PREFIX}{name}.weight", ours) for name, ours in tables.items())),
        *norms((f"{PREFIX}layer_norm_emb", "embedding_norm")),
        *layers(
            PREFIX,
            attention=[f"attentions.{{layer}}.{name}" for name in ("q_lin", "k_lin", "v_lin", "out_lin")],
            attention_norm="layer_norm1.{layer}",
            feed_forward=("ffns.{layer}.lin1", "ffns.{layer}.lin2"),
            feed_forward_norm="layer_norm2.{layer}",
        ),
        *rows(FLATTEN, ("pred_layer.proj.bias", "head_bias")),
    ]


def _our_fixed(section: Mapping) -> dict[str, tuple]:
    return {name: (value,) for name, value in FIXED.items()} | {
        "ff": (4 * section["width"],),
        "languages": (section["languages"] if section["languages"] != 1 else 0,),
        "embed": (0, section["width"]),
        "groups": (0, section["layers"]),
    }


def _complete(config: ConfigDict, given: Mapping, codes: Sequence[str]) -> None:
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
    task="fill-mask",
    config_map=ConfigMap(
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
        hf_fixed=lambda given: {
            "n_langs": (given["n_langs"] or 1,),  # a model without the table has one language there
            "use_lang_emb": (given["n_langs"] > 1, True, False),
            "gelu_activation": (True,),
            "sinusoidal_embeddings": (False,),
            "causal": (False,),
            "asm": (False,),
            "is_encoder": (True,),
            "tie_word_embeddings": (True,),
        },
        our_fixed=_our_fixed,
        extra={"n_words": 30_145, "use_lang_emb": True, "id2lang": {}, "lang2id": {}},  # n_words: older vocab_size
        # Special ids come from the tokenizer; init_std and lang_id change no number.
        ignored=("init_std", "lang_id", "bos_index", "eos_index", "pad_index", "unk_index", "mask_index"),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    legacy_tokenizers={"xlm": "xlm"},
    special=roles(bos="classifier", eos="end", cls="end", sep="end", pad="pad", unk="unknown", mask="mask"),
    template=(("end", "$A", "end"), ("end", "$A", "end", "$B", "end")),
    prefix=PREFIX,
    tied={"pred_layer.proj.weight": f"{PREFIX}embeddings.weight"},
    ignored=(r"(transformer\.)?position_ids",),
    settle=lambda section, names: section | FIXED | {"ff": 4 * section["width"], "initialiser": "fan_in"},
    complete=_complete,
    extra_keys=_extra_keys,
    usage=_usage,
)
