"""Start of a process: the environment of a cluster, kept memory, the cache of compiled programs."""

import ctypes
import os
import subprocess
import sys

import pytest
from runs import ROOT

from pretrain.distributed import init
from pretrain.errors import UserError


def run_python(code, **variables):
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "LONGHAUL_CACHE": ""} | variables
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("coordinator", "processes", "process"),
    [
        ("", "2", ""),
        ("127.0.0.1:1234", "abc", "0"),
        ("127.0.0.1:1234", "2", "2"),
        ("somewhere", "2", "0"),
    ],
)
def test_start_bad_environment(coordinator, processes, process, monkeypatch):
    for name, value in (("COORDINATOR", coordinator), ("PROCESSES", processes), ("PROCESS", process)):
        monkeypatch.setenv(f"LONGHAUL_{name}", value)
    with pytest.raises(UserError):
        init.start()


def test_start_auto_without_cluster(run_pretrain):
    code, _, err = run_pretrain("evaluate", "--workdir=nowhere", env={"LONGHAUL_COORDINATOR": "auto"})
    assert code == 2 and "LONGHAUL_COORDINATOR=auto" in err


def test_unused_gpus(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert init.unused_gpus("cpu", tmp_path) is None
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert "2 NVIDIA GPUs" in init.unused_gpus("cpu", tmp_path)
    assert init.unused_gpus("gpu", tmp_path) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert init.unused_gpus("cpu", tmp_path) is None


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


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc alone is set"
)
def test_keep_freed_memory_page_faults():
    assert int(run_python(FAULTS, LONGHAUL_KEEP_MEMORY="1")[0]) < PAGES // 2
    assert int(run_python(FAULTS, LONGHAUL_KEEP_MEMORY="0")[0]) > PAGES


COMPILE = """
from pretrain.distributed.init import start
start()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
print(jax.jit(jnp.sin)(1.0).block_until_ready())
"""


@pytest.mark.parametrize("devices", [1, 2])
def test_compilation_cache_devices(devices, tmp_path):
    flags = f"--xla_force_host_platform_device_count={devices}"
    run_python(COMPILE, LONGHAUL_CACHE=str(tmp_path), XLA_FLAGS=flags)
    assert bool([*tmp_path.rglob("*-cache")]) == (devices == 1)


def test_compilation_cache_unwritable():
    _, err = run_python(COMPILE, LONGHAUL_CACHE="/dev/null/x")
    assert err.startswith("warning: LONGHAUL_CACHE=/dev/null/x")
