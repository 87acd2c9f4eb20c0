"""BART and mBART, whose norms stand elsewhere: `BartForConditionalGeneration`, `MBartForConditionalGeneration`."""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from input_pipeline.tokenizers.exported import LANGUAGE
from pretrain.errors import UserError
from pretrain.interop.config_map import ACTIVATIONS, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import OUTPUTS_FIRST, SAME, Row, linear, norms, rows

OFFSET = 2  # first rows of the tables of positions, which no text uses
PARTS = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output"))
STACKS = {
    "encoder": {"self_attn": "attention"},
    "decoder": {"self_attn": "attention", "encoder_attn": "cross_attention"},
}


def _rows(section: Mapping) -> list[Row]:
    table = rows(SAME, ("model.shared.weight", "tokens"))
    for stack, branches in STACKS.items():
        layer, own = f"model.{stack}.layers.{{layer}}.", f"{stack}/layers"
        for there, name in branches.items():
            parts = [(f"{layer}{there}.{one}", f"{own}/{name}/{part}") for one, part in PARTS]
            table += linear(OUTPUTS_FIRST, *parts)
            table += norms((f"{layer}{there}_layer_norm", f"{own}/{name}_norm"))
        wide = [(f"{layer}{there}", f"{own}/feed_forward/{name}") for there, name in (("fc1", "in"), ("fc2", "out"))]
        table += linear(OUTPUTS_FIRST, *wide)
        table += norms((f"{layer}final_layer_norm", f"{own}/feed_forward_norm"))
        table += rows(SAME, (f"model.{stack}.embed_positions.weight", f"{stack}_positions"))
        table += norms((f"model.{stack}.layernorm_embedding", f"{stack}_embedding_norm"))
        if section["final_norm"]:
            table += norms((f"model.{stack}.layer_norm", f"{stack}_norm"))
    return table


def _theirs(given: Mapping) -> dict[str, tuple]:
    return {
        "is_encoder_decoder": (True,),
        "decoder_attention_heads": (given["encoder_attention_heads"],),
        "decoder_ffn_dim": (given["encoder_ffn_dim"],),
        "num_hidden_layers": (given["encoder_layers"], None),  # the same by another name, of which the last one counts
        "encoder_layerdrop": (0.0,),
        "decoder_layerdrop": (0.0,),
        "tie_word_embeddings": (True,),
    }


KEYS = (
    Key("vocab_size", "vocab_size", 50_265),
    Key("max_position_embeddings", "context", 1024),
    Key("d_model", "width", 1024),
    Key("encoder_layers", "layers", 12),
    Key("decoder_layers", "decoder_layers", 12, like="layers"),
    Key("encoder_attention_heads", "heads", 16),
    Key("encoder_ffn_dim", "ff", 4096),
    Key("activation_function", "activation", "gelu", ACTIVATIONS),
    Key("scale_embedding", "scale_embedding", False),
    Key("dropout", "dropout", 0.1),
    Key("attention_dropout", "dropout_attention", 0.0),
    Key("activation_dropout", "dropout_ff", 0.0),
    Key("init_std", "init_scale", 0.02),
)
# Which are 16 and 4096 where they are absent, whatever the encoder has.
BESIDE = {"decoder_attention_heads": 16, "decoder_ffn_dim": 4096}
# What the first files say of the network, by which one class was BART, mBART and others, and no class reads any more.
OLDER = {
    "add_bias_logits": (False,),
    "normalize_embedding": (True,),
    "static_position_embeddings": (False,),
    "extra_pos_embeddings": (OFFSET,),
    "do_blenderbot_90_layernorm": (False,),
}
START = "decoder_start_token_id"
OUTSIDE = (
    START,  # what a text that is written begins with, which the tokenizer's special ids say here
    "force_bos_token_to_be_generated",  # of texts that are written
    "classif_dropout",  # of a head for other tasks
    "output_past",  # what is returned
    "save_step",  # of a training
)


def _ours(placement: str, final_norm: bool):
    """Of a section of ours the values that its class has."""

    def ours(section: Mapping) -> dict[str, tuple]:
        return {
            "norm": ("layer",),
            "norm_epsilon": (1e-5,),
            "placement": (placement,),
            "final_norm": (final_norm,),
            "embedding_norm": (True,),
            "positions": ("learned",),
            "position_offset": (OFFSET,),
            "head_size": (section["width"] // section["heads"],),
            "attention": (("dense",) * len(section["attention"]),),
            "tied_head": (True,),
            "dropout_hidden": (0.0,),
            **dict.fromkeys(("attention_bias", "ff_bias", "scale_scores"), (True,)),
            **dict.fromkeys(("head_bias", "scale_head"), (False,)),
            "buckets": (section["buckets"],),  # of a table that there is not
            "max_distance": (section["max_distance"],),
        }

    return ours


def _settle(section: dict, names: frozenset) -> dict:
    return section | {"head_size": section["width"] // section["heads"]}


def _speak(config: ConfigDict, given: Mapping, source: str, codes: Sequence[str]) -> None:
    """Texts are of the languages that the tokenizer has codes of."""
    texts = [f"text:data/cc25/{code.split('_')[0]}.txt?document=line&language={code}" for code in codes]
    config.objective.languages = config.data.languages = tuple(codes)
    config.data.train = " + ".join(texts) or "text:data/cc25/*.txt?document=line"


def _check(given: Mapping, source: str, special: Mapping[str, int]) -> None:
    """Raises UserError where the class puts another id before the labels than the end that models here begin with."""
    begins = given.get(START, 2)
    if begins is not None and begins != special.get("end"):
        absent = "" if START in given else " where it is not there"
        raise UserError(
            f"{source}: {START} = {begins!r:.60}{absent}, with which the class's decoder begins what it learns and "
            f"writes, is more than models here can do, whose begins with the tokenizer's end, {special.get('end')}; "
            "only a model with that can be imported"
        )


def _family(model_type: str, class_name: str, recipe: str, **more) -> Family:
    placement, final_norm = {"bart": ("post", False), "mbart": ("pre", True)}[model_type]
    older = OLDER | {"normalize_before": (placement == "pre",), "add_final_layer_norm": (final_norm,)}
    return Family(
        model_type=model_type,
        kind="encoder_decoder",
        recipe=recipe,
        architecture=lambda section: class_name,
        keys=Keys(KEYS, _theirs, _ours(placement, final_norm), beside=BESIDE, older=older, outside=OUTSIDE),
        rows=_rows,
        special={
            "bos_token": "classifier",
            "eos_token": "end",
            "pad_token": "pad",
            "unk_token": "unknown",
            "cls_token": "classifier",
            "sep_token": "separator",
            "mask_token": "mask",
        },
        prefix="model.",
        copies={
            "model.encoder.embed_tokens.weight": "model.shared.weight",
            "model.decoder.embed_tokens.weight": "model.shared.weight",
            "lm_head.weight": "model.shared.weight",
        },
        buffers=("final_logits_bias",),
        zeros=("final_logits_bias",),
        settle=_settle,
        **more,
    )


BART = _family(
    "bart",
    "BartForConditionalGeneration",
    "configs/bart.py",
    tokenizers=("huggingface",),
    writes={"decoder_start_token": "end", "forced_eos_token": "end"},
    template=(("classifier", "$A", "end"), ("classifier", "$A", "end", "end", "$B", "end")),
    check=_check,
)
MBART = _family(
    "mbart",
    "MBartForConditionalGeneration",
    "configs/mbart.py",
    tokenizers=("huggingface",),
    writes={"decoder_start_token": LANGUAGE, "forced_eos_token": "end"},
    template=(("$A", "end", LANGUAGE), ("$A", "$B", "end", LANGUAGE)),
    speak=_speak,
)
