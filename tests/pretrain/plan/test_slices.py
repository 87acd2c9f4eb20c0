"""What is planned can be rented: the launchers take the slices that `plan` says they do, and no others."""

import argparse
import itertools
import math

import pytest

from launch import gke, tpu_pod
from pretrain.plan import launch_commands

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
FLAT = [(kind, shape) for kind in ("v5e", "v6e") for shape in itertools.product(SIZES, repeat=2)]
DEEP = [(kind, shape) for kind in ("v4", "v5p") for shape in itertools.product(SIZES, repeat=3)]


def takes(read, name):
    try:
        return bool(read(name))
    except argparse.ArgumentTypeError:
        return False


def test_slices_beyond_all_bounds_are_answered_at_once():
    far = (999_996, 999_996, 999_996)
    assert launch_commands.launchers("v5p", far) == launch_commands.launchers("v4", (4, 4, far[0])) == ()


@pytest.mark.parametrize("of", [FLAT, DEEP])
def test_the_launchers_take_the_slices_that_they_are_said_to(of):
    for kind, shape in of:
        name, said = f"{kind}:{launch_commands.joined(shape)}", launch_commands.launchers(kind, shape)
        assert takes(gke.tpu, name) == ("gke" in said), name
        if kind == "v4":  # of which gcloud is handed any shape, and says itself what it has
            assert takes(tpu_pod.pod_type, name), name
            assert math.prod(shape) <= 4096 or not said, name
        else:
            assert takes(tpu_pod.pod_type, name) == ("tpu_pod" in said), name
