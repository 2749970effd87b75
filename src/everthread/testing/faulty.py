"""Fault injection around any store: let a call fail, before or after it has done its work.

store, faults = open_faulty("sqlite:///agent.db")
faults.fail("append:after")          # the next commit lands, but its answer is lost
thread.commit()                      # StorageWriteError
thread.commit()                      # recognises its own attempt
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from everthread.errors import StorageWriteError
from everthread.store import Store
from everthread.stores.contract import Backend
from everthread.stores.urls import open_backend
from everthread.testing.wrapping import Call, Point, WrappedBackend

__all__ = ["FaultyBackend", "open_faulty"]


_FOR_EVER = 2**63 - 1


class _Fault(NamedTuple):
    point: Point
    first: int
    last: int
    error: BaseException


class FaultyBackend(WrappedBackend):
    """Raises where it is told to and otherwise does what ``backend`` does."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, self._raise_if_due)
        self._faults: list[_Fault] = []
        #: The points at which an error was raised, in order.
        self.raised: list[str] = []

    def fail(
        self, point: str, error: BaseException | None = None, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """Raise ``error`` at the ``nth`` call from now on, and at the following ones if ``times`` says so.

        ``before``: the verb does nothing. ``after``: it did all of its work, but the caller doesn't get to
        know. ``times=None`` fails until :meth:`heal`. Without an ``error`` it is a
        :class:`~everthread.errors.StorageWriteError`.
        """
        where = Point.parse(point)
        first = self.calls[where.verb] + nth
        last = first + times - 1 if times is not None else _FOR_EVER
        self._faults.append(_Fault(where, first, last, error or _lost(where)))

    def heal(self) -> None:
        """Let every call succeed again."""
        self._faults.clear()

    def _raise_if_due(self, call: Call) -> None:
        for fault in self._faults:
            if call.is_at(fault.point) and fault.first <= call.number <= fault.last:
                self.raised.append(str(fault.point))
                raise fault.error


def _lost(point: Point) -> StorageWriteError:
    return StorageWriteError(f"a fault was injected at {point}; commit again")


def open_faulty(url: str, *, durability: str = "full", **options: Any) -> tuple[Store, FaultyBackend]:
    """As :func:`everthread.open`, and the backend to tell what shall fail."""
    backend = FaultyBackend(open_backend(url, durability))
    return Store(cast("Backend", backend), **options), backend
