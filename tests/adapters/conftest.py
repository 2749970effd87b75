"""Every adapter test runs on each of these stores; another kind is another line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import AsyncStore, Store

#: A URL, or the fixture that gives one.
URLS = {
    "sqlite": "sqlite:///{folder}/agent.db",
    "files": "file://{folder}/agent",
}


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that nobody has used yet."""
    known = URLS[request.param]
    if "://" in known:
        return known.format(folder=tmp_path)
    made: str = request.getfixturevalue(known)
    return made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with everthread.open(url) as opened:
        yield opened
        assert opened.verify().ok


@pytest.fixture
def on_store(url: str) -> Callable[[Callable[[AsyncStore], Awaitable[Any]]], Any]:
    """Runs an async function on an async store, which is sound afterwards."""
    import asyncio

    def run(work: Callable[[AsyncStore], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with everthread.open_async(url) as opened:
                result = await work(opened)
                assert (await opened.verify()).ok
                return result

        return asyncio.run(main())

    return run
