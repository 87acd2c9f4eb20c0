"""ELECTRA: the discriminator is `ElectraForPreTraining`, the generator `ElectraForMaskedLM`, each with its own tables.

A generator alone is an encoder; beside a discriminator it is that model's part `generator`, which shares the tables.
"""

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

from models.electra import generator_sizes
from pretrain.errors import UserError
from pretrain.interop.bert import BERT, NOT_XLM, embeddings, layers, plain
from pretrain.interop.config_map import ACTIVATIONS, GELU, Key, Keys
from pretrain.interop.family import Family
from pretrain.interop.weight_map import FLAT, OUTPUTS_FIRST, Row, linear, norms, rows

SHARED = ("tokens", "positions", "types", "embedding_norm/scale", "embedding_norm/bias")  # by both
OWN = ("embed", "pair_head")  # fields in which the classes are not BERT's
JUDGE, WRITER = "discriminator_predictions.", "generator_predictions."  # begin the names of each one's head


def _encoder(section: Mapping) -> list[Row]:
    """What both have."""
    projects = section["embed"] not in (0, section["width"])
    project = linear(OUTPUTS_FIRST, ("electra.embeddings_project", "projection")) if projects else []
    return [*embeddings("electra"), *project, *layers("electra")]


def _of_discriminator(section: Mapping) -> list[Row]:
    head = linear(OUTPUTS_FIRST, (f"{JUDGE}dense", "judge"), (f"{JUDGE}dense_prediction", "verdict"))
    return [*_encoder(section), *head]


def _of_generator(section: Mapping) -> list[Row]:
    return [
        *_encoder(section),
        *linear(OUTPUTS_FIRST, (f"{WRITER}dense", "transform")),
        *norms((f"{WRITER}LayerNorm", "transform_norm")),
        *rows(FLAT, ("generator_lm_head.bias", "head_bias")),
    ]


def _ours(section: Mapping) -> dict[str, tuple]:
    """What a section of ours has to say for a model to be one that the classes have."""
    return {name: values for name, values in plain(section).items() if name in section and name not in OWN}


THEIRS = Keys(
    both=(
        Key("vocab_size", "vocab_size", 30_522),
        Key("embedding_size", "embed", 128, like="width"),
        Key("max_position_embeddings", "context", 512),
        Key("type_vocab_size", "types", 2),
        Key("hidden_size", "width", 256),
        Key("num_hidden_layers", "layers", 12),
        Key("num_attention_heads", "heads", 4),
        Key("intermediate_size", "ff", 1024),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout_attention", 0.1),
        Key("initializer_range", "init_std", 0.02),
    ),
    theirs=BERT.keys.theirs,
    ours=lambda section: _ours(section) | {"head": ("replaced",), "generator_size": (section["generator_size"],)},
    # Of a head for other tasks.
    outside=("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
)


ELECTRA = Family(
    model_type="electra",
    kind="replaced_tokens",
    recipe="configs/electra.py",
    architecture=lambda section: "ElectraForPreTraining",
    keys=THEIRS,
    rows=_of_discriminator,
    tokenizers=BERT.tokenizers,
    special=BERT.special,
    template=BERT.template,
    inputs=BERT.inputs,
    prefix="electra.",
    renamed=BERT.renamed,
    buffers=(r"(electra\.)?embeddings\.(position_ids|token_type_ids)",),
    settle=lambda section, names: section | {"generator_size": 0.0, "head": "replaced"},
    part="discriminator",
    mark=JUDGE,
    section_of=lambda section: {**section, "generator_size": 0.0},
)
GENERATOR = dataclasses.replace(
    ELECTRA,
    kind="encoder",
    recipe="configs/bert.py",
    architecture=lambda section: "ElectraForMaskedLM",
    task="fill-mask",
    keys=dataclasses.replace(
        THEIRS,
        both=tuple(dataclasses.replace(key, words=GELU) if key.words else key for key in THEIRS.both),
        ours=lambda section: _ours(section) | {"pair_head": (False,)},
    ),
    rows=_of_generator,
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    settle=lambda section, names: section | {"pair_head": False},
    complete=BERT.complete,  # without a head of pairs
    section_of=lambda section: section,
    part="",
    mark=WRITER,
)


def _section_of_generator(section: Mapping) -> dict:
    """The encoder that the generator of a discriminator of ours is."""
    if not section["generator_size"]:
        raise UserError(
            "as electra's generator: the model has none (config.model.generator_size = 0); leave --part out"
        )
    own = {name: value for name, value in section.items() if name not in ("generator_size", "head")}
    sizes = generator_sizes(section["width"], section["heads"], section["generator_size"])
    sizes |= {"embed": section["embed"] or section["width"]} | {name: values[0] for name, values in NOT_XLM.items()}
    return own | sizes | {"kind": "encoder", "pair_head": False}


GENERATOR_PART = dataclasses.replace(
    GENERATOR,
    kind=ELECTRA.kind,
    part="generator",
    mark="",  # files are of a generator alone
    section_of=_section_of_generator,
    path_of=lambda path: path if path in SHARED else f"generator/{path}",
)


def join(model: ConfigDict, generator: Mapping, source: str) -> None:
    """Gives the section of a discriminator the size of its generator, whose own section `source` gives.

    Errors: UserError where no share of the discriminator's width makes that one.
    """
    with model.unlocked():
        model.generator_size = generator["width"] / model.width
    wanted = _section_of_generator(model.to_dict())
    generator = {**generator, "embed": generator["embed"] or generator["width"]}
    unlike = [name for name, value in generator.items() if wanted[name] != value and name != "dtype"]
    if unlike:
        shown = ", ".join(f"{name} = {generator[name]!r}, not {wanted[name]!r}" for name in unlike)
        raise UserError(
            f"{source} is no generator of this discriminator, as models here have them: {shown}; bring those of one "
            "training together"
        )
