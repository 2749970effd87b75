"""A TCP proxy that breaks connections at chosen moments.

Every cut is one of: ``request`` (closed when a request has come, before it is passed on), ``part`` (the same
with half of it passed on), ``answer`` (the request is passed on, the answer isn't, and the connection is
closed: what was asked for has been done), ``half`` (the same with half of the answer passed on), ``silent``
(half-open: the request arrives, nothing ever comes back, and nobody is told).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal
from urllib.parse import urlsplit

Cut = Literal["request", "part", "answer", "half", "silent"]
CUTS: tuple[Cut, ...] = ("request", "part", "answer", "half", "silent")

#: Told of each request (a number that grows, and its bytes): how to break the connection, or None.
Choose = Callable[[int, bytes], Cut | None]


class Proxy:
    """Listens on a port of its own and passes on to another."""

    def __init__(self, port: int, choose: Choose) -> None:
        self._target = port
        self._choose = choose
        self._lock = threading.Lock()
        self._requests = 0
        #: How often each cut was made.
        self.made: dict[str, int] = {}
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open += [client, server]
                self._spawn(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """One connection. A request is what comes in one go: the clients of the tests wait for answers."""
        answering: dict[str, Cut | None] = {"cut": None}
        self._spawn(self._answer, client, server, answering)
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                with self._lock:
                    self._requests += 1
                    cut = self._choose(self._requests, data)
                    if cut is not None:
                        self.made[cut] = self.made.get(cut, 0) + 1
                if cut == "request":
                    break
                if cut == "part":
                    server.sendall(data[: len(data) // 2])
                    break
                answering["cut"] = cut
                server.sendall(data)
        _close(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, answering: dict[str, Cut | None]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                cut = answering["cut"]
                if cut == "silent":
                    continue
                if cut == "half":
                    client.sendall(data[: len(data) // 2])
                if cut is not None:
                    break
                client.sendall(data)
        if answering["cut"] != "silent":
            _close(client, server)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            sockets, self._open = self._open, []
        _close(*sockets)
        # accept() isn't woken by closing its socket.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextlib.contextmanager
def proxied(port: int, choose: Choose) -> Iterator[Proxy]:
    proxy = Proxy(port, choose)
    try:
        yield proxy
    finally:
        proxy.close()


class Counted:
    """A store's URL through a proxy that counts requests: what comes in one go is one round trip."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self._proxy, self.url = proxy, url

    @property
    def trips(self) -> int:
        return self._proxy._requests


@contextlib.contextmanager
def counting(url: str) -> Iterator[Counted]:
    """The database of ``url`` through a proxy that cuts nothing."""
    parts = urlsplit(url)
    assert parts.port is not None
    with proxied(parts.port, lambda *_: None) as proxy:
        # An encrypted start would be two more requests.
        options = "sslmode=disable&gssencmode=disable"
        yield Counted(proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}{parts.path}?{options}")
