"""A connection for reading, for the length of a ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from everthread.stores.sqlite.connections import Connections
from everthread.stores.sqlite.failing import translated

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
            try:
                self.connection.execute("BEGIN")
            except apsw.Error as error:
                self._give_up(error)
        return self.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.together:
            try:
                self.connection.execute("COMMIT")
            except apsw.Error as failure:
                error = failure
        if error is None:
            self.pool.done(self.connection)
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The connection isn't used again; raises the typed error for an engine's one."""
        self.pool.spoilt(self.connection)
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            raise translated(error, self.pool.settings.path) from error
