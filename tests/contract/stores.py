"""The stores of the small contract, opened for tests, and shorthand for what tests ask them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from everthread.stores.interface import Batch, Feed, Get, Key, Outcome, Page, Query, Refused, Span, Table, run
from everthread.stores.memory_store import MemoryStore
from everthread.stores.sqlite.connection import Settings
from everthread.stores.sqlite.ordered_store import SqliteStore

ROW = Table(1, "row", numbered=True)
EVENT = Table(6, "event", numbered=True, bits=36)
HEAD = Table(16, "head", followed=True)
KEY = Table(20, "commit_key")
REGISTER = Table(23, "register", guarded=True)
INDEX = Table(26, "event_index")
TABLES = (ROW, EVENT, HEAD, KEY, REGISTER, INDEX)

Open = Callable[[Path], Any]


def open_memory(folder: Path) -> MemoryStore:
    return MemoryStore(TABLES)


def open_sqlite(folder: Path, **options: Any) -> SqliteStore:
    return SqliteStore(Settings(str(folder / "store.db"), **options), TABLES)


#: Every store of the contract. What survives its object is opened again at the same place.
STORES: dict[str, Open] = {"memory": open_memory, "sqlite": open_sqlite}
SURVIVING = ("sqlite",)


def head(name: bytes, owner: int = 1) -> Key:
    return HEAD.number, owner, name


def row(at: int, owner: int = 1) -> Key:
    return ROW.number, owner, at


def register(name: bytes, owner: int = 1) -> Key:
    return REGISTER.number, owner, name


def put(*pairs: tuple[Key, bytes], **rest: Any) -> Batch:
    return Batch(puts=pairs, **rest)


def delete(key: Key) -> Batch:
    table, owner, at = key
    stop = at + 1 if isinstance(at, int) else at + b"\0"
    return Batch(deletes=(Span(table, owner, at, stop),))


def write(store: Any, *batches: Batch) -> list[Outcome]:
    outcomes: list[Outcome] = run(store.write(batches))
    return outcomes


def accept(store: Any, *batches: Batch) -> list[int]:
    """Write batches none of which may be refused."""
    outcomes = write(store, *batches)
    assert not any(isinstance(outcome, Refused) for outcome in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


def read(store: Any, *queries: Query) -> list[list[Any]]:
    answers: list[list[Any]] = run(store.read(queries))[0]
    return answers


def get(store: Any, *keys: Key) -> list[bytes | None]:
    return read(store, Get(keys))[0]


def page(store: Any, table: Table, owner: int = 1, **rest: Any) -> list[Any]:
    bounds: tuple[Any, Any] = (0, 1 << table.bits) if table.numbered else (b"", b"\xff" * 1_101)
    start, stop = rest.pop("start", bounds[0]), rest.pop("stop", bounds[1])
    return read(store, Page(table.number, owner, start, stop, rest.pop("limit", 1_000), **rest))[0]


def feed(store: Any, after: bytes = b"", limit: int = 1_000, owner: int = 1, **rest: Any) -> list[Any]:
    return read(store, Feed(HEAD.number, owner, after, limit, **rest))[0]


def changes(store: Any, limit: int, owner: int = 1, after: bytes = b"") -> list[Any]:
    """Read the whole feed forwards in pages."""
    found: list[Any] = []
    while entries := feed(store, after, limit, owner):
        found += entries
        after = entries[-1][0]
    return found


def walk(store: Any, table: Table, limit: int) -> list[Any]:
    found: list[Any] = []
    after = None
    while entries := run(store.walk(table.number, after, limit)):
        found += entries
        after = entries[-1][:2]
    return found


def content(store: Any) -> dict[str, list[Any]]:
    """Everything that a store holds, without stamps."""
    return {table.name: walk(store, table, 7) for table in TABLES}
