"""Configs: recipe files, variants, dotted overrides, and the resolved copy in a work folder.

Every mistake in them is one sentence that names the nearest right word.
"""

from pretrain.config.keys import every_key, flat, scored_key, scored_length
from pretrain.config.overrides import load, with_overrides
from pretrain.config.recipe import recipe_module, recipes
from pretrain.config.resolved import (
    OF_A_HOST,
    changed_dropout,
    check_folder,
    check_ours,
    check_same_run,
    check_unedited,
    differences,
    of_start,
    save,
    saved,
    takes_tokenizer,
)
from pretrain.config.values import parse_value

__all__ = [
    "OF_A_HOST",
    "changed_dropout",
    "check_folder",
    "check_ours",
    "check_same_run",
    "check_unedited",
    "differences",
    "every_key",
    "flat",
    "load",
    "of_start",
    "parse_value",
    "recipe_module",
    "recipes",
    "save",
    "saved",
    "scored_key",
    "scored_length",
    "takes_tokenizer",
    "with_overrides",
]
