"""Each feature runs on every store: embedded ones, and real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Store
from everthread.testing.driving import open_driven

BLOCKING = ("memory", "sqlite", "postgres", "valkey")
#: The async drivers of the servers, behind a face that looks blocking.
ASYNC = ("postgres async", "valkey async")


@pytest.fixture(params=BLOCKING)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """For what has a blocking form only: sessions, working state, people, most adapters."""
    yield from _opened(request, tmp_path)


@pytest.fixture(params=[*BLOCKING, *ASYNC])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """For what threads and streams of events do in both colours."""
    yield from _opened(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that outlives whoever opened it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agent.db"
    found: str = request.getfixturevalue(
        "postgres_url" if request.param == "postgres" else "valkey_lasting_url"
    )
    return found


def _opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind, _, colour = request.param.partition(" ")
    if kind == "valkey":
        url = request.getfixturevalue("valkey_lasting_url")
    elif kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/agent.db"
    with (open_driven if colour else everthread.open)(url) as opened:
        yield opened
        assert opened.verify().ok
