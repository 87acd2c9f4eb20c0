"""The mean of a run's last checkpoints, as the original Transformer is read (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.checkpoints import params_only, restore
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.distributed.consensus import on_host0
from pretrain.errors import UserError


class Averaged:
    """What reads parameters, as `Checkpoints` does, of the last `count` checkpoints up to a step: their mean.

    Sums are of float32, from the oldest on, and are divided once.
    """

    def __init__(
        self, checkpoints: Checkpoints, options, count: int, report: Callable[[str], None] = lambda message: None
    ):
        """`options` is the run's `config.checkpoint`; `report` hears which are averaged, where they are several."""
        self.checkpoints, self.options, self.count, self.report = checkpoints, options, count, report

    def steps(self, last: int) -> list[int]:
        """The steps that are averaged, the last that the run has saved. Errors: UserError where some are not there.

        Each names the one before it, which may be gone where an older one was kept as the best. Weights that were
        imported, which training began with, are none that it saved.
        """
        folder = self.checkpoints.folder
        there = on_host0(self.checkpoints.trained if self.count > 1 else self.checkpoints.steps)
        found, left = [], ""
        for step in reversed([step for step in there if step <= last]):
            if found and (missed := self._saved_before(found[0])) > step:
                left = f", and then {step}, but not {missed}"
                break
            found.insert(0, step)
        found = found[-self.count :]
        if len(found) < self.count:
            kept = self.options["keep"] >= self.count
            more = "train on with more --config.train.steps"
            more += "" if kept else f" and --config.checkpoint.keep={self.count}"
            raise UserError(
                f"--average={self.count} checkpoints up to {last}, of which {folder} has {len(found)} "
                f"({_listed(found) or 'imported weights alone'}{left}); give at most {'that' if found else '1'}, or "
                f"{more}"
            )
        return found

    def _saved_before(self, step: int) -> int:
        """The checkpoint that the run saved before that of `step`; of an old one, which does not tell, what was due."""
        folder = self.checkpoints.workdir.checkpoint(step)
        notes = on_host0(lambda: restore.noted(folder))
        told = notes.get(restore.BEFORE)
        if isinstance(told, int):
            return told
        every = restore.made_with(notes).get("checkpoint", {}).get("every") or self.options["every"]
        return (step - 1) // every * every

    def _said(self, last: int) -> list[int]:
        found = self.steps(last)
        self.report(f"the mean of the checkpoints {_listed(found)} is read")
        return found

    def restore_params(self, step: int, shapes):
        """The mean, where its parameters lie as `shapes` say."""
        if self.count == 1:
            return self.checkpoints.restore_params(step, shapes)
        first, *others = self._said(step)
        total = jax.tree.map(_wide, self.checkpoints.restore_params(first, shapes))
        for one in others:
            total = jax.tree.map(jnp.add, total, self.checkpoints.restore_params(one, shapes))
        return jax.tree.map(self._divided, total, shapes)

    def _divided(self, leaf, like):
        """A sum's mean: by an array, since XLA makes of a division by one number a product with its reciprocal."""
        return (leaf / jnp.full_like(leaf, self.count)).astype(like.dtype)

    def reader(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[str], np.ndarray]:
        """What reads one parameter of the mean by its path (`alone.reader`)."""
        if self.count == 1:
            return params_only.reader(self.checkpoints.workdir.checkpoint(step), shapes)
        readers = [params_only.reader(self.checkpoints.workdir.checkpoint(one), shapes) for one in self._said(step)]

        def read(path: str) -> np.ndarray:
            total = np.asarray(readers[0](path), np.float32)
            for one in readers[1:]:
                total = total + one(path)
            return (total / np.float32(self.count)).astype(shapes[path].dtype)

        return read


def _wide(leaf):
    return leaf.astype(jnp.float32)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))
