"""How text is decoded: the numbers, their ranges and what they are where nobody says."""

import numpy as np

from configs.common import STOPPING
from configs.ranges import count, divisor, non_negative, probability, real
from pretrain.errors import UserError, nearest

OPTIONS = {
    "max_tokens": count(100),
    "temperature": non_negative(0.8),
    "top_k": non_negative(0),
    "top_p": probability(1.0),
    "beams": count(1, below=2**20),
    "length_penalty": real(0.6),
    "repetition_penalty": divisor(1.0),
    "seed": non_negative(0, below=2**32),
    "beyond": non_negative(None, below=2**20),
}
# Words of beam search, which `pretrain.decoding.beam_search` explains; the first where nobody says which.
CHOICES = {"normalisation": ("gnmt", "length"), "stopping": STOPPING}


def check(**given) -> None:
    """Raises UserError where an option is out of its range, or no number."""
    for name, value in given.items():
        value = value.item() if isinstance(value, np.generic) else value  # as an array that is gone through gives it
        if name in CHOICES:
            if value not in CHOICES[name]:
                raise UserError(f"{name} is '{value}'{nearest(str(value), CHOICES[name])}")
            continue
        declared = OPTIONS[name]
        if type(declared.default) is not float and type(value) is not int:
            raise UserError(f"{name}={value!r}; it must be a whole number")
        if type(value) not in (int, float):
            raise UserError(f"{name}={value!r}; it must be a number")
        if rule := declared.range.violation(value):
            raise UserError(f"{name}={value}; it must be {rule}")
