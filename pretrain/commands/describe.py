"""`pretrain describe`: parameters, FLOPs and bytes of a config, from shapes alone."""

import json
import math
import time
from collections.abc import Iterable, Mapping

import jax

from input_pipeline import pipeline, validate
from input_pipeline.io import info
from input_pipeline.tokenizers.settings import known_padding
from models.layers.init import is_box, path_name
from pretrain import changes
from pretrain import config as configs
from pretrain.checkpoints.restore import Checkpoints
from pretrain.commands.arguments import Describe
from pretrain.commands.shared import config_of
from pretrain.costs import flops
from pretrain.costs.capacity import on_device, whole_bytes
from pretrain.errors import USER_ERRORS
from pretrain.evaluation.evaluation import describe_loss
from pretrain.interop import families
from pretrain.metrics.progress import amount
from pretrain.metrics.tables import show
from pretrain.parallel.mesh import AXES
from pretrain.plan.topology import HARDWARE
from pretrain.step import recurrent_state
from pretrain.step.checks import batch_sizes, check_config, check_mesh, check_model
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import unboxed
from pretrain.workdir import POSITION, Workdir


def describe(config, workdir: str = "") -> dict:
    """Parameters, FLOPs and bytes of a config; allocates nothing, so that any size takes seconds.

    Keys: `bytes` of the training state of one replica, before the mesh divides it, and of a teacher; activations come
    on top. `needs`: fewest devices of each kind that hold them. `run`: the newest checkpoint of `workdir`. `mesh`: its
    devices, the parameters' bytes on each, and by module the bytes that `fsdp` cannot divide.
    `export`: the Hugging Face class of the model, or why it has none. FLOPs: see `pretrain.costs.flops`.
    Errors: those of `USER_ERRORS`, for a config that cannot be trained on any machine.
    """
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    validate.check_settings(*sections, configs.takes_tokenizer(config))
    check_config(config)
    spec = TrainSpec.build_abstract(config)
    model, optimizer = spec.model, spec.optimizer
    check_model(model, config)
    check_mesh(spec, config, training=True)
    params, trained = spec.param_shapes, spec.partition.trained(spec.param_shapes)
    leaves = [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]

    tokens_per_step = config.train.batch_size * flops.tokens_of_row(spec, config.data.length)
    forward = flops.forward_flops(spec, config.data.length)
    # A training step costs three forward passes, and one of a teacher.
    per_token = flops.of_training(forward)
    bytes = {
        "parameters": whole_bytes(params),
        # Gradients of the parts of an accumulated batch are summed in float32.
        "gradients": 4 * _count(trained) if config.train.accumulate > 1 else whole_bytes(trained),
        "optimizer": whole_bytes(jax.eval_shape(optimizer.init, trained)),
        "recurrent_memory": whole_bytes(recurrent_state.shapes(model, config.train.batch_size)),
    }
    if spec.frozen_parameters:
        bytes["teacher"] = whole_bytes(unboxed(spec.frozen_parameters))
    return {
        "name": config.name,
        "parameters": _count(params),
        "parameters_trained": _count(trained),
        "parameters_without_embeddings": _count(params) - _embedding_size(spec.parameters),
        "flops_per_token": {convention: round(value) for convention, value in per_token.items()},
        "flops_per_step": {convention: round(value * tokens_per_step) for convention, value in per_token.items()},
        "tokens_per_step": tokens_per_step,
        "batch_ramp": _ramp(config, flops.tokens_of_row(spec, config.data.length)),
        "bytes": bytes | {"total": sum(bytes.values())},
        "mesh": _mesh(spec, config),
        "run": _run(workdir) if workdir else None,
        "needs": {
            name: math.ceil(sum(bytes.values()) / hardware.memory)
            for name, hardware in HARDWARE.items()
            if hardware.memory
        },
        "export": _export(config, workdir),
        "modules": _modules(leaves),
        "forward_flops_per_token": {
            convention: {part: round(value) for part, value in parts.items()} for convention, parts in forward.items()
        },
    }


def run(arguments: Describe) -> None:
    """Prints the description of a config."""
    report(config_of(arguments), arguments.format, arguments.workdir)


def report(config, format: str, workdir: str = "") -> None:
    """Prints the description of `config` as tables, or as one JSON object."""
    facts = describe(config, workdir)
    if format == "json":
        print(json.dumps(facts))
        return
    _show_parameters(facts)
    _show_flops(facts)
    rows = [(name, f"{amount(size)}B") for name, size in facts["bytes"].items() if size]
    show("training state", ("one replica", "bytes"), rows)
    mesh = facts["mesh"]
    many = f"{mesh['devices']} devices" if mesh["devices"] > 1 else "1 device"
    multiple = " or a multiple" if mesh["multiples"] else ""
    print(f"mesh: {many}{multiple}; {amount(mesh['bytes_per_device'])}B of parameters on each")
    needs = " or ".join(f"{count:,} {name}" for name, count in facts["needs"].items())
    if max(facts["needs"].values()) > 1:
        print(f"devices: at least {needs}, split by config.mesh.fsdp; `pretrain plan` adds activations")
    if run := facts["run"]:
        loss = "" if run["loss"] is None else f"{describe_loss(config, run['loss'])}, "
        print(f"run: step {run['step']:,}/{config.train.steps:,}, {loss}saved {run['saved']}")
        for row in run["changes"]:
            print(f"changed: {changes.describe(row)}, {row['date']}")
    export = facts["export"]
    print(f"export: {export['class'] or export['reason']}")
    if mesh["whole"]:
        rows = [(name, f"{amount(size)}B") for name, size in sorted(mesh["whole"].items(), key=lambda item: -item[1])]
        show(f"not divided by config.mesh.fsdp={config.mesh.fsdp}", ("module", "bytes"), rows)


def _show_parameters(facts: dict) -> None:
    rows = [(name, entry["parameters"], f"{amount(entry['bytes'])}B") for name, entry in facts["modules"].items()]
    rows.append(("all", facts["parameters"], f"{amount(facts['bytes']['parameters'])}B"))
    if facts["parameters_trained"] < facts["parameters"]:
        rows.append(("trained", facts["parameters_trained"], ""))
    rows.append(("all but embeddings", facts["parameters_without_embeddings"], ""))
    show(facts["name"], ("module", "parameters", "bytes"), rows)


def _show_flops(facts: dict) -> None:
    forward, step = facts["forward_flops_per_token"], facts["flops_per_step"]
    rows = [(f"a token forward: {part}", forward["full"][part], forward["causal"][part]) for part in forward["full"]]
    rows.append(("a token of training", facts["flops_per_token"]["full"], facts["flops_per_token"]["causal"]))
    rows.append((f"a step of {facts['tokens_per_step']:,} tokens", step["full"], step["causal"]))
    show("FLOPs", ("", "full", "causal"), [(label, amount(full), amount(causal)) for label, full, causal in rows])
    if ramp := facts["batch_ramp"]:
        print(f"batches: {ramp['sizes']}; {amount(ramp['tokens'])} tokens in all steps")
    print(
        "FLOPs: 2 per multiply-add of matrix products, 3 forward passes per training step, no rematerialization.\n"
        "full: causal attention counts all keys of the row; causal: only those that a token sees."
    )


def _ramp(config, tokens: int) -> dict | None:
    """Sizes of batches that grow, and tokens of all steps; None for one size. tokens: of a row."""
    sizes = batch_sizes(config)
    if len(sizes) == 1:
        return None
    stages = [{"step": stage.batch + 1, "rows": stage.size} for stage in sizes]
    return {"sizes": str(sizes), "stages": stages, "tokens": sizes.rows_before(config.train.steps) * tokens}


def _mesh(spec, config) -> dict:
    """Devices of the mesh, and bytes of parameters on each."""
    mesh = spec.layout.mesh
    params = spec.padded_shapes(spec.layout.batch_shards()).params
    leaves = [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    split = mesh.shape["fsdp"] > 1
    whole = [(name, leaf) for name, leaf in leaves if split and "fsdp" not in leaf.sharding.spec]
    return {
        "devices": mesh.size,
        "multiples": config.train.backend == "pmap" or -1 in (config.mesh[axis] for axis in AXES),
        "bytes_per_device": on_device(params),
        "whole": {name: entry["bytes"] for name, entry in _modules(whole).items()},
    }


def _run(workdir: str) -> dict | None:
    """Step, validation loss and time of a run's newest checkpoint, and changed keys; None without one."""
    checkpoints = Checkpoints(workdir)
    if not (steps := checkpoints.steps()):
        return None
    loss, _ = checkpoints.losses().get(steps[-1], (None, ""))
    saved = info(checkpoints.workdir.checkpoint(steps[-1]) / POSITION).changed
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(saved / 1e9))
    return {"step": steps[-1], "loss": loss, "saved": date, "changes": changes.read(workdir)}


def _export(config, workdir: str) -> dict[str, str]:
    """The Hugging Face class of the model, or why there is none."""
    try:
        family, _ = families.of_section(families.without_lora(config.model.to_dict()))
        if (special := _special(config, workdir)) is not None:
            families.check_padding(family, special)
    except USER_ERRORS as error:
        return {"class": "", "reason": str(error)}
    return {"class": family.architecture(config.model), "reason": ""}


def _special(config, workdir: str) -> Mapping[str, int] | None:
    """Special ids of the work folder's tokenizer, else the padding id of the one that will be trained."""
    if workdir and pipeline.has_tokenizer(folder := Workdir(workdir).folders.tokenizer):
        return pipeline.open_tokenizer(folder).special
    return known_padding(config.tokenizer.to_dict(), configs.takes_tokenizer(config))


def _count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _embedding_size(boxes) -> int:
    """Parameters in embedding tables."""
    boxes = jax.tree.leaves(boxes, is_leaf=is_box)
    return sum(box.value.size for box in boxes if box.is_embedding)


def _modules(leaves: Iterable[tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, dict[str, int]]:
    """Parameters and bytes by module, the first two names of a parameter's path."""
    modules: dict[str, dict[str, int]] = {}
    for name, leaf in leaves:
        entry = modules.setdefault("/".join(name.split("/")[:-1][:2]) or name, {"parameters": 0, "bytes": 0})
        entry["parameters"] += leaf.size
        entry["bytes"] += leaf.size * leaf.dtype.itemsize
    return modules
