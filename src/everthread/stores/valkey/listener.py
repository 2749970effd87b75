"""Subscriptions to the commits of other processes: one thread listens for all waiters of a store.

A message only says that there may be something new; a waiter that is woken reads the store. So nothing is
missed when one is lost: a channel that has just been subscribed counts as changed, and after a lost
connection a new listener subscribes again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from everthread.errors import StoreUnavailableError
from everthread.stores.valkey.errors import Lost, text_of, unavailable
from everthread.stores.valkey.layout import Keys
from everthread.stores.valkey.settings import Settings

if TYPE_CHECKING:
    from redis.client import PubSub

    from everthread.stores.valkey.sync.client import Server

#: How long one look waits for a message: a new waiter's channel is subscribed after that.
_LISTEN_S = 0.05
#: The next message of several that have come.
_NEXT_S = 0.0005
_ANSWER_S = 5.0


class Listener:
    """The probe of :class:`Signals`. Used by one thread only."""

    #: It waits by itself: the caller needn't pause.
    waits = True

    def __init__(self, settings: Settings, *, cluster: bool) -> None:
        from everthread.stores.valkey.sync.client import Client

        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._cluster = cluster
        self._client = Client(settings)
        self._subscriptions: dict[Server, PubSub] = {}
        #: Channels that are subscribed, and the lines that they tell of.
        self._lines: dict[bytes, int] = {}
        if cluster:
            self._client.follow_cluster()

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        try:
            return self._changed(lines)
        except ResponseError as error:
            raise StoreUnavailableError(
                f"{self._settings.url} doesn't let us listen: {text_of(error)}"
            ) from error
        except (OSError, RedisError) as error:
            raise unavailable(text_of(error), self._settings.url) from error
        except Lost as lost:
            raise unavailable(lost.why, self._settings.url) from lost

    def _changed(self, lines: Sequence[int]) -> Collection[int]:
        wanted = {self._keys.news if line <= 0 else self._keys.rows(line): line for line in lines}
        found = set()
        for channel in [channel for channel in self._lines if channel not in wanted]:
            del self._lines[channel]
            self._subscribe(channel, "unsubscribe")
        for channel in [channel for channel in wanted if channel not in self._lines]:
            self._subscribe(channel, "subscribe")
            self._lines[channel] = wanted[channel]
            # From here on nothing is missed; what came before has to be looked for.
            found.add(wanted[channel])
        waiting_s = _LISTEN_S / max(len(self._subscriptions), 1)
        for subscription in list(self._subscriptions.values()):
            found |= self._messages(subscription, _NEXT_S if found else waiting_s)
        return found

    def _subscribe(self, channel: bytes, verb: str) -> None:
        """Subscribe, or no more. Returns when the server has done so."""
        sharded = self._cluster and channel != self._keys.news
        server = self._client.server_of(channel if sharded else self._keys.info)
        subscription = self._subscription(server)
        verb = f"s{verb}" if sharded else verb
        getattr(subscription, verb)(channel)
        while True:
            message = _message(subscription, _ANSWER_S)
            if message is None:
                raise Lost("no answer in time", False)
            if message["type"] == verb and message["channel"] == channel:
                return
            if message["type"] in ("message", "smessage"):
                # Not lost: subscribed anew, its line counts as changed.
                self._lines.pop(message["channel"], None)

    def _subscription(self, server: Server) -> PubSub:
        if server not in self._subscriptions:
            client: Any = Redis(connection_pool=server.pool())
            self._subscriptions[server] = client.pubsub()
        return self._subscriptions[server]

    def _messages(self, subscription: PubSub, timeout_s: float) -> set[int]:
        found: set[int] = set()
        while message := _message(subscription, timeout_s):
            if message["type"] in ("message", "smessage"):
                found.add(self._lines.get(message["channel"], 0))
                timeout_s = _NEXT_S
            elif message["type"] == "sunsubscribe" and message["channel"] in self._lines:
                raise StoreUnavailableError("the slot has moved to another server")
        return found

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            with suppress(OSError, RedisError):
                subscription.close()
        self._client.close()


def _message(subscription: PubSub, timeout_s: float) -> dict[str, Any] | None:
    message: dict[str, Any] | None = subscription.get_message(timeout=timeout_s)
    return message
