"""Connections to PostgreSQL that break at any moment: nothing twice, nothing lost, no answer of another's."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

import pytest

from everthread.stores.postgres.aio import pool as pool_async
from everthread.stores.postgres.sync import pool
from tests.crash.cutting import Cutter, cancel_while_cut, write_while_cut

#: Short: a half-open connection is given up a while after this.
TIMEOUT_MS = 100
OFTEN = 0.25


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_GRACE_S", 0.3)
    monkeypatch.setattr(pool_async, "_GRACE_S", 0.3)


def _through(url: str, port: int) -> str:
    rest = urlsplit(url).path
    return (
        f"postgresql://postgres@127.0.0.1:{port}{rest}?statement_timeout_ms={TIMEOUT_MS}&pool_max=4"
        # Through this proxy an encrypted start would be two more requests.
        "&sslmode=disable&gssencmode=disable"
    )


def test_cut_connections_leave_every_write_exactly_once(postgres_url: str, seed: int) -> None:
    write_while_cut(postgres_url, partial(_through, postgres_url), Cutter(seed, OFTEN))


def test_the_same_for_tasks_that_are_cancelled_too(postgres_url: str, seed: int) -> None:
    cancel_while_cut(postgres_url, partial(_through, postgres_url), Cutter(seed, OFTEN), seed)
