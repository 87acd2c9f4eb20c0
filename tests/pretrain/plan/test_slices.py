"""What is planned can be rented: the launchers take the slices that `plan` says they do, and no others."""

import argparse
import itertools

import pytest

from launch import gke, tpu_pod
from pretrain.plan import topology

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
    assert topology.launchers("v5p", far) == topology.launchers("v4", (4, 4, far[0])) == ()


@pytest.mark.parametrize("slices", [FLAT, DEEP])
def test_launchers_accept_their_slices(slices):
    for kind, shape in slices:
        name, accepting = f"{kind}:{topology.format_shape(shape)}", topology.launchers(kind, shape)
        assert takes(gke.tpu, name) == ("gke" in accepting), name
        assert takes(tpu_pod.pod_type, name) or "tpu_pod" not in accepting, name
