"""The registry of families, and the weight map of a model."""

from collections.abc import Collection, Mapping

import jax
import numpy as np

import models
from configs.common import MODELS
from models.layers.init import Parameter, path_name
from models.transformer.task_head import Task
from pretrain.errors import UserError, lookup
from pretrain.interop.bart import BART, MBART
from pretrain.interop.bert import ALBERT, BERT, DISTILBERT, ROBERTA
from pretrain.interop.electra import ELECTRA, GENERATOR, GENERATOR_PART
from pretrain.interop.family import BASE, Family
from pretrain.interop.gpt2 import CTRL, GPT, GPT2
from pretrain.interop.llama import GEMMA, LLAMA, MISTRAL, QWEN2, QWEN3
from pretrain.interop.t5 import MT5, T5
from pretrain.interop.weight_map import Leaf, Read, WeightMap
from pretrain.interop.xlm import XLM
from pretrain.interop.xlnet import XLNET
from pretrain.step.train_step import parameters_of

# An export takes the first family that fits, so BERT comes before its kin and GPT-2 before GPT.
DECODERS = (GPT2, GPT, CTRL, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA)
ALL = (*DECODERS, BERT, ROBERTA, ALBERT, XLM, T5, MT5, BART, MBART, DISTILBERT, ELECTRA, XLNET)
FAMILIES = {family.model_type: family for family in ALL}
MODEL_TYPES = FAMILIES | {alias: family for family in ALL for alias in family.aliases}
PARTS = (GENERATOR, GENERATOR_PART)  # share the model_type of ELECTRA


def of_config(given: Mapping, names: Collection[str], source: str) -> Family:
    """The family of a config.json, read from `source`, and of the tensors' names next to it."""
    family = lookup(f"{source}: model_type", str(given.get("model_type")), MODEL_TYPES)
    # ELECTRA's discriminator and generator have one model_type; only their heads differ.
    parts = (part for part in (family, *PARTS) if part.model_type == family.model_type and part.head_prefix)
    return next((part for part in parts if any(f".{part.head_prefix}" in f".{name}" for name in names)), family)


def of_section(section: Mapping, part: str = "") -> tuple[Family, dict]:
    """(family, config.json) to export a `model` section of ours as, or its `part`.

    Errors: UserError if no family can express the model; that of the first family of its kind.
    """
    choices = [family for family in (*ALL, *PARTS) if family.kind == section["kind"]]
    if not choices:
        kinds = ", ".join(dict.fromkeys(family.kind for family in ALL))
        raise UserError(f"config.model.kind={section['kind']} has no Hugging Face class. Choose one of: {kinds}.")
    parts = {family.part: [family] for family in choices if family.part}
    usual = choices[:1] if parts else choices  # without --part, ELECTRA is its discriminator
    choices = lookup("--part", part, parts | {BASE: [family.base() for family in usual]}) if part else usual
    # The first refusal names the fields of the kind's main class: BERT, GPT-2 or T5.
    refusals = []
    for family in choices:
        try:
            return family, family.to_config(family.part_section(section))
        except UserError as error:
            refusals.append(error)
    raise refusals[0]


def check_padding(family: Family, special: Mapping[str, int]) -> None:
    """Raises UserError if the class counts positions from a padding id that is not the tokenizer's."""
    pad = special.get("pad")
    if family.pad_id not in (None, pad):
        raise UserError(f"padding id {pad}: {family.model_type} needs {family.pad_id}. Train with such a tokenizer.")


def weight_map(family: Family, section: Mapping, task: Task | None = None) -> WeightMap:
    """The family's weight map on the model, or part, of a `model` section. Errors: ModelError."""
    section = family.part_section(section)
    names, parameters = family.table(section), leaves(section, task)
    if family.part == BASE:
        parameters = {
            path: leaf for path, leaf in parameters.items() if path in names or path.rpartition("/")[0] in names
        }
    return WeightMap(names, parameters, family.kernels, family.layouts)


def without_lora(section: Mapping) -> dict:
    """The `model` section of a model whose low-rank changes are merged into its matrices."""
    default = MODELS[section["kind"]]()
    return {**section} | {name: default[name] for name in section if name.startswith("lora")}


def merge_lora(section: Mapping, read: Read) -> Read:
    """`read`, a parameter by path, with the low-rank changes of a `model` section merged into its kernels."""
    parameters, scale = leaves(section), section["lora_alpha"] / (section["lora"] or 1)

    def merged(path: str) -> np.ndarray:
        kernel, module = read(path), path.rpartition("/")[0]
        if f"{module}/lora_a" not in parameters or not path.endswith("/kernel"):
            return kernel
        # Stacked: [L, *inputs, rank] times [L, rank, *outputs], in float32 whatever the kernel's type.
        down, up = (np.asarray(read(f"{module}/lora_{part}"), np.float32) for part in "ab")
        layers, rank = len(kernel), section["lora"]
        change = down.reshape(layers, -1, rank) @ up.reshape(layers, rank, -1)
        return (kernel + scale * change.reshape(kernel.shape)).astype(kernel.dtype)

    return merged


def leaves(section: Mapping, task: Task | None = None) -> dict[str, Leaf]:
    """Parameters of the model of a `model` section, by path; `task`: with its head. Errors: ModelError."""
    boxes = jax.tree_util.tree_leaves_with_path(
        parameters_of(models.build(section, task)), is_leaf=lambda node: isinstance(node, Parameter)
    )
    return {path_name(path): Leaf(box.value.shape, box.value.dtype, box.inputs) for path, box in boxes}
