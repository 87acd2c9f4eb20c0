"""Saves a hundred checkpoints in the folder $AWAY_FOLDER, which goes away for a moment at a random one of each save.

To be run by itself: `benchmarks/away.c` is preloaded, and lets the folder fail while there is the file $AWAY_FLAG.
"""

import functools
import os
import random
import shutil
import threading
import time
from pathlib import Path

import numpy as np
from absl import logging

from benchmarks.soak import leaves, same
from input_pipeline import away
from pretrain.checkpoints import record
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.processes.leaving import leaving

SAVES, LONGEST = 100, 0.15  # and seconds from a save's beginning until the folder goes away: about what one takes
STATE = {"params": {f"weights_{i}": np.arange(64.0) + i for i in range(12)}}


def cut(flag: Path, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, LONGEST))
    flag.touch()
    time.sleep(rng.choice([0.003, 0.02, 0.2]))
    flag.unlink()


def main():
    logging.set_verbosity(logging.FATAL)
    away.PAUSE, away.LONGEST = 0.05, 0.1
    folder, flag, rng = Path(os.environ["AWAY_FOLDER"]), Path(os.environ["AWAY_FLAG"]), random.Random(0)
    for _ in range(SAVES):
        saver = CheckpointManager(str(folder), {"keep": 2, "keep_best": False})
        save = functools.partial(saver.save, 1, STATE, 1)
        cutting = threading.Thread(target=cut, args=(flag, rng))
        cutting.start()
        save()
        saver.wait(save)
        cutting.join()
        saver.close()
        saved = folder / "checkpoints/1"
        assert record.read(saved) == record.found(saved)
        found = leaves(folder, 1)
        assert len(found) == len(STATE["params"])
        assert all(same(found[f"['params']['{name}']"], value) for name, value in STATE["params"].items())
        shutil.rmtree(folder)
    print(f"{SAVES} saves are whole")
    leaving.end(0)


if __name__ == "__main__":
    main()
