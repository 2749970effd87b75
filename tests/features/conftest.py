"""Each feature runs on every store: embedded ones, and real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread import Store
from tests.servers.colours import Url

BLOCKING = ("memory", "sqlite", "postgres", "valkey")
#: The async drivers of the servers, behind a face that looks blocking.
ASYNC = ("postgres async", "valkey async")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Stores in both colours, unless the test says why it has one only: ``@pytest.mark.blocking(reason)``."""
    marks = list(metafunc.definition.iter_markers("blocking"))
    for mark in marks:
        assert mark.args, f"{metafunc.definition.nodeid}: why isn't there an async form?"
        assert isinstance(mark.args[0], str)
    colours = () if marks else ASYNC
    if "store" in metafunc.fixturenames:
        metafunc.parametrize("store", [*BLOCKING, *colours], indirect=True)
    if "url" in metafunc.fixturenames:
        metafunc.parametrize("url", ["sqlite", "postgres", "valkey", *colours], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An open store, whole when the test is through."""
    with _url(request, tmp_path).open() as opened:
        yield opened
        assert opened.verify().ok


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    """Of a store that outlives whoever opened it."""
    return _url(request, tmp_path)


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    kind, _, colour = request.param.partition(" ")
    fixtures = {"valkey": "valkey_lasting_url", "postgres": "postgres_url"}
    if kind in fixtures:
        where = request.getfixturevalue(fixtures[kind])
    else:
        where = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/agent.db"
    return Url(where, colour)
