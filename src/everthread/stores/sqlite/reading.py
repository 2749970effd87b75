"""A connection for reading, for the length of a ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from everthread.stores.sqlite.connections import Connections, translated

if TYPE_CHECKING:
    from types import TracebackType


class Reading:
    """A reader for the length of a ``with`` block, in one snapshot if ``together``."""

    __slots__ = ("apart", "connection", "pool", "together")

    def __init__(self, pool: Connections, together: bool, apart: bool) -> None:
        self.pool = pool
        self.together = together
        self.apart = apart

    def __enter__(self) -> apsw.Connection:
        self.connection = self.pool.reader(apart=self.apart)
        if self.together:
            self.connection.execute("BEGIN")
        return self.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.together:
                self.connection.execute("COMMIT")
            self.pool.done(self.connection)
            return
        self.pool.spoilt(self.connection)
        if isinstance(error, apsw.Error):
            raise translated(error, self.pool.settings.path) from error
