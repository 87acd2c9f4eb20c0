"""Local servers of object stores, moto's of S3 and an emulator of Google's, for tests."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import NamedTuple

import pytest

# gcsfs uploads what is below 50 MB as it is, and aiohttp warns that others wait for that: nobody does.
UPLOADS = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
ROOT = Path(__file__).resolve().parent.parent


class Kind(NamedTuple):
    """A kind of store: what it needs, how it is started and found."""

    packages: tuple[str, ...]
    command: Callable[[int], list[str]]  # of Python's module, at a port
    ready: str  # what answers as soon as it is there
    environment: Callable[[str], dict[str, str]]  # of programs that are to find it at a place


KINDS = {
    "s3": Kind(
        ("moto", "s3fs", "flask"),
        lambda port: ["moto.server", "-H", "127.0.0.1", "-p", str(port)],
        "moto-api/data.json",
        lambda place: {
            "AWS_ENDPOINT_URL": place,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
    ),
    "gs": Kind(
        ("gcp_storage_emulator", "gcsfs"),
        lambda port: ["tests.gs_server", str(port)],
        "",
        lambda place: {  # gcsfs asks the first, TensorStore the second, which wants credentials too
            "STORAGE_EMULATOR_HOST": place,
            "TENSORSTORE_GCS_HTTP_URL": place,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "testing",
        },
    ),
}


class Served(NamedTuple):
    """A server that runs."""

    scheme: str
    port: int
    environment: dict[str, str]  # in which programs find it, and what they copy
    copies: Path

    @property
    def bucket(self) -> str:
        return f"{self.scheme}://bucket"


def served(scheme: str, folder: Path) -> Iterator[Served]:
    """A server with a bucket, while it runs; tests are skipped where it is not installed."""
    kind = KINDS[scheme]
    if missing := [name for name in kind.packages if util.find_spec(name) is None]:
        pytest.skip(f"no local {scheme}:// server: {', '.join(missing)} of the extra `stores-test` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open(folder / "server.log", "wb") as log:
        command = [sys.executable, "-m", *kind.command(port)]
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    place = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{place}/{kind.ready}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.1)
        if scheme == "s3":  # the other has a bucket from the beginning
            make = urllib.request.Request(f"{place}/bucket", method="PUT")
            urllib.request.urlopen(make, timeout=30).close()
        copies = folder / "copies"
        yield Served(scheme, port, kind.environment(place) | {"LONGHAUL_COPIES": str(copies)}, copies)
    finally:
        server.kill()
        server.wait()
