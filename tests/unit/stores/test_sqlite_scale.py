"""What SQLite does for a page of names, or for a question about metadata, doesn't grow with the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread

PAGE = 10


def steps(store: everthread.Store, work: Callable[[], object]) -> int:
    """How many steps SQLite's machine makes for ``work``, on whichever connection."""
    connections: Any = store.core.backend._connections  # type: ignore[attr-defined]
    # So that transactions for reading have one, too.
    connections.done(connections.reader(apart=True))
    made = 0

    def count() -> bool:
        nonlocal made
        made += 1
        return False

    everyone = [connections._writer, *connections._idle]
    for db in everyone:
        db.set_progress_handler(count, 1)
    work()
    for db in everyone:
        db.set_progress_handler(None)
    return made


@pytest.fixture
def stores(tmp_path: Path) -> Any:
    """Two stores, one with ten times as many threads, cells and streams."""
    made = []
    for size in (50, 500):
        store = everthread.open(f"sqlite:///{tmp_path}/{size}.db", durability="process")
        for number in range(size):
            thread = store.thread(f"t{number:04}")
            thread.state["n"] = number
            thread.commit(metadata={"half": number % 2, "number": number})
            store.core.backend.swap("", f"c{number:04}", 0, b"x", 0)
            store.events(f"s{number:04}").append("made", {})
        made.append((size, store))
    yield made
    for _, store in made:
        store.close()


@pytest.mark.parametrize("what", ["lines", "cells", "streams"])
def test_the_last_page_costs_as_much_as_the_first(stores: Any, what: str) -> None:
    costs = []
    for size, store in stores:
        page = getattr(store.core.backend, what)
        letter = {"lines": "t", "cells": "c", "streams": "s"}[what]
        for after in (None, f"{letter}{size - PAGE - 1:04}"):
            found: list[Any] = []
            costs.append(
                steps(store, lambda: found.extend(page("", letter, after, PAGE)))  # noqa: B023 - at once
            )
            assert len(found) == PAGE
    assert max(costs) < 1.5 * min(costs) + 50, costs


def test_metadata_is_asked_of_an_index(stores: Any) -> None:
    costs: dict[str, list[int]] = {"nothing new": [], "one thread": [], "one new version": []}
    for size, store in stores:
        backend = store.core.backend

        def ask(store: everthread.Store = store) -> list[str]:
            return [found.name for found in store.threads(metadata={"number": 7})]

        assert ask() == ["t0007"], "brings the index up to date"
        costs["nothing new"].append(steps(store, lambda: backend.untagged("")))  # noqa: B023 - at once
        costs["one thread"].append(steps(store, ask))
        thread = store.thread(f"t{size - 1:04}")
        thread.commit(metadata={"number": 7})
        assert len(backend.untagged("")) == 1
        costs["one new version"].append(steps(store, ask))
        assert ask() == ["t0007", f"t{size - 1:04}"]
    for what, (small, large) in costs.items():
        assert large < 1.5 * small + 50, f"{what}: {small} → {large}"
