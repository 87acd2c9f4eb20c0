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
from pretrain.interop.bert import BERT, allowed, encoder_keys, encoder_names, head_names
from pretrain.interop.config_map import GELU, Key
from pretrain.interop.family import Family

SHARED = ("tokens", "positions", "types", "embedding_norm/scale", "embedding_norm/bias")  # by generator, discriminator
DISCRIMINATOR_HEAD, GENERATOR_HEAD = "discriminator_predictions.", "generator_predictions."
NAMES = encoder_names("electra") | {"projection": "electra.embeddings_project"}


def _keys(**options) -> tuple[Key, ...]:
    return encoder_keys(Key("embedding_size", "embed", 128, same_as="width"), width=256, heads=4, ff=1024, **options)


ELECTRA = Family(
    model_type="electra",
    kind="replaced_tokens",
    recipe="configs/electra.py",
    architecture=lambda section: "ElectraForPreTraining",
    names=NAMES | {"judge": f"{DISCRIMINATOR_HEAD}dense", "verdict": f"{DISCRIMINATOR_HEAD}dense_prediction"},
    prefix="electra.",
    renames=BERT.renames,
    ignored=(r"(electra\.)?embeddings\.(position_ids|token_type_ids)",),
    keys=_keys(),
    hf_fixed=BERT.hf_fixed,
    fixed=lambda section: {"generator_size": 0.0, "head": "replaced"},
    allowed=allowed,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    inputs=BERT.inputs,
    part="discriminator",
    head_prefix=DISCRIMINATOR_HEAD,
    part_section=lambda section: {**section, "generator_size": 0.0},
)
GENERATOR = dataclasses.replace(
    ELECTRA,
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "ElectraForMaskedLM",
    names=NAMES | head_names(f"{GENERATOR_HEAD}dense", f"{GENERATOR_HEAD}LayerNorm", "generator_lm_head.bias"),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    keys=_keys(words=GELU),
    fixed=lambda section: {"pair_head": False},
    complete=BERT.complete,
    task="fill-mask",
    part="",
    head_prefix=GENERATOR_HEAD,
    part_section=lambda section: section,
)


def _generator_section(section: Mapping) -> dict:
    """The encoder that is a discriminator's generator."""
    if not section["generator_size"]:
        raise UserError("--part=generator: config.model.generator_size=0, so there is none. Leave --part out.")
    # All but the sizes is the discriminator's, as in the paper's section 3.2.
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
                f"{source}: {name}={value!r}, but the discriminator expects {expected[name]!r}. "
                "Use two folders of one training."
            )
