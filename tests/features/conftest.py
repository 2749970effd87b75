"""Each feature runs on every store: embedded ones, and real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Store


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "valkey":
        url = request.getfixturevalue("valkey_lasting_url")
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/agent.db"
    with everthread.open(url) as opened:
        yield opened
        assert opened.verify().ok
