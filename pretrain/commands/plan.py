"""`pretrain plan`: memory, time and bottleneck of a training step on absent hardware."""

import json
import re
import shlex
from collections.abc import Sequence

from pretrain import changes
from pretrain import config as configs
from pretrain.checkpoints.restore import Checkpoints
from pretrain.commands.arguments import Plan
from pretrain.commands.shared import config_of
from pretrain.distributed.init import print_on_host0
from pretrain.metrics.progress import amount
from pretrain.metrics.tables import show
from pretrain.plan import step
from pretrain.plan.search import search
from pretrain.plan.topology import Topology, parse
from pretrain.training.startup import check_checkpoints_exist

SMALL = 0.001  # of all bytes of parameters: what is less is summed up in the table

# Software of TPU VMs: docs.cloud.google.com/tpu/docs/runtimes.
SOFTWARE = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


def run(arguments: Plan) -> None:
    """Prints the plan of a config as tables, or as one JSON object. Errors: UserError where it does not fit."""
    topology = parse(arguments.topology)
    config = config_of(arguments)
    begun = _has_checkpoint(arguments)
    if arguments.search:
        _search(config, topology, arguments, begun)
        return
    facts = step.plan(config, topology, report=print_on_host0)
    facts["start"] = _start(arguments, topology, config, begun)
    if arguments.format == "json":
        print(json.dumps(facts, allow_nan=False))
    else:
        report(facts)
    step.check(facts, config)


def _has_checkpoint(arguments: Plan) -> bool:
    """Whether the planned run has a checkpoint to continue from; one of weights alone does not count."""
    if not arguments.workdir:
        return False
    check_checkpoints_exist(arguments.workdir)
    return bool(Checkpoints(arguments.workdir).trained())


def _start(arguments: Plan, topology: Topology, config, begun: bool, best: Sequence[str] = ()) -> list[str]:
    """Commands that start the planned run with the given flags and the `best` ones.

    There are none for a run with checkpoints whose config would change.
    """
    if begun and changes.differences(configs.saved(arguments.workdir), config):
        return []
    flags = {"config": f"--config={arguments.config}"} if arguments.config else {}
    flags |= {key: f"--config.{key}={value}" for key, value in arguments.overrides}
    flags |= {flag.removeprefix("--config.").partition("=")[0]: flag for flag in best}
    return start_commands(topology, config.name, [*flags.values()], arguments.workdir)


def start_commands(topology: Topology, name: str, flags: Sequence[str], workdir: str = "") -> list[str]:
    """Commands that start `pretrain train` with `flags` on `topology`, simplest first.

    Capitals mark what the user fills in. `name` is the run's; `workdir` the folder of a run to continue.
    """
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")  # gcloud's rule for TPU names
    name = name if name[:1].isalpha() else f"run-{name}".rstrip("-")

    def train(place: str) -> str:
        # Quoted for the shell: sources of text often contain * and ?.
        return f"train {shlex.join([*flags, f'--workdir={workdir or place}'])}"

    family, count = topology.name.partition(":")[0], topology.count
    match topology.hardware.platform:
        case "tpu":
            made = f"--create {topology.name} --version {SOFTWARE[family]} --install --restarts 20 --delete"
            image = f"--image REGISTRY/longhaul --tpu {topology.name} --restarts 20 --apply"
            bucket = train(f"gs://BUCKET/{name}")
            pod = f"python -m launch.tpu_pod --tpu {name} --zone ZONE {made} -- {bucket}"
            return [pod, f"python -m launch.gke {image} -- {bucket}"]
        case "cuda":
            node = f"--nodes 1 --gpus-per-node {count} --restarts 20"
            return [
                f"pretrain {train(f'runs/{name}')}",
                f"python -m launch.slurm {node} -- {train(f'/SHARED/{name}')}",
            ]
    return [f"python -m launch.local --processes 1 --devices {count} -- {train(f'runs/{name}')}"]


def _search(config, topology: Topology, arguments: Plan, begun: bool) -> None:
    found = search(config, topology, print_on_host0)
    found["plan"]["start"] = _start(arguments, topology, config, begun, found["best"])
    if arguments.format == "json":
        print(json.dumps(found, allow_nan=False))
        return
    timed = any(row["step_seconds"] for row in found["ranked"])
    order = "those that fit by step time" if timed else "rates unknown: by recomputed FLOPs, then by bytes"
    print(f"compiled choices, best first ({order}):")
    for place, row in enumerate(found["ranked"], 1):
        print(f"{place:3}. {row['words']}\n     {row['result']}")
    report(found["plan"])
    print(f"best choice after {found['seconds']:.0f} s; {found['ended']}:")
    print(" ".join(found["best"]))


def report(facts: dict) -> None:
    """Prints a plan as tables, what matters most first."""
    print(step.verdict(facts))
    mesh = ", ".join(f"{axis}={size}" for axis, size in facts["mesh"].items())
    parts = f" in {facts['accumulate']} parts" if facts["accumulate"] > 1 else ""
    batch = f"{facts['batch_size']:,} rows{parts}, {facts['tokens']:,} tokens"
    print(f"mesh: {mesh}; batch: {batch}; remat: {facts['remat']}")
    if facts["batch_ramp"]:
        print(f"batches: {facts['batch_ramp']}; the plan is of the last, and each size is compiled when it begins")
    _show_memory(facts["memory"])
    _show_time(facts)
    if facts["collectives"]:
        columns = ("kind", "axes", "devices", "in program", "in step", "arrays", "sent")
        rows = [
            [row["kind"], " x ".join(row["axes"]), *(row[name] for name in ("devices", "in_program", "in_step"))]
            + [f"{amount(row[name])}B" for name in ("bytes", "sent")]
            for row in facts["collectives"]
        ]
        show("collectives of a step, of one device", columns, rows)
    _show_parameters(facts["parameters"])
    for warning in facts["warnings"]:
        print(f"warning: {warning}")
    if facts["memory"]["fits"] is False:
        return
    if not facts["start"]:
        print("this run has checkpoints and cannot continue with these keys; see docs/running.md")
    else:
        print("to start it (docs/running.md; fill in the words in capitals):")
        for line in facts["start"]:
            print(f"  {line}")


def _show_memory(found: dict) -> None:
    rows = [(name, f"{amount(size)}B") for name, size in found["categories"].items() if size]
    rows.append(("all", f"{amount(found['needed'])}B"))
    if found["capacity"]:
        rows.append(("there are", f"{amount(found['capacity'])}B"))
    show("memory of one device", ("what", "bytes"), rows)
    if found["compiler"]:
        said = ", ".join(f"{name.replace('_', ' ')} {amount(size)}B" for name, size in found["compiler"].items())
        print(f"as the compiler reports it: {said}")


def _show_time(facts: dict) -> None:
    found, flops = facts["roofline"], facts["flops"]
    rows = [
        ("FLOPs of a step, all keys of causal attention charged", amount(flops["full"])),
        ("FLOPs of a step, the keys that a token may see", amount(flops["causal"])),
        ("FLOPs computed again for remat", amount(flops["recomputed"])),
    ]
    if facts["bytes_moved"] is not None:
        rows.append(("bytes that one device moves", f"{amount(facts['bytes_moved'])}B"))
    if found:
        rows += [(f"seconds of {what}", f"{seconds:.4g}") for what, seconds in found["seconds"].items()]
        rows += [
            ("seconds of a step at least", f"{found['step_seconds']:.4g}, bound by {found['bound']}"),
            ("seconds if nothing overlaps", f"{found['apart_seconds']:.4g}"),
            ("MFU at most", f"{found['mfu']:.1%}"),
            ("tokens per second at most", amount(facts["tokens"] / found["step_seconds"])),
        ]
    show("work of a step", ("what", "value"), rows)


def _show_parameters(parameters: list[dict]) -> None:
    least = SMALL * sum(row["bytes"] for row in parameters)
    small = [row for row in parameters if row["bytes"] < least]
    rows = []
    for row in parameters:
        if row["bytes"] < least and len(small) > 1:
            continue
        sizes = zip(row["axes"], row["shape"], row["split"], strict=True)
        lies = ", ".join(f"{axis} {size:,}" + "".join(f" / {one}" for one in split) for axis, size, split in sizes)
        rows.append((f"{row['name']}\n  {lies}\n  {row['rule']}", f"{amount(row['bytes_per_device'])}B"))
    if len(small) > 1:
        all_small = sum(row["bytes_per_device"] for row in small)
        rows.append((f"{len(small)} others, each less than {SMALL:.1%} of all bytes", f"{amount(all_small)}B"))
    show("parameters, the axes of the mesh that split them, and the rule", ("parameter", "each device"), rows)
    print("Rules without fsdp are config.mesh.rules. --format=json has every parameter, with its rule.")
