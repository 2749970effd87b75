"""A project with a store of its own, and servers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import everthread
from tests.unit.agents.client import Client

THREAD = "my project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as `everthread init` leaves it."""
    place = tmp_path / "project" / ".everthread"
    place.mkdir(parents=True, mode=0o700)
    (place / "thread").write_text(f"{THREAD}\n", encoding="utf-8")
    return place.parent


@pytest.fixture
def url(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the project's store, which doesn't exist yet."""
    from everthread.stores.urls import default_url

    monkeypatch.delenv("EVERTHREAD_URL", raising=False)
    monkeypatch.chdir(project)
    return default_url(create=False)


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., Client]]:
    """Start servers in the project; those that still run at the end are killed."""
    started: list[Client] = []

    def begin(**environment: str) -> Client:
        started.append(Client(project, **environment))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate(timeout=60)


@pytest.fixture
def client(start: Callable[..., Client]) -> Client:
    return start()


@pytest.fixture
def store(url: str) -> Iterator[everthread.Store]:
    with everthread.open(url) as opened:
        yield opened
