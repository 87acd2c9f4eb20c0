"""ALBERT: `AlbertForPreTraining`, or `AlbertForMaskedLM` without the pair head."""

from collections.abc import Mapping

from pretrain.interop.bert import BERT, embeddings, encoder_keys, hf_fixed, our_fixed, token_head
from pretrain.interop.config_map import ConfigMap, Key
from pretrain.interop.family import MASK_ROLES, Family, roles
from pretrain.interop.weight_map import Row, layers, linear


def _rows(section: Mapping) -> list[Row]:
    pairs = linear(("albert.pooler", "pooler"), ("sop_classifier.classifier", "pairs"))
    return [
        *embeddings("albert"),
        *linear(("albert.encoder.embedding_hidden_mapping_in", "projection")),
        # {layer} counts groups: the layers of a group share these parameters.
        *layers(
            "albert.encoder.albert_layer_groups.{layer}.albert_layers.0.",
            attention=("attention.query", "attention.key", "attention.value", "attention.dense"),
            attention_norm="attention.LayerNorm",
            feed_forward=("ffn", "ffn_output"),
            feed_forward_norm="full_layer_layer_norm",
        ),
        *token_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        *(pairs if section["pair_head"] else []),
    ]


def _our_fixed(section: Mapping) -> dict[str, tuple]:
    # The class always projects embeddings and counts groups, where ours has 0 for "as wide" and "one per layer".
    sizes = {"embed": (section["embed"] or section["width"],), "groups": (section["groups"] or section["layers"],)}
    return our_fixed(section) | sizes | {"project_always": (True,)}


def _settle(section: dict, names: frozenset) -> dict:
    """The masked-token class has no pair head; it may have a pooler that nothing read."""
    return section | {"pair_head": "sop_classifier.classifier.weight" in names, "project_always": True}


ALBERT = Family(
    model_type="albert",
    kind="encoder",
    recipe="configs/albert.py",
    architecture=lambda section: "AlbertForPreTraining" if section["pair_head"] else "AlbertForMaskedLM",
    task="fill-mask",
    config_map=ConfigMap(
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
        our_fixed=_our_fixed,
        legacy={
            "net_structure_type": (0,),
            "gap_size": (0,),
            "num_memory_blocks": (0,),
            "down_scale_factor": (1,),
            "layers_to_keep": ([],),
        },
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    special=roles(bos="classifier", eos="separator") | MASK_ROLES,
    template=BERT.template,
    inputs=BERT.inputs,
    prefix="albert.",
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored=(r"(albert\.)?embeddings\.(position_ids|token_type_ids)", r"(albert\.)?pooler\.(weight|bias)"),
    settle=_settle,
    complete=BERT.complete,
)
