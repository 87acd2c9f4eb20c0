"""XLM: `XLMWithLMHeadModel`. Its layers are lists of attentions, of norms and of feed-forward blocks."""

import json
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.errors import UserError
from pretrain.interop.config_map import SUMMARY, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, SAME, Row, linear, norms, rows

NETWORK = "transformer."
PADDING = ("pad_index", "pad_token_id")  # keys of padding's id, of which the first that is there counts
PAD = 2  # that id where neither is


def _languages(given: Mapping) -> int:
    """Rows of the table of languages, which is there where a config asks for it and has more than one."""
    return given["n_langs"] if given["use_lang_emb"] and given["n_langs"] != 1 else 0


def _rows(section: Mapping) -> list[Row]:
    languages = rows(SAME, (f"{NETWORK}lang_embeddings.weight", "languages"))
    return [
        *rows(
            SAME,
            (f"{NETWORK}embeddings.weight", "tokens"),
            (f"{NETWORK}position_embeddings.weight", "positions"),
        ),
        *(languages if section["languages"] else []),
        *norms((f"{NETWORK}layer_norm_emb", "embedding_norm")),
        *linear(
            OUTPUTS_FIRST,
            (f"{NETWORK}attentions.{{layer}}.q_lin", "layers/attention/query"),
            (f"{NETWORK}attentions.{{layer}}.k_lin", "layers/attention/key"),
            (f"{NETWORK}attentions.{{layer}}.v_lin", "layers/attention/value"),
            (f"{NETWORK}attentions.{{layer}}.out_lin", "layers/attention/output"),
            (f"{NETWORK}ffns.{{layer}}.lin1", "layers/feed_forward/in"),
            (f"{NETWORK}ffns.{{layer}}.lin2", "layers/feed_forward/out"),
        ),
        *norms(
            (f"{NETWORK}layer_norm1.{{layer}}", "layers/attention_norm"),
            (f"{NETWORK}layer_norm2.{{layer}}", "layers/feed_forward_norm"),
        ),
        *rows(FLAT, ("pred_layer.proj.bias", "head_bias")),
    ]


def _ours(section: Mapping) -> dict[str, tuple]:
    return {
        "attention": (("dense",) * len(section["attention"]),),
        "activation": ("gelu_erf",),
        "ff": (4 * section["width"],),
        "pair_head": (False,),
        "position_offset": (0,),
        "types": (0,),
        "languages": (
            section["languages"] if section["languages"] != 1 else 0,
        ),  # a table of one row is not made there
        "embed": (0, section["width"]),
        "project_always": (False,),
        "groups": (0, section["layers"]),
        "head_transform": (False,),
        "zero_padding": (True,),
    }


def _settle(section: dict, names: frozenset) -> dict:
    """What all of them have."""
    fixed = {"activation": "gelu_erf", "types": 0, "pair_head": False, "head_transform": False, "zero_padding": True}
    return section | fixed | {"ff": 4 * section["width"], "initialiser": "fan_in"}


def _speak(config: ConfigDict, given: Mapping, source: str, codes: Sequence[str]) -> None:
    """Languages in the order of the table's rows. Without a table nothing is told of them."""
    if config.model.languages:
        names = _names(given, source, config.model.languages)
        config.objective.languages, config.data.languages = True, names
        config.data.train = " + ".join(f"text:data/xlm/{one}.txt?document=line&language={one}" for one in names)
    else:
        config.objective.languages = False
        config.data.update(languages=(), train="text:data/xlm/en.txt?document=line")


def _names(given: Mapping, source: str, rows: int) -> tuple[str, ...]:
    """The name of each row of the table, its number where config.json has no names."""
    numbered = given.get("id2lang") or {i: name for name, i in (given.get("lang2id") or {}).items()}
    if not numbered:
        return tuple(map(str, range(rows)))
    named = {str(i): name for i, name in numbered.items()}
    texts = {name for name in named.values() if isinstance(name, str)}
    if named.keys() != set(map(str, range(rows))) or len(texts) < rows:
        raise UserError(
            f"{source}: n_langs = {rows}, and id2lang = {numbered!r:.200}; correct them: a name for each number below "
            "n_langs, each another"
        )
    return tuple(named[str(i)] for i in range(rows))


def _check(given: Mapping, source: str, special: Mapping[str, int]) -> None:
    """Raises UserError where the class counts how long texts are by another padding than the tokenizer's."""
    name = next((name for name in PADDING if name in given), PADDING[-1])
    pad = given.get(name, PAD)
    if pad is not None and "pad" in special and pad != special["pad"]:
        raise UserError(
            f"{source}: {name} = {pad!r:.60}{'' if name in given else ' where it is not there'}, and padding of the "
            f"tokenizer beside it is {special['pad']}, while the class counts by that id how long a text is; bring "
            "those of one model together"
        )


def _languages_of(config: ConfigDict) -> list[str]:
    """The names of languages in the order of the table's rows, numbers for those that have none."""
    return [*config.data.languages, *map(str, range(len(config.data.languages), config.model.languages))]


def _more(config: ConfigDict) -> dict:
    if not config.model.languages:
        return {}
    names = _languages_of(config)
    return {"id2lang": dict(enumerate(names)), "lang2id": {name: i for i, name in enumerate(names)}}


def _call(config: ConfigDict) -> tuple[str, ...]:
    """With the first language: without `langs` the class adds none to tokens."""
    if not config.model.languages:
        return ()
    language = f"model.config.lang2id[{json.dumps(_languages_of(config)[0])}]"
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
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", lambda given: given["n_words"]),
            Key("max_position_embeddings", "context", 512),
            Key("n_langs", "languages", 1, seen=_languages),
            Key("emb_dim", "width", 2048),
            Key("n_layers", "layers", 12),
            Key("n_heads", "heads", 16),
            Key("layer_norm_eps", "norm_epsilon", 1e-12),
            Key("dropout", "dropout", 0.1),
            Key("attention_dropout", "dropout_attention", 0.1),
            Key("embed_init_std", "init_std", 2048**-0.5),
        ),
        theirs=lambda given: {
            "n_langs": (given["n_langs"] or 1,),  # of a table that is not there: one
            "use_lang_emb": (given["n_langs"] > 1, True, False),
            "gelu_activation": (True,),
            "sinusoidal_embeddings": (False,),
            "causal": (False,),
            "asm": (False,),
            "is_encoder": (True,),
            "tie_word_embeddings": (True,),
        },
        ours=_ours,
        beside={
            "n_words": 30_145,  # of older files, where vocab_size is not
            "use_lang_emb": True,
            "id2lang": {},
            "lang2id": {},
        },
        outside=(
            "init_std",  # how matrices started
            "lang_id",  # a language for texts that name none, which nothing reads there
            "bos_index",  # ids, which its tokenizer says here
            "eos_index",
            "pad_index",
            "unk_index",
            "mask_index",
            "mask_token_id",
            "start_n_top",  # of a head for other tasks
            "end_n_top",
            *SUMMARY,
        ),
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    files={"xlm": "xlm"},
    special={
        "bos_token": "classifier",
        "eos_token": "end",
        "cls_token": "end",
        "sep_token": "end",
        "pad_token": "pad",
        "unk_token": "unknown",
        "mask_token": "mask",
    },
    template=(("end", "$A", "end"), ("end", "$A", "end", "$B", "end")),
    prefix=NETWORK,
    copies={"pred_layer.proj.weight": f"{NETWORK}embeddings.weight"},
    buffers=(r"(transformer\.)?position_ids",),
    settle=_settle,
    speak=_speak,
    check=_check,
    more=_more,
    call=_call,
)
