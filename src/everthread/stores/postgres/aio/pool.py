"""Connections to the server, from psycopg's pool: each is used by one caller at a time.

A connection that isn't clean after use (cut, cancelled in the middle, inside a transaction) is closed, never
handed on: nobody gets an answer that belongs to somebody else. Nothing relies on the state of a session, so
that a pooler which hands out sessions per transaction may stand in between.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from everthread.errors import StoreBusyError, StoreClosedError, StoreUnavailableError
from everthread.stores.colours import ASYNC, pause_async
from everthread.stores.postgres.errors import (
    Overdue,
    lost,
    read_only,
    rolled_back,
    translated,
    unprepared,
    unreachable,
)
from everthread.stores.postgres.schema import statements
from everthread.stores.postgres.settings import Settings

if ASYNC:
    import asyncio

# What the pool notes reaches callers as errors: without a configuration it isn't printed besides.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())

#: How long a server may take beyond its own statement_timeout before the connection is given up.
_GRACE_S = 5.0
_CONNECT_S = 10
_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 1.0
#: While the server isn't known to be up, look this often whether connecting failed.
_LOOK_S = 0.05

#: What libpq is told besides the URL, unless that says otherwise: notice when the other side is gone.
_KEEPALIVE: dict[str, Any] = {
    "application_name": "everthread",
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

Rows = list[tuple[Any, ...]]
#: Told of every attempt to connect: why it failed, or None.
Report = Callable[[psycopg.Error | None], None]


class AsyncLink(AsyncConnection[Any]):
    """A connection that gives up on a server that doesn't answer, and is closed if an exchange is cut off."""

    #: Whether a pooler stands in between, so that nothing is kept in the session.
    pooled = False
    #: How long a server may take for an answer.
    patience_s: float | None = None

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str, *, settings: Settings, report: Report = lambda _: None
    ) -> AsyncLink:
        """A new connection. Raises the errors of the driver."""
        try:
            link = await cls._connect_with(conninfo, settings)
        except psycopg.Error as error:
            report(error)
            raise
        report(None)
        return link

    @classmethod
    async def _connect_with(cls, conninfo: str, settings: Settings) -> AsyncLink:
        given = conninfo_to_dict(conninfo)
        more = {key: value for key, value in _KEEPALIVE.items() if given.get(key) is None}
        ours = (
            f"-c statement_timeout={settings.statement_timeout_ms} "
            f"-c lock_timeout={settings.lock_timeout_ms} "
            "-c idle_in_transaction_session_timeout=60000 -c jit=off"
        )
        # Later ones win: options in the URL overrule these.
        options = f"{ours} {given.get('options') or ''}".strip()
        pooled = False
        try:
            link = await super().connect(conninfo, autocommit=True, **more, options=options)
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            pooled = True
            link = await super().connect(conninfo, autocommit=True, **more)
        timeout_s = settings.statement_timeout_ms / 1000
        link.patience_s = timeout_s + _GRACE_S if timeout_s else None
        link.prepare_threshold = None
        # Statements are constant: one that is prepared once stays so.
        link.prepared_max = None
        link.cursor_factory = AsyncRawCursor
        # Numbers are of one type however large they are, so that a statement isn't prepared for each size.
        link.adapters.register_dumper(int, Int8BinaryDumper)
        link.adapters.register_dumper(list, ListBinaryDumper)
        try:
            if not pooled:
                ((pid,),) = await link.run(statements(settings.quoted_schema)["backend_pid"])
                pooled = pid != link.info.backend_pid
        except BaseException:
            await link.close()
            raise
        link.pooled = pooled
        link.prepare_threshold = None if pooled else 0
        return link

    async def run(self, statement: bytes, values: Sequence[Any] = ()) -> Rows:
        """One statement and its rows."""
        cursor = await self.execute(statement, values, binary=True)
        return await cursor.fetchall() if cursor.description else []

    async def script(self, text: str | bytes) -> None:
        """Statements without parameters, one after another, in one transaction unless they say otherwise."""
        await self.execute(text.encode() if isinstance(text, str) else text, prepare=False)

    @property
    def alive(self) -> bool:
        """Whether the other side is still there, as far as can be told without asking it."""
        try:
            poll = select.poll()
            poll.register(self.pgconn.socket, select.POLLIN | select.POLLHUP)
            if poll.poll(0):
                self.pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError):
            return False
        return self.pgconn.status == ConnStatus.OK

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        try:
            return await super().wait(_within(gen, self.patience_s), *args, **options)
        except Overdue:
            self.pgconn.finish()
            raise
        except psycopg.Error:
            raise
        except BaseException:
            # Interrupted: the driver has asked the server to cancel, which may hit whatever runs here next.
            self.pgconn.finish()
            raise


def _within(answers: Generator[Any, Any, Any], patience_s: float | None) -> Generator[Any, Any, Any]:
    """The same generator, but it gives up when nothing was heard for so long."""
    deadline = None if patience_s is None else time.monotonic() + patience_s
    try:
        wanted = next(answers)
        while True:
            ready = yield wanted
            if not ready and deadline is not None and time.monotonic() > deadline:
                raise Overdue("no answer")
            wanted = answers.send(ready)
    except StopIteration as end:
        return end.value


class AsyncPool:
    """The connections of one store object, and the statements that run on them, by name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.statements = statements(settings.quoted_schema)
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: Whether the latest attempt to connect succeeded, and why it didn't.
        self._reached = False
        self._trouble: psycopg.Error | None = None
        if ASYNC:
            self._pools: dict[asyncio.AbstractEventLoop, AsyncConnectionPool[AsyncLink]] = {}
        else:
            self._pool: AsyncConnectionPool[AsyncLink] | None = None

    # ── one statement ────────────────────────────────────────────────────────────────────────

    async def run(
        self, name: str, values: Sequence[Any] = (), again: tuple[str, Sequence[Any]] | None = None
    ) -> Rows:
        """Run one statement, which is one transaction. ``again`` is what may be sent if the connection is
        lost before the answer: it must not matter whether the first try was carried out."""
        settings = self.settings
        deadline = time.monotonic() + settings.retry_s
        pause_s = _PAUSE_MIN_S
        sent = (name, values)
        while True:
            try:
                return await self._once(*sent)
            except psycopg.Error as error:
                repeat = rolled_back(error) or unprepared(error)
                if not repeat and lost(error) and again is not None and not isinstance(error, Overdue):
                    if sent is not again:
                        # However long it took to notice that a connection was dead: it is tried once more.
                        deadline = time.monotonic() + settings.retry_s
                    sent, repeat = again, True
                if read_only(error):
                    # Whoever says which kind of server is wanted gets to another one.
                    repeat = "target_session_attrs" in settings.conninfo
                if not repeat or time.monotonic() + pause_s > deadline:
                    raise translated(error, settings.shown) from error
            except StoreUnavailableError:
                # Not even connected: nothing was sent.
                if time.monotonic() + pause_s > deadline:
                    raise
            # Many who lost their connections together shouldn't come back together.
            await pause_async(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def read(self, name: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement that changes nothing, or nothing more the second time."""
        return await self.run(name, values, (name, values))

    async def _once(self, name: str, values: Sequence[Any]) -> Rows:
        pool, link = await self._take()
        try:
            return await link.run(self.statements[name], values)
        except psycopg.Error as error:
            if unprepared(error):
                # Somebody in between doesn't keep prepared statements.
                link.prepare_threshold = None
            if read_only(error):
                await link.close()
            if lost(error):
                self._reached = False
            raise
        finally:
            await _give(pool, link)

    # ── several statements ───────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def transaction(self, *, durable: bool = False) -> AsyncIterator[AsyncTransaction]:
        """A transaction of several statements; an error in the block takes everything back.

        ``durable``: its commit waits for the disk, whatever the server's default says.
        """
        pool, link = await self._take()
        try:
            async with link.transaction():
                transaction = AsyncTransaction(self, link)
                if durable:
                    await transaction.run("durably", (True,))
                yield transaction
        except psycopg.Error as error:
            raise translated(error, self.settings.shown) from error
        finally:
            await _give(pool, link)

    @asynccontextmanager
    async def connection(self, *, hurried: bool = True) -> AsyncIterator[AsyncLink]:
        """A connection for what can't run inside a transaction. Unless ``hurried`` statements may take as
        long as they take, and it isn't used again."""
        pool, link = await self._take()
        try:
            if not hurried:
                link.patience_s = None
                if not link.pooled:
                    await link.script(self.statements["no_statement_timeout"])
            yield link
        except psycopg.Error as error:
            raise translated(error, self.settings.shown) from error
        finally:
            if not hurried:
                await link.close()
            await _give(pool, link)

    # ── taking and giving back ───────────────────────────────────────────────────────────────

    async def _take(self) -> tuple[AsyncConnectionPool[AsyncLink], AsyncLink]:
        settings = self.settings
        deadline = time.monotonic() + settings.pool_wait_s
        while True:
            # A pool tells nobody why it can't connect: as long as that isn't known to work, look often.
            wait_s = settings.pool_wait_s if self._reached else _LOOK_S
            wait_s = min(wait_s, max(settings.retry_s, _LOOK_S))
            wait_s = max(min(wait_s, deadline - time.monotonic()), 0.001)
            try:
                pool = await self._open_pool()
                link = await pool.getconn(timeout=wait_s)
                if link.alive:
                    return pool, link
                await link.close()
                await _give(pool, link)
                continue
            except PoolTimeout:
                if self._trouble is not None:
                    raise self._unreachable(self._trouble) from self._trouble
                if time.monotonic() < deadline:
                    continue
            except PoolClosed:
                raise _closed() from None
            raise StoreBusyError(
                f"all {settings.pool_max} connections to {settings.shown} were in use for "
                f"{settings.pool_wait_s:g} s; raise pool_max in the URL, or start fewer calls at once"
            )

    async def _open_pool(self) -> AsyncConnectionPool[AsyncLink]:
        if self._pid != os.getpid():
            raise StoreClosedError("this store was opened before fork(2): open it again in this process")
        with self._lock:
            if self._closed:
                raise _closed()
            if ASYNC:
                # Connections belong to the event loop that made them.
                loop = asyncio.get_running_loop()
                pool = self._pools.get(loop)
                if pool is None:
                    self._pools = {each: kept for each, kept in self._pools.items() if not each.is_closed()}
                    pool = self._pools[loop] = self._new_pool()
            else:
                pool = self._pool
                if pool is None:
                    pool = self._pool = self._new_pool()
        if pool.closed:
            await pool.open()
        return pool

    def _new_pool(self) -> AsyncConnectionPool[AsyncLink]:
        return AsyncConnectionPool(
            self.settings.conninfo,
            connection_class=AsyncLink,
            kwargs={"settings": self.settings, "report": self._note},
            min_size=0,
            max_size=self.settings.pool_max,
            open=False,
            # Calls that need a connection try again themselves, for as long as the settings say.
            reconnect_timeout=0,
        )

    def _note(self, trouble: psycopg.Error | None) -> None:
        self._trouble, self._reached = trouble, trouble is None

    def _unreachable(self, error: psycopg.Error) -> Exception:
        found = translated(error, self.settings.shown)
        if isinstance(found, StoreUnavailableError) and error.sqlstate is None:
            return unreachable(error, self.settings.shown)
        return found

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        if self._pid != os.getpid():
            # The connections are the parent's, and another of its threads may have had the lock.
            return
        with self._lock:
            self._closed = True
            if ASYNC:
                pools, self._pools = self._pools, {}
            else:
                pool, self._pool = self._pool, None
        if ASYNC:
            for loop, pool in pools.items():
                if loop is asyncio.get_running_loop():
                    await pool.close()
                elif not loop.is_closed():
                    # In its own event loop, as soon as that runs.
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(_close_soon, pool)
        else:
            if pool is not None:
                pool.close()


async def _give(pool: AsyncConnectionPool[AsyncLink], link: AsyncLink) -> None:
    if ASYNC:
        # Cancelling the caller must not stop this halfway: the pool would count the connection for ever.
        await asyncio.shield(asyncio.ensure_future(pool.putconn(link)))
    else:
        await pool.putconn(link)


if ASYNC:

    def _close_soon(pool: AsyncConnectionPool[AsyncLink]) -> None:
        task = asyncio.ensure_future(pool.close())
        task.add_done_callback(_closing.discard)
        _closing.add(task)

    _closing: set[asyncio.Task[None]] = set()


def _closed() -> StoreClosedError:
    return StoreClosedError("this store is closed; open it again")


class AsyncTransaction:
    """What runs inside :meth:`AsyncPool.transaction`."""

    def __init__(self, pool: AsyncPool, link: AsyncLink) -> None:
        self._pool = pool
        self._link = link

    async def run(self, name: str, values: Sequence[Any] = ()) -> Rows:
        return await self._link.run(self._pool.statements[name], values)
