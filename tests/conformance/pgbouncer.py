"""The one suite behind PgBouncer in transaction mode, in both colours: ``make torture WHAT=pgbouncer``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("everthread.testing")

from everthread.testing.conformance import ConformanceSuite, OpenStore  # noqa: E402
from everthread.testing.driver import open_driven  # noqa: E402
from tests.conformance.test_stores import DETACHED, Opener, thresholds  # noqa: E402
from tests.servers.others import pgbouncer_url  # noqa: E402
from tests.torture.history import play  # noqa: E402

__all__ = ["pgbouncer_url", "thresholds"]


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestPgBouncer(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, pgbouncer_url: str) -> Iterator[OpenStore]:
        opener = Opener(pgbouncer_url, thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestPgBouncerAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, pgbouncer_url: str) -> Iterator[OpenStore]:
        opener = Opener(pgbouncer_url, thresholds, open_driven)
        yield opener
        opener.finish()


def test_no_lost_update(pgbouncer_url: str, seed: int) -> None:
    counts, found = play(pgbouncer_url, 4_000, seed)
    assert counts.total() >= 3_900
    assert found == []
