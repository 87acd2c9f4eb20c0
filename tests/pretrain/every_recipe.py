"""Every recipe and variant, for the tests that go through all of them."""

from pretrain.config import load, recipe_module, recipes

EVERY = [(name, variant) for name, path in recipes().items() for variant in recipe_module(str(path)).VARIANTS]


def config_of(name: str, variant: str):
    return load(f"configs/{name}.py:{variant}" if variant else f"configs/{name}.py")
