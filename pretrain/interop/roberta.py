"""RoBERTa, CamemBERT and XLM-R, which are one network: `RobertaForMaskedLM`."""

from collections.abc import Mapping

from pretrain.interop.bert import embeddings, encoder_keys, encoder_layers, hf_fixed, our_fixed, token_head
from pretrain.interop.config_map import GELU, ConfigMap
from pretrain.interop.family import MASK_ROLES, NORM_NAMES, Family, roles
from pretrain.interop.weight_map import Row

# fairseq counts positions from the padding id: rows 0 and 1 of the position table are never read.
PAD = 1
OFFSET = PAD + 1
RECIPE = "configs/roberta.py"


def _rows(section: Mapping) -> list[Row]:
    head = token_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    return [*embeddings("roberta"), *encoder_layers("roberta"), *head]


ROBERTA = Family(
    model_type="roberta",
    kind="encoder",
    recipe=RECIPE,
    aliases={"camembert": f"{RECIPE}:camembert_base", "xlm-roberta": f"{RECIPE}:xlmr_base"},
    architecture=lambda section: "RobertaForMaskedLM",
    task="fill-mask",
    config_map=ConfigMap(
        keys=encoder_keys(
            vocab_size=lambda given: 50_265 if given["model_type"] == "roberta" else 30_522, offset=OFFSET, words=GELU
        ),
        hf_fixed=lambda given: hf_fixed(given) | {"pad_token_id": (PAD,)},
        our_fixed=lambda section: our_fixed(section) | {"pair_head": (False,), "position_offset": (OFFSET,)},
        extra={"model_type": "roberta"},
    ),
    rows=_rows,
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
    buffers=(r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",),
    unused=(r"(roberta\.)?pooler\.dense\.(weight|bias)",),  # written by the headless class
    pad_id=PAD,
    settle=lambda section, names: section | {"pair_head": False, "position_offset": OFFSET},
)
