"""ELECTRA: the discriminator is `ElectraForPreTraining`, the generator `ElectraForMaskedLM`.

A generator alone is imported as an encoder. Next to a discriminator it is that model's part `generator`, with shared
embedding tables.
"""

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

from configs.common import MODELS
from models.electra import generator_sizes
from pretrain.errors import UserError
from pretrain.interop.bert import BERT, embeddings, encoder_keys, encoder_layers, our_fixed, token_head
from pretrain.interop.config_map import GELU, ConfigMap, Key
from pretrain.interop.family import Family
from pretrain.interop.weight_map import Row, linear

SHARED = ("tokens", "positions", "types", "embedding_norm/scale", "embedding_norm/bias")  # by generator, discriminator
DISCRIMINATOR_HEAD, GENERATOR_HEAD = "discriminator_predictions.", "generator_predictions."


def _encoder_rows(section: Mapping) -> list[Row]:
    has_projection = section["embed"] not in (0, section["width"])
    projection = linear(("electra.embeddings_project", "projection")) if has_projection else []
    return [*embeddings("electra"), *projection, *encoder_layers("electra")]


def _discriminator_rows(section: Mapping) -> list[Row]:
    head = linear((f"{DISCRIMINATOR_HEAD}dense", "judge"), (f"{DISCRIMINATOR_HEAD}dense_prediction", "verdict"))
    return [*_encoder_rows(section), *head]


def _generator_rows(section: Mapping) -> list[Row]:
    head = token_head(f"{GENERATOR_HEAD}dense", f"{GENERATOR_HEAD}LayerNorm", "generator_lm_head.bias")
    return [*_encoder_rows(section), *head]


def _config_map(ours: Mapping[str, tuple], **options) -> ConfigMap:
    """The class's table; `ours` adds values of our fields."""
    return ConfigMap(
        keys=encoder_keys(Key("embedding_size", "embed", 128, same_as="width"), width=256, heads=4, ff=1024, **options),
        hf_fixed=BERT.config_map.hf_fixed,
        our_fixed=lambda section: our_fixed(section) | {"embed": (section["embed"],)} | ours,
    )


ELECTRA = Family(
    model_type="electra",
    kind="replaced_tokens",
    recipe="configs/electra.py",
    architecture=lambda section: "ElectraForPreTraining",
    config_map=_config_map({"head": ("replaced",), "generator_size": (0.0,)}),
    rows=_discriminator_rows,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    inputs=BERT.inputs,
    prefix="electra.",
    renames=BERT.renames,
    ignored=(r"(electra\.)?embeddings\.(position_ids|token_type_ids)",),
    settle=lambda section, names: section | {"generator_size": 0.0, "head": "replaced"},
    part="discriminator",
    head_prefix=DISCRIMINATOR_HEAD,
    part_section=lambda section: {**section, "generator_size": 0.0},
)
GENERATOR = dataclasses.replace(
    ELECTRA,
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "ElectraForMaskedLM",
    task="fill-mask",
    config_map=_config_map({"pair_head": (False,)}, words=GELU),
    rows=_generator_rows,
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    settle=lambda section, names: section | {"pair_head": False},
    complete=BERT.complete,
    part_section=lambda section: section,
    part="",
    head_prefix=GENERATOR_HEAD,
)


def _generator_section(section: Mapping) -> dict:
    """The encoder that is a discriminator's generator."""
    if not section["generator_size"]:
        raise UserError("--part=generator: config.model.generator_size=0, so there is none. Leave --part out.")
    own = {name: value for name, value in section.items() if name not in ("generator_size", "head")}
    sizes = generator_sizes(section["width"], section["heads"], section["generator_size"])
    sizes |= {"embed": section["embed"] or section["width"], "kind": "encoder", "pair_head": False}
    return MODELS["encoder"]().to_dict() | own | sizes


GENERATOR_PART = dataclasses.replace(
    GENERATOR,
    kind=ELECTRA.kind,
    part="generator",
    head_prefix="",  # no file holds both
    part_section=_generator_section,
    whole_path=lambda path: path if path in SHARED else f"generator/{path}",
)


def add_generator(model: ConfigDict, generator: Mapping, source: str) -> None:
    """Sets `generator_size` in a discriminator's section from the generator's own section.

    Errors: UserError if the generator's sizes do not follow from the discriminator's.
    """
    with model.unlocked():
        model.generator_size = generator["width"] / model.width
    # The paper scales heads and feed-forward with the width, so one ratio must give all sizes.
    expected = _generator_section(model.to_dict())
    generator = {**generator, "embed": generator["embed"] or generator["width"]}
    for name, value in generator.items():
        if name != "dtype" and expected[name] != value:
            raise UserError(
                f"{source}: {name}={value!r}, but the discriminator's generator has {expected[name]!r}. "
                "Use two folders of one training."
            )
