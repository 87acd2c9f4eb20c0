"""What Orbax counts at every save, for a line in its log that nobody reads, and what that costs.

It asks TensorStore twice a save how many bytes it has written since the process began. TensorStore (0.1.86) keeps the
lists of each answer for ever, 24 a save: of 600 saves 14,400 lists were left.
"""

from orbax.checkpoint._src.serialization import tensorstore_utils

ASKED = "get_tensorstore_raw_bytes"


def nothing_is_counted() -> None:
    """Lets Orbax do without: it logs 0."""
    if hasattr(tensorstore_utils, ASKED):  # not in every version
        setattr(tensorstore_utils, ASKED, lambda direction=None: 0)
