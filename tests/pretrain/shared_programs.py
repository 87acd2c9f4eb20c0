"""What the tests' own process traces and compiles, it does once for all configs that make the same of it.

Most of the time of a small run goes there. A spec holds nothing of a run.
"""

import re
from collections import OrderedDict
from contextlib import ExitStack
from functools import lru_cache
from unittest.mock import patch

from pretrain.config import flat
from pretrain.costs.flops import forward_flops
from pretrain.step.train_spec import TrainSpec

READ = re.compile(
    r"(model|objective|distill|optimizer|schedule|mesh|evaluate\.model)\.|data\.(length|layout)$"
    r"|train\.(batch_size|accumulate|backend|z_loss|label_smoothing|steps)$"
)


def once(make, kept: int):
    """`make`, which gives for a config what it made of one that has the same keys READ; the `kept` newest of them."""
    made = OrderedDict()

    def of_config(config, devices=None, *rest, **options):
        keys = flat(config) | {"mesh.devices": devices and [device.id for device in devices]}
        keys["train.steps"] = keys["schedule.decay_steps"] = keys["schedule.decay_steps"] or keys["train.steps"]
        key = str([(name, value) for name, value in keys.items() if READ.match(name)])
        if key not in made:
            made[key] = make(config, *([devices, *rest] if devices else []), **options)
        made.move_to_end(key)
        while len(made) > kept:
            made.popitem(last=False)
        return made[key]

    return of_config


SHARED = {
    "pretrain.step.train_spec.TrainSpec.build": once(TrainSpec.build, kept=8),  # compiled programs take memory
    "pretrain.step.train_spec.TrainSpec.build_abstract": once(TrainSpec.build_abstract, kept=128),
    "pretrain.costs.flops.forward_flops": lru_cache(maxsize=128)(forward_flops),
}


def share() -> ExitStack:
    """Until it is closed, specs are shared by configs that describe the same one."""
    shared = ExitStack()
    for name, make in SHARED.items():
        shared.enter_context(patch(name, make))
    return shared
