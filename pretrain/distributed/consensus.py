"""What all processes of a run do alike or not at all: each says how it went, and all hear everyone."""

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from input_pipeline.away import of_server, persistently
from pretrain.distributed.shutdown import leaving
from pretrain.errors import USER_ERRORS, FaultError, UserError, listed, reason

TROUBLE = (OSError, ValueError, KeyError, RuntimeError, MemoryError, EOFError)  # of files, stores, memory; no bugs
SHOWN = 6  # differences between processes that a sentence names

Result = TypeVar("Result")


def gathered(value) -> list:
    """Every process's `value` (anything that JSON holds), in their order; returns once all have called it."""
    leaving.meetings += 1
    if jax.process_count() == 1:
        return [value]
    if leaving.meetings == 1:
        meet()
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(text)))).reshape(-1)
    padded = np.zeros(1 << int(lengths.max()).bit_length(), np.uint8)  # few sizes: each is compiled once
    padded[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]


def meet() -> None:
    """Returns once all processes have called it. Devices that compute together for the first time are to begin so.

    On CPUs they find each other within Gloo's 30 seconds or not at all, and a loaded host comes later than that.
    """
    if leaving.others:
        leaving.others.meet()


class Together:
    """A jitted function whose first run all processes begin together, however unevenly they have compiled it."""

    def __init__(self, function):
        self._function, self.lower, self._begun = function, function.lower, False

    def __call__(self, *arguments):
        if not self._begun and jax.process_count() > 1:
            self.lower(*arguments).compile()  # JAX finds it again when it is called
            meet()
        self._begun = True
        return self._function(*arguments)


def alike(work: Callable[[], Result], sentence: Callable[[str], str]) -> Result:
    """`work()`, done by every process; where any of them meets trouble that lasts, all raise the same UserError;
    FaultError where that is a folder which stays away.

    Its message is that of the mistake (USER_ERRORS) that `work` met, or what `sentence` makes of the trouble and, where
    there are several, the processes that had it.
    """
    result, cause = None, None
    try:
        result = persistently(work)
    except TROUBLE as error:
        cause = error
    server = of_server(cause) if cause else None
    mistake = isinstance(cause, USER_ERRORS) and not server
    told = str(cause) if mistake else reason(server or cause) if cause else ""
    answers = gathered([mistake, server is not None, told] if cause else None)
    failed = [(index, *answer) for index, answer in enumerate(answers) if answer]
    for _, mistake, _, text in failed:
        if mistake:
            raise UserError(text) from cause
    if failed:
        named = "; ".join(f"process {index}: {text}" if len(answers) > 1 else text for index, *_, text in failed)
        if any(away for _, _, away, _ in failed):
            raise FaultError(f"cannot use {named}; start the same command again once its server answers") from cause
        raise UserError(sentence(named)) from cause
    return result


def check_alike(values: Mapping[str, object], remedy: str) -> None:
    """Raises the same UserError in every process of a run unless all of them have the same `values`, by name."""
    first, *others = gathered({name: repr(value) for name, value in values.items()})
    unlike = {}
    for index, other in enumerate(others, start=1):
        for name in first | other:
            here, there = (some.get(name, "absent") for some in (first, other))
            if here != there:
                unlike.setdefault(name, f"{name} is {here} in process 0 and {there} in process {index}")
    if unlike:
        shown = listed([*unlike.values()], SHOWN, "; ")
        raise UserError(f"the processes of this run are not alike: {shown}; {remedy}")


def decided(choose: Callable[[], Result], sentence: Callable[[str], str]) -> Result:
    """What process 0 chooses (anything that JSON holds), in every process; trouble as in `alike`."""
    return gathered(alike(lambda: choose() if jax.process_index() == 0 else None, sentence))[0]
