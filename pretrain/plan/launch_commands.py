"""Shell commands that start a planned run.

Software versions of TPU VMs: docs.cloud.google.com/tpu/docs/runtimes.
"""

import re
import shlex
from collections.abc import Sequence

from pretrain.plan.topology import Topology

SOFTWARE = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


def commands(topology: Topology, name: str, flags: Sequence[str], workdir: str = "") -> list[str]:
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
