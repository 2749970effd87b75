"""The pytest plugin: a fresh store for a test, and processes that are killed in the middle of their work.

pytest finds it by itself once Everthread is installed. It does nothing unless one of its fixtures is used:

- ``everthread_url``: the URL of an empty store of the test's own, a SQLite file. Override it for another
  store, or parametrize it.
- ``everthread_store``: that store, open.
- ``crash_at``: runs a function in another process on that store and kills it at a named point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from everthread.store import Store
    from everthread.testing.crash import Crash, Work

# Imports of what is heavy stand inside: this module is loaded in every test run of everybody.


@pytest.fixture
def everthread_url(tmp_path: Path) -> str:
    """The URL of an empty store of this test's own."""
    from everthread.stores.urls import sqlite_url

    return sqlite_url(str(tmp_path / "everthread.db"))


@pytest.fixture
def everthread_store(everthread_url: str) -> Iterator[Store]:
    """An open, empty store of this test's own."""
    from everthread.store import open as open_store

    with open_store(everthread_url) as store:
        yield store


class CrashAt:
    """What the fixture ``crash_at`` gives.

    ``crash_at(point, work)`` runs ``work`` and returns the :class:`~everthread.testing.crash.Crash`;
    ``crash_at(point)`` returns a function that takes ``work`` later.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, point: str, work: Work | None = None, **options: Any) -> Any:
        """Kill the process that runs ``work`` at ``point``.

        ``options``: ``nth`` (at which call of the verb, 1 by default), ``url`` (the store of this test by
        default), ``argument`` (plain data, handed to ``work`` behind the store), ``timeout_s``.
        Fails the test if the point isn't reached.
        """
        from everthread.testing.crash import run_until
        from everthread.testing.faults import Point

        Point.parse(point)

        def run(work: Work, **more: Any) -> Crash:
            merged = {"url": self.url, **options, **more}
            return run_until(point, work, merged.pop("url"), **merged)

        return run if work is None else run(work)


@pytest.fixture
def crash_at(everthread_url: str) -> CrashAt:
    """Kills a process at a named point of its work with this test's store; see :class:`CrashAt`."""
    return CrashAt(everthread_url)
