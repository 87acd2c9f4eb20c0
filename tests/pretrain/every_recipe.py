"""Every recipe and variant, for the tests that go through all of them."""

import pytest

from pretrain.config import load, model_recipes, recipe_module

EVERY = [(name, variant) for name, path in model_recipes().items() for variant in recipe_module(str(path)).VARIANTS]

# The first variant of each recipe; the others, whose sizes differ, are slow tests.
MOSTLY = [
    one if index == 0 or one[0] != EVERY[index - 1][0] else pytest.param(*one, marks=pytest.mark.slow)
    for index, one in enumerate(EVERY)
]


def config_of(name: str, variant: str):
    return load(f"configs/{name}.py:{variant}" if variant else f"configs/{name}.py")
