"""Names of devices."""

from types import SimpleNamespace

import pytest

from pretrain.parallel.devices import describe_devices


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [([("NVIDIA H100", 0)] * 8, "8 x NVIDIA H100"), ([("TPU v5p", 0), ("TPU v5p", 1)], "2 x TPU v5p in 2 processes")],
)
def test_describe_devices(kinds, shown):
    devices = [SimpleNamespace(device_kind=kind, process_index=host, platform="") for kind, host in kinds]
    assert describe_devices(devices) == shown
