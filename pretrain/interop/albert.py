"""ALBERT: `AlbertForPreTraining`, and without the head of pairs `AlbertForMaskedLM`."""

from collections.abc import Mapping

from pretrain.interop.bert import BERT, embeddings, plain
from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, Row, linear, norms, rows

LAYER = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0."  # of a group, whose layers share it


def _rows(section: Mapping) -> list[Row]:
    pairs = linear(OUTPUTS_FIRST, ("albert.pooler", "pooler"), ("sop_classifier.classifier", "pairs"))
    return [
        *embeddings("albert"),
        *linear(OUTPUTS_FIRST, ("albert.encoder.embedding_hidden_mapping_in", "projection")),
        *linear(
            OUTPUTS_FIRST,
            (f"{LAYER}attention.query", "layers/attention/query"),
            (f"{LAYER}attention.key", "layers/attention/key"),
            (f"{LAYER}attention.value", "layers/attention/value"),
            (f"{LAYER}attention.dense", "layers/attention/output"),
            (f"{LAYER}ffn", "layers/feed_forward/in"),
            (f"{LAYER}ffn_output", "layers/feed_forward/out"),
        ),
        *norms(
            (f"{LAYER}attention.LayerNorm", "layers/attention_norm"),
            (f"{LAYER}full_layer_layer_norm", "layers/feed_forward_norm"),
        ),
        *linear(OUTPUTS_FIRST, ("predictions.dense", "transform")),
        *norms(("predictions.LayerNorm", "transform_norm")),
        *rows(FLAT, ("predictions.bias", "head_bias")),
        *(pairs if section["pair_head"] else []),
    ]


def _settle(section: dict, names: frozenset) -> dict:
    """Files of the class for masked tokens alone have no head of pairs, and may have a pooler that nothing read."""
    return section | {"pair_head": "sop_classifier.classifier.weight" in names, "project_always": True}


ALBERT = Family(
    model_type="albert",
    kind="encoder",
    recipe="configs/albert.py",
    architecture=lambda section: "AlbertForPreTraining" if section["pair_head"] else "AlbertForMaskedLM",
    task="fill-mask",
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", 30_000),
            Key("max_position_embeddings", "context", 512),
            Key("type_vocab_size", "types", 2),
            Key("embedding_size", "embed", 128),
            Key("num_hidden_groups", "groups", 1),
            Key("hidden_act", "activation", "gelu_new", ACTIVATIONS),
            Key("hidden_dropout_prob", "dropout", 0.0),
            Key("attention_probs_dropout_prob", "dropout_attention", 0.0),
            Key("hidden_size", "width", 4096),
            Key("num_hidden_layers", "layers", 12),
            Key("num_attention_heads", "heads", 64),
            Key("intermediate_size", "ff", 16_384),
            Key("layer_norm_eps", "norm_epsilon", 1e-12),
            Key("initializer_range", "init_std", 0.02),
        ),
        theirs=lambda given: {
            "type_vocab_size": (given["type_vocab_size"] or 1,),  # there is always such a table
            "inner_group_num": (1,),
            "position_embedding_type": ("absolute",),
            "tie_word_embeddings": (True,),
        },
        ours=lambda section: (
            plain(section)
            | {
                "embed": (section["embed"] or section["width"],),
                "groups": (section["groups"] or section["layers"],),
                "project_always": (True,),
            }
        ),
        older={
            "net_structure_type": (0,),
            "gap_size": (0,),
            "num_memory_blocks": (0,),
            "down_scale_factor": (1,),
            "layers_to_keep": ([],),
        },
        outside=("classifier_dropout_prob",),  # of a head for other tasks
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    special={
        "bos_token": "classifier",
        "eos_token": "separator",
        "pad_token": "pad",
        "unk_token": "unknown",
        "cls_token": "classifier",
        "sep_token": "separator",
        "mask_token": "mask",
    },
    template=(("classifier", "$A", "separator"), ("classifier", "$A", "separator", "$B", "separator")),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    prefix="albert.",
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    buffers=(r"(albert\.)?embeddings\.(position_ids|token_type_ids)",),
    unused=(r"(albert\.)?pooler\.(weight|bias)",),
    settle=_settle,
    complete=BERT.complete,
)
