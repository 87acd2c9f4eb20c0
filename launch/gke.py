"""Run the program on a Kubernetes cluster (GKE), as a JobSet with one pod per node.

    python -m launch.gke --image REGISTRY/longhaul --tpu v5p:4x4x4 --claim shared:/shared --restarts 20 --apply -- \\
        train --config=configs/gpt3.py:xl --workdir=/shared/xl

Without `--apply` the manifest is printed, for `kubectl apply -f -`. The cluster needs the JobSet controller and a node
pool with that topology, or with GPUs (`--gpu nvidia-h100-80gb --nodes 4`). If a pod fails or is evicted, Kubernetes
recreates all of them, `--restarts` times at most, but not after a user's mistake. An evicted pod has five minutes to
save.
"""

import argparse
import json
import math
import posixpath
import subprocess
import sys
from collections.abc import Sequence

from launch import common

# Values are JSON, which YAML contains. Pods that still save must not meet those of the next attempt, hence
# BlockingRecreate. /dev/shm: reader processes pass batches in shared memory, of which a container has 64 MB by default.
MANIFEST = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {metadata}
spec:
  failurePolicy:
    maxRestarts: {restarts}
    restartStrategy: BlockingRecreate
    rules:
      - name: mistake
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  network:
    enableDNSHostnames: true
  replicatedJobs:
    - name: run
      replicas: 1
      template:
        spec:
          parallelism: {pods}
          completions: {pods}
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: pretrain
                  operator: In
                  values: {mistakes}
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 300
              nodeSelector: {selector}
              tolerations: {tolerations}
              containers:
                - name: pretrain
                  image: {image}
                  command: {command}
                  env: {env}
                  resources:
                    limits: {limits}
                  volumeMounts: {mounts}
              volumes: {volumes}
"""

# GKE's name of each TPU, and the most chips of a single node ("Plan TPUs in GKE"); nodes of larger slices have 4 chips.
TPUS = {
    "v4": ("tpu-v4-podslice", 4),
    "v5e": ("tpu-v5-lite-podslice", 8),
    "v5p": ("tpu-v5p-slice", 4),
    "v6e": ("tpu-v6e-slice", 8),
}
CLAIM = common.like(
    "[a-z0-9][a-z0-9.-]*:/.*",
    "NAME:PATH of a volume claim, such as shared:/shared",
    lambda value: value.partition(":")[::2],
)


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code, kubectl's own with --apply."""
    flags = common.parser("gke", __doc__)
    common.add(flags, "--name", "longhaul", "name of the JobSet")
    common.add(flags, "--namespace", None, "its namespace (default: kubectl's own)")
    common.add(flags, "--image", None, "image built from the Dockerfile, in a registry", required=True)
    common.add(flags, "--tpu", None, "type and topology of the TPU node pool, such as v5p:4x4x4", type=common.SLICE)
    common.add(flags, "--gpu", None, "accelerator of the GPU node pool, such as nvidia-h100-80gb")
    common.add(flags, "--nodes", 1, "GPU nodes, one process on each")
    common.add(flags, "--gpus-per-node", 8, "GPUs of each node")
    common.add(flags, "--spot", True, "run on spot nodes")
    common.add(flags, "--claim", None, "NAME:PATH of the volume claim that holds the work folder", type=CLAIM)
    common.add(flags, "--python", "python", "interpreter in the image")
    common.add(flags, "--apply", True, "apply the manifest with kubectl instead of printing it")
    common.add(flags, "--env", [], "a variable of the program's environment; repeatable", **common.ENV)
    options, program = common.parse(flags, argv)
    if bool(options.tpu) == bool(options.gpu):
        flags.error("name the node pool, either as --tpu v5p:4x4x4 or as --gpu nvidia-h100-80gb --nodes 4")
    workdir = posixpath.join(common.IMAGE_FOLDER, common.flag(program, "workdir", "runs"))
    shared = options.claim[1].rstrip("/") + "/" if options.claim else None
    if "://" not in workdir and not (shared and f"{workdir}/".startswith(shared)):
        common.say(f"warning: {workdir} is lost with its pod; choose a bucket or a folder inside --claim")
    jobset = manifest(options, program)
    if not options.apply or options.dry_run:
        print(jobset, end="")
        return 0
    common.require("kubectl")
    if code := subprocess.run(["kubectl", "apply", "-f", "-"], input=jobset, text=True).returncode:
        return code
    kubectl = "kubectl" + (f" -n {options.namespace}" if options.namespace else "")
    first = f"jobset.sigs.k8s.io/jobset-name={options.name},batch.kubernetes.io/job-completion-index=0"
    delete = f"{kubectl} delete jobset {options.name}"
    common.hints(program, f"{kubectl} logs -f -l {first}", delete, f"{delete}, then the same command again")
    return 0


def manifest(options: argparse.Namespace, program: Sequence[str]) -> str:
    """The JobSet that runs the program."""
    metadata = {"name": options.name} | ({"namespace": options.namespace} if options.namespace else {})
    tolerated = []
    if options.tpu:
        kind, shape = options.tpu
        accelerator, single = TPUS[kind]
        total, topology = math.prod(shape), "x".join(map(str, shape))
        chips = total if total <= single else 4
        pods, limits = total // chips, {"google.com/tpu": chips}
        selector = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": topology}
        # The nodes of a slice form one pool, which belongs to this job alone.
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
        places = [{"name": "LONGHAUL_COORDINATOR", "value": "auto"}]
    else:
        pods, limits = options.nodes, {"nvidia.com/gpu": options.gpus_per_node}
        selector = {"cloud.google.com/gke-accelerator": options.gpu}
        tolerated.append("nvidia.com/gpu")
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        places = [
            {"name": "LONGHAUL_COORDINATOR", "value": f"{options.name}-run-0-0.{options.name}:{common.PORT}"},
            {"name": "LONGHAUL_PROCESSES", "value": str(pods)},
            {"name": "LONGHAUL_PROCESS", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        ]
    if options.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerated.append("cloud.google.com/gke-spot")
    mounts = [{"name": "memory", "mountPath": "/dev/shm"}]
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    if options.claim:
        mounts.append({"name": "shared", "mountPath": options.claim[1]})
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": options.claim[0]}})
    variables = [variable.partition("=")[::2] for variable in ["PYTHONUNBUFFERED=1", *options.env]]
    fields = dict(
        metadata=metadata,
        restarts=options.restarts,
        pods=pods,
        mistakes=[common.MISTAKE, *common.NOT_RUN],
        selector=selector,
        tolerations=[{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated],
        image=options.image,
        command=[escape(word) for word in [options.python, "-m", "pretrain", *program]],
        env=[*places, *({"name": key, "value": escape(value)} for key, value in variables)],
        limits=limits,
        mounts=mounts,
        volumes=volumes,
    )
    return MANIFEST.format(**{key: json.dumps(value, ensure_ascii=False) for key, value in fields.items()})


def escape(word: str) -> str:
    """Escape a word for Kubernetes, which reads $(NAME) as a variable and $$ as one dollar."""
    return word.replace("$", "$$")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
