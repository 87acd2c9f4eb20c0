"""How the TPU pod launcher brings a pod up, by the states that gcloud reports."""

import argparse
import sys

import pytest

from launch.supervisor import Signals
from launch.tpu_pod import Launch, Pod, accelerator

MISSING = [sys.executable, "-c", "raise SystemExit('NOT_FOUND')"]
BROKEN = [sys.executable, "-c", "raise SystemExit('UNAVAILABLE')"]


class States(Pod):
    """A pod whose states are a list, with the commands that were asked for."""

    def __init__(self, states, **options):
        options = (
            dict(
                tpu="pod",
                zone="z",
                project=None,
                create=["--accelerator-type=v5p-8"],
                version="v",
                queued=False,
                spot=False,
            )
            | options
        )
        super().__init__(argparse.Namespace(install=True, logs=None, delete=False, **options))
        self.states, self.calls = list(states), []

    def _gcloud(self, group, verb, *more):
        self.calls.append(verb if group == "tpu-vm" else f"queued {verb}")
        if verb != "describe":
            return ["true"]
        state = self.states.pop(0)
        return state if isinstance(state, list) else ["echo", state]


@pytest.mark.parametrize(
    ("states", "options", "calls"),
    [
        (["READY"], {}, "describe"),
        (["CREATING", "READY"], {}, "describe describe"),
        (["REPAIRING", "READY"], {"create": None}, "describe describe"),
        ([MISSING, "READY"], {}, "describe create describe"),
        (["PREEMPTED", "READY"], {}, "describe delete create describe"),
        (["DELETING", MISSING, "READY"], {}, "describe describe create describe"),
        (
            [MISSING, "SUSPENDED", MISSING, "WAITING_FOR_RESOURCES", "READY"],
            {"queued": True},
            "describe, queued describe, queued delete, queued create, describe, queued describe, describe",
        ),
    ],
)
def test_bring_up_waits_or_creates(states, options, calls):
    pod = States(states, **options)
    with Signals() as signals:
        launch = Launch(pod, ["train"], signals, look=0.01)
        assert launch.bring_up() == 0
    assert pod.calls == calls.split(", " if "," in calls else " ")
    assert launch.installed is False


@pytest.mark.parametrize(
    ("states", "options"),
    [
        ([BROKEN], {}),
        ([MISSING], {"create": None}),
        (["TERMINATED"], {"create": None}),
        ([MISSING, "PREEMPTED"], {}),
        ([MISSING, MISSING, MISSING, "FAILED"], {"queued": True}),
    ],
)
def test_bring_up_fails(states, options):
    with Signals() as signals:
        assert Launch(States(states, **options), ["train"], signals, look=0.01).bring_up() == 1


def test_bring_up_leaves_a_stopped_pod_alone():
    pod = States(["STOPPED"])
    with Signals() as signals, pytest.raises(SystemExit) as ended:
        Launch(pod, ["train"], signals).bring_up()
    assert ended.value.code == 2 and pod.calls == ["describe"]


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        ("v5p:16x16x24", ["--accelerator-type=v5p-12288"]),
        ("v5e:8x16", ["--accelerator-type=v5litepod-128"]),
        ("v6e:2x4", ["--accelerator-type=v6e-8"]),
        ("v4:4x4x8", ["--type=v4", "--topology=4x4x8"]),
        ("v5p-8", ["--accelerator-type=v5p-8"]),
    ],
)
def test_accelerator_as_gcloud_names_it(pod, options):
    assert accelerator(pod) == options
