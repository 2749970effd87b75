"""Connections to one server: made when needed, bounded in number, and never given back in doubt."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

from everthread.errors import StoreClosedError
from everthread.stores.colours import AsyncGate
from everthread.stores.valkey.failing import Lost, busy, translated
from everthread.stores.valkey.resp import MISSING, Argument, ProtocolError, Replies, ReplyError, write_command
from everthread.stores.valkey.settings import Settings, tls_context
from everthread.stores.valkey.wire import AsyncWire

#: How long making a connection may take, of the time that a verb has.
_CONNECT_SHARE = 0.5


class AsyncLink:
    """One connection. Whoever is interrupted in the middle of an exchange has to close it: the answer of one
    call must never be taken for that of another."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self._replies = Replies()
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    async def encrypt(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._wire.send(self._outgoing.read(), timeout_s)
                self._incoming.write(await self._some(timeout_s))
        if self._outgoing.pending:
            await self._wire.send(self._outgoing.read(), timeout_s)

    async def exchange(self, commands: Sequence[bytes], timeout_s: float) -> list[Any]:
        """Send commands, read as many answers."""
        data = commands[0] if len(commands) == 1 else b"".join(commands)
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        await self._wire.send(data, timeout_s)
        found = []
        for _ in commands:
            while (reply := self._replies.next()) is MISSING:
                self._replies.feed(await self._receive(timeout_s))
            found.append(reply)
        if not self._replies.empty:
            raise ProtocolError("more answers than questions")
        return found

    async def push(self, commands: Sequence[bytes], timeout_s: float) -> None:
        """Send commands whose answers are taken with :meth:`pulled`."""
        data = b"".join(commands)
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        await self._wire.send(data, timeout_s)

    async def pulled(self, timeout_s: float) -> Any:
        """The next thing that the server says. Raises :class:`TimeoutError` if it says nothing in time."""
        while (reply := self._replies.next()) is MISSING:
            self._replies.feed(await self._receive(timeout_s))
        return reply

    async def _receive(self, timeout_s: float) -> bytes:
        if self._tls is None:
            return await self._some(timeout_s)
        while True:
            try:
                return self._tls.read(1 << 20)
            except ssl.SSLWantReadError:
                self._incoming.write(await self._some(timeout_s))

    async def _some(self, timeout_s: float) -> bytes:
        data = await self._wire.receive(timeout_s)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data

    def close(self) -> None:
        self._wire.close()


class AsyncServer:
    """The connections to one server. Safe for several threads, tasks and event loops, and after fork(2)."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        self.place = (host, port)
        self._settings = settings
        self._closed = False
        #: How often something was sent and answered: what a verb costs in time.
        self.round_trips = 0
        #: Whether the server was told the scripts.
        self.prepared = False
        self._context = tls_context(settings) if settings.tls else None
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._gate = AsyncGate(self._settings.connections)
        self._idle: list[AsyncLink] = []

    def _here(self) -> None:
        """In a child made by fork(2): its parent goes on using these connections."""
        for link in self._idle:
            link.close()
        self._forget()

    async def run(self, commands: Sequence[Sequence[Argument]], deadline: float) -> list[Any]:
        """The answers to commands, sent at once. Errors of the server are among them, not raised.

        Raises :class:`Lost`, :class:`StoreBusyError` and what a refused connection comes to.
        """
        if self._pid != os.getpid():
            self._here()
        gate = self._gate
        if not await gate.enter(max(deadline - time.monotonic(), 0.0)):
            raise busy(self._settings.url, self._settings.connections, self._settings.timeout_s)
        try:
            return await self._exchange([write_command(each) for each in commands], deadline)
        finally:
            gate.leave()

    async def _exchange(self, commands: list[bytes], deadline: float) -> list[Any]:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")
        # No lock: taking from a list and putting back are single steps.
        try:
            link = self._idle.pop()
        except IndexError:
            link = await self.connect(deadline)
        sent = False
        try:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no time left")
            sent = True
            self.round_trips += 1
            found = await link.exchange(commands, left)
        except (OSError, EOFError, ProtocolError) as error:
            link.close()
            raise Lost(_why(error), sent) from error
        except BaseException:
            # Cancelled or interrupted: the answer is still to come, and nobody else may get it.
            link.close()
            raise
        if self._closed:
            link.close()
        else:
            self._idle.append(link)
        return found

    async def connect(self, deadline: float) -> AsyncLink:
        """A new connection, which is the caller's alone. Raises :class:`Lost`."""
        settings = self._settings
        left = max(deadline - time.monotonic(), 0.001) * _CONNECT_SHARE
        link: AsyncLink | None = None
        try:
            link = AsyncLink(await AsyncWire.connect(*self.place, left))
            if self._context is not None:
                await link.encrypt(self._context, self.place[0], left)
            hello: list[tuple[Argument, ...]] = []
            if settings.password is not None:
                user = () if settings.username is None else (settings.username,)
                hello.append(("AUTH", *user, settings.password))
            if settings.db:
                hello.append(("SELECT", settings.db))
            if hello:
                for answer in await link.exchange([write_command(each) for each in hello], left):
                    if isinstance(answer, ReplyError):
                        raise translated(answer, settings.url)
        except (OSError, EOFError, ProtocolError) as error:
            if link is not None:
                link.close()
            refused = isinstance(error, (ConnectionRefusedError, socket.gaierror))
            raise Lost(_why(error), False, refused=refused) from error
        except BaseException:
            if link is not None:
                link.close()
            raise
        return link

    def close(self) -> None:
        """Those in use are closed when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def __repr__(self) -> str:
        return f"<server {self.place[0]}:{self.place[1]}>"


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    return str(error) or type(error).__name__
