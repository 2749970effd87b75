"""Erasure on a server with an append-only file and snapshots: byte by byte, in its files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal
from everthread.stores.contract import DESTROYED, ErasedKey, NewEvent
from tests.servers.valkey import LASTING, ValkeyServer

ANN, BOB = b"a" * 16, b"b" * 16


@pytest.fixture
def server(own_server_folder: Path) -> Iterator[ValkeyServer]:
    made = ValkeyServer(own_server_folder / "own", *LASTING, "--save", "3600 1")
    made.start()
    yield made
    made.kill()


def _save(server: ValkeyServer) -> None:
    server.ask("BGSAVE")
    deadline = time.monotonic() + 20
    while b"rdb_bgsave_in_progress:0" not in server.ask("INFO", "persistence"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _bytes(server: ValkeyServer) -> bytes:
    """Everything that the server has on disk."""
    return b"".join(path.read_bytes() for path in sorted(server.folder.rglob("*")) if path.is_file())


# The values are sealed under keys that no keyring has.
@pytest.mark.filterwarnings("ignore:.*holds sealed values, and the keyring:UserWarning")
def test_deleting_alone_leaves_the_bytes_and_purging_doesnt(server: ValkeyServer) -> None:
    with everthread.open(server.url) as store:
        backend: Any = store.core.backend
        rows = [(os.urandom(16), ANN, os.urandom(400)) for _ in range(40)]
        kept = [(os.urandom(16), BOB, os.urandom(400)) for _ in range(40)]
        for row in [*rows, *kept]:
            backend.emit("contract", "s", [NewEvent(0, "t", None, b"")], [row])
        _save(server)
        needles = [row[2] for row in rows]
        assert all(needle in _bytes(server) for needle in needles), "a control: they are found"
        before = backend.residues(needles)
        assert {os.path.basename(place).partition(".")[0] for place, _ in before.hits} >= {
            "dump",
            "appendonly",
        }
        backend.note_erasures([ErasedKey(key_id=ANN, phase=DESTROYED)])
        assert backend.drop_sealed([ANN]) == 40
        assert backend.residues(needles).hits, "deleting alone leaves them in the files"
        purged = backend.purge(30.0)
        assert purged.waiting == ()
        assert len(purged.done) == 2
        assert purged.unreached, "who can't reach everything says so"
        found = backend.residues(needles)
        assert found.hits == ()
        assert found.looked
        assert not any(needle in _bytes(server) for needle in needles)
        assert all(row[2] in _bytes(server) for row in kept), "the others are all there"
    server.kill()
    server.start()
    with everthread.open(server.url) as store:
        assert len(store.core.backend.sealed([row[0] for row in kept])) == 40
        assert store.core.backend.erased([ANN, BOB]) == {ANN}


def test_personal_values_are_never_in_clear_in_the_files(server: ValkeyServer) -> None:
    with everthread.open(server.url) as store:
        thread = store.thread("a")
        thread.state["mail"] = Personal("ann", "canary-4711@example.org")
        thread.messages.append({"content": Personal("ann", "canary-0815 in a message")})
        thread.commit()
        store.events("tasks").append("made", {"by": Personal("ann", "canary-1234 in an event")})
        thread.state["plain"] = "control-9999"
        thread.commit()
        _save(server)
        assert b"control-9999" in _bytes(server)
        assert b"canary-" not in _bytes(server)
        assert store.thread("a").state["mail"].value == "canary-4711@example.org"
