"""Agreement between the processes of a run: host 0 decides, differences and errors reach all."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from pretrain.errors import USER_ERRORS, FaultError, UserError, join_some, reason

SHOWN = 6  # differences between processes that a message names
# Milliseconds that a barrier waits; the watchdog and JAX's heartbeats end it earlier.
FOREVER = 1 << 40
ROOT = Path(__file__).resolve().parents[2]

Result = TypeVar("Result")
_barriers = 0  # barriers of this process so far, which name the next one


def barrier() -> None:
    """Waits for all processes, without using a device."""
    global _barriers
    if jax.process_count() > 1:
        _barriers += 1
        distributed.global_state.client.wait_at_barrier(f"longhaul/{_barriers}", FOREVER)


class SyncedFunction:
    """A jitted function whose first run all processes start together, however long each one compiles.

    Gloo, which connects CPU devices at their first collective, waits 30 s for the others and no longer.
    """

    def __init__(self, function):
        self._function, self.lower, self._synced = function, function.lower, False

    def __call__(self, *arguments):
        if not self._synced and jax.process_count() > 1:
            self.lower(*arguments).compile()  # the call below reuses it
            barrier()
        self._synced = True
        return self._function(*arguments)


def allgather_json(value) -> list:
    """The `value` of every process, in their order; anything that JSON holds."""
    if jax.process_count() == 1:
        return [value]
    barrier()
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    # Rows of an allgather have one shape: lengths first, then the texts padded to the longest.
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(text)))).reshape(-1)
    padded = np.zeros(1 << int(lengths.max()).bit_length(), np.uint8)  # powers of two: each size is compiled once
    padded[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]


def on_all_hosts(function: Callable[[], Result]) -> Result:
    """Runs `function` in every process; if any of them raises, all do.

    A user's mistake in one process is the same UserError in all. For any other error that process raises its own and
    the others FaultError.
    """
    if jax.process_count() == 1:
        return function()
    result, cause = None, None
    try:
        result = function()
    except Exception as error:
        cause = error
    mistake = isinstance(cause, USER_ERRORS)
    # Every process takes part, also one that failed: else the others would wait for it.
    errors = allgather_json([mistake, str(cause) if mistake else reason(cause)] if cause else None)
    if mistakes := [text for mistake, text in filter(None, errors) if mistake]:
        raise UserError(mistakes[0]) from cause
    if cause:
        raise cause
    for index, error in enumerate(errors):
        if error:
            raise FaultError(f"process {index} failed: {error[1]}. Start the same command again.")
    return result


def on_host0(function: Callable[[], Result]) -> Result:
    """Runs `function` in process 0 and returns its result, anything that JSON holds, in all. Errors: `on_all_hosts`."""
    result = on_all_hosts(lambda: function() if jax.process_index() == 0 else None)
    return allgather_json(result)[0]


def assert_equal_on_hosts(values: Mapping[str, object], remedy: str) -> None:
    """Raises the same UserError in every process unless all have the same `values`, by name."""
    first, *others = allgather_json({name: repr(value) for name, value in values.items()})
    different = [
        f"{name} is {first.get(name, 'absent')} in process 0 and {other.get(name, 'absent')} in process {index}"
        for index, other in enumerate(others, start=1)
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    ]
    if different:
        raise UserError(f"processes differ: {join_some(different, SHOWN, '; ')}. {remedy}")


def library_versions() -> dict[str, str]:
    """Versions of the libraries that a run's numbers and programs depend on."""
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")}


def versions() -> dict[str, object]:
    """Code, libraries and settings that must be the same in all processes, by name."""
    code = hashlib.blake2b(digest_size=8)
    for package in ("input_pipeline", "models", "pretrain"):
        for path in sorted((ROOT / package).rglob("[!.]*.py")):
            code.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    values = {"the code of longhaul": code.hexdigest()}
    values |= {f"the version of {name}": version for name, version in library_versions().items()}
    values["LONGHAUL_PROCESSES"] = os.environ.get("LONGHAUL_PROCESSES", "")
    # Settings that change numbers or programs.
    for name in ("enable_x64", "default_prng_impl", "threefry_partitionable", "default_matmul_precision"):
        values[f"jax_{name}"] = getattr(jax.config, f"jax_{name}")
    return values
