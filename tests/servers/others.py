"""Servers that no wheel brings: PgBouncer and Redis, from the system's packages.

Only tortures ask for them: ``make torture WHAT=pgbouncer``, ``make torture WHAT=redis``. On Debian:
``apt-get install pgbouncer redis-server``. ``PGBOUNCER`` and ``REDIS_SERVER`` may name the programs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.postgres import QUICK, PostgresServer, as_other, empty, free_port
from tests.servers.sharing import alive, detached, shared
from tests.servers.valkey import QUICK as QUICK_VALKEY
from tests.servers.valkey import ValkeyServer

_START_S = 30.0
_numbers = count(1)

#: Few sessions for many clients, each for one transaction, and nothing is cleaned up in between.
_POOLER = """
[databases]
postgres = host=127.0.0.1 port={server} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
server_round_robin = 1
"""


def found(name: str, variable: str) -> str:
    """Where a program is. Fails if it isn't there."""
    program = os.environ.get(variable) or shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.fail(f"{name} is missing: apt-get install {name}, or set {variable}")
    return program


def _start_pgbouncer(folder: Path) -> dict[str, Any]:
    server = PostgresServer(folder, settings=(*QUICK, "max_connections=50"))
    server.create()
    server.start()
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(_POOLER.format(server=server.port, port=port))
    program = found("pgbouncer", "PGBOUNCER")
    with (folder / "pgbouncer.log").open("ab") as log:
        pid = detached([program, settings], log, cwd=folder, **as_other())
    deadline = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
            break
        except psycopg.OperationalError as error:
            if not alive(pid) or time.monotonic() > deadline:
                pytest.fail(f"PgBouncer doesn't start: {error}\n{(folder / 'pgbouncer.log').read_text()}")
            time.sleep(0.02)
    return {"pids": [pid, server.pid], "port": port, "direct": server.uri()}


@pytest.fixture
def pgbouncer_url() -> Iterator[str]:
    """An empty store behind PgBouncer in transaction mode."""
    told = shared("pgbouncer", _start_pgbouncer)
    yield f"postgresql://postgres@127.0.0.1:{told['port']}/postgres"
    with psycopg.connect(told["direct"]) as connection:
        # Nothing was left in any of its sessions, whoever gets it next.
        left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(left.encode()).fetchone() == (0,)
    empty(told["direct"])


class RedisServer(ValkeyServer):
    """Redis itself, which takes the same settings."""

    def program(self) -> Path:
        return Path(found("redis-server", "REDIS_SERVER"))


def _start_redis(folder: Path) -> dict[str, Any]:
    server = RedisServer(folder / "redis", *QUICK_VALKEY)
    server.start()
    return {"pid": server.pid, "port": server.port}


@pytest.fixture
def redis_url() -> str:
    """The URL of an empty store on a Redis server."""
    port = shared("redis", _start_redis)["port"]
    return f"redis://127.0.0.1:{port}/0?prefix=t{os.getpid()}.{next(_numbers)}"
