"""`pretrain describe`: what a config costs in parameters, FLOPs and bytes, worked out from shapes alone."""

import json
from collections.abc import Iterable

import jax
from flax import linen as nn
from rich.console import Console
from rich.table import Table

import models
from pretrain import flops, optimizers
from pretrain.mesh import path_name
from pretrain.progress import amount
from pretrain.step import init_params

LOOKED_UP = ("tokens", "positions")  # tables whose rows are picked, not multiplied: not counted by scaling laws


def describe(config) -> dict:
    """Parameters, FLOPs and bytes of a config; nothing is allocated, so that any size takes seconds.

    Bytes are those of the training state of one full replica, before any mesh axis divides it. Activations come on
    top. FLOPs follow the definition of `pretrain.flops`. Raises ModelError or UserError for a config that cannot be.
    """
    model = models.build(config.architecture, config.model.to_dict())
    optimizer = optimizers.build(config.optimizer, config.schedule, config.train.steps)
    params = nn.unbox(jax.eval_shape(lambda rng: init_params(model, rng, 1), jax.random.key(0)))
    leaves = [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]

    tokens_per_step = config.train.batch_size * config.data.length
    per_token = flops.flops_per_token(config)
    bytes = {
        "parameters": _bytes(params),
        # Parts of an accumulated batch are added up in float32.
        "gradients": 4 * _count(params) if config.train.accumulate > 1 else _bytes(params),
        "optimizer": _bytes(jax.eval_shape(optimizer.init, params)),
    }
    return {
        "name": config.name,
        "parameters": _count(params),
        "parameters_without_embeddings": sum(leaf.size for name, leaf in leaves if name not in LOOKED_UP),
        "flops_per_token": {convention: round(value) for convention, value in per_token.items()},
        "flops_per_step": {convention: round(value * tokens_per_step) for convention, value in per_token.items()},
        "tokens_per_step": tokens_per_step,
        "bytes": bytes | {"total": sum(bytes.values())},
        "modules": _modules(leaves),
        "forward_flops_per_token": {
            convention: {part: round(value) for part, value in parts.items()}
            for convention, parts in flops.forward_flops(config).items()
        },
    }


def run(config, format: str) -> None:
    """Prints the description of a config as tables, or as one JSON object if `format` is "json"."""
    facts = describe(config)
    if format == "json":
        print(json.dumps(facts))
        return
    console = Console(highlight=False)
    for table in _tables(facts):
        console.print(table)
        console.print()
    console.print(
        "FLOPs: 2 per multiply-add of matrix products, 3 forward passes per training step, nothing recomputed;\n"
        "full charges causal dense attention all keys of the row, causal only those a token may see."
    )


def _count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _modules(leaves: Iterable[tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, dict[str, int]]:
    """Parameters and bytes by module: the first two names on the way to each parameter, or its own at the top."""
    modules: dict[str, dict[str, int]] = {}
    for name, leaf in leaves:
        entry = modules.setdefault("/".join(name.split("/")[:-1][:2]) or name, {"parameters": 0, "bytes": 0})
        entry["parameters"] += leaf.size
        entry["bytes"] += leaf.size * leaf.dtype.itemsize
    return modules


def _tables(facts: dict) -> Iterable[Table]:
    def table(*columns: str) -> Table:
        made = Table(*columns, box=None, pad_edge=False)
        for column in made.columns[1:]:
            column.justify = "right"
        return made

    modules = table(facts["name"], "parameters", "share", "bytes")
    for name, entry in facts["modules"].items():
        share = entry["parameters"] / facts["parameters"]
        modules.add_row(name, f"{entry['parameters']:,}", f"{share:.1%}", amount(entry["bytes"]) + "B")
    modules.add_row("all", f"{facts['parameters']:,}", "", amount(facts["bytes"]["parameters"]) + "B")
    modules.add_row("all but embeddings", f"{facts['parameters_without_embeddings']:,}")
    yield modules

    costs = table("FLOPs", "full", "causal")
    full, causal = facts["forward_flops_per_token"]["full"], facts["forward_flops_per_token"]["causal"]
    for part in full:
        costs.add_row(f"a token forward: {part}", amount(full[part]), amount(causal[part]))
    for key, label in (("flops_per_token", "a token of training"), ("flops_per_step", "a step")):
        costs.add_row(label, amount(facts[key]["full"]), amount(facts[key]["causal"]))
    costs.add_row("tokens a step", f"{facts['tokens_per_step']:,}")
    yield costs

    state = table("training state of one replica", "bytes")
    for name, size in facts["bytes"].items():
        state.add_row(name, amount(size) + "B")
    yield state
