"""Who has come to the meeting of a run's processes: JAX tells of none before all have.

Process 0 listens one port above the one where they meet, and the others say there which they are until they have met.
It serves one sentence: where that port cannot be used nobody is named, and nothing else changes.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

PAUSE = 2.0  # seconds between tries to be heard, and that one may take
SHORT = 0.2  # seconds after which a thread looks whether it is over


@contextlib.contextmanager
def heard(coordinator: str, count: int, index: int) -> Iterator[Callable[[], list[int] | None]]:
    """Makes this process heard, or listens where it is process 0.

    Gives what lists the others that process 0 has heard so far; in these it is None. `coordinator` is host:port of
    process 0, `count` the processes of the run and `index` which one this is.
    """
    host, _, port = coordinator.rpartition(":")
    above, over, found = int(port) + 1, threading.Event(), set()
    if index == 0:
        thread = threading.Thread(target=_listen, args=(above, count, found, over), daemon=True)
    else:
        thread = threading.Thread(target=_tell, args=(host.strip("[]"), above, index, over), daemon=True)
    if above < 1 << 16:
        thread.start()
    try:
        yield lambda: None if index else sorted(found)
    finally:
        over.set()


def _listen(port: int, count: int, found: set[int], over: threading.Event) -> None:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError:  # it is another program's
        return
    with server:
        server.settimeout(SHORT)
        while not over.is_set():
            with contextlib.suppress(OSError, ValueError), server.accept()[0] as other:
                other.settimeout(PAUSE)
                found |= {int(other.makefile("rb").readline(16))} & {*range(1, count)}


def _tell(host: str, port: int, index: int, over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(OSError), socket.create_connection((host, port), PAUSE) as process_0:
            process_0.sendall(f"{index}\n".encode())
            return
        over.wait(PAUSE)


def sentence(coordinator: str, count: int | None, came: list[int] | None, seconds: float) -> str:
    """What is said where not all have met; `came` are those that process 0 heard, None where this is another one.

    Where it heard nobody, of several, their way to its port may be closed: then none is named.
    """
    absent = [] if came is None else [index for index in range(1, count) if index not in came]
    if absent and (came or count == 2):
        who = f"process {', '.join(map(str, absent))} (of {count}, counted from 0) did not come to"
        remedy = f"start {'it' if len(absent) == 1 else 'them'}, and check LONGHAUL_COORDINATOR there"
    else:
        who = "the processes of this run did not all meet at"
        remedy = "start all of them, and check LONGHAUL_COORDINATOR"
    return f"{who} {coordinator} within {seconds:g} s; {remedy}"
