"""The families that there are, and their tables on the parameters of a model."""

from collections.abc import Mapping

import jax

import models
from models.parts.parameter import Parameter
from pretrain.errors import UserError, nearest
from pretrain.interop.bert import BERT
from pretrain.interop.ctrl import CTRL
from pretrain.interop.family import Family
from pretrain.interop.gpt import GPT
from pretrain.interop.gpt2 import GPT2
from pretrain.interop.names import Leaf, Table
from pretrain.interop.t5 import T5
from pretrain.parallel.mesh import path_name
from pretrain.step.step import parameters_of

FAMILIES = {family.model_type: family for family in (GPT2, GPT, CTRL, BERT, T5)}


def of_type(model_type, source: str) -> Family:
    """The family that the config.json `source` names. Errors: UserError where it is not known."""
    if model_type not in FAMILIES:
        raise UserError(
            f"{source}: model_type = {model_type!r:.60} cannot be imported{nearest(str(model_type), FAMILIES)}"
        )
    return FAMILIES[model_type]


def of_section(section: Mapping, source: str) -> tuple[Family, dict]:
    """(family, config.json) as which the model of a `model` section of ours is exported.

    Errors: UserError, of the first family of its kind, where none has such a model.
    """
    refusals = []
    for family in FAMILIES.values():
        if family.kind == section["kind"]:
            try:
                return family, family.keys.config(section, f"{source} cannot be exported as {family.model_type}")
            except UserError as error:
                refusals.append(error)
    if refusals:
        raise refusals[0]
    kinds = ", ".join(dict.fromkeys(family.kind for family in FAMILIES.values()))
    raise UserError(
        f"{source} holds a model of kind '{section['kind']}', which Hugging Face's library has none of; models of kind "
        f"{kinds} can be exported"
    )


def table(family: Family, section: Mapping) -> Table:
    """The family's table on the parameters of the model that `section` describes. Errors: ModelError."""
    boxes = jax.tree_util.tree_leaves_with_path(
        parameters_of(models.build(section)), is_leaf=lambda node: isinstance(node, Parameter)
    )
    leaves = {path_name(path): Leaf(box.value.shape, box.value.dtype, box.inputs) for path, box in boxes}
    return Table(family.rows(section), leaves)
