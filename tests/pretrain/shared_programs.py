"""What the tests' own process traces and compiles, it does once for all configs that make the same of it.

Most of the time of a small run goes there. A learner and an engine hold nothing of a run.
"""

import re
from collections import OrderedDict
from contextlib import ExitStack
from functools import lru_cache
from unittest.mock import patch

from ml_collections import ConfigDict

from pretrain.config import flat
from pretrain.costs.flops import forward_flops
from pretrain.step.engine import absent_engine, make_engine
from pretrain.step.train_spec import make_learner

READ = re.compile(
    r"(model|objective|distill|optimizer|schedule|mesh|evaluate\.model)\.|train\.(?!start_from)|data\.(length|layout)$"
)


def once(make, kept: int):
    """`make`, which gives for a config what it made of one that has the same keys READ; the `kept` newest of them."""
    made = OrderedDict()

    def of_config(*arguments, **options):
        (config,) = (argument for argument in arguments if isinstance(argument, ConfigDict))
        keys = flat(config)
        keys["train.steps"] = keys["schedule.decay_steps"] = keys["schedule.decay_steps"] or keys["train.steps"]
        key = str([(name, value) for name, value in keys.items() if READ.match(name)])
        if key not in made:
            made[key] = make(*arguments, **options)
        made.move_to_end(key)
        while len(made) > kept:
            made.popitem(last=False)
        return made[key]

    return of_config


learner_of = once(make_learner, kept=128)
SHARED = {
    "pretrain.assemble.make_learner": learner_of,
    "pretrain.assemble.make_engine": once(make_engine, kept=8),  # compiled programs take memory
    "pretrain.commands.describe.make_learner": learner_of,
    "pretrain.commands.describe.absent_engine": once(absent_engine, kept=128),
    "pretrain.costs.flops.forward_flops": lru_cache(maxsize=128)(forward_flops),
}


def share() -> ExitStack:
    """Until it is closed, runs and descriptions are made of shared parts."""
    shared = ExitStack()
    for name, made_once in SHARED.items():
        shared.enter_context(patch(name, made_once))
    return shared
