"""A job of several real processes on this machine, started as a scheduler would, that faults are done to."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.local import WAIT_FOR_DEVICES, free_port

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds that a start, or waiting for a word, may take

# Runs the program with some of its functions replaced: `{patch}` is Python.
PATCHED = "{patch}\nfrom pretrain.__main__ import run\nrun()"
# Replaces how process 1 gets a batch: at the `at`th it waits so many seconds.
SLEEPY = """
import os, time, pretrain.training.prefetch as feed
own, count = feed.Feed.__next__, [0]
def sleepy(self):
    count[0] += 1
    if os.environ["LONGHAUL_PROCESS"] == "1" and count[0] == {at}:
        time.sleep({seconds})
    return own(self)
feed.Feed.__next__ = sleepy
"""
# Says when the train state is about to be read, and takes a second longer over it.
UNHURRIED = """
import time, pretrain.checkpoints.restore as restore
own = restore._read_whole
def unhurried(*what):
    print("reading the train state", flush=True)
    time.sleep(0.5)
    found = own(*what)
    time.sleep(0.5)
    return found
restore._read_whole = unhurried
"""
# Changes the highest bit of a number's fraction, in the first large array on the first device of process 1, after
# update `at`: what the lowest bit changes can be rounded away by the next update, before devices are compared.
CORRUPT = """
import os, jax, numpy as np, pretrain.step.jit as jit
own, count = jit.JitSpec.train_step, [0]
def step(self, state, batch):
    state, metrics = own(self, state, batch)
    count[0] += 1
    if os.environ["LONGHAUL_PROCESS"] == "1" and count[0] == {at}:
        leaves, tree = jax.tree_util.tree_flatten(state)
        place = next(i for i, leaf in enumerate(leaves) if leaf.ndim > 2)
        pieces = [np.array(shard.data) for shard in leaves[place].addressable_shards]
        pieces[0].reshape(-1).view(np.uint32)[0] ^= 1 << 22
        devices = [shard.device for shard in leaves[place].addressable_shards]
        pieces = [jax.device_put(piece, device) for piece, device in zip(pieces, devices)]
        array = leaves[place]
        leaves[place] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, pieces)
        state = jax.tree_util.tree_unflatten(tree, leaves)
    return state, metrics
jit.JitSpec.train_step = step
"""


STARTED: list["Job"] = []  # those that have not ended


@contextlib.contextmanager
def ended():
    """No job that is started within outlives it, however it ends: they are in sessions of their own."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for job in [*STARTED]:
            job.kill()


class Job:
    """One start of `pretrain` with `arguments` as so many processes, each with `devices` virtual CPU devices.

    `patch` is Python that each process runs first, `extra` environment variables of each process by its number.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        logs: Path,
        processes: int = 2,
        devices: int = 2,
        patch: str = "",
        extra: Callable[[int], dict[str, str]] = lambda index: {},
    ):
        program = ["-c", PATCHED.format(patch=patch)] if patch else ["-m", "pretrain"]
        logs.mkdir(parents=True, exist_ok=True)
        self.paths = [logs / f"{len(list(logs.iterdir()))}-process-{index}.log" for index in range(processes)]
        meeting = {"LONGHAUL_COORDINATOR": f"127.0.0.1:{free_port()}", "LONGHAUL_PROCESSES": str(processes)}
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
        flags += [f"--xla_force_host_platform_device_count={devices}", WAIT_FOR_DEVICES]
        flags.append("--xla_backend_optimization_level=0")  # programs that run for a second, and are compiled for more
        surroundings = os.environ | meeting | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
        surroundings |= {"PYTHONUNBUFFERED": "1"}
        self.processes = []
        STARTED.append(self)
        for index, path in enumerate(self.paths):
            with path.open("wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *program, *arguments],
                        cwd=ROOT,
                        env=surroundings | {"LONGHAUL_PROCESS": str(index)} | extra(index),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def said(self, index: int = 0) -> str:
        return self.paths[index].read_text(errors="replace")

    @property
    def running(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def until(self, found: Callable[[], object], seconds: float = LIMIT) -> bool:
        """Waits until `found()`; False where a process ended first, or in so many seconds."""
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            if found():
                return True
            time.sleep(0.005)
        return False

    def until_said(self, words: str, index: int = 0) -> bool:
        return self.until(lambda: re.search(words, self.said(index)))

    def signal(self, number: int, *indices: int) -> None:
        for index in indices:
            if self.processes[index].poll() is None:
                self.processes[index].send_signal(number)

    def end(self, all_but: Sequence[int] = (), seconds: float = LIMIT) -> list[int]:
        """The exit codes, once all processes but those have ended; kills what is left then, readers too."""
        deadline = time.monotonic() + seconds
        try:
            for index, process in enumerate(self.processes):
                if index not in all_but:
                    process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SystemExit(f"process {index} did not end:\n{self.said(0)}\n---\n{self.said(index)}") from None
        finally:
            self.kill()
        return [process.returncode for process in self.processes]

    def kill(self) -> None:
        """Ends whatever is left of it."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self in STARTED:
            STARTED.remove(self)

    def readers(self, index: int) -> list[int]:
        """The processes that read data for process `index`."""
        threads = Path(f"/proc/{self.processes[index].pid}/task").iterdir()
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
        return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
