"""A way to an object store that can be cut, and mended."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Way:
    """Passes on what comes to a port of its own to another, until it is `cut`; `mend` opens the same port again."""

    def __init__(self, port: int):
        self._there = port
        self._listens, self._links = None, []
        self.port = 0
        self.mend()

    def mend(self) -> None:
        self._listens = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listens.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listens,), daemon=True).start()

    def cut(self) -> None:
        """Closes the port and all connections."""
        for end in (self._listens, *self._links):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._links.clear()

    def _accept(self, listens: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is cut
            while True:
                here = listens.accept()[0]
                there = socket.create_connection(("127.0.0.1", self._there))
                self._links += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def way(port: int) -> Iterator[Way]:
    """A way to `port` of this machine, while the block runs."""
    found = Way(port)
    try:
        yield found
    finally:
        found.cut()
