"""What the tests of the rules are written with. Needs no test runner."""

from __future__ import annotations

import contextlib
import inspect
import unittest
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from everthread.errors import StorageWriteError
from everthread.store import Store
from everthread.stores.contract import NewRow
from everthread.stores.offload import Offload
from everthread.threads.sync.past import Past
from everthread.threads.sync.thread import Thread
from everthread.versions import Version

E = TypeVar("E", bound=BaseException)


class OpenStore(Protocol):
    """Opens the store under test. Called again it opens the same place again, as a second store object.

    (A store that isn't durable starts empty each time.) Options go to ``everthread.open``.
    """

    def __call__(self, **options: Any) -> Store: ...


@contextlib.contextmanager
def raises(kind: type[E]) -> Iterator[list[E]]:
    """Pass if the block raises ``kind``; the list then holds the error."""
    caught: list[E] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def needs(store: Store, capability: str) -> None:
    """Skip the test if the store declares that it can't do this."""
    if not getattr(store.capabilities, capability):
        scheme = store.url.partition(":")[0]
        raise unittest.SkipTest(f"a {scheme}: store declares that it lacks the capability {capability!r}")


@contextlib.contextmanager
def losing_answers(store: Store) -> Iterator[None]:
    """Within the block every append reaches the store, but its answer is lost on the way back."""
    backend: Any = store.core.backend
    real: Any = getattr(backend, "_real", backend)
    # Beneath most async stores there is a blocking driver, which gets what many callers append all at once.
    driver: Any = getattr(real, "blocking", real) if isinstance(real, Offload) else real
    append, append_all = driver.append, driver.append_all
    lost = "the connection was cut before the answer came"

    def lose(line: int, row: NewRow) -> None:
        append(line, row)
        raise StorageWriteError(lost)

    async def lose_async(line: int, row: NewRow) -> None:
        await append(line, row)
        raise StorageWriteError(lost)

    def lose_all(rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        return [answer or StorageWriteError(lost) for answer in append_all(rows)]

    if inspect.iscoroutinefunction(append):
        lose = lose_async  # type: ignore[assignment]
    driver.append, driver.append_all = lose, lose_all
    try:
        yield
    finally:
        driver.append, driver.append_all = append, append_all


def commit(thread: Thread, **options: Any) -> Version:
    """Commit something that must give a version."""
    version = thread.commit(**options)
    assert version is not None
    return version


def message(item_id: str, content: Any = "") -> dict[str, Any]:
    return {"id": item_id, "role": "user", "content": content}


def ids(log: Any) -> list[Any]:
    """The ids of the items of a log, in order."""
    return [item["id"] for item in log]


def talk(thread: Thread, count: int, prefix: str = "m") -> list[Version]:
    """``count`` versions, each with one message more and a counter that says which."""
    versions = []
    for number in range(count):
        thread.messages.append(message(f"{prefix}{number}", number))
        thread.state["count"] = number
        versions.append(commit(thread))
    return versions


def contents(thread: Thread | Past) -> tuple[Any, dict[str, list[Any]]]:
    """Document and logs as plain data."""
    return thread.state.plain(), {name: thread.log(name)[:] for name in thread.logs}


def seqs(thread: Thread) -> list[int]:
    return [version.seq for version in thread.history(limit=None)]
