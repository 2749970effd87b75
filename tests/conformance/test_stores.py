"""Every store that ships, in both colours, on the one suite; and again with folds and keyframes forced early.

A thread folds its versions only after dozens of commits: with small thresholds every test of the suite
also reads what was folded, cut into chunks and put under a keyframe. SQLite runs with all of the thresholds.
The others and the async colour don't: what they change stands above the store, and is written once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("everthread.testing")

import everthread  # noqa: E402
from everthread.history import packs, snapshots  # noqa: E402
from everthread.records.file_backend import FileRecordsBackend  # noqa: E402
from everthread.records.tables import TABLES  # noqa: E402
from everthread.stores.sqlite import store as sqlite  # noqa: E402
from everthread.stores.sqlite.connection import Settings  # noqa: E402
from everthread.stores.sqlite.ordered_store import SqliteStore  # noqa: E402
from everthread.testing.conformance import ConformanceSuite, OpenStore  # noqa: E402
from everthread.testing.driver import open_driven  # noqa: E402
from everthread.threads.aio import fold as folding_async  # noqa: E402
from everthread.threads.sync import fold  # noqa: E402

AS_IT_IS, FOLDED, DETACHED = "as it is", "folded early", "folded and detached"


@pytest.fixture(params=[AS_IT_IS, FOLDED, DETACHED])
def thresholds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How soon records are folded: by number, or by size too, so that most commits are cut into chunks."""
    chosen: str = request.param
    if chosen != AS_IT_IS:
        monkeypatch.setattr(snapshots, "KEYFRAME_PACKS", 2)
        monkeypatch.setattr(snapshots, "KEYFRAME_WASTE_BYTES", 64)
        for module in (snapshots, fold, folding_async):
            monkeypatch.setattr(module, "KEYFRAME_ROWS", 6)
    if chosen == DETACHED:
        for module in (packs, fold, folding_async):
            monkeypatch.setattr(module, "FOLD_BYTES", 300)
    return chosen


class Opener:
    """Opens stores at one place; closes and verifies them all at the end."""

    def __init__(
        self, url: str, thresholds: str, open_: Callable[..., everthread.Store] = everthread.open
    ) -> None:
        self._url = url
        self._open = open_
        self._early = thresholds != AS_IT_IS
        self._stores: list[everthread.Store] = []

    def __call__(self, **options: Any) -> everthread.Store:
        store = self._open(self._url, durability="process", **options)
        if self._early:
            store.core.folder.records_max = 4
        self._stores.append(store)
        return store

    def finish(self) -> None:
        try:
            for store in self._stores:
                if not store._closed:
                    report = store.verify()
                    assert report, "\n".join(map(str, report.damage))
                    assert store.core.background_error is None
        finally:
            for store in self._stores:
                store.close()


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
class TestMemory(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str) -> Iterator[OpenStore]:
        opener = Opener("memory:", thresholds)
        yield opener
        opener.finish()


class TestSqlite(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, tmp_path: Path) -> Iterator[OpenStore]:
        opener = Opener(f"sqlite:///{tmp_path}/store.db", thresholds)
        yield opener
        opener.finish()


@pytest.fixture
def sqlite_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open SQLite files through the small store contract and the rules above it."""

    def opened(settings: Settings) -> FileRecordsBackend:
        return FileRecordsBackend(SqliteStore(settings, TABLES))

    monkeypatch.setattr(sqlite, "SqliteBackend", opened)


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
@pytest.mark.usefixtures("sqlite_of_bytes")
class TestSqliteOfBytes(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, tmp_path: Path) -> Iterator[OpenStore]:
        opener = Opener(f"sqlite:///{tmp_path}/store.db", thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
class TestFiles(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, tmp_path: Path) -> Iterator[OpenStore]:
        opener = Opener(f"file://{tmp_path}/store", thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestMemoryAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str) -> Iterator[OpenStore]:
        opener = Opener("memory:", thresholds, open_driven)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
class TestSqliteAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, tmp_path: Path) -> Iterator[OpenStore]:
        opener = Opener(f"sqlite:///{tmp_path}/store.db", thresholds, open_driven)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestFilesAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, tmp_path: Path) -> Iterator[OpenStore]:
        opener = Opener(f"file://{tmp_path}/store", thresholds, open_driven)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
class TestValkey(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, valkey_url: str) -> Iterator[OpenStore]:
        opener = Opener(valkey_url, thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestValkeyAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, valkey_url: str) -> Iterator[OpenStore]:
        opener = Opener(valkey_url, thresholds, open_driven)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [AS_IT_IS, DETACHED], indirect=True)
class TestPostgres(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, postgres_url: str) -> Iterator[OpenStore]:
        opener = Opener(postgres_url, thresholds)
        yield opener
        opener.finish()


@pytest.mark.parametrize("thresholds", [DETACHED], indirect=True)
class TestPostgresAsync(ConformanceSuite):
    @pytest.fixture
    def open_store(self, thresholds: str, postgres_url: str) -> Iterator[OpenStore]:
        opener = Opener(postgres_url, thresholds, open_driven)
        yield opener
        opener.finish()
