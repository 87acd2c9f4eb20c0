"""What a step frees is there for the next step, without asking the kernel again: counted in page faults."""

import ctypes
import os
import subprocess
import sys

import pytest

from launch.local import free_port
from pretrain.distributed.malloc import keep_freed_memory
from pretrain.errors import UserError
from tests.pretrain.runs import ROOT

PAGES = 1 << 15  # 4 KB pages of one buffer of 128 MB, more than one heap of a thread's arena holds
FAULTS = """
import resource
from pretrain.distributed.init import start
start()
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.cumsum(x[::-1], axis=1) * x)
x = jnp.ones((1 << 15, 1 << 10))
for _ in range(3):
    x = step(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    x = step(x).block_until_ready()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""


def faults(**variables):
    """Page faults of a step."""
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "LONGHAUL_CACHE": ""} | variables
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="it is glibc that is told"
)
def test_steps_on_a_cpu_get_no_new_pages():
    assert faults(LONGHAUL_KEEP_MEMORY="1") < PAGES // 2
    assert faults(LONGHAUL_KEEP_MEMORY="0") > PAGES
    meeting = {"LONGHAUL_COORDINATOR": f"127.0.0.1:{free_port()}", "LONGHAUL_PROCESSES": "1", "LONGHAUL_PROCESS": "0"}
    assert faults(LONGHAUL_KEEP_MEMORY="1", **meeting) < PAGES // 2


def test_a_switch_that_is_neither_on_nor_off_is_told(monkeypatch):
    monkeypatch.setenv("LONGHAUL_KEEP_MEMORY", "yes")
    with pytest.raises(UserError, match="LONGHAUL_KEEP_MEMORY=yes is neither 0 nor 1"):
        keep_freed_memory()
