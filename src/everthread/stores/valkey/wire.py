"""A TCP connection: the one thing that each colour does its own way.

The async one isn't bound to an event loop while nobody uses it: it is a plain socket, so that whichever loop
comes next may use it, and closing it needs none.
"""

from __future__ import annotations

import contextlib
import socket
import time

#: How much is asked for at a time: below the size for which memory is mapped anew each time.
CHUNK = 64 * 1024


def _set_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Wire:
    """Every method raises :class:`OSError`, :class:`TimeoutError` among them."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float) -> Wire:
        connection = socket.create_connection((host, port), timeout=timeout_s)
        _set_up(connection)
        return cls(connection)

    def send(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def receive(self, timeout_s: float) -> bytes:
        """Some bytes, none at the end."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(CHUNK)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class AsyncWire:
    """The same for tasks."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    async def connect(cls, host: str, port: int, timeout_s: float) -> AsyncWire:
        import asyncio

        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + timeout_s
        async with asyncio.timeout(timeout_s):
            places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in places:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.001)):
                    await loop.sock_connect(connection, place)
                _set_up(connection)
                return cls(connection)
            except OSError as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        raise failure

    async def send(self, data: bytes, timeout_s: float) -> None:
        import asyncio

        # Most of what is sent fits into the socket's buffer: then nobody has to wait.
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_sendall(self._socket, memoryview(data)[sent:])

    async def receive(self, timeout_s: float) -> bytes:
        import asyncio

        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().sock_recv(self._socket, CHUNK)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
