"""Erasing a person from PostgreSQL, proven on the bytes of a server of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everthread
from tests.servers.postgres import PostgresServer
from tests.unit.people.test_everywhere import CANARY, plant

PLAIN = "CONTROL-9e107d9d-in-clear"


@pytest.fixture
def server(own_server_folder: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(own_server_folder)
    server.create()
    server.start()
    yield server
    server.stop()


def _hits(folder: Path, needles: list[bytes]) -> dict[str, int]:
    """How many of these stand in each file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            count = sum(needle in data for needle in needles)
            if count:
                found[str(path.relative_to(folder))] = count
    return found


def test_no_byte_is_left_in_relations_or_statistics(server: PostgresServer) -> None:
    with (
        psycopg.connect(server.uri(), autocommit=True) as sql,
        everthread.open(server.uri(), keyring="memory:") as store,
    ):
        plant(store)
        store.users.set("bob", "mail", "somebody else")
        store.thread("control").commit(label=PLAIN)
        sealed = [data for (data,) in sql.execute("SELECT data FROM everthread.sealed").fetchall()]
        needles = [data[4:36] for data in sealed if len(data) >= 36]
        sql.execute("ANALYZE")
        sql.execute("CHECKPOINT")
        # As a control: what is in clear is found, and so are the sealed bytes.
        assert _hits(server.data / "base", [PLAIN.encode()])
        assert sum(_hits(server.data / "base", needles).values()) >= len(needles) // 2 > 5
        report = store.erase("ann")
        sql.execute("CHECKPOINT")
        left = [data for (data,) in sql.execute("SELECT data FROM everthread.sealed").fetchall()]
        gone = [needle for needle in needles if not any(needle in data for data in left)]
        assert len(gone) > 5
        assert left, "of others everything stays"
        assert _hits(server.data / "base", gone) == {}
        assert _hits(server.data / "global", gone) == {}
        assert "write-ahead log" in repr(report), "what may stay there is named"
        assert store.verify().ok
    # What belongs to a person was never written in clear, not even to the log.
    assert _hits(server.data, [CANARY.encode(), CANARY.encode("utf-16-le")]) == {}


def test_rows_that_somebody_kept_alive_are_purged_once_more(
    postgres_database: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that looks at the database, at none of these tables, keeps what was deleted since."""
    with (
        everthread.open(postgres_url, keyring="memory:") as store,
        psycopg.connect(postgres_database) as other,
    ):
        thread = store.thread("a")
        thread.state["v"] = everthread.Personal("ann", "x" * 500)
        thread.commit()
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM pg_class LIMIT 1")
        backend = store.core.backend
        purge, purges = backend.purge, []

        def purged(*given: Any) -> Any:
            purges.append(purge(*given))
            if len(purges) == 1:
                other.rollback()
            return purges[-1]

        monkeypatch.setattr(backend, "purge", purged)
        report = store.erase("ann")
        assert report, report
        assert len(purges) == 2
        assert report.residues == 0
