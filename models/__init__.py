"""Flax Linen models: shapes in, shapes out. They know nothing of data, loss, mesh or config files.

The axis alphabet, used in every shape comment and einsum of the project:

    B batch, T query length, S key length, D model width, N heads, G key/value heads, H head size,
    F feed-forward, V vocabulary, L layers, M memory length

`build(architecture, fields)` makes a model; everything else is imported from the module that holds it.
"""

from models.build import build
from models.errors import ModelError

__all__ = ["ModelError", "build"]
