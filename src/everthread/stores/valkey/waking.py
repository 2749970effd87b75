"""Hearing of the commits of others: one connection that listens, for all who wait.

A message says no more than that there may be something new; who is woken goes and reads. So nothing is missed
when one is lost: whoever begins to listen looks first, and a new connection begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import StoreUnavailableError
from everthread.stores.valkey.failing import Lost, unavailable
from everthread.stores.valkey.keys import Keys
from everthread.stores.valkey.resp import ProtocolError, ReplyError, write_command
from everthread.stores.valkey.settings import Settings

if TYPE_CHECKING:
    from everthread.stores.valkey.sync.links import Link, Server

#: How long a look waits for a message: who begins to wait is listened for after that.
_LISTEN_S = 0.05
_ANSWER_S = 5.0


class Listener:
    """The probe of :class:`Signals`. Used by one thread only."""

    #: It waits by itself: whoever calls needn't pause.
    waits = True

    def __init__(self, settings: Settings, *, cluster: bool) -> None:
        from everthread.stores.valkey.sync.calls import Calls

        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._cluster = cluster
        self._calls = Calls(settings)
        self._links: dict[Server, Link] = {}
        #: Channels that are listened to, and the lines that they tell of.
        self._heard: dict[bytes, int] = {}
        if cluster:
            self._calls.follow_cluster()

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        try:
            return self._changed(lines)
        except (OSError, EOFError, ProtocolError) as error:
            raise unavailable(str(error), self._settings.url) from error
        except Lost as lost:
            raise unavailable(lost.why, self._settings.url) from lost

    def _changed(self, lines: Sequence[int]) -> Collection[int]:
        wanted = {self._keys.news if line <= 0 else self._keys.rows(line): line for line in lines}
        found = set()
        for channel in [channel for channel in self._heard if channel not in wanted]:
            del self._heard[channel]
            self._tell(channel, b"UNSUBSCRIBE")
        for channel in [channel for channel in wanted if channel not in self._heard]:
            self._tell(channel, b"SUBSCRIBE")
            self._heard[channel] = wanted[channel]
            # From here on nothing is missed; what came before has to be looked for.
            found.add(wanted[channel])
        waiting = _LISTEN_S / max(len(self._links), 1)
        for link in list(self._links.values()):
            found |= self._messages(link, 0.0005 if found else waiting)
        return found

    def _tell(self, channel: bytes, verb: bytes) -> None:
        """Subscribe, or no more. A subscription is waited for."""
        sharded = self._cluster and channel != self._keys.news
        link = self._link(self._calls.server_of(channel if sharded else self._keys.info))
        verb = b"S" + verb if sharded else verb
        link.push([write_command((verb, channel))], _ANSWER_S)
        while True:
            kind, told, *_ = self._pulled(link, _ANSWER_S)
            if kind == verb.lower() and told == channel:
                return
            if kind in (b"message", b"smessage"):
                # Not lost: whose channel it is shall look again.
                self._heard.pop(told, None)

    def _link(self, server: Server) -> Link:
        if server not in self._links:
            self._links[server] = server.connect(time.monotonic() + _ANSWER_S)
        return self._links[server]

    def _messages(self, link: Link, timeout_s: float) -> set[int]:
        found: set[int] = set()
        while True:
            try:
                kind, channel, *_ = self._pulled(link, timeout_s)
            except TimeoutError:
                return found
            if kind in (b"message", b"smessage"):
                found.add(self._heard.get(channel, 0))
                timeout_s = 0.0005
            elif kind == b"sunsubscribe" and channel in self._heard:
                raise StoreUnavailableError("the slot has moved to another server")

    def _pulled(self, link: Link, timeout_s: float) -> list[bytes]:
        answer = link.pulled(timeout_s)
        if isinstance(answer, ReplyError):
            raise StoreUnavailableError(f"{self._settings.url} doesn't let us listen: {answer.text}")
        if not isinstance(answer, list) or len(answer) < 3:
            raise ProtocolError(f"not a message: {answer!r}")
        return answer

    def close(self) -> None:
        for link in self._links.values():
            with suppress(OSError):
                link.close()
        self._calls.close()
