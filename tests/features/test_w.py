"""W: working state (the rows that the core itself answers for)."""

from __future__ import annotations

import threading

import pytest

import everthread
from everthread import SchemaVersionError, Store
from everthread.codec import CURRENT_SCHEMA_VERSION, migrate


def test_W13_data_types_are_frozen_and_shared_between_threads(store: Store) -> None:
    thread = store.thread("w13")
    thread.state["n"] = 1
    version = thread.commit(metadata={"run": "r1"})
    assert version is not None
    with pytest.raises(AttributeError):
        version.seq = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        version.metadata["run"] = "r2"  # type: ignore[index]
    info = next(store.threads())
    with pytest.raises(AttributeError):
        info.name = "other"  # type: ignore[misc]

    seen: list[object] = []

    def read() -> None:
        seen.append((hash(version), version.at, version.metadata["run"], store.thread("w13").head))

    workers = [threading.Thread(target=read) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [(hash(version), version.at, "r1", version)] * 8


def test_W14_payloads_of_version_0_load() -> None:
    old = {"todos": [{"id": "t1", "content": "pay"}], "context": {"branch": "main"}, "extra": {"kept": True}}
    new = migrate(old)
    assert new["schema_version"] == CURRENT_SCHEMA_VERSION
    assert new["todos"][0]["content"] == "pay"
    assert new["todos"][0]["status"] == "pending"
    assert new["context"]["branch"]["value"] == "main"
    assert new["extra"] == {"kept": True}, "a tolerant reader keeps what it doesn't know"
    assert {"open_loops", "intentions", "constraints"} <= new.keys()
    assert "schema_version" not in old, "the argument is left alone"
    assert migrate(new) == new


def test_W14_a_newer_payload_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        migrate({"schema_version": CURRENT_SCHEMA_VERSION + 1})
    assert issubclass(everthread.SchemaVersionError, everthread.EverthreadError)
