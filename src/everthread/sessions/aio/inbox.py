"""Messages from outside on their way to a run: whoever has one puts it into the inbox beside the thread, and
the run that works there appends it to ``messages``.

An inbox is only ever appended to. That a message was taken is told by the commit key of the version that took
it, which no rewind takes away: a kill on either side leaves a message in the inbox, or in the thread as well,
and whoever comes next can tell the two apart. Messages are taken in their order, so that those which were
taken are the first ones.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name, check_seconds
from everthread.errors import (
    AccessError,
    ConflictError,
    InvalidValueError,
    MergeConflictError,
    ThreadDeletedError,
    ThreadNotFoundError,
    VersionPrunedError,
)
from everthread.messages.shapes import enclose
from everthread.sessions.aio.logs import newest_first
from everthread.threads.aio.core import key_hash
from everthread.threads.aio.journals import INBOX, beside
from everthread.threads.aio.keys import KeyFinder
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.twins import pause_async
from everthread.values import Erased, Personal

if TYPE_CHECKING:
    from everthread.sessions.aio.fenced_thread import AsyncFencedThread, RunGuard
    from everthread.stores.contract import Line
    from everthread.threads.aio.core import Core
    from everthread.versions import Version

#: The log of an inbox.
LOG = "messages"
#: How long somebody who was not the first to write pauses, at most.
_PAUSE_S = 0.002
#: How long a run waits before it looks again, signal or not; sooner while there is no inbox.
_WAIT_S, _WAIT_UNBORN_S = 5.0, 0.25


# ── sending ─────────────────────────────────────────────────────────────────────────────────────────


async def send(
    core: Core, thread: str | AsyncThread, message: Any, key: str | None, shape: str | None
) -> Any:
    """Put a message into the inbox of a thread, durably; the id that it has in ``messages`` once it is taken.
    See :meth:`Store.send`."""
    if message is None:
        raise InvalidValueError("there is no message: None says nothing", path="message")
    if key is not None:
        check_name(key, "key")
    line = await _addressed(core, thread)
    uid = line.uid.hex()
    item_id = core.runtime.random_bytes(16).hex() if key is None else _item_id(uid, key)
    message = message if shape is None else enclose(message, shape)
    message_id = None
    if isinstance(message, Mapping):
        message = {"id": item_id, **message}
        message_id = message["id"]
    item = {"item": item_id, "at_us": core.runtime.now_us(), "message": message}
    inbox = AsyncThread(beside(core, INBOX), uid)
    try:
        version = await _put(inbox, item, key)
        if key is not None and version is not None:
            await _check_same(inbox, version, item, key)
    except ThreadDeletedError:
        raise _gone(line.name) from None
    now = await core.backend.line(line.id)
    if now is None or now.deleted:
        # Whoever deleted it may have looked for an inbox before there was this one.
        with suppress(ThreadNotFoundError):
            await inbox.delete()
        raise _gone(line.name)
    return message_id


async def _put(inbox: AsyncThread, item: Mapping[str, Any], key: str | None) -> Version | None:
    """Append an item to an inbox, after whatever others append meanwhile; the version that has it, which may
    be an older one of this key."""
    await inbox.handle.load()
    inbox.log(LOG).append(item)
    while True:
        try:
            return await inbox.commit(key=key)
        except ConflictError:
            await pause_async(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
            await inbox.rebase()


async def _sent(inbox: AsyncThread, version: Version, item_id: str) -> Any:
    """Return the item that a version brought, or None if it is no longer there."""
    try:
        log = (await inbox.at(version)).log(LOG)
    except VersionPrunedError:
        # The version was deleted by gc(); an inbox is only appended to, so that the item is still in its log.
        async for known in newest_first(inbox.log(LOG)):
            if known["item"] == item_id:
                return known
        return None
    return (await log.read(len(log) - 1, len(log)))[0]


async def _check_same(inbox: AsyncThread, version: Version, item: Mapping[str, Any], key: str) -> None:
    """Raise :class:`InvalidValueError` if what was sent under this key is another message."""
    known = await _sent(inbox, version, item["item"])
    if known is not None and not _says_the_same(known["message"], item["message"]):
        raise InvalidValueError(
            f"another message was sent under the key {key!r}, and stays the one of that key; send this "
            "one under another key. Nothing was sent",
            path="key",
        )


def _says_the_same(known: Any, given: Any) -> bool:
    """Whether two messages are one; what was erased or can't be opened counts as the same."""
    if isinstance(known, Erased | Personal):
        with suppress(AccessError):
            return isinstance(known, Erased) or bool(
                isinstance(given, Personal) and known.value == given.value
            )
        return True
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        return known.keys() == given.keys() and all(_says_the_same(known[k], given[k]) for k in known)
    if isinstance(known, list | tuple) and isinstance(given, list | tuple):
        return len(known) == len(given) and all(map(_says_the_same, known, given))
    return bool(known == given)


def _gone(name: str) -> ThreadDeletedError:
    return ThreadDeletedError(f"the thread {name!r} was deleted; nobody takes a message there any more")


async def _addressed(core: Core, thread: str | AsyncThread) -> Line:
    """The line that a message is meant for. Raises :class:`ThreadNotFoundError`."""
    line = None
    if isinstance(thread, AsyncThread):
        await thread.handle.load()
        line = thread.handle.line
    name = thread.name if isinstance(thread, AsyncThread) else check_name(thread, "thread name")
    found = await core.find(name)
    if found is None and line is None:
        raise ThreadNotFoundError(
            f"there is no thread {name!r} to send to; it exists from its first commit, or its first session"
        )
    if found is None or (line is not None and line.uid != found.line.uid):
        raise _gone(name)
    return found.line


def _item_id(uid: str, key: str) -> str:
    """What a message is called that was sent under a key: the same whenever it is sent again."""
    return sha256(f"{uid}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


# ── taking ──────────────────────────────────────────────────────────────────────────────────────────


class Inbox:
    """The inbox of a thread, as the run that holds its session empties it."""

    def __init__(self, thread: AsyncFencedThread, guard: RunGuard, uid: str) -> None:
        self._thread = thread
        self._guard = guard
        self._stored = AsyncThread(beside(thread.core, INBOX), uid)
        #: How many were taken; known from the first look on.
        self._taken: int | None = None
        #: What this run has begun to take, and doesn't know whether it did.
        self._tried: Any = None

    async def take_all(self) -> list[Any]:
        """Append what waits to the thread's messages, each as a version of its own; the messages."""
        taken = []
        async with self._thread.mutex:
            for _ in range(await self._waiting()):
                is_own, message = await self._take()
                if is_own:
                    taken.append(message)
        return taken

    async def next(self, timeout_s: float | None) -> Any:
        """Take the next message, or wait for it, so long at most; ``None`` if there was none. The lease is
        renewed meanwhile."""
        if timeout_s is not None:
            timeout_s = check_seconds(timeout_s, "timeout_s")
        began = time.monotonic()
        while True:
            self._guard.permit()
            async with self._thread.mutex:
                while await self._waiting():
                    is_own, message = await self._take()
                    if is_own:
                        return message
            left_s = None if timeout_s is None else began + timeout_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            await self._wait(left_s)

    async def _wait(self, left_s: float | None) -> None:
        """Wait until there may be something, or for a while that is short for the lease."""
        line, head = self._stored.handle.line, self._stored.head
        wait_s = min(_WAIT_S if line is not None else _WAIT_UNBORN_S, self._guard.lease.holder.ttl_us / 6e6)
        if left_s is not None:
            wait_s = min(wait_s, left_s)
        seq = 0 if head is None else head.seq
        await self._thread.core.backend.wait(0 if line is None else line.id, seq, wait_s)
        await self._guard.wrote()
        own = self._thread.handle.line
        now = None if own is None else await self._thread.core.backend.line(own.id)
        if now is None or now.deleted:
            raise _gone(self._thread.name)

    async def _waiting(self) -> int:
        """How many messages wait."""
        try:
            await self._stored.refresh()
        except ThreadDeletedError:
            raise _gone(self._thread.name) from None
        count = len(self._stored.log(LOG))
        if self._taken is None:
            self._taken = await self._count_taken(count)
        return max(0, count - self._taken)

    async def _count_taken(self, count: int) -> int:
        """How many of so many messages were taken, by whatever run: looked up, in a few steps."""
        low, high = 0, count
        # Nearly always all of them.
        at = count - 1
        while low < high:
            if await self._was_taken(_key((await self._item(at))[0])):
                low = at + 1
            else:
                high = at
            at = (low + high) // 2
        return low

    async def _item(self, position: int) -> tuple[str, Any]:
        (item,) = await self._stored.log(LOG).read(position, position + 1)
        return item["item"], item["message"]

    async def _take(self) -> tuple[bool, Any]:
        """Take the next message: whether it was this run's call that did, and the message."""
        assert self._taken is not None, "somebody has looked before"
        item_id, message = await self._item(self._taken)
        if await self._was_taken(_key(item_id)):
            # By this very run, if its call was cut short after the commit.
            is_own = self._tried == item_id
        else:
            self._tried = item_id
            is_own, message = await self._append(item_id, message)
        self._taken += 1
        return is_own, message

    async def _append(self, item_id: str, message: Any) -> tuple[bool, Any]:
        thread, key = self._thread, _key(item_id)
        async with thread.writing():
            message, is_there = await self._with_free_id(message, item_id)
            if not is_there:
                thread.messages.append(message)
            while True:
                # There is something to commit either way: that it was taken.
                thread.handle.touch()
                try:
                    await thread.commit(key=key)
                    return True, message
                except MergeConflictError:
                    raise
                except ConflictError:
                    await thread.rebase()
                    if await self._was_taken(key):
                        await thread.discard()
                        return False, message

    async def _with_free_id(self, message: Any, item_id: str) -> tuple[Any, bool]:
        """The message, under another id if its own is that of another one; whether it is there already."""
        log = self._thread.messages
        at = await log.find(message["id"]) if isinstance(message, Mapping) else None
        if at is None:
            return message, False
        (known,) = await log.read(at, at + 1)
        return (message, True) if known == message else ({**message, "id": item_id}, False)

    async def _was_taken(self, key: str) -> bool:
        """Whether any version carries the key, also one that was rewound past."""
        handle = self._thread.handle
        await handle.load()
        line, head = handle.require()
        return bool(await KeyFinder(self._thread.core, line, head).entries(key_hash(b"key", key)))


def _key(item_id: str) -> str:
    """The commit key of the version that takes a message."""
    return f"inbox:{item_id}"
