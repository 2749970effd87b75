"""Noticing what other processes commit.

Commits notify only while somebody watches their line, since every notification makes commits queue. Who
watches says so for a while, in the line's head, and is woken; besides, it looks for itself now and then. A
notification only wakes: what is new is always read.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from everthread.stores.postgres.errors import translated
from everthread.stores.postgres.rows import root_of
from everthread.stores.postgres.schema import statements
from everthread.stores.postgres.settings import Settings
from everthread.stores.postgres.sync.pool import Link

#: For so long commits notify after somebody said that it watches; it says so again in time.
_WATCHED_S = 30
_AGAIN_S = 10.0
#: How long to wait for a notification at a time, and how often to look although none came.
_WAIT_S = 0.25
_LOOK_S = 1.0


class Watcher:
    """Looks for changes of lines, woken by notifications where the server can be reached directly."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._statements = statements(settings.quoted_schema)
        self._known: dict[int, object] = {}
        self._told_at: dict[int, float] = {}
        self._looked_at = 0.0
        try:
            self._link = Link.connect(settings.conninfo, settings=settings)
            self._listener = self._listen()
        except psycopg.Error as error:
            raise translated(error, settings.shown) from error

    @property
    def waits(self) -> bool:
        """Whether :meth:`changed` waits by itself: then nobody needs to pause between two calls."""
        return self._listener is not None

    def _listen(self) -> Link | None:
        """The connection that is notified; none behind a pooler, unless a direct way is known."""
        if self._settings.listen == "off" or (self._link.pooled and not self._settings.listen):
            return None
        link = self._link
        if self._settings.listen:
            link = Link.connect(self._settings.listen, settings=self._settings)
        link.script(self._statements["listen"])
        return link

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        """Those of these lines that have changed since the last time; the first time all."""
        try:
            first = not self._known
            self._tell(lines)
            unknown = any(line not in self._known for line in lines)
            if not unknown and self._listener is not None:
                woken = self._notified(self._listener)
                if not woken and time.monotonic() - self._looked_at < _LOOK_S:
                    return ()
            changed = self._look(lines)
            return None if first else changed
        except psycopg.Error as error:
            raise translated(error, self._settings.shown) from error

    def _tell(self, lines: Sequence[int]) -> None:
        """Let commits to these lines notify."""
        if self._listener is None:
            return
        now = time.monotonic()
        due = [line for line in lines if now - self._told_at.get(line, -_AGAIN_S) >= _AGAIN_S]
        if not due:
            return
        old = [line for line in due if line]
        # Whoever waits for one of these rows shouldn't wait for the disk as well.
        with self._link.transaction():
            self._run("durably", (False,))
            if old:
                self._run("watch_lines", ([root_of(line) for line in old], old, _WATCHED_S))
            if 0 in due:
                self._run("watch_new_lines", (_WATCHED_S,))
        self._told_at = {line: now if line in due else self._told_at[line] for line in lines}

    @staticmethod
    def _notified(listener: Link) -> bool:
        """Wait a little for a notification."""
        return bool(list(listener.notifies(timeout=_WAIT_S, stop_after=1)))

    def _look(self, lines: Sequence[int]) -> list[int]:
        """Which of these lines aren't as they were."""
        self._looked_at = time.monotonic()
        old = [line for line in lines if line]
        found: dict[int, object] = {}
        if old:
            rows = self._run("heads", ([root_of(line) for line in old], old))
            found.update({line: (seq, digest) for line, seq, digest in rows})
        if 0 in lines:
            found[0] = self._run("newest_line")
        changed = [line for line in lines if self._known.get(line) != found.get(line)]
        self._known = {line: found.get(line) for line in lines}
        return changed

    def _run(self, name: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._link.run(self._statements[name], values)

    def close(self) -> None:
        if self._listener is not None and self._listener is not self._link:
            self._listener.close()
        self._link.close()
