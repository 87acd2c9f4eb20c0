"""BERT: `BertForPreTraining`, and without the head of pairs `BertForMaskedLM`."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, SAME, Row, linear, norms, rows

HEAD = "cls.predictions."


def embeddings(prefix: str) -> list[Row]:
    """The rows of embeddings as the classes that come from BERT's name them, `prefix` being their own name."""
    prefix = f"{prefix}.embeddings."
    return [
        *rows(
            SAME,
            (f"{prefix}word_embeddings.weight", "tokens"),
            (f"{prefix}position_embeddings.weight", "positions"),
            (f"{prefix}token_type_embeddings.weight", "types"),
        ),
        *norms((f"{prefix}LayerNorm", "embedding_norm")),
    ]


def layers(prefix: str) -> list[Row]:
    """The rows of their layers."""
    prefix += ".encoder.layer.{layer}."
    return [
        *linear(
            OUTPUTS_FIRST,
            (f"{prefix}attention.self.query", "layers/attention/query"),
            (f"{prefix}attention.self.key", "layers/attention/key"),
            (f"{prefix}attention.self.value", "layers/attention/value"),
            (f"{prefix}attention.output.dense", "layers/attention/output"),
            (f"{prefix}intermediate.dense", "layers/feed_forward/in"),
            (f"{prefix}output.dense", "layers/feed_forward/out"),
        ),
        *norms(
            (f"{prefix}attention.output.LayerNorm", "layers/attention_norm"),
            (f"{prefix}output.LayerNorm", "layers/feed_forward_norm"),
        ),
    ]


# Keys that BERT and RoBERTa have, but for those of their tables' sizes.
KEYS = (
    Key("hidden_size", "width", 768),
    Key("num_hidden_layers", "layers", 12),
    Key("num_attention_heads", "heads", 12),
    Key("intermediate_size", "ff", 3072),
    Key("layer_norm_eps", "norm_epsilon", 1e-12),
    Key("initializer_range", "init_std", 0.02),
)


# What XLM alone has.
NOT_XLM = {"languages": (0,), "head_transform": (True,), "zero_padding": (False,)}


def plain(section: Mapping) -> dict[str, tuple]:
    """What a section of ours has to say for a model to be one that BERT's class has."""
    return {
        "attention": (("dense",) * len(section["attention"]),),
        "pair_head": (True, False),
        "position_offset": (0,),
        "types": (section["types"] or 2,),  # 0 is no table, which the class always has
        "embed": (0, section["width"]),
        "project_always": (False,),
        "groups": (0, section["layers"]),
        **NOT_XLM,
    }


def _rows(section: Mapping) -> list[Row]:
    pairs = linear(OUTPUTS_FIRST, ("bert.pooler.dense", "pooler"), ("cls.seq_relationship", "pairs"))
    return [
        *embeddings("bert"),
        *layers("bert"),
        *linear(OUTPUTS_FIRST, (f"{HEAD}transform.dense", "transform")),
        *norms((f"{HEAD}transform.LayerNorm", "transform_norm")),
        *rows(FLAT, (f"{HEAD}bias", "head_bias")),
        *(pairs if section["pair_head"] else []),
    ]


def _settle(section: dict, names: frozenset) -> dict:
    """Files of the class for masked tokens alone have no pooler and no head of pairs."""
    ends = ("pooler.dense.weight", "seq_relationship.weight")
    return section | {"pair_head": any(name.endswith(ends) for name in names)}


def _complete(config: ConfigDict) -> None:
    """Without a head of pairs, or types to tell two texts apart by, rows are of one text each."""
    if not config.model.pair_head or config.model.types < 2:
        config.objective.update(next_sentence=False, swapped_pairs=False)
        config.data.update(layout="packed", sentences="")


BERT = Family(
    model_type="bert",
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "BertForPreTraining" if section["pair_head"] else "BertForMaskedLM",
    task="fill-mask",
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", 30_522),
            Key("max_position_embeddings", "context", 512),
            Key("type_vocab_size", "types", 2),
            Key("hidden_act", "activation", "gelu", ACTIVATIONS),
            Key("hidden_dropout_prob", "dropout", 0.1),
            Key("attention_probs_dropout_prob", "dropout_attention", 0.1),
            *KEYS,
        ),
        theirs=lambda given: {
            "type_vocab_size": (given["type_vocab_size"] or 1,),  # there is always such a table
            "position_embedding_type": ("absolute",),
            "tie_word_embeddings": (True,),
        },
        ours=plain,
    ),
    rows=_rows,
    tokenizers=("wordpiece", "huggingface"),
    special={
        "pad_token": "pad",
        "unk_token": "unknown",
        "cls_token": "classifier",
        "sep_token": "separator",
        "mask_token": "mask",
    },
    template=(("classifier", "$A", "separator"), ("classifier", "$A", "separator", "$B", "separator")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    prefix="bert.",
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    copies={
        f"{HEAD}decoder.weight": "bert.embeddings.word_embeddings.weight",
        f"{HEAD}decoder.bias": f"{HEAD}bias",
    },
    buffers=(r"(bert\.)?embeddings\.(position_ids|token_type_ids)",),
    settle=_settle,
    complete=_complete,
)
