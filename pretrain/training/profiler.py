"""A trace of some updates, for TensorBoard's and Perfetto's views of where a step's time goes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax


class Profile:
    """Traces the updates of `window`, (first, last), counted from 1; an empty window traces nothing.

    A run that is restored inside the window traces what is left of it; one that ends inside, what it made of it.
    """

    def __init__(self, window: Sequence[int], folder: Path, report: Callable[[str], None]):
        self._window, self._report = tuple(window), report
        # Of several processes each has a folder of its own: on one host their files would be called alike.
        self._folder = folder / str(jax.process_index()) if jax.process_count() > 1 else folder
        self._started = 0  # the first update traced, 0 while nothing is
        self._done = 0  # the last update made

    def before(self, step: int) -> None:
        """Update `step` is about to be made."""
        if self._window and not self._started and self._window[0] <= step <= self._window[1]:
            jax.profiler.start_trace(str(self._folder))
            self._started = step

    def after(self, step: int, results) -> None:
        """Update `step` is on its way to `results`, which the last update of the window waits for."""
        self._done = step
        if self._started and step == self._window[1]:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Ends a trace that is under way."""
        if self._started:
            first, self._started = self._started, 0
            jax.profiler.stop_trace()
            self._report(f"trace of updates {first} to {self._done} written to {self._folder}")
