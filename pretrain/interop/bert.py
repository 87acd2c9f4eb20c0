"""BERT, RoBERTa, DistilBERT and ALBERT, with tables that ELECTRA shares.

Classes: `BertForPreTraining`, `AlbertForPreTraining`, or `...ForMaskedLM` without the pair head; `RobertaForMaskedLM`,
also for CamemBERT and XLM-R, which are the same network; `DistilBertForMaskedLM`, without types and with other names.
"""

from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from pretrain.interop.config_map import ACTIVATIONS, GELU, Key
from pretrain.interop.family import MASK_ROLES, NORM_NAMES, Family, roles
from pretrain.interop.weight_map import under

EMBEDDINGS = {
    "tokens": "word_embeddings.weight",
    "positions": "position_embeddings.weight",
    "types": "token_type_embeddings.weight",
    "embedding_norm": "LayerNorm",
}
LAYER = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward/in": "intermediate.dense",
    "feed_forward/out": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def encoder_names(prefix: str) -> dict[str, str]:
    """Names of embeddings and layers in BERT, RoBERTa and ELECTRA; `prefix` is the class's name."""
    layers = under("layers/", f"{prefix}.encoder.layer.{{layer}}.", LAYER)
    return under("", f"{prefix}.embeddings.", EMBEDDINGS) | layers


def head_names(dense: str, norm: str, bias: str) -> dict[str, str]:
    """Names in the masked-token head: a linear layer, a norm and a bias per token."""
    return {"transform": dense, "transform_norm": norm, "head_bias": bias}


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
    """Config keys of BERT-like classes, with the defaults of one. `offset`: unused rows of the position table."""
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
    """Values of config.json keys that our encoder has no field for."""
    return {
        "type_vocab_size": (given["type_vocab_size"] or 1,),  # the class always has this table
        "position_embedding_type": ("absolute",),
        "tie_word_embeddings": (True,),
    }


def allowed(section: Mapping) -> dict[str, tuple]:
    """Values of our encoder's fields in BERT's class, besides the defaults."""
    return {"pair_head": (True, False), "types": (section["types"] or 2,)}  # 0 would be no table


def complete(config: ConfigDict, given: Mapping, codes: Sequence[str], untrained: Collection[str]) -> None:
    """Packs single texts if the model has no trained pair head or no types to tell two texts apart."""
    if not config.model.pair_head or "pairs" in untrained or config.model.types < 2:
        config.objective.update(next_sentence=False, swapped_pairs=False)
        config.data.update(layout="packed", sentences="")


def _settle(section: dict, names: frozenset) -> dict:
    """The masked-token class has neither pooler nor pair head."""
    ends = ("pooler.dense.weight", "seq_relationship.weight")
    return section | {"pair_head": any(name.endswith(ends) for name in names)}


BERT = Family(
    model_type="bert",
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "BertForPreTraining" if section["pair_head"] else "BertForMaskedLM",
    names=encoder_names("bert")
    | head_names("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
    | {"pooler": "bert.pooler.dense", "pairs": "cls.seq_relationship"},
    prefix="bert.",
    renames=NORM_NAMES,
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=(r"(bert\.)?embeddings\.(position_ids|token_type_ids)",),
    keys=encoder_keys(),
    hf_fixed=hf_fixed,
    allowed=allowed,
    settle=_settle,
    complete=complete,
    tokenizers=("wordpiece", "huggingface"),
    special=MASK_ROLES,
    template=(("classifier", "$A", "separator"), ("classifier", "$A", "separator", "$B", "separator")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    task="fill-mask",
)

# fairseq counts positions from the padding id: rows 0 and 1 of the position table are never read.
ROBERTA_PAD = 1
OFFSET = ROBERTA_PAD + 1
ROBERTA_RECIPE = "configs/roberta.py"
ROBERTA = Family(
    model_type="roberta",
    kind="encoder",
    recipe=ROBERTA_RECIPE,
    architecture=lambda section: "RobertaForMaskedLM",
    names=encoder_names("roberta") | head_names("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    prefix="roberta.",
    renames=NORM_NAMES,
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    # The headless class writes a pooler.
    ignored=(
        r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",
        r"(roberta\.)?pooler\.dense\.(weight|bias)",
    ),
    keys=encoder_keys(
        vocab_size=lambda given: 50_265 if given["model_type"] == "roberta" else 30_522, offset=OFFSET, words=GELU
    ),
    hf_fixed=lambda given: hf_fixed(given) | {"pad_token_id": (ROBERTA_PAD,)},
    fixed=lambda section: {"pair_head": False, "position_offset": OFFSET},
    allowed=allowed,
    extra={"model_type": "roberta"},
    summary=("dropout", "dense", "tanh", "dropout"),
    aliases={"camembert": f"{ROBERTA_RECIPE}:camembert_base", "xlm-roberta": f"{ROBERTA_RECIPE}:xlmr_base"},
    legacy_tokenizers={"camembert": "camembert", "xlm-roberta": "xlm_roberta"},
    special=roles(bos="classifier", eos="end") | MASK_ROLES,
    template=(
        ("classifier", "$A", "separator"),
        ("classifier", "$A", "separator", "separator", "$B", "separator"),
    ),
    pad_id=ROBERTA_PAD,
    task="fill-mask",
)

DISTILBERT_LAYER = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward/in": "ffn.lin1",
    "feed_forward/out": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
DISTILBERT = Family(
    model_type="distilbert",
    kind="encoder",
    recipe="configs/distilbert.py",
    architecture=lambda section: "DistilBertForMaskedLM",
    names=under("", "distilbert.embeddings.", EMBEDDINGS)
    | under("layers/", "distilbert.transformer.layer.{layer}.", DISTILBERT_LAYER)
    | head_names("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    prefix="distilbert.",
    renames=NORM_NAMES,
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
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
    fixed=lambda section: {"types": 0, "pair_head": False, "norm_epsilon": 1e-12},
    summary=("dense", "relu", "dropout"),
    legacy={"tie_weights_": (True,)},
    complete=lambda config, given, codes, untrained: config.distill.update(
        teacher="", layers=()
    ),  # the recipe's is BERT
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    task="fill-mask",
)

ALBERT_LAYER = {
    "attention/query": "attention.query",
    "attention/key": "attention.key",
    "attention/value": "attention.value",
    "attention/output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward/in": "ffn",
    "feed_forward/out": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}


def _albert_allowed(section: Mapping) -> dict[str, tuple]:
    # The class always projects embeddings and counts groups, where ours has 0 for "as wide" and "one per layer".
    sizes = {"embed": (section["embed"] or section["width"],), "groups": (section["groups"] or section["layers"],)}
    return allowed(section) | sizes


def _albert_settle(section: dict, names: frozenset) -> dict:
    """The masked-token class has no pair head; it may have a pooler that nothing read."""
    ends = "sop_classifier.classifier.weight", "pooler.weight"
    masked = any(name.endswith("predictions.dense.weight") for name in names)
    return section | {"pair_head": any(name.endswith(ends[: 2 - masked]) for name in names)}


ALBERT = Family(
    model_type="albert",
    kind="encoder",
    recipe="configs/albert.py",
    architecture=lambda section: "AlbertForPreTraining" if section["pair_head"] else "AlbertForMaskedLM",
    # {layer} counts groups: the layers of a group share these parameters.
    names=under("", "albert.embeddings.", EMBEDDINGS)
    | {"projection": "albert.encoder.embedding_hidden_mapping_in"}
    | under("layers/", "albert.encoder.albert_layer_groups.{layer}.albert_layers.0.", ALBERT_LAYER)
    | head_names("predictions.dense", "predictions.LayerNorm", "predictions.bias")
    | {"pooler": "albert.pooler", "pairs": "sop_classifier.classifier"},
    prefix="albert.",
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored=(r"(albert\.)?embeddings\.(position_ids|token_type_ids)", r"(albert\.)?pooler\.(weight|bias)"),
    keys=encoder_keys(
        Key("embedding_size", "embed", 128),
        Key("num_hidden_groups", "groups", 1),
        vocab_size=30_000,
        width=4096,
        heads=64,
        ff=16_384,
        dropout=0.0,
        activation="gelu_new",
    ),
    hf_fixed=lambda given: hf_fixed(given) | {"inner_group_num": (1,)},
    fixed=lambda section: {"project_always": True},
    allowed=_albert_allowed,
    legacy={
        "net_structure_type": (0,),
        "gap_size": (0,),
        "num_memory_blocks": (0,),
        "down_scale_factor": (1,),
        "layers_to_keep": ([],),
    },
    settle=_albert_settle,
    complete=complete,
    special=roles(bos="classifier", eos="separator") | MASK_ROLES,
    template=BERT.template,
    inputs=BERT.inputs,
    task="fill-mask",
)
