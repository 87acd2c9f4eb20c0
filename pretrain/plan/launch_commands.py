"""The slices of TPUs that Google rents, and which launchers get them.

What `launch.tpu_pod --create` and `launch.gke --tpu` take (tests/pretrain/plan/test_slices.py holds this to them):
pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" of docs.cloud.google.com/tpu/docs, and "Plan TPUs in GKE".
"""

import itertools
import math
import re
import shlex
from collections.abc import Sequence

from pretrain.errors import UserError
from pretrain.plan.topology import Topology

Shape = tuple[int, ...]
FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # of v5e and v6e
BELOW_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
PART_OF_A_HOST = {"v5p": ((1, 1, 1), (2, 1, 1))}  # which GKE alone has
CUBE = 4  # chips along an edge of what larger ones are made of
MOST = {"v4": 64, "v5p": 96}  # cubes of a slice
LARGEST = {"v4": (16, 16, 16), "v5p": (16, 16, 24)}  # of GKE
EVERYWHERE = ("tpu_pod", "gke")


def launchers(kind: str, shape: Shape) -> tuple[str, ...]:
    """The launchers that get a slice, the simplest first; none where it is not rented."""
    if shape in (*FLAT, *BELOW_A_CUBE):
        return EVERYWHERE
    if shape in PART_OF_A_HOST.get(kind, ()):
        return ("gke",)
    if kind not in LARGEST or list(shape) != sorted(shape) or any(size % CUBE for size in shape):
        return ()
    cubes = tuple(size // CUBE for size in shape)
    few = math.prod(cubes) <= MOST[kind]
    # Of v5p gcloud takes a number of chips, and makes the most compact slice of them.
    made = few and (kind == "v4" or cubes == _most_compact(math.prod(cubes)))
    small = all(size <= most for size, most in zip(shape, LARGEST[kind], strict=True))
    return tuple(name for name, takes in zip(EVERYWHERE, (made, small), strict=True) if takes)


def check(kind: str, shape: Shape) -> None:
    """Errors: UserError where such a slice is not rented, which names those that are."""
    if launchers(kind, shape):
        return
    turned = [other for other in itertools.permutations(shape) if launchers(kind, other)]
    known = FLAT if len(shape) == 2 else (*PART_OF_A_HOST.get(kind, ()), *BELOW_A_CUBE)
    more = ", and those of three multiples of 4 in rising order" if kind in LARGEST else ""
    remedy = (
        f"did you mean {kind}:{joined(turned[0])}?"
        if turned
        else f"of {kind} there are {', '.join(map(joined, known))}{more}"
    )
    raise UserError(f"--topology={kind}:{joined(shape)} is no slice that Google rents; {remedy}")


def joined(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _most_compact(count: int) -> Shape:
    """So many cubes side by side, with the shortest of longest edges, and then of the next; edges in rising order."""
    shapes = itertools.combinations_with_replacement(range(1, count + 1), 3)
    return min((shape for shape in shapes if math.prod(shape) == count), key=lambda shape: shape[::-1])


SOFTWARE = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


def commands(topology: Topology, name: str, flags: Sequence[str], workdir: str = "") -> list[str]:
    """The lines that start `pretrain train` with `flags` on `topology`, the simplest first.

    `name` is the run's; `workdir` the folder of a run that is gone on with.
    """
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")  # gcloud's rule for names of TPUs
    name = name if name[:1].isalpha() else f"run-{name}".rstrip("-")

    def train(place: str) -> str:
        return f"train {shlex.join([*flags, f'--workdir={workdir or place}'])}"

    family, count = topology.name.partition(":")[0], topology.count
    match topology.hardware.platform:
        case "tpu":
            made = f"--create {topology.name} --version {SOFTWARE[family]} --install --restarts 20 --delete"
            image = f"--image REGISTRY/longhaul --tpu {topology.name} --restarts 20 --apply"
            bucket = train(f"gs://BUCKET/{name}")
            lines = {
                "tpu_pod": f"python -m launch.tpu_pod --tpu {name} --zone ZONE {made} -- {bucket}",
                "gke": f"python -m launch.gke {image} -- {bucket}",
            }
            return [lines[launcher] for launcher in launchers(family, topology.shape)]
        case "cuda":
            node = f"--nodes 1 --gpus-per-node {count} --restarts 20"
            return [
                f"pretrain {train(f'runs/{name}')}",
                f"python -m launch.slurm {node} -- {train(f'/SHARED/{name}')}",
            ]
    return [f"python -m launch.local --processes 1 --devices {count} -- {train(f'runs/{name}')}"]
