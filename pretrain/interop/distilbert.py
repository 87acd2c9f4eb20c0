"""DistilBERT: `DistilBertForMaskedLM`, BERT's encoder without types and with other names."""

from collections.abc import Mapping

from pretrain.interop.bert import BERT, our_fixed, token_head
from pretrain.interop.config_map import ACTIVATIONS, ConfigMap, Key
from pretrain.interop.family import NORM_NAMES, Family
from pretrain.interop.weight_map import IDENTITY, Row, layers, norms, rows

EMBEDDINGS = "distilbert.embeddings."
FIXED = {"types": 0, "pair_head": False, "norm_epsilon": 1e-12}  # the class's own; config.json has no such keys


def _rows(section: Mapping) -> list[Row]:
    return [
        *rows(
            IDENTITY,
            (f"{EMBEDDINGS}word_embeddings.weight", "tokens"),
            (f"{EMBEDDINGS}position_embeddings.weight", "positions"),
        ),
        *norms((f"{EMBEDDINGS}LayerNorm", "embedding_norm")),
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
        our_fixed=lambda section: our_fixed(section) | {name: (value,) for name, value in FIXED.items()},
        legacy={"tie_weights_": (True,)},
    ),
    rows=_rows,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    prefix="distilbert.",
    renames=NORM_NAMES,
    tied={"vocab_projector.weight": f"{EMBEDDINGS}word_embeddings.weight"},
    buffers=(r"(distilbert\.)?embeddings\.position_ids",),
    settle=lambda section, names: section | FIXED,
    complete=lambda config, given, codes: config.distill.update(teacher="", layers=()),  # the recipe's is BERT
)
