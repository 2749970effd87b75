"""Two keyrings on one store: an erasure says what it can't tell to be the person's."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Personal
from everthread.keyring.keyring import MemoryKeyring


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "valkey"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[everthread.Store, everthread.Store]]:
    """The same store, opened with two keyrings, both of which have sealed something of Ann."""
    kinds = {"sqlite": f"sqlite:///{tmp_path}/agent.db", "files": f"file://{tmp_path}/store"}
    if request.param == "memory":
        first = everthread.open("memory:", keyring="memory:")
        second = everthread.Store(first.core.backend, keyring="memory:")
    else:
        url = kinds.get(request.param) or request.getfixturevalue(f"{request.param}_url")
        first = everthread.open(url, durability="process", keyring="memory:")
        second = everthread.open(url, durability="process", keyring="memory:")
    for number, store in enumerate((first, second)):
        thread = store.thread(f"by {number}")
        thread.state["x"] = Personal("ann", f"sealed by {number}")
        thread.commit()
    yield first, second
    second.close()
    first.close()


def test_an_erasure_is_not_complete_while_another_keyring_sealed_values(
    stores: tuple[everthread.Store, everthread.Store],
) -> None:
    first, second = stores
    preview = first.erase("ann", dry_run=True)
    assert (preview.sealed_values, preview.unopened) == (1, 1)
    report = first.erase("ann")
    assert (report.sealed_values, report.unopened, report.complete, bool(report)) == (1, 1, False, False)
    assert "1 sealed value in this store may be this person's" in report.summary()
    assert second.thread("by 1").state["x"].value == "sealed by 1"
    (kept,) = first.erasure_reports()
    assert (kept.complete, kept.unopened) == (False, 1), "what is kept says the same"
    again = first.erase("ann")
    assert (again.complete, again.unopened) == (False, 1)
    rest = second.erase("ann")
    assert (rest.sealed_values, rest.unopened, rest.complete, rest.is_signed()) == (1, 0, True, True)
    assert not second.thread("by 1").state["x"]
    last = first.erase("ann")
    assert (last.complete, last.unopened) == (True, 0)


def test_an_erasure_that_is_not_complete_is_not_left_unfinished(
    stores: tuple[everthread.Store, everthread.Store],
) -> None:
    first, _ = stores
    first.erase("ann")
    assert first._left_undone() == []


@pytest.mark.parametrize("server", ["postgres_url", "valkey_url"])
def test_opening_a_server_store_with_a_new_keyring_warns(request: pytest.FixtureRequest, server: str) -> None:
    url, keyring = request.getfixturevalue(server), MemoryKeyring()
    with everthread.open(url, durability="process", keyring=keyring) as store:
        everthread.open(url, durability="process", keyring="memory:").close()
        thread = store.thread("a")
        thread.state["x"] = Personal("ann", "sealed")
        thread.commit()
    with pytest.warns(UserWarning, match="holds sealed values, and the keyring .* is new"):
        everthread.open(url, durability="process", keyring="memory:").close()

    async def open_async() -> None:
        async with everthread.open_async(url, durability="process", keyring="memory:"):
            pass

    with pytest.warns(UserWarning, match="share one keyring"):
        asyncio.run(open_async())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everthread.open(url, durability="process", keyring=keyring).close()
