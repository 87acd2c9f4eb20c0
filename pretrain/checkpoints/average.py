"""The mean of a run's last checkpoints (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.checkpoints import params_only, restore
from pretrain.checkpoints.restore import Checkpoints
from pretrain.distributed.consensus import on_host0
from pretrain.errors import UserError


class CheckpointAverage:
    """Reads the mean of the last `count` checkpoints up to a step, with the methods of `Checkpoints`.

    Sums are float32, from the oldest on, and divided once.
    """

    def __init__(self, checkpoints: Checkpoints, count: int, report: Callable[[str], None] = lambda message: None):
        """`report` receives the steps that are averaged."""
        self.checkpoints, self.count, self.report = checkpoints, count, report

    def steps(self, last: int) -> list[int]:
        """The steps to average: the last `count` that the run saved, without gaps. Errors: UserError."""
        # Imported weights are no update of this run, so they are in no mean.
        available = on_host0(self.checkpoints.trained if self.count > 1 else self.checkpoints.steps)
        steps = []
        for step in reversed([step for step in available if step <= last]):
            # An older checkpoint, kept as the best, does not belong to the last ones if one in between is gone.
            if len(steps) == self.count or (steps and self._previous(steps[0]) > step):
                break
            steps.insert(0, step)
        if len(steps) < self.count:
            raise UserError(
                f"--average={self.count}: {self.checkpoints.folder} has {len(steps)} consecutive checkpoints up to "
                f"{last}. Lower it."
            )
        if self.count > 1:
            self.report(f"averaging checkpoints {', '.join(map(str, steps))}")
        return steps

    def _previous(self, step: int) -> int:
        """The step that the run saved before `step`; 0 for old checkpoints, which do not note it."""
        folder = self.checkpoints.workdir.checkpoint(step)
        return on_host0(lambda: restore.read_notes(folder)).get(restore.BEFORE, 0)

    def restore_params(self, step: int, shapes):
        """The mean of the parameters, sharded as in `shapes`."""
        if self.count == 1:
            return self.checkpoints.restore_params(step, shapes)
        total = None
        for one in self.steps(step):
            params = self.checkpoints.restore_params(one, shapes)
            params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
            total = params if total is None else jax.tree.map(jnp.add, total, params)

        def divide(leaf, like):
            # By an array: XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
            return (leaf / jnp.full_like(leaf, self.count)).astype(like.dtype)

        return jax.tree.map(divide, total, shapes)

    def reader(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[str], np.ndarray]:
        """A function that reads one parameter of the mean by its path, as `params_only.reader`."""
        workdir = self.checkpoints.workdir
        if self.count == 1:
            return params_only.reader(workdir.checkpoint(step), shapes)
        readers = [params_only.reader(workdir.checkpoint(one), shapes) for one in self.steps(step)]

        def read(path: str) -> np.ndarray:
            total = np.asarray(readers[0](path), np.float32)
            for one in readers[1:]:
                total = total + one(path)
            return (total / np.float32(self.count)).astype(shapes[path].dtype)

        return read
