"""Who of several processes is named as the late one, and that a call for it is heard."""

from types import SimpleNamespace

import pytest

from pretrain.distributed.roll_call import RollCall, verdict
from pretrain.distributed.watchdog import Place


def test_a_call_that_was_not_heard_is_made_again():
    """Else those that could not answer it would be named as those that do not."""
    heard, failures = [], [ConnectionError]
    late = SimpleNamespace(late=True, waited=9.0, place=lambda: Place(7, "step", 12))

    def put(key, value):
        if failures:
            raise failures.pop()
        heard.append(key)

    roll_call = RollCall(SimpleNamespace(watchdog=late), 0, 2, put, lambda folder: {})
    with pytest.raises(ConnectionError):
        roll_call.round({})
    roll_call.round({})
    assert heard == ["notice/late/0"]


def answer(turns, words="in an update after update 12", queues=False):
    return {"calls": {}, "turns": turns, "queues": queues, "words": words, "stacks": "thread MainThread:\n  File x"}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            {0: answer(31), 1: answer(30, "waiting for data after update 11"), 2: answer(31)},
            "process 1 is late: the rest wait since 60 s, waiting for data after update 11; start the same command "
            "again to go on from the newest checkpoint; process 1 stands at\nthread MainThread:\n  File x",
        ),
        (
            {0: answer(30), 1: answer(30), 2: answer(31)},
            "process 0, 1 are late: the rest waits since 60 s, in an update after update 12; ",
        ),
        (
            {0: answer(30), 1: answer(30), 2: answer(30)},
            "process 0 and all others have come no further for 60 s, in an update after update 12; ",
        ),
        (
            {0: answer(30, queues=True), 1: answer(30), 2: answer(30, queues=True)},
            "process 1 is late: the rest wait since 60 s, in an update after update 12; ",
        ),
        (
            {0: answer(31), 2: answer(31)},
            "process 1 does not say how far the work has come, and the others have waited ",
        ),
        ({0: answer(31)}, "process 1, 2 do not say how far the work has come, and the others have waited for 60 s; "),
    ],
)
def test_the_last_one_is_named(answers, said):
    assert verdict(answers, 3, 60.0).startswith(said)
