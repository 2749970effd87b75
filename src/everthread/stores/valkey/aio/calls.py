"""Scripts and commands sent to the server that has their keys, again where that is safe."""

from __future__ import annotations

import random
import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everthread.errors import EverthreadError, StoreUnavailableError, UnsupportedError
from everthread.stores.colours import pause_async
from everthread.stores.valkey import scripts
from everthread.stores.valkey.aio.links import AsyncServer
from everthread.stores.valkey.failing import MOVED, PASSING, Lost, in_doubt, translated, unavailable
from everthread.stores.valkey.keys import slot_tag
from everthread.stores.valkey.resp import Argument, ReplyError, write_command
from everthread.stores.valkey.scripts import Script
from everthread.stores.valkey.settings import Settings

SLOTS = 16384
#: How long a single exchange may take, of the time that the whole verb has: the rest is for another try.
_TRY_SHARE = 0.5
#: For what takes as long as the store is large.
_PATIENCE_S = 600.0
#: For whoever opens a store where nobody listens: long enough for a server that is just starting anew.
_NOBODY_S = 2.0
_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.2
#: A server that only reads is no passing matter, unless the cluster is just choosing another primary.
_READONLY_TRIES = 3

Arguments = Sequence[Argument]


class Ask(NamedTuple):
    """A script with its keys, or a command (then the first key only tells where it goes).

    Where a second try must be told apart from a first one, ``arguments`` is a function that is told whether
    an earlier try may have landed.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    arguments: Arguments | Callable[[bool], Arguments]

    def command(self, again: bool) -> Sequence[Argument]:
        given = self.arguments(again) if callable(self.arguments) else self.arguments
        if self.script is None:
            return given
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *given)


class _Turn:
    """What is still to be answered of a batch."""

    def __init__(self, asks: Sequence[Ask], timeout_s: float) -> None:
        self.asks = asks
        self.answers: list[Any] = [None] * len(asks)
        self.open = list(range(len(asks)))
        #: Those that an earlier try may have carried out.
        self.sent: set[int] = set()
        self.deadline = time.monotonic() + timeout_s
        self.try_s = timeout_s * _TRY_SHARE
        self.why = ""
        self.tries = 0

    def writes(self, number: int) -> bool:
        script = self.asks[number].script
        return script is not None and script.writes


class AsyncCalls:
    """What a driver talks to: one server, or the servers of a cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.whole = settings.cluster is not True
        self._servers: dict[tuple[str, int], AsyncServer] = {}
        self._seeds = [self.server(*node) for node in settings.nodes]
        self._slots: list[AsyncServer] = []

    def server(self, host: str, port: int) -> AsyncServer:
        place = (host, port)
        if place not in self._servers:
            self._servers[place] = AsyncServer(self.settings, host, port)
        return self._servers[place]

    @property
    def servers(self) -> list[AsyncServer]:
        """Those that hold keys."""
        return list({id(each): each for each in self._slots}.values()) or self._seeds[:1]

    @property
    def round_trips(self) -> int:
        return sum(server.round_trips for server in self._servers.values())

    # ── asking ───────────────────────────────────────────────────────────────────────────────

    async def script(
        self, script: Script, keys: tuple[bytes, ...], arguments: Arguments | Callable[[bool], Arguments]
    ) -> Any:
        """The answer of one script. Raises the typed error for what the server or the network says."""
        return await self.ask(Ask(script, keys, arguments))

    async def ask(self, ask: Ask, *, longer_s: float = 0.0) -> Any:
        """The answer of one, which may take so much longer than what is asked for usually does."""
        sent = False
        if self.whole and self._seeds[0].prepared and not longer_s:
            # What nearly always happens, and nothing besides: every commit goes this way.
            until = time.monotonic() + self.settings.timeout_s * _TRY_SHARE
            try:
                (answer,) = await self._seeds[0].run((ask.command(False),), until)
                if type(answer) is not ReplyError:
                    return answer
            except Lost as lost:
                sent = lost.sent
        (answer,) = await self.batch([ask], sent=sent, longer_s=longer_s)
        if isinstance(answer, EverthreadError):
            raise answer
        return answer

    async def command(self, key: bytes, *arguments: Argument) -> Any:
        """The answer of one command that only reads, or that may be done twice."""
        return await self.ask(Ask(None, (key,), arguments))

    async def all(self, asks: Sequence[Ask]) -> list[Any]:
        """The answers of several; raises the first error."""
        answers = await self.batch(asks) if asks else []
        for answer in answers:
            if isinstance(answer, EverthreadError):
                raise answer
        return answers

    async def batch(self, asks: Sequence[Ask], *, sent: bool = False, longer_s: float = 0.0) -> list[Any]:
        """The answers of several, sent together to each server; errors of the server are among them.

        Raises what the network says. What was lost on the way is sent again: every script is written so that
        a second time changes nothing. ``sent``: an earlier try may have been carried out.
        """
        turn = _Turn(asks, self.settings.timeout_s + longer_s)
        if sent:
            turn.sent.update(turn.open)
        nap_s = _PAUSE_S
        while True:
            moved = False
            for server, numbers in self._places(turn):
                moved |= await self._send(turn, server, numbers)
            if not turn.open:
                return turn.answers
            turn.tries += 1
            left = turn.deadline - time.monotonic()
            if left <= 0:
                if any(number in turn.sent and turn.writes(number) for number in turn.open):
                    raise in_doubt(turn.why, self.settings.url)
                raise unavailable(turn.why, self.settings.url)
            if not moved:
                await pause_async(min(nap_s * _jitter(), left))
                nap_s = min(nap_s * 2, _PAUSE_MAX_S)
                if not self.whole:
                    await self._look_again()

    def _places(self, turn: _Turn) -> list[tuple[AsyncServer, list[int]]]:
        if self.whole:
            return [(self._seeds[0], turn.open)]
        groups: dict[int, tuple[AsyncServer, list[int]]] = {}
        for number in turn.open:
            server = self.server_of(turn.asks[number].keys[0])
            groups.setdefault(id(server), (server, []))[1].append(number)
        return list(groups.values())

    async def _send(self, turn: _Turn, server: AsyncServer, numbers: list[int]) -> bool:
        """Send what is open for a server. Whether it is to be sent elsewhere at once."""
        now = time.monotonic()
        until = min(turn.deadline, now + turn.try_s)
        try:
            if not server.prepared:
                await self.prepare(server, until)
            commands = [turn.asks[number].command(number in turn.sent) for number in numbers]
            answers = await server.run(commands, until)
        except Lost as lost:
            turn.why = lost.why
            if lost.sent:
                turn.sent.update(numbers)
            return False
        moved = False
        still: list[int] = []
        for number, answer in zip(numbers, answers, strict=True):
            if still and turn.writes(number):
                # It may rely on one before it that wasn't carried out: see what it says after that.
                turn.sent.add(number)
                still.append(number)
            elif not isinstance(answer, ReplyError):
                turn.answers[number] = answer
            elif answer.code == "NOSCRIPT":
                server.prepared = False
                moved = True
                still.append(number)
            elif answer.code in MOVED and not self.whole:
                moved |= await self._redirected(turn, number, answer, still)
            elif answer.code in PASSING and not self._in_vain(turn, answer):
                turn.why = answer.text
                still.append(number)
            else:
                turn.answers[number] = translated(answer, self.settings.url)
        done = set(numbers) - set(still)
        turn.open = [number for number in turn.open if number not in done]
        return moved

    def _in_vain(self, turn: _Turn, answer: ReplyError) -> bool:
        return self.whole and answer.code == "READONLY" and turn.tries >= _READONLY_TRIES

    async def _redirected(self, turn: _Turn, number: int, answer: ReplyError, still: list[int]) -> bool:
        """The slot is elsewhere: for good, or for this one question. Whether to ask again at once."""
        turn.why = answer.text
        try:
            _, slot, place = answer.text.split(" ")[:3]
            host, _, port = place.rpartition(":")
            server = self.server(host.strip("[]") or turn_host(self), int(port))
        except ValueError:
            still.append(number)
            return False
        if answer.code == "MOVED":
            still.append(number)
            if not self._slots:
                # Nothing is known of the cluster yet: look before asking again.
                return False
            self._slots[int(slot) % SLOTS] = server
            return True
        command = turn.asks[number].command(number in turn.sent)
        try:
            if not server.prepared:
                await self.prepare(server, turn.deadline)
            _, found = await server.run([("ASKING",), command], turn.deadline)
        except Lost as lost:
            if lost.sent:
                turn.sent.add(number)
            still.append(number)
            return False
        if isinstance(found, ReplyError):
            still.append(number)
            return False
        turn.answers[number] = found
        return False

    # ── the servers ──────────────────────────────────────────────────────────────────────────

    async def prepare(self, server: AsyncServer, deadline: float) -> None:
        """Let a server know the scripts."""
        loads = [("SCRIPT", "LOAD", script.text) for script in scripts.ALL]
        for answer in await server.run(loads, deadline):
            if isinstance(answer, ReplyError):
                if answer.code in PASSING:
                    raise Lost(answer.text, False)
                raise translated(answer, self.settings.url)
        server.prepared = True

    async def once(self, *commands: Sequence[Argument]) -> list[Any]:
        """The answers of the first server of the URL that answers, errors among them."""
        deadline = time.monotonic() + self.settings.timeout_s
        nobody_until = min(deadline, time.monotonic() + _NOBODY_S)
        nap_s, why = _PAUSE_S, ""
        while True:
            until = nobody_until
            for server in self._seeds:
                try:
                    answers = await server.run(commands, deadline)
                except Lost as lost:
                    why = lost.why
                    if not lost.refused:
                        until = deadline
                    continue
                passing = [a for a in answers if isinstance(a, ReplyError) and a.code == "LOADING"]
                if not passing:
                    return answers
                why, until = passing[0].text, deadline
            if time.monotonic() + nap_s > until:
                raise unavailable(why, self.settings.url)
            await pause_async(nap_s * _jitter())
            nap_s = min(nap_s * 2, _PAUSE_MAX_S)

    async def on_server(self, server: AsyncServer, *commands: Sequence[Argument]) -> list[Any]:
        """The answers of one server; raises the first error. Not sent again."""
        try:
            answers = await server.run(commands, time.monotonic() + self.settings.timeout_s)
        except Lost as lost:
            raise unavailable(lost.why, self.settings.url) from lost
        return _sound(answers, self.settings.url)

    async def patiently(self, ask: Ask) -> Any:
        """The answer of one that takes as long as the store is large. Not sent again."""
        server = self.server_of(ask.keys[0])
        deadline = time.monotonic() + _PATIENCE_S
        try:
            if not server.prepared:
                await self.prepare(server, deadline)
            (answer,) = await server.run([ask.command(False)], deadline)
            if isinstance(answer, ReplyError) and answer.code == "NOSCRIPT":
                await self.prepare(server, deadline)
                (answer,) = await server.run([ask.command(False)], deadline)
        except Lost as lost:
            raise unavailable(lost.why, self.settings.url) from lost
        if isinstance(answer, ReplyError):
            raise translated(answer, self.settings.url)
        return answer

    async def transaction(
        self, watched: bytes, read: Ask, made: Callable[[Any], Sequence[Sequence[Argument]]]
    ) -> None:
        """What ``made`` makes of what was read, all of it or nothing, on the one server; again if what is
        watched changes meanwhile. Not sent again if the connection is lost."""
        server = self._seeds[0]
        deadline = time.monotonic() + _PATIENCE_S
        sent = False
        try:
            await self.prepare(server, deadline)
            link = await server.connect(deadline)
        except Lost as lost:
            raise unavailable(lost.why, self.settings.url) from lost
        try:
            while True:
                sent = False
                first = [write_command(each) for each in (("WATCH", watched), read.command(False))]
                answer = _sound((await link.exchange(first, _PATIENCE_S)), self.settings.url)[1]
                commands = [write_command(each) for each in (("MULTI",), *made(answer), ("EXEC",))]
                sent = True
                answers = _sound(await link.exchange(commands, _PATIENCE_S), self.settings.url)
                if answers[-1] is not None:
                    _sound(answers[-1], self.settings.url)
                    return
        except OSError as error:
            raise (in_doubt if sent else unavailable)(str(error), self.settings.url) from error
        finally:
            link.close()

    def server_of(self, key: bytes) -> AsyncServer:
        """The server that has a key."""
        return self._slots[slot_of(key)] if self._slots else self._seeds[0]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where the server of each slot is; nothing if there is but one."""
        return [server.place for server in self._slots]

    def follow(self, places: Sequence[tuple[str, int]]) -> None:
        """Take over what another one knows of its servers."""
        self.whole = not places
        self._slots = [self.server(*place) for place in places]

    async def follow_cluster(self) -> None:
        """From now on ask each server of the cluster for what it has."""
        if self.settings.db:
            raise UnsupportedError("a cluster has no databases but 0; leave the number out of the URL")
        self.whole = False
        deadline = time.monotonic() + self.settings.timeout_s
        while not await self._look_again():
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"{self.settings.url}: the cluster serves not every slot; look at its nodes"
                )
            await pause_async(_PAUSE_MAX_S)

    async def _look_again(self) -> bool:
        """Learn which server has which slot, from whichever answers. Whether every slot has one."""
        deadline = time.monotonic() + self.settings.timeout_s * _TRY_SHARE
        for server in [*self.servers, *self._seeds]:
            try:
                (answer,) = await server.run([("CLUSTER", "SLOTS")], deadline)
            except Lost:
                continue
            if isinstance(answer, ReplyError):
                if answer.code in PASSING:
                    continue
                raise translated(answer, self.settings.url)
            slots: list[AsyncServer | None] = [None] * SLOTS
            for first, last, primary, *_ in answer:
                host = primary[0].decode() if primary[0] else server.place[0]
                for slot in range(first, last + 1):
                    slots[slot] = self.server(host, primary[1])
            known = [each for each in slots if each is not None]
            if len(known) == SLOTS:
                self._slots = known
                return True
        return False

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def _sound(answers: list[Any], url: str) -> list[Any]:
    """The answers, if none of them is an error."""
    for answer in answers:
        if isinstance(answer, ReplyError):
            raise translated(answer, url)
    return answers


def _jitter() -> float:
    """So that those who lost their connections together don't come back together."""
    return random.uniform(0.5, 1.5)  # noqa: S311 - nothing is kept secret by it


def turn_host(calls: AsyncCalls) -> str:
    """The host of a redirection that names none: that of the server which sent it."""
    return calls.settings.nodes[0][0]


def slot_of(key: bytes) -> int:
    return crc_hqx(slot_tag(key), 0) % SLOTS
