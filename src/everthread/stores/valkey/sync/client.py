# Generated from src/everthread/stores/valkey/aio/client.py by tools/twin.py: change that, then run: make twin
"""Talking to a server, or to the servers of a cluster.

redis-py makes the connections, encrypts them, signs in and speaks the protocol. Its own retries are off: it
can't know whether a write whose answer was lost has been carried out. Requests are sent again here, and a
script is told when an earlier try may have landed. For the same reason its cluster client isn't used: its
pipelines send again whatever they got no answer to.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from everthread import process
from everthread.errors import EverthreadError, StoreClosedError, StoreUnavailableError, UnsupportedError
from everthread.stores.colours import pause
from everthread.stores.valkey import scripts
from everthread.stores.valkey.errors import (
    PASSING,
    Lost,
    busy,
    code_of,
    in_doubt,
    is_nobody_there,
    text_of,
    translated,
    unavailable,
)
from everthread.stores.valkey.scripts import Script
from everthread.stores.valkey.settings import Settings, tls_options

SLOTS = 16384
#: How long a single exchange, and making a connection, may take of the time that a whole call has: the rest
#: is for another try.
_TRY_SHARE = 0.5
_CONNECT_SHARE = 0.25
#: For opening a store where nobody listens: long enough for a server that is just being restarted.
_NOBODY_S = 2.0
_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.2
#: A server that only reads stays so, unless a cluster is just choosing another primary.
_READONLY_TRIES = 3

Argument = bytes | str | int
Arguments = Sequence[Argument]


class Request(NamedTuple):
    """A script with its keys, or a command (then the first key only says which server has it).

    Where a second try must be told apart from a first one, ``arguments`` is a function that gets whether an
    earlier try may have been carried out.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    arguments: Arguments | Callable[[bool], Arguments]

    def command(self, again: bool) -> Sequence[Argument]:
        given = self.arguments(again) if callable(self.arguments) else self.arguments
        if self.script is None:
            return given
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *given)


class Server:
    """The connections to one server, bounded in number. Safe for several threads, tasks and event loops."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        self.place = (host, port)
        self._settings = settings
        self._closed = False
        self._generation = process.generation
        #: How often something was sent and answered: what a call costs in time.
        self.round_trips = 0
        #: Whether the server is known to have the scripts.
        self.has_scripts = False
        self._gate = threading.Semaphore(settings.connections)
        self._options: dict[str, Any] = {
            "connection_class": SSLConnection if settings.tls else Connection,
            "host": host,
            "port": port,
            "db": settings.db,
            "username": settings.username,
            "password": settings.password,
            "protocol": 2,
            "driver_info": None,
            "retry": Retry(NoBackoff(), 0),
            # Tasks have a timeout around the whole exchange.
            "socket_timeout": settings.timeout_s * _TRY_SHARE,
            "socket_connect_timeout": settings.timeout_s * _CONNECT_SHARE,
            "max_connections": 1 << 16,
            **(tls_options(settings) if settings.tls else {}),
        }
        self._only_pool = ConnectionPool(**self._options)

    def pool(self) -> ConnectionPool:
        return self._only_pool

    def close(self) -> None:
        """Connections in use are closed when they come back."""
        self._closed = True
        self._only_pool.disconnect(inuse_connections=False)

    def run(self, commands: Sequence[Sequence[Argument]], deadline: float) -> list[Any]:
        """The answers to commands, sent at once. Errors of the server are among them, not raised.

        Raises :class:`Lost`, :class:`StoreBusyError` and what a refused connection comes to.
        """
        process.check_not_forked(self._generation)
        gate = self._gate
        if not gate.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise busy(self._settings.url, self._settings.connections, self._settings.timeout_s)
        try:
            if self._closed:
                raise StoreClosedError("this store is closed; open it again")
            pool = self.pool()
            connection = self._connected(pool)
            try:
                return self._exchange(connection, commands, deadline)
            finally:
                # Neither of these waits for anything: a task that is cancelled here has given back what it
                # had, and what its exchange left behind was disconnected.
                if self._closed:
                    connection.disconnect(nowait=True)
                pool.release(connection)
        finally:
            gate.release()

    def _connected(self, pool: Any) -> Any:
        try:
            return pool.get_connection()
        except AuthenticationError as error:
            raise translated(error, self._settings.url) from error
        except ResponseError as error:
            raise translated(error, self._settings.url) from error
        except (RedisError, OSError) as error:
            raise Lost(text_of(error), False, nobody_there=is_nobody_there(error)) from error

    def _exchange(
        self, connection: Any, commands: Sequence[Sequence[Argument]], deadline: float
    ) -> list[Any]:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Lost("no time left", False)
        packed = b"".join(connection.pack_commands(commands))
        self.round_trips += 1
        try:
            return self._answers(connection, packed, len(commands), {"timeout": left})
        except BusyLoadingError as error:
            # It refuses everything; what came behind the first may have found it ready.
            raise Lost(text_of(error), len(commands) > 1) from error
        except AuthenticationError as error:
            raise translated(error, self._settings.url) from error
        except (RedisError, OSError) as error:
            raise Lost(text_of(error), True) from error

    def _answers(self, connection: Any, packed: bytes, count: int, waiting: dict[str, float]) -> list[Any]:
        """Send, and read as many answers. Whatever interrupts this, the connection is disconnected: the rest
        of its answers is still to come, and no other call may get it."""
        try:
            connection.send_packed_command([packed], check_health=False)
            found: list[Any] = []
            for _ in range(count):
                try:
                    found.append(connection.read_response(disable_decoding=True, **waiting))
                except ResponseError as error:
                    found.append(error)
            return found
        except BaseException:
            connection.disconnect(nowait=True)
            raise

    def __repr__(self) -> str:
        return f"<server {self.place[0]}:{self.place[1]}>"


class _Batch:
    """What of several requests is still to be answered."""

    def __init__(self, requests: Sequence[Request], timeout_s: float) -> None:
        self.requests = requests
        self.answers: list[Any] = [None] * len(requests)
        self.open = list(range(len(requests)))
        #: Those that an earlier try may have carried out.
        self.sent: set[int] = set()
        self.deadline = time.monotonic() + timeout_s
        self.try_s = timeout_s * _TRY_SHARE
        self.why = ""
        self.tries = 0

    def writes(self, number: int) -> bool:
        script = self.requests[number].script
        return script is not None and script.writes


class Client:
    """One server, or the servers of a cluster. Each request goes to the server that has its keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: One server: a script may reach every key of the store. In a cluster: those of one slot.
        self.single = settings.cluster is not True
        self._servers: dict[tuple[str, int], Server] = {}
        self._seeds = [self._server(*node) for node in settings.nodes]
        #: In a cluster, once it was asked: the server of each slot.
        self._slots: list[Server] = []

    def _server(self, host: str, port: int) -> Server:
        place = (host, port)
        if place not in self._servers:
            self._servers[place] = Server(self.settings, host, port)
        return self._servers[place]

    @property
    def servers(self) -> list[Server]:
        """Those that hold keys."""
        return list({id(each): each for each in self._slots}.values()) or self._seeds[:1]

    @property
    def round_trips(self) -> int:
        return sum(server.round_trips for server in self._servers.values())

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def script(
        self, script: Script, keys: tuple[bytes, ...], arguments: Arguments | Callable[[bool], Arguments]
    ) -> Any:
        """The answer of one script. Raises the typed error for what the server or the network says."""
        return self.request(Request(script, keys, arguments))

    def request(self, request: Request, *, longer_s: float = 0.0) -> Any:
        """The answer of one, which may take so much longer than requests usually do."""
        sent = False
        if self.single and self._seeds[0].has_scripts and not longer_s:
            # What nearly always happens, and nothing besides: every commit goes this way.
            until = time.monotonic() + self.settings.timeout_s * _TRY_SHARE
            try:
                (answer,) = self._seeds[0].run((request.command(False),), until)
                if not isinstance(answer, ResponseError):
                    return answer
            except Lost as lost:
                sent = lost.sent
        (answer,) = self.batch([request], sent=sent, longer_s=longer_s)
        if isinstance(answer, EverthreadError):
            raise answer
        return answer

    def command(self, key: bytes, *arguments: Argument) -> Any:
        """The answer of one command that only reads, or that may be done twice."""
        return self.request(Request(None, (key,), arguments))

    def all(self, requests: Sequence[Request]) -> list[Any]:
        """The answers of several; raises the first error."""
        answers = self.batch(requests) if requests else []
        for answer in answers:
            if isinstance(answer, EverthreadError):
                raise answer
        return answers

    def batch(self, requests: Sequence[Request], *, sent: bool = False, longer_s: float = 0.0) -> list[Any]:
        """The answers of several, sent together to each server; errors of the server are among them.

        Raises what the network says. What was lost on the way is sent again: every script is written so that
        a second time changes nothing. ``sent``: an earlier try may have been carried out.
        """
        batch = _Batch(requests, self.settings.timeout_s + longer_s)
        if sent:
            batch.sent.update(batch.open)
        pause_s = _PAUSE_S
        while True:
            at_once = False
            for server, numbers in self._by_server(batch):
                at_once |= self._send(batch, server, numbers)
            if not batch.open:
                return batch.answers
            batch.tries += 1
            left = batch.deadline - time.monotonic()
            if left <= 0:
                if any(number in batch.sent and batch.writes(number) for number in batch.open):
                    raise in_doubt(batch.why, self.settings.url)
                raise unavailable(batch.why, self.settings.url)
            if not at_once:
                pause(min(pause_s * _jitter(), left))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                if not self.single:
                    self._read_slots()

    def _by_server(self, batch: _Batch) -> list[tuple[Server, list[int]]]:
        if self.single:
            return [(self._seeds[0], batch.open)]
        groups: dict[int, tuple[Server, list[int]]] = {}
        for number in batch.open:
            server = self.server_of(batch.requests[number].keys[0])
            groups.setdefault(id(server), (server, []))[1].append(number)
        return list(groups.values())

    def _send(self, batch: _Batch, server: Server, numbers: list[int]) -> bool:
        """Send what is open for a server. Whether the rest is to be sent again at once."""
        until = min(batch.deadline, time.monotonic() + batch.try_s)
        try:
            if not server.has_scripts:
                self.load_scripts(server, until)
            commands = [batch.requests[number].command(number in batch.sent) for number in numbers]
            answers = server.run(commands, until)
        except Lost as lost:
            batch.why = lost.why
            if lost.sent:
                batch.sent.update(numbers)
            return False
        at_once = False
        still_open: list[int] = []
        for number, answer in zip(numbers, answers, strict=True):
            if still_open and batch.writes(number):
                # It may rely on one before it that wasn't carried out: see what it says after that.
                batch.sent.add(number)
                still_open.append(number)
            elif not isinstance(answer, ResponseError):
                batch.answers[number] = answer
            elif isinstance(answer, NoScriptError):
                server.has_scripts = False
                at_once = True
                still_open.append(number)
            elif isinstance(answer, AskError) and not self.single:
                # MOVED is one of these, too.
                at_once |= self._redirect(batch, number, answer, server, still_open)
            elif code_of(answer) in PASSING and not self._in_vain(batch, answer):
                batch.why = text_of(answer)
                still_open.append(number)
            else:
                batch.answers[number] = translated(answer, self.settings.url)
        answered = set(numbers) - set(still_open)
        batch.open = [number for number in batch.open if number not in answered]
        return at_once

    def _in_vain(self, batch: _Batch, answer: ResponseError) -> bool:
        return self.single and code_of(answer) == "READONLY" and batch.tries >= _READONLY_TRIES

    def _redirect(
        self, batch: _Batch, number: int, answer: AskError, server: Server, still_open: list[int]
    ) -> bool:
        """The slot is elsewhere: for good, or for this one request. Whether to send it again at once."""
        batch.why = text_of(answer)
        # A redirection without a host means the one that sent it.
        elsewhere = self._server(answer.host.strip("[]") or server.place[0], answer.port)
        if isinstance(answer, MovedError):
            still_open.append(number)
            if not self._slots:
                # Nothing is known of the cluster yet: look before asking again.
                return False
            self._slots[answer.slot_id % SLOTS] = elsewhere
            return True
        command = batch.requests[number].command(number in batch.sent)
        try:
            if not elsewhere.has_scripts:
                self.load_scripts(elsewhere, batch.deadline)
            _, found = elsewhere.run([("ASKING",), command], batch.deadline)
        except Lost as lost:
            if lost.sent:
                batch.sent.add(number)
            still_open.append(number)
            return False
        if isinstance(found, ResponseError):
            still_open.append(number)
        else:
            batch.answers[number] = found
        return False

    # ── servers ──────────────────────────────────────────────────────────────────────────────

    def load_scripts(self, server: Server, deadline: float) -> None:
        """Let a server have the scripts that it lacks."""
        (known,) = server.run([("SCRIPT", "EXISTS", *(each.sha for each in scripts.ALL))], deadline)
        self._require([known], passing=True)
        missing = [each for each, there in zip(scripts.ALL, known, strict=True) if not there]
        if missing:
            loads = [("SCRIPT", "LOAD", each.text) for each in missing]
            self._require(server.run(loads, deadline), passing=True)
        server.has_scripts = True

    def _require(self, answers: list[Any], *, passing: bool = False) -> list[Any]:
        """The answers, if none of them is an error. With ``passing``, one that passes is a :class:`Lost`:
        the caller tries again."""
        for answer in answers:
            if isinstance(answer, ResponseError):
                if passing and code_of(answer) in PASSING:
                    raise Lost(text_of(answer), False)
                raise translated(answer, self.settings.url)
        return answers

    def first_answer(self, *commands: Sequence[Argument]) -> list[Any]:
        """The answers of the first server of the URL that answers, errors among them."""
        deadline = time.monotonic() + self.settings.timeout_s
        nobody_until = min(deadline, time.monotonic() + _NOBODY_S)
        pause_s, why = _PAUSE_S, ""
        while True:
            until = nobody_until
            for server in self._seeds:
                try:
                    return server.run(commands, deadline)
                except Lost as lost:
                    why = lost.why
                    if not lost.nobody_there:
                        until = deadline
            if time.monotonic() + pause_s > until:
                raise unavailable(why, self.settings.url)
            pause(pause_s * _jitter())
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def on_server(self, server: Server, *commands: Sequence[Argument]) -> list[Any]:
        """The answers of one server; raises the first error. Not sent again."""
        try:
            return self._require(server.run(commands, time.monotonic() + self.settings.timeout_s))
        except Lost as lost:
            raise unavailable(lost.why, self.settings.url) from lost

    def server_of(self, key: bytes) -> Server:
        """The server that has a key."""
        return self._slots[key_slot(key)] if self._slots else self._seeds[0]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where the server of each slot is; nothing if there is but one."""
        return [server.place for server in self._slots]

    def follow(self, places: Sequence[tuple[str, int]]) -> None:
        """Take over what another client knows of its servers."""
        self.single = not places
        self._slots = [self._server(*place) for place in places]

    def follow_cluster(self) -> None:
        """From now on ask each server of the cluster for what it has."""
        if self.settings.db:
            raise UnsupportedError("a cluster has no databases but 0; leave the number out of the URL")
        self.single = False
        deadline = time.monotonic() + self.settings.timeout_s
        while not self._read_slots():
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"{self.settings.url}: the cluster serves not every slot; look at its nodes"
                )
            pause(_PAUSE_MAX_S)

    def _read_slots(self) -> bool:
        """Learn which server has which slot, from whichever answers. Whether every slot has one."""
        deadline = time.monotonic() + self.settings.timeout_s * _TRY_SHARE
        for server in [*self.servers, *self._seeds]:
            try:
                answers = server.run([("CLUSTER", "SLOTS")], deadline)
                (answer,) = self._require(answers, passing=True)
            except Lost:
                continue
            slots: list[Server | None] = [None] * SLOTS
            for first, last, primary, *_ in answer:
                host = primary[0].decode() if primary[0] else server.place[0]
                for slot in range(first, last + 1):
                    slots[slot] = self._server(host, primary[1])
            known = [each for each in slots if each is not None]
            if len(known) == SLOTS:
                self._slots = known
                return True
        return False

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def _jitter() -> float:
    """Clients that lost their connections together shouldn't come back together."""
    return random.uniform(0.5, 1.5)  # noqa: S311 - nothing is kept secret by it
