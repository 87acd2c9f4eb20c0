"""Runs the program on a Kubernetes cluster (GKE), as a JobSet of one pod per node.

    python -m launch.gke --image REGISTRY/longhaul --tpu v5p:4x4x4 --claim shared:/shared --restarts 20 --apply -- \\
        train --config=configs/gpt3.py:xl --workdir=/shared/xl

Without `--apply` the manifest is printed, to be read, edited and handed to `kubectl apply -f -`. The cluster needs the
JobSet controller and a node pool of the topology, or of the GPUs (`--gpu nvidia-h100-80gb --nodes 4`). When a pod fails
or is taken away, all of them are made anew, `--restarts` times at most; a user's mistake ends the run. A pod that is to
go is told so five minutes before, and saves.
"""

import argparse
import json
import math
import posixpath
import re
import sys
from collections.abc import Sequence

from launch import (
    FLAT,
    IMAGE_FOLDER,
    MISTAKE,
    NOT_RUN,
    PORT,
    carried,
    hand_over,
    line,
    parse,
    parser,
    positive,
    restarts,
    work_folder,
)
from launch.output import answer, hints, say

GRACE = 300  # seconds between asking a pod to stop and killing it
JOB = "run"  # of the one job in the set
UP_TO_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
# What GKE calls each TPU, the chips of a node of several and of the largest single one, the topologies that it has
# ("Plan TPUs in GKE" and the page of each TPU), and the largest: beyond one cube of 4x4x4 all are made of whole cubes.
TPUS = {
    "v4": ("tpu-v4-podslice", 4, 4, UP_TO_A_CUBE, (16, 16, 16)),
    "v5e": ("tpu-v5-lite-podslice", 4, 8, FLAT, (16, 16)),
    "v5p": ("tpu-v5p-slice", 4, 4, ("1x1x1", "2x1x1", *UP_TO_A_CUBE), (16, 16, 24)),
    "v6e": ("tpu-v6e-slice", 4, 8, FLAT, (16, 16)),
}


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code, kubectl's own with --apply."""
    flags = parser("gke", __doc__)
    flags.add_argument("--name", type=label, default="longhaul", help="name of the JobSet (default: longhaul)")
    flags.add_argument("--namespace", type=label, help="its namespace (default: kubectl's own)")
    flags.add_argument("--image", type=line, required=True, help="image that the Dockerfile made, in a registry")
    flags.add_argument("--tpu", type=tpu, help="type and topology of the TPU node pool, such as v5p:4x4x4")
    flags.add_argument("--gpu", type=line, help="accelerator of the GPU node pool, such as nvidia-h100-80gb")
    flags.add_argument("--nodes", type=positive, default=1, help="GPU nodes, one process on each (default: 1)")
    flags.add_argument("--gpus-per-node", type=positive, default=8, help="GPUs of each node (default: 8)")
    flags.add_argument("--spot", action="store_true", help="run on spot nodes")
    flags.add_argument(
        "--claim", type=claim, help="NAME:PATH of the shared volume's claim, which holds the work folder"
    )
    flags.add_argument("--python", default="python", help="interpreter in the image (default: python)")
    carried(flags)
    restarts(flags)
    flags.add_argument("--apply", action="store_true", help="hand the manifest to kubectl instead of printing it")
    flags.add_argument("--dry-run", action="store_true", help="print the manifest, which is done without --apply too")
    options, program = parse(flags, argv)
    if bool(options.tpu) == bool(options.gpu):
        flags.error("name the node pool, either as --tpu v5p:4x4x4 or as --gpu nvidia-h100-80gb --nodes 4")
    kubectl = "kubectl" + (f" -n {options.namespace}" if options.namespace else "")
    text = yaml(manifest(options, program))
    warn(options, work_folder(program))
    if not options.apply or options.dry_run:
        remedy = "leave --dry-run out" if options.apply else "give --apply"
        say(f"this is only the manifest, and nothing has begun: hand it to kubectl apply -f -, or {remedy}")
        answer(text)
        return 0
    code, printed = hand_over(["kubectl", "apply", "-f", "-"], text)
    if code:
        return code
    delete = f"{kubectl} delete jobset {options.name}"
    if re.search(r" unchanged\s*$", printed):
        say(f"it stands as it is, and one that has ended starts nothing: {delete}, then this again, or another --name")
    first = f"jobset.sigs.k8s.io/jobset-name={options.name},batch.kubernetes.io/job-completion-index=0"
    hints(program, f"{kubectl} logs -f -l {first}", delete, f"{delete}, then the same command again")
    return 0


def warn(options, folder: str) -> None:
    """Says where the work folder would be a pod's own, and gone with it."""
    if folder.startswith(("s3://", "gs://")):
        return
    place = posixpath.normpath(posixpath.join(IMAGE_FOLDER, folder))
    if not options.claim:
        say(f"warning: no --claim, so that {place} is each pod's own, and gone with it: give one, or a bucket")
    elif not f"{place}/".startswith(f"{options.claim[1].rstrip('/')}/"):
        say(f"warning: {place} is not below {options.claim[1]}, where --claim is, but each pod's own and gone with it")


def manifest(options, program: Sequence[str]) -> dict:
    """The JobSet that runs the program, as what Kubernetes is given."""
    pods, tolerations = options.nodes, []
    if options.tpu:
        pods, chips, selector = slice_of(*options.tpu)
        limits = {"google.com/tpu": chips}
    else:
        selector = {"cloud.google.com/gke-accelerator": options.gpu}
        limits = {"nvidia.com/gpu": options.gpus_per_node}
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    if options.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append({"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"})
    container = {
        "name": "pretrain",
        "image": options.image,
        "command": [escaped(word) for word in [options.python, "-m", "pretrain", *program]],
        "env": variables(options, pods),
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}],
    }
    # Reader processes hand batches over in shared memory, of which a container has 64 MB by itself.
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    if options.claim:
        claimed, path = options.claim
        container["volumeMounts"].append({"name": "shared", "mountPath": path})
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": claimed}})
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "nodeSelector": selector,
        "tolerations": tolerations,
        "containers": [container],
        "volumes": volumes,
    }
    job = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "pretrain", "operator": "In", "values": [MISTAKE, *NOT_RUN]},
                }
            ]
        },
        "template": {"spec": pod},
    }
    metadata = {"name": options.name} | ({"namespace": options.namespace} if options.namespace else {})
    if options.tpu:  # the nodes of a slice are one pool, which is this job's alone
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # Pods that are still saving may not meet those of the next attempt.
            "failurePolicy": {
                "maxRestarts": options.restarts,
                "restartStrategy": "BlockingRecreate",
                "rules": [{"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def slice_of(kind: str, topology: tuple[int, ...]) -> tuple[int, int, dict[str, str]]:
    """(nodes, chips of each, the labels that they have) of a TPU slice."""
    accelerator, several, single, *_ = TPUS[kind]
    total = math.prod(topology)
    chips = total if total <= single else several
    labels = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, topology)),
    }
    return total // chips, chips, labels


def variables(options, pods: int) -> list[dict]:
    """The environment of a pod: on TPUs JAX finds the others by what GKE tells it."""
    if options.tpu:
        places = [{"name": "LONGHAUL_COORDINATOR", "value": "auto"}]
    else:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        places = [
            {"name": "LONGHAUL_COORDINATOR", "value": f"{options.name}-{JOB}-0-0.{options.name}:{PORT}"},
            {"name": "LONGHAUL_PROCESSES", "value": str(pods)},
            {"name": "LONGHAUL_PROCESS", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        ]
    own = [{"name": key, "value": escaped(value)} for key, _, value in (text.partition("=") for text in options.env)]
    return [*places, {"name": "PYTHONUNBUFFERED", "value": "1"}, *own]


def escaped(word: str) -> str:
    """A word that Kubernetes hands on as it was: it reads $(NAME) as a variable, and $$ as one dollar."""
    return word.replace("$", "$$")


def tpu(text: str) -> tuple[str, tuple[int, ...]]:
    """An argparse type: a TPU's type and topology."""
    kind, _, topology = text.partition(":")
    if kind not in TPUS:
        raise argparse.ArgumentTypeError(f"{text} names no TPU; write one of {', '.join(TPUS)}, such as v5p:4x4x4")
    *_, known, largest = TPUS[kind]
    sizes = tuple(int(size) for size in topology.split("x")) if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", topology) else ()
    cubes = len(sizes) == len(largest) == 3 and list(sizes) == sorted(sizes) and not any(size % 4 for size in sizes)
    if topology not in known and not (cubes and all(size <= most for size, most in zip(sizes, largest, strict=True))):
        more = f", or multiples of 4 in rising order up to {'x'.join(map(str, largest))}" if len(largest) == 3 else ""
        raise argparse.ArgumentTypeError(f"{text} is no topology of {kind}, which has {', '.join(known)}{more}")
    return kind, sizes


def label(text: str) -> str:
    """An argparse type: a name as Kubernetes takes it, short enough for those that it makes of it."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name; use up to 40 small letters, digits and '-'")
    return text


def claim(text: str) -> tuple[str, str]:
    """An argparse type: a volume claim, and where the program sees it."""
    claimed, _, path = text.partition(":")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", claimed) or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PATH of a volume claim, such as shared:/shared")
    return claimed, line(path)


def yaml(value, indent: str = "") -> str:
    """YAML of dictionaries, lists, strings, whole numbers and booleans; what is not plain is in JSON's quotes."""
    text = "" if value else f"{indent}{json.dumps(value)}\n"
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        start = f"{indent}- " if key is None else f"{indent}{scalar(key)}:"
        if not isinstance(item, dict | list):
            text += f"{start}{'' if key is None else ' '}{scalar(item)}\n"
        elif key is None:
            text += start + yaml(item, f"{indent}  ").removeprefix(f"{indent}  ")
        else:
            text += f"{start}\n{yaml(item, indent + '  ')}"
    return text


def scalar(value) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9/._-]*", value):
        plain = value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
        return value if plain else json.dumps(value)
    text = json.dumps(value, ensure_ascii=False)  # half a character's \uXXXX, as JSON has it, YAML takes for one
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
