"""How fast training goes: rates of every line of the log, and a trace of some steps."""

import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from pretrain.costs.flops import flops_per_token
from pretrain.metrics.progress import Ledger
from pretrain.parallel.devices import peak_flops
from pretrain.step.train_spec import TrainSpec


class Throughput:
    """Tokens per second, MFU and the share of time spent waiting for data, between two readings.

    Only seconds that `ledger` charges to `step` and `data` count, not those of compiling, evaluating and saving; nor
    the first step, which compiles. Tokens are those that the model reads, without padding.
    """

    def __init__(self, spec: TrainSpec, length: int, peak: float, ledger: Ledger):
        """length: tokens of a row. peak: `config.log.peak_flops`."""
        self._peak = peak_flops(jax.devices()[0].device_kind, peak)
        # Without recomputation, and with all of attention, as MFU is defined (Chowdhery et al. 2022, appendix B).
        if self._peak:
            self._flops = flops_per_token(spec, length)["full"]
        self._ledger = ledger
        self._since: dict[str, float] | None = None  # seconds by category at the last reading
        self._done = ledger.seconds()  # the same when the last step was done
        self._tokens = 0.0

    def count(self, tokens: float, seconds: dict[str, float] | None = None) -> None:
        """Count a step that read so many tokens over all processes.

        `seconds` is the ledger when it was done, where that is known; else it is done just now.
        """
        # Metrics are read a step late, so the last step's may be read after this one is done: time must not go back.
        self._done = max(self._done, seconds or self._ledger.seconds(), key=_training_seconds)
        if self._since is None:
            # The first step compiles: seconds count from its end.
            self._since = self._done
        else:
            self._tokens += tokens

    def read(self) -> dict[str, float]:
        """`tokens_per_second`, `data_wait` and, of devices with a known peak, `mfu` since the last reading."""
        now = self._done
        if not self._tokens or _training_seconds(now) <= _training_seconds(self._since):
            return {}
        # Steps and waits for data; the share of waits says whether readers keep up.
        elapsed = _training_seconds(now) - _training_seconds(self._since)
        rates = {
            "tokens_per_second": self._tokens / elapsed,
            "data_wait": (now["data"] - self._since["data"]) / elapsed,
        }
        if self._peak:
            rates["mfu"] = rates["tokens_per_second"] * self._flops / (self._peak * jax.device_count())
        self._since, self._tokens = now, 0.0
        return rates


def peak_memory() -> dict[str, int]:
    """Most bytes so far: `host_peak_bytes` of this process, and `device_peak_bytes` of its fullest device if known."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"host_peak_bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    used = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    return found | ({"device_peak_bytes": max(used)} if used else {})


def _training_seconds(seconds: dict[str, float]) -> float:
    return seconds["step"] + seconds["data"]


class Profiler:
    """Traces the steps of `window`, (first, last) from 1; an empty window traces nothing.

    A run that is restored or ends inside the window traces the part of it that it runs.
    """

    def __init__(self, window: Sequence[int], folder: Path, report: Callable[[str], None]):
        self._window, self._report = tuple(window), report
        # Processes of one host would write files of the same name.
        self._folder = folder / str(jax.process_index()) if jax.process_count() > 1 else folder
        self._first = 0  # the first step of the trace; 0 without one
        self._last = 0

    def before(self, step: int) -> None:
        if self._window and not self._first and self._window[0] <= step <= self._window[1]:
            jax.profiler.start_trace(str(self._folder))
            self._first = step

    def after(self, step: int, results) -> None:
        self._last = step
        if self._first and step == self._window[1]:
            jax.block_until_ready(results)  # steps are dispatched ahead: the last one may still run
            self.close()

    def close(self) -> None:
        """End a trace that is under way."""
        if self._first:
            first, self._first = self._first, 0
            jax.profiler.stop_trace()
            self._report(f"trace of steps {first} to {self._last} written to {self._folder}")
