"""What is told of an error that another library raised."""

import pytest

from pretrain.errors import BEGINNING, LONGEST, reason

OPENING = (
    'Error opening "zarr" driver: Error reading "opt_state.1.0.inner_states.adam.inner_state.nu.tokens/.zarray" in '
)
READING = "OCDBT database at gs://bucket/runs/large/checkpoints/8/state/ocdbt.process_0/: Error reading "


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device", "/runs/a"), "/runs/a: No space left on device"),
        (ValueError("Error writing: x [os_error_code='28', source locations='a.cc:1']"), "No space left on device"),
        (RuntimeError("I/O error: File too large (os error 27)"), "File too large"),
        (ValueError("it ends here [tensorstore_spec='{\\\"driver\\\": [1]}']\nand more"), "it ends here"),
        (ValueError("shape [2, 3] is none [of those]"), "shape [2, 3] is none [of those]"),
        (ValueError("one\ntwo"), "one"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_cause_in_few_words(error, told):
    assert reason(error) == told


def test_of_a_long_sentence_the_end_is_told_too():
    """Which is where nested errors have their cause."""
    told = reason(ValueError(OPENING + READING + "gs://bucket/x: Too many requests [source locations='b.cc:7']"))
    assert told.startswith(OPENING[:BEGINNING] + " ... ") and told.endswith("gs://bucket/x: Too many requests")
    assert len(told) == LONGEST + len(" ... ")
