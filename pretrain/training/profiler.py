"""A trace of some steps, for the views of TensorBoard and Perfetto."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax


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
