"""BERT: `BertForPreTraining`, or `BertForMaskedLM` without the pair head. Tables shared with its kin."""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, ConfigMap, Key
from pretrain.interop.family import MASK_ROLES, NORM_NAMES, Family
from pretrain.interop.weight_map import FLATTEN, IDENTITY, Row, layers, linear, norms, rows

HEAD = "cls.predictions."


def embeddings(prefix: str) -> list[Row]:
    """Rows of the embeddings in BERT, RoBERTa, ALBERT and ELECTRA; `prefix` is the class's name."""
    prefix = f"{prefix}.embeddings."
    return [
        *rows(
            IDENTITY,
            (f"{prefix}word_embeddings.weight", "tokens"),
            (f"{prefix}position_embeddings.weight", "positions"),
            (f"{prefix}token_type_embeddings.weight", "types"),
        ),
        *norms((f"{prefix}LayerNorm", "embedding_norm")),
    ]


def encoder_layers(prefix: str) -> list[Row]:
    """Rows of the layers in BERT, RoBERTa and ELECTRA."""
    return layers(
        f"{prefix}.encoder.layer.{{layer}}.",
        attention=(*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
        attention_norm="attention.output.LayerNorm",
        feed_forward=("intermediate.dense", "output.dense"),
        feed_forward_norm="output.LayerNorm",
    )


def encoder_keys(
    *more: Key,
    vocab_size=30_522,
    width: int = 768,
    heads: int = 12,
    ff: int = 3072,
    dropout: float = 0.1,
    activation: str = "gelu",
    words: Mapping[str, str] = ACTIVATIONS,
    offset: int = 0,
) -> tuple[Key, ...]:
    """Keys of BERT's kin, with the defaults of one class. `offset`: unused rows of the position table."""
    return (
        Key("vocab_size", "vocab_size", vocab_size),
        Key("max_position_embeddings", "context", 512, offset=offset),
        Key("type_vocab_size", "types", 2),
        *more,
        Key("hidden_size", "width", width),
        Key("num_hidden_layers", "layers", 12),
        Key("num_attention_heads", "heads", heads),
        Key("intermediate_size", "ff", ff),
        Key("hidden_act", "activation", activation, words),
        Key("hidden_dropout_prob", "dropout", dropout),
        Key("attention_probs_dropout_prob", "dropout_attention", dropout),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("initializer_range", "init_std", 0.02),
    )


def hf_fixed(given: Mapping) -> dict[str, tuple]:
    return {
        "type_vocab_size": (given["type_vocab_size"] or 1,),  # the class always has this table
        "position_embedding_type": ("absolute",),
        "tie_word_embeddings": (True,),
    }


NOT_XLM = {"languages": (0,), "head_transform": (True,), "zero_padding": (False,)}


def our_fixed(section: Mapping) -> dict[str, tuple]:
    """Values of our encoder's fields in BERT's class."""
    return {
        "attention": (("dense",) * len(section["attention"]),),
        "pair_head": (True, False),
        "position_offset": (0,),
        "types": (section["types"] or 2,),  # 0 would be no table
        "embed": (0, section["width"]),
        "project_always": (False,),
        "groups": (0, section["layers"]),
        **NOT_XLM,
    }


def token_head(dense: str, norm: str, bias: str) -> list[Row]:
    """Rows of the masked-token head: a linear layer, a norm and a bias per token."""
    return [*linear((dense, "transform")), *norms((norm, "transform_norm")), *rows(FLATTEN, (bias, "head_bias"))]


def _rows(section: Mapping) -> list[Row]:
    pairs = linear(("bert.pooler.dense", "pooler"), ("cls.seq_relationship", "pairs"))
    return [
        *embeddings("bert"),
        *encoder_layers("bert"),
        *token_head(f"{HEAD}transform.dense", f"{HEAD}transform.LayerNorm", f"{HEAD}bias"),
        *(pairs if section["pair_head"] else []),
    ]


def _settle(section: dict, names: frozenset) -> dict:
    """The masked-token class has neither pooler nor pair head."""
    ends = ("pooler.dense.weight", "seq_relationship.weight")
    return section | {"pair_head": any(name.endswith(ends) for name in names)}


def complete(config: ConfigDict, given: Mapping, codes: Sequence[str]) -> None:
    """Packs single texts if the model has no pair head or no types to tell two texts apart."""
    if not config.model.pair_head or config.model.types < 2:
        config.objective.update(next_sentence=False, swapped_pairs=False)
        config.data.update(layout="packed", sentences="")


BERT = Family(
    model_type="bert",
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "BertForPreTraining" if section["pair_head"] else "BertForMaskedLM",
    task="fill-mask",
    config_map=ConfigMap(encoder_keys(), hf_fixed, our_fixed),
    rows=_rows,
    tokenizers=("wordpiece", "huggingface"),
    special=MASK_ROLES,
    template=(("classifier", "$A", "separator"), ("classifier", "$A", "separator", "$B", "separator")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    prefix="bert.",
    renames=NORM_NAMES,
    tied={
        f"{HEAD}decoder.weight": "bert.embeddings.word_embeddings.weight",
        f"{HEAD}decoder.bias": f"{HEAD}bias",
    },
    buffers=(r"(bert\.)?embeddings\.(position_ids|token_type_ids)",),
    settle=_settle,
    complete=complete,
)
