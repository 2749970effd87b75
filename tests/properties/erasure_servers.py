"""Stores on servers that erasures are tried on: where their files are, and how these come up to date."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

import everthread
from tests.servers.postgres import QUICK, PostgresServer, empty
from tests.servers.valkey import LASTING, ValkeyServer


class PostgresPlace:
    """A server of its own. What its log holds is beyond an erasure, and named in the report."""

    unreached = "write-ahead log"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
        self.server = PostgresServer(folder, settings=QUICK)
        self.server.create()
        self.server.start()
        with psycopg.connect(self.server.uri(), autocommit=True) as sql:
            sql.execute("CREATE DATABASE histories")
            ((oid,),) = sql.execute("SELECT oid FROM pg_database WHERE datname = 'histories'").fetchall()
        self.url = self.server.uri("histories")
        self._folders = [self.server.data / "base" / str(oid), self.server.data / "global"]

    def fresh(self) -> str:
        """The URL of a store with nothing in it."""
        with everthread.open(self.url, keyring="memory:", durability="process"):
            pass
        empty(self.url)
        return self.url

    def files(self) -> list[Path]:
        """Where its tables are, with everything written down."""
        with psycopg.connect(self.url, autocommit=True) as sql:
            sql.execute("CHECKPOINT")
        return self._folders

    def stop(self) -> None:
        self.server.stop()


class ValkeyPlace:
    """A server of its own with an append-only file and snapshots."""

    unreached = "copies of the server's files"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.server = ValkeyServer(folder / "valkey", *LASTING, "--save", "3600 1")
        self.server.start()
        self._number = 0

    def fresh(self) -> str:
        self._number += 1
        return f"{self.server.url}?prefix=h{self._number}"

    def files(self) -> list[Path]:
        self.server.ask("BGSAVE")
        deadline = time.monotonic() + 30
        while b"rdb_bgsave_in_progress:0" not in self.server.ask("INFO", "persistence"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return [self.server.folder]

    def stop(self) -> None:
        self.server.stop()


Place = PostgresPlace | ValkeyPlace
PLACES: dict[str, type[PostgresPlace] | type[ValkeyPlace]] = {
    "postgres": PostgresPlace,
    "valkey": ValkeyPlace,
}
