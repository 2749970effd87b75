# Generated from stores/postgres/aio/connections.py by tools/twin.py: change that, then run: make twin
"""Connections to the server: as many as allowed, each used by one caller at a time.

A connection that isn't clean after use (cut, cancelled in the middle, inside a transaction) is closed, never
handed on: nobody gets an answer that belongs to somebody else. Nothing relies on the state of a session, so
that a pooler which hands out sessions per transaction may stand in between.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection, generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from everthread.errors import EverthreadError, StoreBusyError, StoreClosedError, StoreUnavailableError
from everthread.stores.colours import Gate, pause
from everthread.stores.postgres.failing import (
    Overdue,
    lost,
    read_only,
    rolled_back,
    translated,
    unprepared,
    unreachable,
)
from everthread.stores.postgres.settings import Settings
from everthread.stores.postgres.wire import Statement, read_rows

#: How long a server may take beyond its own statement_timeout before the connection is given up.
_GRACE_S = 5.0
_CONNECT_S = 10
_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 1.0
_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY)

#: What libpq is told besides the URL, unless that says otherwise: notice when the other side is gone.
_WATCHFUL: dict[str, Any] = {
    "application_name": "everthread",
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Link:
    """One connection. ``pooled``: a pooler stands in between, so that nothing is kept in the session."""

    def __init__(self, connection: Connection[Any], pooled: bool, patience_s: float | None) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self.patience_s = patience_s
        self.pooled = pooled
        self.prepares = not pooled
        self._prepared: set[bytes] = set()
        #: How often the server was asked and answered.
        self.trips = 0

    def run(self, statement: Statement, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Send one statement, wait for its rows."""
        pgconn, encoded = self._pgconn, statement.encode(values)
        if not self.prepares:
            pgconn.send_query_params(statement.sql, encoded, statement.types, statement.formats, 1)
            return read_rows(self._answer())
        if statement.name not in self._prepared:
            pgconn.send_prepare(statement.name, statement.sql, statement.types)
            self._answer()
            self._prepared.add(statement.name)
        pgconn.send_query_prepared(statement.name, encoded, statement.formats, 1)
        return read_rows(self._answer())

    def script(self, text: str) -> None:
        """Statements without parameters, one after another, in one transaction unless they say otherwise."""
        self._pgconn.send_query(text.encode())
        self._answer()

    def _answer(self) -> Any:
        self.trips += 1
        answers = generators.execute(self._pgconn)
        results = self._connection.wait(_within(answers, self.patience_s))
        for result in results:
            if result.status not in _FINE:
                raise psycopg.errors.error_from_result(result, encoding="utf-8")
        return results[-1]

    def unprepare(self) -> None:
        """Send whole statements from now on: somebody in between doesn't keep prepared ones."""
        self.prepares = False

    @property
    def clean(self) -> bool:
        """Whether the next caller can have it."""
        pgconn = self._pgconn
        return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def sound(self) -> bool:
        """Whether the other side is still there, as far as can be told without asking."""
        try:
            poll = select.poll()
            poll.register(self._pgconn.socket, select.POLLIN | select.POLLHUP)
            if poll.poll(0):
                self._pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError):
            return False
        return self.clean

    def close(self) -> None:
        with suppress(psycopg.Error, OSError):
            self._connection.close()


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


def connect_link(settings: Settings, conninfo: str | None = None) -> Link:
    """A new connection. Raises the errors of the driver."""
    conninfo = settings.conninfo if conninfo is None else conninfo
    given = conninfo_to_dict(conninfo)
    more = {key: value for key, value in _WATCHFUL.items() if given.get(key) is None}
    ours = (
        f"-c statement_timeout={settings.statement_timeout_ms} -c lock_timeout={settings.lock_timeout_ms} "
        "-c idle_in_transaction_session_timeout=60000 -c jit=off"
    )
    # Later ones win: who wrote options into the URL meant them.
    options = f"{ours} {given.get('options') or ''}".strip()
    pooled = False
    try:
        connection = Connection.connect(conninfo, autocommit=True, **more, options=options)
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
        pooled = True
        connection = Connection.connect(conninfo, autocommit=True, **more)
    timeout_s = settings.statement_timeout_ms / 1000
    link = Link(connection, True, timeout_s + _GRACE_S if timeout_s else None)
    try:
        if not pooled:
            # Who answers isn't who let us in: a pooler.
            ((pid,),) = link.run(_PID, ())
            pooled = pid != connection.info.backend_pid
    except BaseException:
        link.close()
        raise
    link.pooled, link.prepares = pooled, not pooled
    return link


_PID = Statement("", "SELECT pg_backend_pid()::bigint")


class Connections:
    """The connections of one store object. After fork(2) a child has its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.closed = False
        self._statements: dict[Statement, Statement] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._gate = Gate(self.settings.pool_max)
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        #: How often a server was asked, by all connections that were given back.
        self.trips = 0

    # ── one statement ────────────────────────────────────────────────────────────────────────

    def run(
        self,
        statement: Statement,
        values: Sequence[Any],
        again: tuple[Statement, Sequence[Any]] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run one statement, which is one transaction. ``again`` is what may be sent if the connection is
        lost before the answer: it must not matter whether the first try was carried out."""
        settings = self.settings
        deadline = time.monotonic() + settings.retry_s
        pause_s = _PAUSE_MIN_S
        sent = (statement, values)
        while True:
            try:
                return self._once(*sent, careful=again is None)
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
            pause(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def read(self, statement: Statement, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement that changes nothing, or nothing more the second time."""
        return self.run(statement, values, (statement, values))

    def _once(self, statement: Statement, values: Sequence[Any], careful: bool) -> list[tuple[Any, ...]]:
        link = self._take(careful)
        before = link.trips
        try:
            return link.run(self.mine(statement), values)
        except psycopg.Error as error:
            if unprepared(error):
                link.unprepare()
            if read_only(error):
                link.close()
            raise
        finally:
            self.trips += link.trips - before
            self._give(link)

    def mine(self, statement: Statement) -> Statement:
        """The statement on the tables of this store's schema."""
        known = self._statements.get(statement)
        if known is None:
            known = self._statements[statement] = statement.within(self.settings.quoted_schema)
        return known

    # ── several statements ───────────────────────────────────────────────────────────────────

    @contextmanager
    def transaction(self, begin: str = "BEGIN", *, hurried: bool = True) -> Iterator[Transaction]:
        """A transaction of several statements; an error in the block takes everything back.

        ``hurried``: each of them has the usual time; otherwise as long as it takes.
        """
        link = self._take(careful=True)
        before, usual = link.trips, link.patience_s
        link.patience_s = usual if hurried else None
        try:
            link.script(begin)
            yield Transaction(self, link)
            link.script("COMMIT")
        except psycopg.Error as error:
            _take_back(link)
            raise translated(error, self.settings.shown) from error
        except BaseException:
            _take_back(link)
            raise
        finally:
            self.trips += link.trips - before
            link.patience_s = usual
            self._give(link)

    @contextmanager
    def apart(self, *, hurried: bool = True) -> Iterator[Link]:
        """A connection for what can't run inside a transaction. Unless ``hurried`` it isn't used again."""
        link = self._take(careful=True)
        try:
            if not hurried:
                link.patience_s = None
                if not link.pooled:
                    link.script("SET statement_timeout = 0")
            yield link
        except psycopg.Error as error:
            raise translated(error, self.settings.shown) from error
        finally:
            if not hurried:
                link.close()
            self._give(link)

    # ── taking and giving back ───────────────────────────────────────────────────────────────

    def _take(self, careful: bool) -> Link:
        if self._pid != os.getpid():
            # The sockets belong to the parent. The driver closes none that another process opened.
            self._begin_anew()
        self._check()
        gate = self._gate
        if not gate.enter(self.settings.pool_wait_s):
            raise StoreBusyError(
                f"all {self.settings.pool_max} connections to {self.settings.shown} were in use for "
                f"{self.settings.pool_wait_s:g} s; raise pool_max in the URL, or start fewer calls at once"
            )
        try:
            self._check()
            while True:
                with self._lock:
                    link = self._idle.pop() if self._idle else None
                if link is None:
                    return self._connect()
                if not careful or link.sound:
                    return link
                link.close()
        except BaseException:
            gate.leave()
            raise

    def _connect(self) -> Link:
        try:
            return connect_link(self.settings)
        except psycopg.Error as error:
            told = translated(error, self.settings.shown)
            if isinstance(told, StoreUnavailableError) and error.sqlstate is None:
                told = unreachable(error, self.settings.shown)
            raise told from error

    def _give(self, link: Link) -> None:
        gate = self._gate
        with self._lock:
            keep = link.clean and not self.closed and self._pid == os.getpid()
            if keep:
                self._idle.append(link)
        try:
            if not keep:
                link.close()
        finally:
            gate.leave()

    def _check(self) -> None:
        if self.closed:
            raise StoreClosedError("this store is closed; open it again")

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        if self._pid != os.getpid():
            self.closed = True
            return
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()


def _take_back(link: Link) -> None:
    with suppress(psycopg.Error, EverthreadError):
        link.script("ROLLBACK")


class Transaction:
    """What runs inside :meth:`Connections.transaction`."""

    def __init__(self, connections: Connections, link: Link) -> None:
        self._connections = connections
        self._link = link

    def run(self, statement: Statement, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._link.run(self._connections.mine(statement), values)

    def script(self, text: str) -> None:
        self._link.script(text)
