"""The one suite on a cluster of three, in both colours. Run by ``make torture WHAT=cluster``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("everthread.testing")

from everthread.testing.conformance import ConformanceSuite, OpenStore  # noqa: E402
from everthread.testing.driver import open_driven  # noqa: E402
from tests.conformance.test_stores import DETACHED, FOLDED, Opener, thresholds  # noqa: E402

__all__ = ["thresholds"]


@pytest.mark.parametrize("thresholds", [FOLDED, DETACHED], indirect=True)
class TestCluster(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, valkey_cluster_url: str) -> Iterator[OpenStore]:
        opener = Opener(valkey_cluster_url, thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestClusterAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, valkey_cluster_url: str) -> Iterator[OpenStore]:
        opener = Opener(valkey_cluster_url, thresholds, open_driven)
        yield opener
        opener.finish()
