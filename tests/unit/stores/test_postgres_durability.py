"""What a PostgreSQL server promises to keep: read from its settings, warned of, told by doctor."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everthread
from everthread.stores.postgres.durability import FULL, PROCESS, SECOND, UNKNOWN, Durability
from tests.servers.postgres import PostgresServer
from tests.unit.cli.calling import run

SOUND = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "standbys": ""}


@pytest.mark.parametrize(
    ("changed", "level", "said"),
    [
        ({}, FULL, "survive a power cut"),
        ({"fsync": "off"}, PROCESS, "damage the whole database"),
        ({"full_page_writes": "off"}, PROCESS, "half-written"),
        ({"synchronous_commit": "off"}, FULL, "is overruled by every commit"),
        ({"durable": False}, SECOND, "the last second"),
        ({"durable": False, "fsync": "off"}, PROCESS, "damage the whole database"),
        ({"standbys": "one"}, FULL, "on disk of a synchronous standby too (one)"),
        ({"standbys": "one", "synchronous_commit": "local"}, FULL, "a failover may lose"),
        ({"fsync": None}, UNKNOWN, "doesn't say"),
    ],
)
def test_levels(changed: dict[str, Any], level: str, said: str) -> None:
    keeping = Durability(**{**SOUND, **changed})
    assert keeping.level == level
    assert said in str(keeping)
    assert keeping.ok == (level in (FULL, SECOND))
    assert bool(keeping.advice) == (not keeping.ok)


@pytest.fixture(params=["fsync", "full_page_writes", "synchronous_commit", None])
def server(own_server_folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str | None, str]]:
    """What is off, and the server."""
    off: str | None = request.param
    server = PostgresServer(own_server_folder, settings=(f"{off}=off",) if off else ())
    server.create()
    server.start()
    yield off, server.uri()
    server.stop()


def _warned(url: str, durability: str) -> tuple[list[str], Any]:
    async def open_async() -> Any:
        async with everthread.open_async(url, durability=durability) as store:
            return store.core.backend.keeping

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with everthread.open(url, durability=durability) as store:
            keeping = store.core.backend.keeping  # type: ignore[attr-defined]
        assert asyncio.run(open_async()) == keeping
    return [str(each.message) for each in caught], keeping


def test_a_real_server(server: tuple[str | None, str]) -> None:
    off, url = server
    weak = off in ("fsync", "full_page_writes")
    told, keeping = _warned(url, "full")
    assert keeping.level == (PROCESS if weak else FULL)
    if weak:
        # Once by each of the two colours, with what to do.
        assert len(told) == 2
        assert f"{off} off" in told[0]
        assert f"ALTER SYSTEM SET {off} = on" in told[0]
    else:
        assert told == []
    # Who asked for less isn't warned.
    told, keeping = _warned(url, "process")
    assert told == []
    assert keeping.level == (PROCESS if weak else SECOND)
    answer = run(["--store", url, "doctor", "--quick"], code=1 if weak else 0)
    assert ("process: " if weak else "full: ") in answer.out
    assert "can't keep what durability" not in answer.err
    if off == "synchronous_commit":
        assert "overruled" in answer.out
        _commits_wait_for_the_disk(url)


def _commits_wait_for_the_disk(url: str) -> None:
    """Whatever the server's default: what is acknowledged has been flushed."""
    with everthread.open(url) as store, psycopg.connect(url, autocommit=True) as connection:
        thread = store.thread("kept")
        for number in range(20):
            thread.state["n"] = number
            (before,) = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ()
            thread.commit()
            flushed = connection.execute("SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", (before,))
            assert flushed.fetchone() == (True,)
