"""Rules over a store in memory and over SQLite, with names for what the tests do most."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.records.branches import Branch
from everthread.records.commits import NewVersion
from everthread.records.heads import Head, digest_metadata
from everthread.records.records import Records
from everthread.records.tables import TABLES
from everthread.stores.contract import DELTA
from everthread.stores.interface import Store, run
from everthread.stores.memory_store import MemoryStore
from everthread.stores.sqlite.connection import Settings
from everthread.stores.sqlite.ordered_store import SqliteStore

SPACE = "agents"


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore(TABLES)
    else:
        made = SqliteStore(Settings(f"{tmp_path}/store.db", durability="process"), TABLES)
    yield made
    run(made.close())


class Driver:
    """One process that uses the rules."""

    def __init__(self, store: Store) -> None:
        self.records = Records(store)
        self.versions = 0

    def create(self, name: str, **fields: Any) -> Branch:
        """Create a thread with one version."""
        start = digest(f"start of {name}")
        branch = Branch(number=0, uid=start[:16], namespace=SPACE, name=name, root=0, start_hash=start)
        version = self.version(start, 1, **fields)
        return run(self.records.commits.create(branch, version))

    def fork(self, source: Branch, seq: int, name: str) -> Branch:
        start = digest(f"start of {name}")
        branch = Branch(
            number=0,
            uid=start[:16],
            namespace=SPACE,
            name=name,
            root=source.root,
            parent=source.number,
            parent_seq=seq,
            start_hash=start,
        )
        return run(self.records.commits.create(branch, None, source=source.number))

    def version(self, previous: bytes, seq: int, **fields: Any) -> NewVersion:
        self.versions += 1
        content = f"version {self.versions}"
        values: dict[str, Any] = {"kind": DELTA, "at_us": self.versions, "body": content.encode()}
        if metadata := fields.pop("metadata", None):
            values["digests"] = {name: digest_metadata(name, value) for name, value in metadata.items()}
        return NewVersion(
            seq=seq, previous=previous, hash=digest(f"{content} {seq} {id(self)}"), **values | fields
        )

    def head(self, branch: Branch) -> Head:
        head = run(self.records.commits.head(branch))
        assert head is not None
        return head

    def commit(self, branch: Branch, **fields: Any) -> Head:
        """Add a version to the newest one."""
        head = self.head(branch)
        return run(
            self.records.commits.commit(branch.number, self.version(head.hash, head.seq + 1, **fields))
        )

    def names(self, heads: list[Head]) -> list[str]:
        return [branch.name for branch in run(self.records.branches.get_many(h.branch for h in heads))]

    def space(self) -> int:
        return run(self.records.namespaces.find(SPACE))


@pytest.fixture
def another(store: Store) -> Callable[[], Driver]:
    """Make one more process that uses the same store."""
    return lambda: Driver(store)


@pytest.fixture
def driver(another: Callable[[], Driver]) -> Driver:
    return another()
