"""Every adapter test runs on each of these stores; another kind is another line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import everthread
from everthread import AsyncStore, Store

#: Adapters whose frameworks aren't among the locked ones: their tests run in an environment of their own, by
#: ``python -m tools.minimums NAME``.
APART = {
    "agent_framework": "agent_framework",
    "create_agent": "deepagents",
    "crewai": "crewai",
    "llama_index": "llama_index",
    "strands": "strands",
}
collect_ignore = [f"test_{name}.py" for name, package in APART.items() if find_spec(package) is None]

#: A URL, or the fixture that gives one.
URLS = {
    "sqlite": "sqlite:///{folder}/agent.db",
    "files": "file://{folder}/agent",
    "postgres": "postgres_url",
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


def stored_bytes(url: str) -> bytes:
    """All that a store has put where it keeps things, as it lies there: files, or the rows of a server."""
    kind, _, rest = url.partition("://")
    if kind == "postgresql":
        return b"\n".join(_rows(url))
    # A file of SQLite, with what is beside it, or a folder.
    place = Path(rest[1:] if kind == "sqlite" else rest)
    files = [path for path in place.parent.rglob("*") if path.is_file()]
    return b"\n".join(path.read_bytes() for path in files)


def _rows(url: str) -> Iterator[bytes]:
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'everthread'")
        for (table,) in tables.fetchall():
            name = sql.Identifier("everthread", table)
            with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(name)) as rows:
                yield from map(bytes, rows)
