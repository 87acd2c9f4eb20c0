"""RoBERTa, CamemBERT and XLM-R, which are one network: `RobertaForMaskedLM`."""

from collections.abc import Mapping

from pretrain.interop.bert import KEYS, embeddings, layers, plain
from pretrain.interop.config_map import GELU, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, Row, linear, norms, rows

PAD = 1  # the id of padding; positions begin behind it, and the rows up to it are those that no text uses
OFFSET = PAD + 1
RECIPE = "configs/roberta.py"


def _rows(section: Mapping) -> list[Row]:
    return [
        *embeddings("roberta"),
        *layers("roberta"),
        *linear(OUTPUTS_FIRST, ("lm_head.dense", "transform")),
        *norms(("lm_head.layer_norm", "transform_norm")),
        *rows(FLAT, ("lm_head.bias", "head_bias")),
    ]


def _entries(given: Mapping) -> int:
    return 50_265 if given["model_type"] == "roberta" else 30_522


ROBERTA = Family(
    model_type="roberta",
    kind="encoder",
    recipe=RECIPE,
    also={"camembert": f"{RECIPE}:camembert_base", "xlm-roberta": f"{RECIPE}:xlmr_base"},
    architecture=lambda section: "RobertaForMaskedLM",
    task="fill-mask",
    keys=Keys(
        both=(
            Key("vocab_size", "vocab_size", _entries),
            Key("max_position_embeddings", "context", 512, more=OFFSET),
            Key("type_vocab_size", "types", 2),
            Key("hidden_act", "activation", "gelu", GELU),
            Key("hidden_dropout_prob", "dropout", 0.1),
            Key("attention_probs_dropout_prob", "dropout_attention", 0.1),
            *KEYS,
        ),
        theirs=lambda given: {
            "type_vocab_size": (given["type_vocab_size"] or 1,),  # there is always such a table
            "pad_token_id": (PAD,),
            "position_embedding_type": ("absolute",),
            "tie_word_embeddings": (True,),
        },
        ours=lambda section: plain(section) | {"pair_head": (False,), "position_offset": (OFFSET,)},
        beside={"model_type": "roberta"},
        outside=("output_past",),  # of older files of XLM-R: what is returned
    ),
    rows=_rows,
    tokenizers=("huggingface",),
    files={"camembert": "camembert", "xlm-roberta": "xlm_roberta"},
    special={
        "bos_token": "classifier",
        "eos_token": "end",
        "pad_token": "pad",
        "unk_token": "unknown",
        "cls_token": "classifier",
        "sep_token": "separator",
        "mask_token": "mask",
    },
    template=(
        ("classifier", "$A", "separator"),
        ("classifier", "$A", "separator", "separator", "$B", "separator"),
    ),
    prefix="roberta.",
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    buffers=(r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",),
    unused=(r"(roberta\.)?pooler\.dense\.(weight|bias)",),  # of files that the class without a head wrote
    pad=PAD,
    settle=lambda section, names: section | {"pair_head": False, "position_offset": OFFSET},
)
