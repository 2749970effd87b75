"""A pooler for PostgreSQL that hands out sessions per transaction and refuses whatever needs a session.

It stands for PgBouncer in transaction mode, and is stricter: every transaction goes to another session than
the one before, and a named statement, LISTEN, or SET that isn't LOCAL is an error.
"""

from __future__ import annotations

import asyncio
import random
import re
import struct
import threading
from collections.abc import Coroutine
from typing import Any

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_SESSION_STATE = re.compile(
    rb"\s*(listen|unlisten|set\s+(?!local|constraints)|prepare|deallocate|discard)\b", re.IGNORECASE
)


class Pooler:
    """Listens on ``port``; has ``sessions`` connections to the server on port ``target``."""

    def __init__(self, target: int, database: str, *, sessions: int = 3, seed: int = 0) -> None:
        self._target, self._database, self._sessions = target, database, sessions
        self._draw = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._idle: list[_Session] = []
        self._free = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        #: What clients asked for that needs a session.
        self.refused: list[bytes] = []
        self.transactions = 0

    def __enter__(self) -> Pooler:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        for _ in range(self._sessions):
            self._idle.append(await _Session.open(self._target, self._database))
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._idle:
            session.writer.transport.abort()

    async def _take(self) -> _Session:
        async with self._free:
            await self._free.wait_for(lambda: bool(self._idle))
            # The one used last stands last: never that one if there is another.
            at = self._draw.randrange(max(len(self._idle) - 1, 1))
            self.transactions += 1
            return self._idle.pop(at)

    async def _give(self, session: _Session) -> None:
        async with self._free:
            self._idle.append(session)
            self._free.notify()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if await self._welcome(reader, writer):
                await self._work(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            (code,) = struct.unpack(">I", body[:4])
            if code == _CANCEL:
                return False
            if code not in (_SSL, _GSS):
                break
            writer.write(b"N")
        if b"options\0" in body:
            writer.write(_error(b"08P01", b"unsupported startup parameter: options", b"FATAL"))
            await writer.drain()
            return False
        session = await self._take()
        told = session.told
        await self._give(session)
        writer.write(_message(b"R", struct.pack(">I", 0)) + told)
        writer.write(_message(b"K", struct.pack(">II", 1, 1)) + _message(b"Z", b"I"))
        return True

    async def _work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: _Session | None = None
        try:
            while True:
                batch = await self._batch(reader)
                if batch is None:
                    return
                refused = self._refusal(batch)
                if refused is not None:
                    self.refused.append(refused)
                    told = b"this needs a session: " + refused[:60]
                    writer.write(_error(b"0A999", told, b"ERROR") + _message(b"Z", b"I"))
                    continue
                if session is None:
                    session = await self._take()
                if await session.exchange(batch, writer) == b"I":
                    await self._give(session)
                    session = None
        finally:
            if session is not None:
                # Left inside a transaction: that ends, the session stays.
                await session.exchange(_message(b"Q", b"ROLLBACK\0"), None)
                await self._give(session)

    async def _batch(self, reader: asyncio.StreamReader) -> bytes | None:
        """Messages up to one after which the server says that it is ready."""
        batch = b""
        while True:
            head = await reader.readexactly(5)
            kind, (length,) = head[:1], struct.unpack(">I", head[1:])
            body = await reader.readexactly(length - 4)
            if kind == b"X":
                return None
            batch += head + body
            if kind in (b"Q", b"S"):
                return batch

    def _refusal(self, batch: bytes) -> bytes | None:
        at = 0
        while at < len(batch):
            kind, (length,) = batch[at : at + 1], struct.unpack(">I", batch[at + 1 : at + 5])
            body = batch[at + 5 : at + 1 + length]
            if kind == b"P" and not body.startswith(b"\0"):
                return b"named statement " + body
            text = body.split(b"\0")[1] if kind == b"P" else body
            if kind in (b"P", b"Q"):
                for part in text.split(b";"):
                    if _SESSION_STATE.match(part):
                        return part
            at += 1 + length
        return None


class _Session:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.told = b""

    @classmethod
    async def open(cls, port: int, database: str) -> _Session:
        session = cls(*await asyncio.open_connection("127.0.0.1", port))
        pairs = b"user\0postgres\0database\0" + database.encode() + b"\0\0"
        session.writer.write(struct.pack(">II", len(pairs) + 8, 196608) + pairs)
        while True:
            kind, whole = await session.message()
            if kind == b"S":
                session.told += whole
            if kind == b"Z":
                return session
            assert kind != b"E", whole

    async def message(self) -> tuple[bytes, bytes]:
        head = await self.reader.readexactly(5)
        (length,) = struct.unpack(">I", head[1:])
        return head[:1], head + await self.reader.readexactly(length - 4)

    async def exchange(self, batch: bytes, writer: asyncio.StreamWriter | None) -> bytes:
        """Send messages on and the answers back; whether a transaction is open then."""
        self.writer.write(batch)
        await self.writer.drain()
        while True:
            kind, whole = await self.message()
            if writer is not None:
                writer.write(whole)
            if kind == b"Z":
                return whole[5:6]


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def _error(code: bytes, text: bytes, severity: bytes) -> bytes:
    fields = b"S" + severity + b"\0V" + severity + b"\0C" + code + b"\0M" + text + b"\0\0"
    return _message(b"E", fields)
