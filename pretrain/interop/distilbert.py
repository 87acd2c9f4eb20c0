"""DistilBERT: `DistilBertForMaskedLM`, BERT's encoder without types of texts under names of its own."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from pretrain.interop.bert import BERT, plain
from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, SAME, Row, linear, norms, rows

EMBEDDINGS, LAYER = "distilbert.embeddings.", "distilbert.transformer.layer.{layer}."
EPSILON = 1e-12  # of all norms, which config.json does not say


def _complete(config: ConfigDict) -> None:
    """There is no teacher."""
    config.distill.update(teacher="", layers=())


def _rows(section: Mapping) -> list[Row]:
    return [
        *rows(
            SAME,
            (f"{EMBEDDINGS}word_embeddings.weight", "tokens"),
            (f"{EMBEDDINGS}position_embeddings.weight", "positions"),
        ),
        *norms((f"{EMBEDDINGS}LayerNorm", "embedding_norm")),
        *linear(
            OUTPUTS_FIRST,
            (f"{LAYER}attention.q_lin", "layers/attention/query"),
            (f"{LAYER}attention.k_lin", "layers/attention/key"),
            (f"{LAYER}attention.v_lin", "layers/attention/value"),
            (f"{LAYER}attention.out_lin", "layers/attention/output"),
            (f"{LAYER}ffn.lin1", "layers/feed_forward/in"),
            (f"{LAYER}ffn.lin2", "layers/feed_forward/out"),
        ),
        *norms(
            (f"{LAYER}sa_layer_norm", "layers/attention_norm"),
            (f"{LAYER}output_layer_norm", "layers/feed_forward_norm"),
        ),
        *linear(OUTPUTS_FIRST, ("vocab_transform", "transform")),
        *norms(("vocab_layer_norm", "transform_norm")),
        *rows(FLAT, ("vocab_projector.bias", "head_bias")),
    ]


DISTILBERT = Family(
    model_type="distilbert",
    kind="encoder",
    recipe="configs/distilbert.py",
    architecture=lambda section: "DistilBertForMaskedLM",
    task="fill-mask",
    keys=Keys(
        both=(
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
        theirs=lambda config: {"sinusoidal_pos_embds": (False,), "tie_word_embeddings": (True,)},
        ours=lambda section: plain(section) | {"types": (0,), "pair_head": (False,), "norm_epsilon": (EPSILON,)},
        older={"tie_weights_": (True,)},
        outside=("qa_dropout", "seq_classif_dropout", "output_past"),  # of heads for other tasks, and what is returned
    ),
    rows=_rows,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    prefix="distilbert.",
    renamed=BERT.renamed,
    copies={"vocab_projector.weight": f"{EMBEDDINGS}word_embeddings.weight"},
    buffers=(r"(distilbert\.)?embeddings\.position_ids",),
    settle=lambda section, names: section | {"types": 0, "pair_head": False, "norm_epsilon": EPSILON},
    complete=_complete,
)
