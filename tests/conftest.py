"""Strict surroundings for every test: eight virtual CPU devices, no implicit rank promotion, real subprocesses."""

import contextlib
import ctypes
import functools
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest

from input_pipeline.io import open_path
from launch.local import WAIT_FOR_DEVICES
from tests import object_store

ROOT = Path(__file__).resolve().parent.parent

# JAX reads these when it is first imported, so they are set before any test module is.
# `JAX_PLATFORMS=cuda make test` runs the same tests on another platform.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time of the tests goes into compiling programs that run once: unoptimised, and without the fusion
# emitters, a step compiles in a quarter of the time. `run_pretrain` compiles as users do.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0"
if metadata.version("jaxlib").startswith("0.10."):  # later ones know no such flag, and end
    QUICK_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {WAIT_FOR_DEVICES} {QUICK_TO_COMPILE}"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# What programs that the tests start compile for one device is kept between runs of the tests (for several CPU devices
# nothing is: `host.keep_programs`). JAX does not write entries atomically, so each worker has a folder of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
os.environ["LONGHAUL_CACHE"] = str(Path(tempfile.gettempdir()) / f"longhaul-tests-{os.getuid()}" / WORKER)
# A worker runs hundreds of programs in turn, and has no use for the memory of the largest.
os.environ["LONGHAUL_KEEP_MEMORY"] = "0"


# How long an example takes says more about the machine than about the code; pytest-timeout catches what hangs.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


FOLDERS = itertools.count()  # of object stores
MEMORY = 1.2e9  # bytes that a worker may hold between two test modules


@pytest.fixture(scope="module", autouse=True)
def _drop_compiled_programs():
    """JAX forgets what it compiled once a worker is large.

    A test module may compile hundreds of programs, of 0.3 MB and four memory mappings each; Linux allows 65,530.
    """
    yield
    with contextlib.suppress(FileNotFoundError), open("/proc/self/statm") as sizes:  # on Linux alone
        if "jax" in sys.modules and int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MEMORY:
            sys.modules["jax"].clear_caches()
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps two thirds of what they took


@pytest.fixture(scope="session")
def store_servers(tmp_path_factory):
    """`store_servers("s3")`: a local server of that kind of object store, started once."""
    with contextlib.ExitStack() as stack:
        serve = contextlib.contextmanager(object_store.served)
        yield functools.cache(lambda scheme: stack.enter_context(serve(scheme, tmp_path_factory.mktemp(scheme))))


@pytest.fixture(scope="session", params=object_store.KINDS)
def store(request, store_servers):
    """A local server of each kind of object store."""
    return store_servers(request.param)


def new_bucket(store, monkeypatch) -> str:
    """The name of an unused folder in a store, `s3://bucket/0`; sets the environment in which programs reach it."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"{store.bucket}/{next(FOLDERS)}"


@pytest.fixture
def bucket(store, monkeypatch):
    """The name of an unused folder in each kind of store."""
    return new_bucket(store, monkeypatch)


@pytest.fixture(params=["disk", *object_store.KINDS])
def root(request, tmp_path, store_servers, monkeypatch):
    """A folder on a disk, then one in each kind of store whose server is installed."""
    return tmp_path if request.param == "disk" else open_path(new_bucket(store_servers(request.param), monkeypatch))


@pytest.fixture
def hang_ups_are_heard():
    """Programs that a test starts hear of a terminal's end, though the tests may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@dataclass(frozen=True)
class Finished:
    """What a finished program left: exit code, standard output, standard error."""

    rc: int
    stdout: str
    stderr: str

    def __iter__(self):
        return iter((self.rc, self.stdout, self.stderr))


@pytest.fixture
def run_pretrain(tmp_path):
    """`run_pretrain("describe", "--config=...", devices=8)`: the real program, as a user starts it.

    Runs `python -m pretrain ARGS` from the root of the tree with `devices` virtual CPU devices and gives its
    exit code, standard output and standard error. `env` adds or replaces environment variables.
    """

    def run(*args, devices: int = 1, env: dict[str, str] | None = None, timeout: float = 300) -> Finished:
        flags = f"--xla_force_host_platform_device_count={devices} {WAIT_FOR_DEVICES}"
        done = subprocess.run(
            [sys.executable, "-m", "pretrain", *map(str, args)],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flags, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def workdir(tmp_path) -> Path:
    """An empty work folder, gone after the test."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder
