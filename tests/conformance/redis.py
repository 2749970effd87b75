"""The one suite on Redis itself, in both colours. Run by ``make torture WHAT=redis``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("everthread.testing")

from everthread.testing.conformance import ConformanceSuite, OpenStore  # noqa: E402
from everthread.testing.driver import open_driven  # noqa: E402
from tests.conformance.test_stores import DETACHED, Opener, thresholds  # noqa: E402
from tests.servers.others import redis_url  # noqa: E402

__all__ = ["redis_url", "thresholds"]


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestRedis(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, redis_url: str) -> Iterator[OpenStore]:
        opener = Opener(redis_url, thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestRedisAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, redis_url: str) -> Iterator[OpenStore]:
        opener = Opener(redis_url, thresholds, open_driven)
        yield opener
        opener.finish()
