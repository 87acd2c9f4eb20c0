"""What a process that reads or tokenises raises reaches the one that started it as it was: it is pickled on the way."""

import pickle
from pathlib import Path

import pytest

from input_pipeline.batching.loader import KilledReaderError
from input_pipeline.errors import DataError, UnwritableError
from input_pipeline.remote import RemoteError


@pytest.mark.parametrize(
    "error",
    [
        DataError("a sentence"),
        KilledReaderError("a sentence"),
        UnwritableError(Path("/copies/00000.kept.tokens"), "No space left on device", "LONGHAUL_COPIES"),
        RemoteError("s3://bucket/key", "denied"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_is_the_same(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
