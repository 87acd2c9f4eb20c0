"""A local S3 server, moto's, for tests of object stores."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest

NEEDED = ("moto", "s3fs", "flask")
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


def served(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which programs find the server, while it runs; tests are skipped where it is not installed."""
    if missing := [name for name in NEEDED if util.find_spec(name) is None]:
        pytest.skip(f"no local S3 server: {', '.join(missing)} of the extra `s3-test` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    place = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{place}/moto-api/data.json", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.1)
        make = urllib.request.Request(f"{place}/bucket", method="PUT")
        urllib.request.urlopen(make, timeout=30).close()
        yield {"AWS_ENDPOINT_URL": place, "LONGHAUL_COPIES": str(folder / "copies")} | REGION | KEYS
    finally:
        server.kill()
        server.wait()
