"""The families that there are, and their tables on the parameters of a model."""

from collections.abc import Iterable, Mapping

import jax

import models
from models.layers.parameter import Parameter, path_name
from pretrain.errors import UserError, nearest
from pretrain.interop.albert import ALBERT
from pretrain.interop.bart import BART, MBART
from pretrain.interop.bert import BERT
from pretrain.interop.ctrl import CTRL
from pretrain.interop.distilbert import DISTILBERT
from pretrain.interop.electra import ELECTRA, GENERATOR, GENERATOR_PART
from pretrain.interop.family import Family
from pretrain.interop.gpt import GPT
from pretrain.interop.gpt2 import GPT2
from pretrain.interop.roberta import ROBERTA
from pretrain.interop.t5 import MT5, T5
from pretrain.interop.weight_map import Leaf, Table
from pretrain.interop.xlm import XLM
from pretrain.interop.xlnet import XLNET
from pretrain.step.train_step import parameters_of

EVERY = (GPT2, GPT, CTRL, BERT, ROBERTA, ALBERT, XLM, T5, MT5, BART, MBART, DISTILBERT, ELECTRA, XLNET)
FAMILIES = {family.model_type: family for family in EVERY}
TYPES = FAMILIES | {name: family for family in FAMILIES.values() for name in family.also}  # by what config.json says
OTHERS = (GENERATOR, GENERATOR_PART)  # of a model_type that one above has too


def of_type(model_type, names: Iterable[str], source: str) -> Family:
    """The family that the config.json `source` names, and beside it files with tensors of these names.

    Errors: UserError where it is not known, or where the files have none of the heads that its parts have.
    """
    if not isinstance(model_type, str) or model_type not in TYPES:
        raise UserError(
            f"{source}: model_type = {model_type!r:.60} cannot be imported{nearest(str(model_type), TYPES)}"
        )
    family, names = TYPES[model_type], tuple(names)
    if not family.mark:
        return family
    parts = [one for one in (family, *OTHERS) if one.model_type == model_type and one.mark]
    found = [one for one in parts if any(name.startswith(one.mark) for name in names)]
    if len(found) != 1:
        marks = " or ".join(f"{one.mark}*" for one in parts)
        raise UserError(
            f"{source}: the weights beside it are to have a head, {marks}, and have {len(found)} of them; save the "
            "model again with its class for pretraining"
        )
    return found[0]


def of_section(section: Mapping, source: str, part: str = "") -> tuple[Family, dict]:
    """(family, config.json) as which the model of a `model` section of ours is exported, or its `part`.

    Errors: UserError, of the first family of its kind, where none has such a model or part.
    """
    of_kind = [family for family in (*FAMILIES.values(), *OTHERS) if family.kind == section["kind"]]
    parts = [family.part for family in of_kind if family.part]
    if part and part not in parts:
        those = f"choose one of: {', '.join(parts)}" if parts else "leave --part out"
        raise UserError(f"{source} holds a model of kind '{section['kind']}', which has no part '{part}'; {those}")
    refusals = []
    for family in of_kind:
        if not part or family.part == part:
            try:
                return family, family.keys.config(
                    family.section_of(section), f"{source} cannot be exported as {family.model_type}"
                )
            except UserError as error:
                refusals.append(error)
                if family.part:
                    break
    if refusals:
        raise UserError(f"{source} cannot be exported {'; '.join(_reasons(source, refusals))}")
    kinds = ", ".join(dict.fromkeys(family.kind for family in FAMILIES.values()))
    raise UserError(
        f"{source} holds a model of kind '{section['kind']}', which Hugging Face's library has none of; models of kind "
        f"{kinds} can be exported"
    )


def check_padding(family: Family, special: Mapping[str, int], source: str) -> None:
    """Raises UserError where positions are counted by an id of padding which is not that of these `special` ids."""
    if family.pad is not None and special.get("pad") != family.pad:
        has = f"padding of id {special['pad']}" if "pad" in special else "no padding"
        raise UserError(
            f"{source} cannot be exported as {family.model_type}, whose positions are counted by the id of padding, "
            f"{family.pad}, and its tokenizer has {has}; train with a tokenizer.json whose padding is id {family.pad}"
        )


def _reasons(source: str, refusals: Iterable[UserError]) -> Iterable[str]:
    """As what a model cannot be exported and why, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for error in refusals:
        whose, _, why = str(error).removeprefix(f"{source} cannot be exported ").partition(": ")
        by_reason.setdefault(why, []).append(whose.removeprefix("as "))
    return (f"as {', '.join(whose)}: {why}" for why, whose in by_reason.items())


def table(family: Family, section: Mapping) -> Table:
    """The family's table on the parameters of the model, or part, that `section` describes. Errors: ModelError."""
    section = family.section_of(section)
    return Table(family.rows(section), leaves(section))


def leaves(section: Mapping) -> dict[str, Leaf]:
    """The parameters of the model that `section` describes, by path. Errors: ModelError."""
    boxes = jax.tree_util.tree_leaves_with_path(
        parameters_of(models.build(section)), is_leaf=lambda node: isinstance(node, Parameter)
    )
    return {path_name(path): Leaf(box.value.shape, box.value.dtype, box.inputs) for path, box in boxes}
