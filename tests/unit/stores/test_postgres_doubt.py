"""A commit whose answer was lost, while others went on and folded what would tell whether it landed."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

import everthread
from everthread import ConflictError, StoreUnavailableError


def _cut_once(store: everthread.Store, *, carried_out: bool, meanwhile: Any) -> None:
    """The next statement is carried out or not, its connection is lost, others do something."""
    pool: Any = store.core.backend.pool  # type: ignore[attr-defined]
    once = pool._once

    def cut(*args: Any, **options: Any) -> Any:
        pool._once = once
        if carried_out:
            once(*args, **options)
        meanwhile()
        raise psycopg.OperationalError("the connection was cut")

    pool._once = cut


def _go_on(url: str) -> None:
    """Somebody else commits until everything before is folded."""
    with everthread.open(url) as other:
        thread = other.thread("a")
        for number in range(200):
            thread.state["other"] = number
            thread.commit()


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("carried_out", [False, True])
def test_the_commit_counts_once_or_conflicts(postgres_url: str, others: bool, carried_out: bool) -> None:
    with everthread.open(postgres_url) as store:
        thread = store.thread("a")
        thread.commit(label="first")
        thread.messages.append({"content": "hello"})
        thread.state["mine"] = 1
        _cut_once(store, carried_out=carried_out, meanwhile=lambda: others and _go_on(postgres_url))
        if not others:
            assert thread.commit().seq == 2
        else:
            with pytest.raises(StoreUnavailableError, match="Commit again"):
                thread.commit()
            if carried_out:
                assert thread.commit().seq == 2
            else:
                with pytest.raises(ConflictError):
                    thread.commit()
    with everthread.open(postgres_url) as store:
        found = store.thread("a")
        assert len(found.messages) == (0 if others and not carried_out else 1)
        assert found.state.get("mine") == (None if others and not carried_out else 1)
        assert store.verify()


def test_who_finds_its_commit_there_waits_for_disks_and_standbys(postgres_url: str) -> None:
    """The session that wrote it may have ended before that: whoever acknowledges it has to write as well."""
    with everthread.open(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as other:
        thread = store.thread("a")
        thread.commit(label="first")
        stood: list[str] = []

        def stand() -> None:
            stood.extend(other.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ())

        thread.state["mine"] = 1
        _cut_once(store, carried_out=True, meanwhile=stand)
        assert thread.commit().seq == 2
        # The transaction that recognised it wrote something, and so waited for what came before as well.
        moved = other.execute("SELECT pg_current_wal_insert_lsn() > %s::pg_lsn", (stood[0],))
        assert moved.fetchone() == (True,)


def _make_read_only(store: everthread.Store) -> None:
    """The connection that was used last stays one to a server that takes no writes any more."""
    with store.core.backend.pool.connection() as link:  # type: ignore[attr-defined]
        link.script("SET default_transaction_read_only = on")


def test_a_server_that_has_become_a_standby_is_left(postgres_url: str) -> None:
    with everthread.open(f"{postgres_url}?target_session_attrs=read-write") as store:
        thread = store.thread("a")
        thread.commit(label="first")
        _make_read_only(store)
        thread.state["x"] = 1
        assert thread.commit().seq == 2
    # Who didn't say so is told, once, and not left with that connection.
    with everthread.open(postgres_url) as store:
        thread = store.thread("a")
        thread.state["x"] = 2
        _make_read_only(store)
        with pytest.raises(StoreUnavailableError, match="target_session_attrs"):
            thread.commit()
        assert thread.commit().seq == 3


def test_a_dead_connection_that_was_noticed_late_is_replaced(postgres_url: str) -> None:
    with everthread.open(f"{postgres_url}?retry_ms=50") as store:
        thread = store.thread("a")
        thread.commit(label="first")
        thread.state["x"] = 1
        # Longer than calls are tried for.
        _cut_once(store, carried_out=False, meanwhile=lambda: time.sleep(0.2))
        assert thread.commit().seq == 2
