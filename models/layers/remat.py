"""Functions that are cheaper to compute twice than to keep the insides of."""

import jax


def light(function):
    """`function`, element-wise or nearly, keeping its inputs alone for the backward pass, which computes it again.

    A GELU or a norm would otherwise keep four or five arrays of its size: half of what a GPT-2 layer keeps.
    """
    return jax.checkpoint(function, prevent_cse=False)
