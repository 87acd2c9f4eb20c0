"""The manifest for Kubernetes: its fields against those that JobSet, Job and Pod have, and what it says."""

import json
import os

import pytest
import yaml
from standins import called, tool

from launch.gke import yaml as written

# The fields of the objects that the manifest is made of, and what each takes, as far as it uses them: JobSet as in the
# custom resource definition that its releases from v0.8 on publish, Job and Pod as in Kubernetes 1.31.
TEXT, COUNT = str, int
VARIABLE = {"name": TEXT, "value": TEXT, "valueFrom": {"fieldRef": {"fieldPath": TEXT}}}
CONTAINER = {
    "name": TEXT,
    "image": TEXT,
    "command": [TEXT],
    "env": [VARIABLE],
    "resources": {"limits": {"google.com/tpu": COUNT, "nvidia.com/gpu": COUNT}},
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
}
POD = {
    "restartPolicy": ("Never",),  # the only one that a pod failure policy goes with
    "terminationGracePeriodSeconds": COUNT,
    "nodeSelector": {
        "cloud.google.com/gke-tpu-accelerator": TEXT,
        "cloud.google.com/gke-tpu-topology": TEXT,
        "cloud.google.com/gke-accelerator": TEXT,
        "cloud.google.com/gke-spot": ("true",),
    },
    "tolerations": [{"key": TEXT, "operator": ("Exists", "Equal"), "effect": ("NoSchedule", "NoExecute")}],
    "containers": [CONTAINER],
    "volumes": [{"name": TEXT, "emptyDir": {"medium": ("Memory",)}, "persistentVolumeClaim": {"claimName": TEXT}}],
}
JOB = {
    "parallelism": COUNT,
    "completions": COUNT,
    "completionMode": ("Indexed", "NonIndexed"),
    "backoffLimit": COUNT,
    "podFailurePolicy": {
        "rules": [
            {
                "action": ("FailJob", "Ignore", "Count", "FailIndex"),
                "onExitCodes": {"containerName": TEXT, "operator": ("In", "NotIn"), "values": [COUNT]},
            }
        ]
    },
    "template": {"spec": POD},
}
ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob")
REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded")
JOBSET = {
    "apiVersion": ("jobset.x-k8s.io/v1alpha2",),
    "kind": ("JobSet",),
    "metadata": {
        "name": TEXT,
        "namespace": TEXT,
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": ("cloud.google.com/gke-nodepool",)},
    },
    "spec": {
        "failurePolicy": {
            "maxRestarts": COUNT,
            "restartStrategy": ("Recreate", "BlockingRecreate"),
            "rules": [{"name": TEXT, "action": ACTIONS, "onJobFailureReasons": [REASONS]}],
        },
        "network": {"enableDNSHostnames": bool},
        "replicatedJobs": [{"name": TEXT, "replicas": COUNT, "template": {"spec": JOB}}],
    },
}


def check(value, schema, path="manifest"):
    """Raises AssertionError where `value` has a field that is not in `schema`, or one of another type."""
    if isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) <= set(schema), f"{path}: {set(value) - set(schema)}"
        for key, item in value.items():
            check(item, schema[key], f"{path}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), path
        for item in value:
            check(item, schema[0], f"{path}[]")
    elif isinstance(schema, tuple):
        assert value in schema, f"{path}: {value}"
    else:
        assert type(value) is schema, f"{path}: {value!r}"


TPU = ["--tpu=v5p:4x4x4", "--restarts=20", "--claim=shared:/shared", "--spot"]
GPU = ["--gpu=nvidia-h100-80gb", "--nodes=4", "--name=xl", "--namespace=team"]


def manifest(*options):
    code, out, err = called("gke", "--image=registry/longhaul:1", *options, "--", "train", "--workdir=/shared/xl")
    assert code == 0, err
    return yaml.safe_load(out), err


def job_of(found):
    (replicated,) = found["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    return replicated["template"]["spec"]


@pytest.mark.parametrize("options", [TPU, GPU, ["--tpu=v6e:2x4", "--env=A=1"]])
def test_the_manifest_has_fields_that_kubernetes_knows(options):
    check(manifest(*options)[0], JOBSET)


def strict(schema):
    """A schema of Kubernetes' that refuses fields which it does not name, as a server with strict validation does."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("options", [TPU, GPU, ["--tpu=v6e:2x4", "--env=A=1"], ["--tpu=v4:2x2x2"]])
def test_the_manifest_is_as_jobsets_published_definition_has_it(options):
    """LONGHAUL_JOBSET_CRD: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset."""
    if not (path := os.environ.get("LONGHAUL_JOBSET_CRD")):
        pytest.skip("LONGHAUL_JOBSET_CRD names no copy of JobSet's custom resource definition")
    jsonschema = pytest.importorskip("jsonschema")
    with open(path) as file:
        versions = yaml.safe_load(file)["spec"]["versions"]
    found = manifest(*options)[0]
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in versions if found["apiVersion"].endswith(one["name"]))
    schema["properties"]["metadata"] = {"type": "object"}  # every object's, which definitions leave out
    jsonschema.validate(found, strict(schema))


@pytest.mark.oracle
@pytest.mark.parametrize("options", [TPU, GPU, ["--tpu=v6e:2x4", "--env=A=1"], ["--tpu=v4:2x2x2"]])
def test_the_manifest_is_what_published_types_make_of_it(options):
    """Kubeflow's, generated from the OpenAPI documents of JobSet, Job and Pod: they drop what they do not know."""
    types = pytest.importorskip("kubeflow_trainer_api.models", reason="JobSet's types need the extra 'oracle'")
    found = manifest(*options)[0]
    assert types.JobsetV1alpha2JobSet.from_dict(found).to_dict() == found
    job_of(found)["template"]["spec"]["restartpolicy"] = "Never"
    assert types.JobsetV1alpha2JobSet.from_dict(found).to_dict() != found
    job_of(found)["completions"] = "four"
    with pytest.raises(ValueError, match="completions"):
        types.JobsetV1alpha2JobSet.from_dict(found)


def test_the_check_finds_what_is_wrong():
    found = manifest(*TPU)[0]
    job_of(found)["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(AssertionError, match="restartpolicy"):
        check(found, JOBSET)


@pytest.mark.parametrize(
    ("tpu", "accelerator", "nodes", "chips"),
    [
        ("v4:2x2x4", "tpu-v4-podslice", 4, 4),
        ("v5e:1x1", "tpu-v5-lite-podslice", 1, 1),
        ("v5e:2x4", "tpu-v5-lite-podslice", 1, 8),
        ("v5e:8x8", "tpu-v5-lite-podslice", 16, 4),
        ("v5p:2x2x1", "tpu-v5p-slice", 1, 4),
        ("v5p:8x8x8", "tpu-v5p-slice", 128, 4),
        ("v5p:16x16x24", "tpu-v5p-slice", 1536, 4),
        ("v6e:4x4", "tpu-v6e-slice", 4, 4),
    ],
)
def test_a_slice_is_one_pod_a_node(tpu, accelerator, nodes, chips):
    job = job_of(manifest(f"--tpu={tpu}")[0])
    pod = job["template"]["spec"]
    assert job["parallelism"] == job["completions"] == nodes and job["completionMode"] == "Indexed"
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == tpu.partition(":")[2]
    assert {"name": "LONGHAUL_COORDINATOR", "value": "auto"} in pod["containers"][0]["env"]


def test_gpu_pods_learn_their_places():
    found, _ = manifest(*GPU)
    environment = {one["name"]: one for one in job_of(found)["template"]["spec"]["containers"][0]["env"]}
    assert environment["LONGHAUL_COORDINATOR"]["value"] == "xl-run-0-0.xl:28476"
    assert environment["LONGHAUL_PROCESSES"]["value"] == "4"
    index = environment["LONGHAUL_PROCESS"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert found["spec"]["network"]["enableDNSHostnames"] is True and found["metadata"]["namespace"] == "team"


def test_all_is_restarted_but_after_a_mistake():
    found = manifest(*TPU)[0]
    policy, job = found["spec"]["failurePolicy"], job_of(found)
    assert policy["maxRestarts"] == 20 and policy["restartStrategy"] == "BlockingRecreate"
    # A mistake ends the job for that reason, and the set with it; any other ends the job for another reason.
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2, 126, 127]
    assert rule["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_shared_memory_and_the_shared_folder_are_there():
    pod = job_of(manifest(*TPU)[0])["template"]["spec"]
    mounted = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounted == {"memory": "/dev/shm", "shared": "/shared"}
    assert {one["name"] for one in pod["volumes"]} == set(mounted)


def applied(tmp_path, body, *options):
    tool(tmp_path / "kubectl", f"cat > /dev/null; {body}")
    path = f"{tmp_path}:{os.environ['PATH']}"
    return called("gke", "--image=i", *options, "--apply", "--", "train", "--workdir=/shared/xl", PATH=path)


def test_it_says_how_to_watch_stop_and_go_on_where_something_has_begun(tmp_path):
    _, err = manifest(*GPU, "--claim=shared:/shared")
    assert len(err.splitlines()) == 1 and "nothing has begun" in err and err.endswith("or give --apply\n")
    _, err = manifest(*GPU, "--claim=shared:/shared", "--apply", "--dry-run")
    assert err.endswith("or leave --dry-run out\n")
    code, out, err = applied(tmp_path, "echo jobset.jobset.x-k8s.io/xl created", *GPU, "--claim=shared:/shared")
    assert code == 0 and "created" in out and "unchanged" not in err and "warning" not in err
    assert "watch: kubectl -n team logs -f -l jobset.sigs.k8s.io/jobset-name=xl" in err
    assert "tensorboard --logdir=/shared/xl/metrics" in err
    assert "saved: kubectl -n team delete jobset xl\n" in err
    assert "go on: kubectl -n team delete jobset xl, then the same command again\n" in err
    code, _, err = applied(tmp_path, "echo jobset.jobset.x-k8s.io/xl unchanged", *GPU, "--claim=shared:/shared")
    assert code == 0 and "one that has ended starts nothing: kubectl -n team delete jobset xl, then this again" in err
    code, _, err = applied(tmp_path, "echo no cluster >&2; exit 1", *GPU, "--claim=shared:/shared")
    assert code == 1 and err == "no cluster\n"


@pytest.mark.parametrize(
    ("claim", "workdir", "warning"),
    [
        ([], "/shared/xl", "no --claim, so that /shared/xl is each pod's own"),
        ([], "", "no --claim, so that /longhaul/runs/quickstart is each pod's own"),
        (["--claim=s:/shared"], "/share/xl", "/share/xl is not below /shared"),
        (["--claim=s:/shared"], "/shared/xl", ""),
        (["--claim=s:/longhaul/runs"], "runs/xl", ""),
        ([], "gs://bucket/xl", ""),
        ([], "s3://bucket/xl", ""),
    ],
)
def test_a_work_folder_that_goes_with_its_pod_is_warned_of(claim, workdir, warning):
    program = ["train", *([f"--workdir={workdir}"] if workdir else [])]
    code, _, err = called("gke", "--image=i", "--tpu=v5e:4x4", *claim, "--", *program)
    warnings = [line for line in err.splitlines() if "warning" in line]
    assert code == 0 and (warning in warnings[0] if warning else not warnings)


def test_apply_hands_kubectl_what_is_printed(tmp_path):
    tool(tmp_path / "kubectl", f"echo \"$*\" > '{tmp_path}/told'; cat > '{tmp_path}/given'")
    options = ["--image=i", "--tpu=v5e:4x4", "--", "train"]
    _, printed, _ = called("gke", *options)
    code, out, _ = called("gke", "--apply", *options, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 0 and out == ""
    assert (tmp_path / "told").read_text() == "apply -f -\n" and (tmp_path / "given").read_text() == printed


@pytest.mark.parametrize(
    "value",
    [
        {"a": [{"b": [1, 2], "c": {"d": "e"}}, "f"], "g": {}, "h": []},
        ["true", "no", "On", "1", "1.5", "null", "~", "", " a", "a: b", "- x", "#", "é\n\t\"'\\", "0x1", "a #b", ".5"],
        {"yes": True, "1": 1},
        ["a\x7fb", "a\x85b", "a\u2028b", "\ufeff", "a\xa0\U0001f642"],  # of which YAML forbids some, or breaks a line
    ],
)
def test_yaml_is_read_as_it_was_meant(value):
    expected = json.loads(json.dumps(value))
    assert yaml.safe_load(written(value)) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--image=i", "--", "train"], "name the node pool"),
        (["--image=i", "--tpu=v5e:4x4", "--gpu=x", "--", "train"], "name the node pool"),
        (["--image=i", "--tpu=v9:4x4", "--", "train"], "v9:4x4 names no TPU; write one of v4, v5e, v5p, v6e"),
        (["--image=i", "--tpu=v5p:4x4", "--", "train"], "v5p:4x4 is no topology of v5p, which has 1x1x1, 2x1x1,"),
        (["--image=i", "--tpu=v5p:4x4x6", "--", "train"], "multiples of 4 in rising order up to 16x16x24"),
        (["--image=i", "--tpu=v5p:8x4x4", "--", "train"], "is no topology of v5p"),
        (["--image=i", "--tpu=v4:4x4x32", "--", "train"], "is no topology of v4"),
        (["--image=i", "--tpu=v5e:1x3", "--", "train"], "v5e:1x3 is no topology of v5e, which has 1x1, 2x2, 2x4,"),
        (["--image=i", "--tpu=v5e:3x3", "--", "train"], "is no topology of v5e"),
        (["--tpu=v5e:4x4", "--", "train"], "required: --image"),
        (["--image=i", "--tpu=v5e:4x4", "--name=A_b", "--", "train"], "'A_b' is no name"),
        (["--image=i", "--tpu=v5e:4x4", "--claim=shared", "--", "train"], "is not NAME:PATH"),
        (["--image=i", "--tpu=v5e:4x4"], "name what to run after '--'"),
        (["--image=i", "--tpu=v5e:4x4", "--apply", "--", "train"], "'kubectl' is not installed here"),
    ],
)
def test_mistakes(argv, message, tmp_path):
    code, _, err = called("gke", *argv, PATH=tmp_path)
    assert code == 2
    assert message in err and "Traceback" not in err
