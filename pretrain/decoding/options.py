"""Options of decoding: their ranges, choices and defaults."""

import numpy as np

from configs.ranges import STOPPING, count, divisor, non_negative, probability, real
from pretrain.errors import UserError, lookup

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
# Choices of beam search, which `pretrain.decoding.beam_search` explains; the first is the default.
CHOICES = {"normalisation": ("gnmt", "length"), "stopping": STOPPING}


def check(**given) -> None:
    """Raises UserError where an option is out of its range or unknown."""
    for name, value in given.items():
        if name in CHOICES:
            lookup(name, value, dict.fromkeys(CHOICES[name]))
        elif rule := OPTIONS[name].range.violation(value.item() if isinstance(value, np.generic) else value):
            raise UserError(f"{name}={value}; it must be {rule}")
