"""Messages from outside on their way to an agent, inside a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from everthread.arguments import check_mapping
from everthread.codec.values import encode, lower
from everthread.engines.failures import MessageRefusedError, own_failure
from everthread.errors import InvalidValueError
from everthread.values import Tagged


class Inbox:
    """Messages on their way to a run, put there by the handlers of a workflow.

    Each has an ``"id"`` which its sender gave it: told twice, it counts once. What the loop wants of any
    inbox is to be called: ``await inbox(timeout_s)`` gives messages as soon as there are some (``[]`` when
    the time is over, ``None`` once nothing more will come).
    """

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, Any] | None] = []
        self._ids: dict[str, None] = {}
        self._closed = False
        self._event = asyncio.Event()

    def check(self, message: Mapping[str, Any]) -> None:
        """Raise :class:`InvalidValueError` if :meth:`put` would not take the message: it has no id, can't be
        stored, or the inbox is closed. Change nothing: for the validator of an update. In the code of a
        Temporal workflow it is raised as an ``ApplicationError``, here and in :meth:`put`."""
        self._check(message)
        if self._closed:
            raise own_failure(
                MessageRefusedError("the inbox is closed: its run has ended; tell another run", path="inbox")
            )

    def put(self, message: Mapping[str, Any]) -> bool:
        """Hand a message over. Return False if one of its id was handed over before, or if the inbox is
        closed, because the run has ended or is about to. Raises :class:`InvalidValueError` if the message has
        no id or can't be stored."""
        name = self._check(message)
        if self._closed or name in self._ids:
            return False
        self._ids[name] = None
        self._waiting.append(dict(message))
        self._event.set()
        return True

    @staticmethod
    def _check(message: Any) -> str:
        """Return the id of a message that a store takes."""
        try:
            name = checked_id(message)
            encode(
                lower(dict(message), seal=lambda personal: Tagged(0, b""), root="message"), where="message"
            )
            return name
        except InvalidValueError as error:
            refused = MessageRefusedError(str(error), path=error.path)
        raise own_failure(refused)

    def go_on(self) -> None:
        """Let a waiting run go on without a message."""
        self._waiting.append(None)
        self._event.set()

    def close(self) -> None:
        """Nothing more will come: a run that waits is completed, after what is there already."""
        self._closed = True
        self._event.set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def __call__(self, timeout_s: float | None = None) -> list[Mapping[str, Any] | None] | None:
        if not self._waiting and not self._closed and timeout_s != 0:
            try:
                await asyncio.wait_for(self._event.wait(), timeout_s)
            except TimeoutError:
                return []
        taken, self._waiting = self._waiting, []
        self._event.clear()
        return taken if taken or not self._closed else None


def checked_id(message: Any) -> str:
    """The id of a message, or :class:`InvalidValueError`."""
    check_mapping(message, "message")
    name = message.get("id")
    if not isinstance(name, str) or not name:
        raise InvalidValueError(
            "a message needs an id, so that it counts once however often it is told", path="id"
        )
    return name


#: ``await inbox(timeout_s)``; a ``None`` among the messages lets the run go on without one.
Source = Callable[["float | None"], Awaitable["Sequence[Mapping[str, Any] | None] | None"]]
