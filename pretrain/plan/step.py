"""One config on one topology: the step of `train`, compiled and measured."""

import dataclasses
import math
import time
from collections.abc import Callable

import jax

from input_pipeline import validate
from models.layers.init import is_box, mesh_axes_of, path_name
from pretrain import config as configs
from pretrain.costs import flops
from pretrain.costs.capacity import on_device
from pretrain.errors import UserError
from pretrain.metrics.progress import amount, still
from pretrain.parallel.mesh import AXES, PADDED
from pretrain.plan import hlo, memory, roofline
from pretrain.plan.collectives import collectives, summed
from pretrain.plan.memory import kept_of_row
from pretrain.plan.topology import Topology
from pretrain.step import checks
from pretrain.step.train_spec import TrainSpec


def prepare(config, topology: Topology, devices=None, warn: Callable[[str], None] = print) -> TrainSpec:
    """Builds a config's step for the devices of a topology. Errors: those of `train`."""
    devices = topology.devices() if devices is None else devices  # before JAX initialises its own devices
    checks.check_config(config)
    spec = TrainSpec.build(config, devices, warn)
    checks.check_model(spec.model, config)
    checks.check_mesh(spec, config, training=True)
    return spec


def check_config(config) -> None:
    """Raises UserError for configs that no hardware can run, and for pmap."""
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    validate.check_settings(*sections, configs.takes_tokenizer(config))
    checks.check_config(config)
    if config.train.backend == "pmap":
        raise UserError(
            "config.train.backend=pmap: compiles for present devices only. Plan with jit and config.mesh.data."
        )


def plan(config, topology: Topology, devices=None, report: Callable[[str], None] = lambda message: None) -> dict:
    """Memory, FLOPs, collectives, minimum time and parameter shardings of a step of `config` on `topology`.

    `report` receives a line before compilation, which may take minutes. `memory.fits` is None where the device's memory
    is unknown. For a program that the compiler refuses for its size, the keys of time and traffic are None. Errors:
    those of `USER_ERRORS`.
    """
    notes = []
    spec = prepare(config, topology, devices, notes.append)
    mesh = {axis: spec.layout.mesh.shape[axis] for axis in AXES}
    report(f"compiling a step of {config.name} for {topology.name}: seconds, minutes for the largest")
    began = time.perf_counter()
    with still(report, "tracing"):
        lowered = spec.lower_train_step(config.train.batch_size, config.data.length)
    # Tracing and compiling are timed apart: tracing grows with the model's Python, compiling with the program.
    traced = time.perf_counter()
    with still(report, "compiling"):
        program, refused = _compiled(lowered)
    seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    rows = shardings(spec)
    return {
        "name": config.name,
        "topology": topology.name,
        "devices": topology.count,
        "mesh": mesh,
        "batch_size": config.train.batch_size,
        "accumulate": config.train.accumulate,
        "batch_ramp": str(checks.batch_sizes(config)) if config.train.batch_ramp else "",
        "remat": config.model.remat,
        "memory": _memory(config, topology, spec, mesh, program, refused),
        **_work(config, topology, spec, mesh, program),
        "parameters": rows,
        "warnings": notes + warnings(rows, mesh),
        "planning_seconds": seconds,
    }


def _compiled(lowered: jax.stages.Lowered):
    """(program, None), or (None, the compiler's message) for one that is too large."""
    cached = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)  # it returns nothing for absent devices
    try:
        return lowered.compile(), None
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if memory.OUT_OF_MEMORY not in str(error) and memory.stated(str(error)) is None:
            raise
        return None, str(error)
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)


def _memory(config, topology: Topology, spec: TrainSpec, mesh, program, refused: str | None) -> dict:
    capacity = topology.hardware.memory
    of_shapes = memory.state_bytes(spec, config)
    # Residuals per row, scaled to the rows of one part of the batch.
    of_row = kept_of_row(config, spec, list(spec.layout.mesh.devices.flat))
    kept = of_row.on_device(mesh) * config.train.batch_size / config.train.accumulate
    if program is None:
        needed, capacity = memory.stated(refused) or (sum(of_shapes.values()), capacity)
        rows, said = memory.estimated(of_shapes, needed, kept), None
    else:
        found = memory.Compiled.of(program)
        rows, said, needed = memory.categories(of_shapes, found, kept), dataclasses.asdict(found), found.needed
    return {
        "fits": None if capacity is None else program is not None and needed <= capacity,
        "capacity": capacity and round(capacity),
        "needed": round(needed),
        "left": capacity and round(capacity - needed),
        "categories": rows,
        "compiler": said,
    }


def _work(config, topology: Topology, spec: TrainSpec, mesh, program) -> dict:
    """FLOPs, collectives, bytes moved and time of a step."""
    tokens = config.train.batch_size * flops.tokens_of_row(spec, config.data.length)
    forward = flops.forward_flops(spec, config.data.length)
    of_step = {name: tokens * count for name, count in flops.of_training(forward).items()}
    again = roofline.recomputed(forward["causal"], config.model.remat, tokens)
    facts = {"tokens": tokens, "flops": of_step | {"recomputed": again}}
    if program is None:
        return facts | dict.fromkeys(("bytes_accessed", "bytes_moved", "collectives", "roofline"))
    read = hlo.read(program.as_text())
    found = collectives(read, mesh)
    moved = roofline.moved(read)
    links = roofline.Links(topology.hardware, topology.shape, spec.layout.mesh)
    return facts | {
        "bytes_accessed": (program.cost_analysis() or {}).get("bytes accessed"),
        "bytes_moved": moved,
        "collectives": summed(found),
        "roofline": roofline.estimate(topology.hardware, topology.count, of_step, again, moved, found, links),
    }


def verdict(facts: dict) -> str:
    """Whether it fits and by how much, in one sentence."""
    found = facts["memory"]
    if found["fits"] is None:
        return f"{facts['name']} takes {amount(found['needed'])}B on each of {facts['devices']} devices"
    place = f"{facts['topology']}, {amount(found['needed'])}B of {amount(found['capacity'])}B on each device"
    if found["fits"]:
        return f"{facts['name']} fits {place}: {amount(found['left'])}B are left"
    return f"{facts['name']} does not fit {place}: {amount(-found['left'])}B are lacking"


def check(facts: dict, config) -> None:
    """Raises UserError if a plan does not fit, with the largest category and a remedy."""
    found = facts["memory"]
    if found["fits"] is False:
        most, share, remedy = memory.remedy(found["categories"], config, facts["mesh"], found["capacity"])
        raise UserError(
            f"{verdict(facts)}, mostly {most} ({amount(share)}B). {remedy[:1].upper()}{remedy[1:]}, or try --search."
        )


LARGE = 0.01  # share of all parameters that makes one large


def shardings(spec) -> list[dict]:
    """A row for each parameter: name, shape, logical axes, mesh axes of each dimension, bytes on a device, the rule."""
    boxes = jax.tree_util.tree_leaves_with_path(spec.parameters, is_leaf=is_box)
    resting = jax.tree.leaves(spec.padded_shapes(spec.layout.batch_shards()).params)
    return [_row(spec.layout, path_name(path), box, leaf) for (path, box), leaf in zip(boxes, resting, strict=True)]


def warnings(rows: list[dict], mesh) -> list[str]:
    """A sentence for each large parameter of which every device holds all; one for all where the mesh splits none."""
    count = math.prod(mesh.values())
    whole = sum(row["bytes"] for row in rows)
    large = [row for row in rows if row["copies"] == count and row["bytes"] >= LARGE * whole]
    if count == 1 or not large:
        return []
    if all(mesh[axis] == 1 for axis in ("fsdp", "tensor")):
        return [
            f"every parameter is whole on each of {count} devices, {amount(whole)}B of them: this mesh splits rows "
            "alone; config.mesh.fsdp splits parameters, gradients and optimiser state too"
        ]
    return [
        f"{row['name']} ({amount(row['bytes'])}B) is whole on each of {count} devices: {row['rule']}" for row in large
    ]


def _row(layout, name: str, box, resting) -> dict:
    axes, shape = box.names, box.value.shape
    by_rules = _parts(layout.spec(name, axes, shape), shape)
    parts = _parts(layout.parameter(name, axes, shape), shape)
    used = {axis for part in parts for axis in part}
    return {
        "name": name,
        "shape": list(shape),
        "axes": list(axes),
        "split": [list(part) for part in parts],
        "copies": layout.mesh.size // math.prod(layout.mesh.shape[axis] for axis in used),
        "bytes": math.prod(shape) * resting.dtype.itemsize,
        "bytes_per_device": on_device(resting),
        "rule": _rule(layout, axes, by_rules, parts),
    }


def _rule(layout, axes, by_rules, parts) -> str:
    """The rule by which each dimension got its mesh axes, in words."""
    mesh = layout.mesh
    said = [f"{axis} -> {' x '.join(part)}" for axis, part in zip(axes, by_rules, strict=True) if part]
    for axis, before, after in zip(axes, by_rules, parts, strict=True):
        if before != after:
            why = "the largest free axis that divides" if axis != PADDED else "rows of a table, padded where they must"
            said.append(f"fsdp takes {axis}, {why}")
    if mesh.shape["fsdp"] > 1 and not any("fsdp" in part for part in parts):
        said.append(f"fsdp: {mesh.shape['fsdp']} divides no free axis")
    idle = [f"{axis} -> {' x '.join(layout.rules[axis])}" for axis in axes if axis and layout.rules[axis]]
    of_one = f"{', '.join(idle)} by config.mesh.rules, of which this mesh has 1" if idle else ""
    return "; ".join(said) or of_one or "no rule of config.mesh.rules splits it"


def _parts(spec, shape) -> list[tuple[str, ...]]:
    parts = [*spec, *[None] * (len(shape) - len(spec))]
    return [mesh_axes_of(part) for part in parts]
