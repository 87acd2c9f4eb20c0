"""What is added to the scores: an array [B or 1, N or 1, T, S], or something that makes any piece of one.

The latter is a pytree whose arrays have the batch and the heads, or 1, as their first two axes, with a method `tile`;
`models.attention.relative.ByDistance` is the one there is.
"""


def tile(bias, mask, start: int, rows: int, first: int, keys: int):
    """Bias [B or 1, N or 1, rows, keys] of the queries from `start` and the keys from `first` on; None without one."""
    if bias is None or not hasattr(bias, "tile"):
        return None if bias is None else bias[:, :, start : start + rows, first : first + keys]
    return bias.tile(mask, start, rows, first, keys)


def whole(bias, mask, T: int, S: int):
    """All of it, for paths that do not work piece by piece."""
    return tile(bias, mask, 0, T, 0, S)
