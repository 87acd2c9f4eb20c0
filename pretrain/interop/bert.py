"""BERT, RoBERTa and DistilBERT, with tables that ALBERT and ELECTRA share.

Classes: `BertForPreTraining`, or `BertForMaskedLM` without the pair head; `RobertaForMaskedLM`, also for CamemBERT and
XLM-R, which are the same network; `DistilBertForMaskedLM`, without types and with other names.
"""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, GELU, ConfigMap, Key
from pretrain.interop.family import MASK_ROLES, NORM_NAMES, Family, roles
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


# Values of config.json keys that our encoder has no field for.
def hf_fixed(given: Mapping) -> dict[str, tuple]:
    return {
        "type_vocab_size": (given["type_vocab_size"] or 1,),  # the class always has this table
        "position_embedding_type": ("absolute",),
        "tie_word_embeddings": (True,),
    }


def our_fixed(section: Mapping) -> dict[str, tuple]:
    """Values of our encoder's fields in BERT's class, besides the defaults."""
    return {
        "pair_head": (True, False),
        "types": (section["types"] or 2,),  # 0 would be no table
        "embed": (0, section["width"]),
        "groups": (0, section["layers"]),
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
    ignored=(r"(bert\.)?embeddings\.(position_ids|token_type_ids)",),
    settle=_settle,
    complete=complete,
)

# fairseq counts positions from the padding id: rows 0 and 1 of the position table are never read.
ROBERTA_PAD = 1
OFFSET = ROBERTA_PAD + 1
ROBERTA_RECIPE = "configs/roberta.py"


def _roberta_rows(section: Mapping) -> list[Row]:
    head = token_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    return [*embeddings("roberta"), *encoder_layers("roberta"), *head]


ROBERTA = Family(
    model_type="roberta",
    kind="encoder",
    recipe=ROBERTA_RECIPE,
    aliases={"camembert": f"{ROBERTA_RECIPE}:camembert_base", "xlm-roberta": f"{ROBERTA_RECIPE}:xlmr_base"},
    architecture=lambda section: "RobertaForMaskedLM",
    task="fill-mask",
    config_map=ConfigMap(
        keys=encoder_keys(
            vocab_size=lambda given: 50_265 if given["model_type"] == "roberta" else 30_522, offset=OFFSET, words=GELU
        ),
        hf_fixed=lambda given: hf_fixed(given) | {"pad_token_id": (ROBERTA_PAD,)},
        our_fixed=lambda section: our_fixed(section) | {"pair_head": (False,), "position_offset": (OFFSET,)},
        extra={"model_type": "roberta"},
    ),
    rows=_roberta_rows,
    tokenizers=("huggingface",),
    legacy_tokenizers={"camembert": "camembert", "xlm-roberta": "xlm_roberta"},
    special=roles(bos="classifier", eos="end") | MASK_ROLES,
    template=(
        ("classifier", "$A", "separator"),
        ("classifier", "$A", "separator", "separator", "$B", "separator"),
    ),
    prefix="roberta.",
    renames=NORM_NAMES,
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored=(
        r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",
        r"(roberta\.)?pooler\.dense\.(weight|bias)",
    ),  # written by the headless class
    pad_id=ROBERTA_PAD,
    settle=lambda section, names: section | {"pair_head": False, "position_offset": OFFSET},
)

DISTILBERT_EMBEDDINGS = "distilbert.embeddings."
DISTILBERT_FIXED = {
    "types": 0,
    "pair_head": False,
    "norm_epsilon": 1e-12,
}  # the class's own; config.json has no such keys


def _distilbert_rows(section: Mapping) -> list[Row]:
    return [
        *rows(
            IDENTITY,
            (f"{DISTILBERT_EMBEDDINGS}word_embeddings.weight", "tokens"),
            (f"{DISTILBERT_EMBEDDINGS}position_embeddings.weight", "positions"),
        ),
        *norms((f"{DISTILBERT_EMBEDDINGS}LayerNorm", "embedding_norm")),
        *layers(
            "distilbert.transformer.layer.{layer}.",
            attention=("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
            attention_norm="sa_layer_norm",
            feed_forward=("ffn.lin1", "ffn.lin2"),
            feed_forward_norm="output_layer_norm",
        ),
        *token_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    ]


DISTILBERT = Family(
    model_type="distilbert",
    kind="encoder",
    recipe="configs/distilbert.py",
    architecture=lambda section: "DistilBertForMaskedLM",
    task="fill-mask",
    config_map=ConfigMap(
        keys=(
            Key("vocab_size", "vocab_size", 30_522),
            Key("max_position_embeddings", "context", 512),
            Key("dim", "width", 768),
            Key("n_layers", "layers", 6),
            Key("n_heads", "heads", 12),
            Key("hidden_dim", "ff", 3072),
            Key("activation", "activation", "gelu", ACTIVATIONS),
            Key("dropout", "dropout", 0.1),
            Key("attention_dropout", "dropout_attention", 0.1),
            Key("initializer_range", "init_std", 0.02),
        ),
        hf_fixed=lambda given: {"sinusoidal_pos_embds": (False,), "tie_word_embeddings": (True,)},
        our_fixed=lambda section: our_fixed(section) | {name: (value,) for name, value in DISTILBERT_FIXED.items()},
        legacy={"tie_weights_": (True,)},
    ),
    rows=_distilbert_rows,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    prefix="distilbert.",
    renames=NORM_NAMES,
    tied={"vocab_projector.weight": f"{DISTILBERT_EMBEDDINGS}word_embeddings.weight"},
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
    settle=lambda section, names: section | DISTILBERT_FIXED,
    complete=lambda config, given, codes: config.distill.update(teacher="", layers=()),  # the recipe's is BERT
)
