"""What a handle knows of time: the versions to come, and how long its thread lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from everthread.arguments import check_seconds
from everthread.threads.aio.handle import Handle
from everthread.threads.aio.watching import Watcher
from everthread.threads.colours import streamed
from everthread.threads.lifetimes import Lifetime, ttl_us

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AnyVersion
    from everthread.versions import Version


class LastingHandle(Handle):
    """A handle that can wait."""

    @streamed
    def watch(
        self, after: AnyVersion | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Version]:
        """The versions that come after ``after`` (by default: after the head of this handle), as they come.

        In order and without a gap, whoever commits them, rewinds and merges included; ``after=0`` begins with
        the first one. The handle itself doesn't move. Waits for ever, or ends when nothing has come for
        ``timeout`` seconds. Raises :class:`ThreadDeletedError` when the thread is deleted,
        :class:`VersionPrunedError` where versions have been pruned, :class:`StoreClosedError` when the store
        is closed.
        """
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        self._here()
        self._check_alive()
        if after is None:
            after = self._memo.version if self._memo is not None else 0
        uid = self._line.uid if self._line is not None else None
        return Watcher(self.core, self.name, uid, after).run(timeout)

    async def expire(self, after: Lifetime) -> Version | None:
        """Let the thread expire when nothing has been written to it for this long; ``None``: never.

        ``after`` is a ``timedelta`` or seconds. Itself a version, and every later one renews it; a fork
        begins without. An expired thread is as good as deleted: a late write never brings it back, forks live
        on.
        Before the first commit it applies to that one, and nothing is returned.
        """
        self._require_clean("expire()")
        await self._load()
        self._check_alive()
        before, self._ttl_us = self._ttl_us, ttl_us(after)
        if self._line is None or self._memo is None:
            return None
        # There is something to commit: how long it lives.
        self._touch()
        try:
            return await self.commit()
        except BaseException:
            self._ttl_us = before
            self._drop_changes()
            raise

    async def commit(self) -> Version | None:
        """Of the thread itself."""
        raise NotImplementedError
