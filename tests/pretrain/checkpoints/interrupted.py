"""Saves checkpoints and restores them in the folder $AWAY_FOLDER, which goes away for a moment at a random one of each.

To be run by itself: `benchmarks/away.c` is preloaded, and lets the folder fail while there is the file $AWAY_FLAG.
"""

import contextlib
import functools
import os
import random
import shutil
import threading
import time
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
from absl import logging

from benchmarks.soak import leaves, same
from input_pipeline import away
from pretrain.checkpoints import integrity
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.distributed.shutdown import leaving

ROUNDS = 80
SAVING, RESTORING = 0.15, 0.06  # seconds within which the folder goes away: about what it takes


@flax.struct.dataclass
class State:
    params: dict


STATE = State({f"weights_{i}": jnp.arange(64.0) + i for i in range(12)})
SHAPES = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), STATE)


@contextlib.contextmanager
def away_within(seconds, rng):
    """Within it the folder goes away after so many seconds at most, and comes back."""

    def cut():
        time.sleep(delay)
        flag.touch()
        time.sleep(length)
        flag.unlink()

    flag, delay, length = Path(os.environ["AWAY_FLAG"]), rng.uniform(0, seconds), rng.choice([0.003, 0.02, 0.2])
    thread = threading.Thread(target=cut)
    thread.start()
    yield
    thread.join()


def check(found):
    params = STATE.params
    assert len(found) == len(params) and all(same(found[name], params[name]) for name in params)


def main():
    logging.set_verbosity(logging.FATAL)
    away.PAUSE, away.LONGEST = 0.05, 0.1
    folder, rng = Path(os.environ["AWAY_FOLDER"]), random.Random(0)
    opened = functools.partial(CheckpointManager, str(folder), {"keep": 2, "keep_best": False})
    for _ in range(ROUNDS):
        with contextlib.closing(opened()) as saver, away_within(SAVING, rng):
            save = functools.partial(saver.save, 1, vars(STATE), 1)
            save()
            saver.wait(save)
        saved = folder / "checkpoints/1"
        assert integrity.read(saved) == integrity.found(saved)
        check({path.split("'")[3]: leaf for path, leaf in leaves(folder, 1).items()})
        with contextlib.closing(opened()) as reader, away_within(RESTORING, rng):
            state, _ = reader.restore_newest(SHAPES, print)
        check(state.params)
        shutil.rmtree(folder)
    print(f"{ROUNDS} checkpoints were saved and restored")
    leaving.end(0)


if __name__ == "__main__":
    main()
