"""A folder that is away for one call of the system: each call of some work in turn."""

import contextlib
import errno
import os
from collections.abc import Iterator

from input_pipeline import away

CALLS = ("stat", "lstat", "listdir", "scandir", "mkdir", "replace", "rename", "open")


def each_call_fails(monkeypatch, folder, most: int = 200) -> Iterator[contextlib.AbstractContextManager]:
    """Yields a context for each call that the work done within makes in `folder`, as often as there are such calls.

    In the n-th the n-th call fails with EIO; in the last one none.
    """
    monkeypatch.setattr(away, "PAUSE", 0.001)
    left = [0]

    def failing(own):
        def call(path, *arguments, **named):
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(os.fspath(folder)):
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
            return own(path, *arguments, **named)

        return call

    @contextlib.contextmanager
    def fails(number: int) -> Iterator[None]:
        nonlocal all_done
        left[0] = number
        yield
        all_done, left[0] = left[0] > 0, 0

    for name in CALLS:
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    for number in range(1, most):
        all_done = False
        yield fails(number)
        if all_done:
            return
    raise AssertionError(f"over {most} calls")
