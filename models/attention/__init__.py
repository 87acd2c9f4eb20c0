"""Attention: one contract, several backends.

attend(query, key, value, mask)    picks a backend, or uses the one that is named
attend_relative(...)               Transformer-XL's and XLNet's, in `models.attention.relative`
select_backends(...)               names the backends that `attend` would use
"""

from models.attention.api import BACKENDS, attend, select_backends

__all__ = ["BACKENDS", "attend", "select_backends"]
