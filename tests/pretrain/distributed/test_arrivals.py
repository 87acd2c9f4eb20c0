"""A process that never comes to the meeting of a run is named by the one that waits for it."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest
from runs import ROOT, environment

from launch.local import free_port
from pretrain.distributed import arrivals
from pretrain.distributed.init import described
from pretrain.errors import UserError

JOIN = "import sys; from pretrain.distributed import host; host.JOINING = int(sys.argv[1]); host.start()"


@pytest.fixture
def address():
    """An address whose port, and the one above, are free."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.create_server(("", port + 1)):
            return f"127.0.0.1:{port}"


def joining(address, count, index, seconds):
    surroundings = {"LONGHAUL_COORDINATOR": address, "LONGHAUL_PROCESSES": str(count), "LONGHAUL_PROCESS": str(index)}
    words, env = [sys.executable, "-c", JOIN, str(seconds)], environment() | surroundings
    return subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_that_do_not_come_are_named(address):
    first, *others = (joining(address, 4, 0, 12), joining(address, 4, 2, 40))
    said = first.communicate(timeout=60)[1]
    for other in others:
        other.kill()
        other.communicate()
    assert first.returncode == 69, said
    assert said.splitlines()[-1] == (
        f"pretrain: process 1, 3 (of 4, counted from 0) did not come to {address} within 12 s; start them, and check "
        "LONGHAUL_COORDINATOR there"
    )


@pytest.mark.parametrize(
    ("count", "came", "words"),
    [
        (2, [], "process 1 (of 2, counted from 0) did not come to a:1 within 300 s; start it, and"),
        (4, [], "the processes of this run did not all meet at a:1 within 300 s; start all of them"),
        (2, None, "the processes of this run did not all meet"),
        (3, [1, 2], "the processes of this run did not all meet"),
        (None, None, "the processes of this run did not all meet"),
    ],
)
def test_none_is_named_who_may_have_come(count, came, words):
    assert arrivals.sentence("a:1", count, came, 300).startswith(words)


@pytest.mark.parametrize("host", (".cluster.local", "a..b", "x" * 64))
def test_what_cannot_be_looked_up_is_no_coordinator(host, monkeypatch):
    """As where a variable within it is not set."""
    for name, value in {"COORDINATOR": f"{host}:1234", "PROCESSES": "2", "PROCESS": "1"}.items():
        monkeypatch.setenv(f"LONGHAUL_{name}", value)
    with pytest.raises(UserError, match="is no address of process 0; write host:port"):
        described()


def test_what_is_no_process_of_the_run_is_not_heard(address):
    host, _, port = address.rpartition(":")
    with arrivals.heard(address, 3, 0) as came:
        for told in (b"", b"x" * 99, b"7\n", b"-1\n", b"2\n"):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port) + 1), 1) as process_0:
                    process_0.sendall(told)
                    break
        with arrivals.heard(address, 3, 1) as others:
            while came() != [1, 2] and time.monotonic() < deadline:
                time.sleep(0.05)
            assert others() is None
        assert came() == [1, 2]


@pytest.mark.parametrize("port", (65535, 0), ids=("beyond the last", "of another program"))
def test_a_port_that_cannot_be_had_changes_nothing(port):
    with socket.create_server(("", 0)) as taken:
        port = port or taken.getsockname()[1] - 1
        with arrivals.heard(f"127.0.0.1:{port}", 2, 0) as came, arrivals.heard(f"127.0.0.1:{port}", 2, 1):
            assert came() == []
