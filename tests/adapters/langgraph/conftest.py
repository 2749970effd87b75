"""The stores that LangGraph is tested on, in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.adapters.langgraph import EverthreadSaver

#: Name → the URL of an empty store, given a folder. One of a server takes the fixture that gives its URL:
#: `"postgres": lambda request, folder: request.getfixturevalue("postgres_url")`.
STORES: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": lambda request, folder: f"sqlite:///{folder}/agent.db",
    "files": lambda request, folder: f"file://{folder}/agent",
    "postgres": lambda request, folder: request.getfixturevalue("postgres_url"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_lasting_url"),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](request, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[everthread.Store]:
    """A blocking store; verified at the end."""
    with everthread.open(url, durability="process") as opened:
        yield opened
        report = opened.verify()
        assert report, report.damage
        assert opened.core.background_error is None


@pytest.fixture
def saver(store: everthread.Store) -> EverthreadSaver:
    return EverthreadSaver(store)


@asynccontextmanager
async def open_saver(url: str, colour: str, **options: Any) -> AsyncIterator[EverthreadSaver]:
    """A saver for async callers on a store of either colour."""
    if colour == "async":
        async with everthread.open_async(url, durability="process") as opened:
            yield EverthreadSaver(opened, **options)
    else:
        with everthread.open(url, durability="process") as opened:
            yield EverthreadSaver(opened, **options)


@pytest.fixture
def opening() -> Callable[..., Any]:
    return open_saver
