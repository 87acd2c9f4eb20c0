"""Which compiled programs are kept: all but those of several CPU devices, whose collectives would lose their order."""

import os
import subprocess
import sys

import pytest
from runs import ROOT

COMPILE = """
from pretrain.distributed.init import start
start()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
print(jax.jit(jnp.sin)(1.0).block_until_ready())
"""


def started(**variables):
    """What a start that compiles one program says on standard error."""
    unset = {"LONGHAUL_CACHE": "", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command, environment = [sys.executable, "-c", COMPILE], os.environ | unset | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def kept(folder, **variables):
    """How many programs a start that compiles one leaves in `folder`."""
    started(**variables)
    return sum(path.name.endswith("-cache") for path in folder.rglob("*"))


@pytest.mark.parametrize("name", ["LONGHAUL_CACHE", "JAX_COMPILATION_CACHE_DIR"])
def test_programs_of_several_cpu_devices_are_compiled_anew(name, tmp_path):
    assert kept(tmp_path, **{name: str(tmp_path)}, XLA_FLAGS="--xla_force_host_platform_device_count=2") == 0
    assert kept(tmp_path, **{name: str(tmp_path)}) > 0  # the check above can fail


def test_programs_of_several_processes_are_compiled_anew(tmp_path):
    source = "import sys; from pathlib import Path; from launch.local import launch; "
    source += f"sys.exit(launch([sys.executable, '-c', {COMPILE!r}], 2, None, Path(sys.argv[1]), 30.0))"
    cache = tmp_path / "cache"
    environment = os.environ | {"LONGHAUL_CACHE": str(cache), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", source, str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not cache.exists()


@pytest.mark.parametrize("cache", ["/dev/null", "/dev/null/x", "/proc"])
def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(cache):
    (said,) = started(LONGHAUL_CACHE=cache).splitlines()
    assert said.startswith(f"compiled programs are not kept, since {cache} is no folder that can be written to (")
