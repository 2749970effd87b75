"""One server for all processes of a test run.

The first process that asks starts it and writes down where it is; the others read that. The process that
began the run ends every server, also when a worker died. Should that process be killed itself, a small guard
beside each server ends it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER_VARIABLE = "TEST_SERVERS_FOLDER"
_STOP_S = 20.0

#: Ends the server (the second number) once the test run (the first) is gone.
_GUARD = """
import os, signal, sys, time
run, server = int(sys.argv[1]), int(sys.argv[2])
def there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
while there(run) and there(server):
    time.sleep(0.5)
if there(server):
    os.kill(server, signal.SIGINT)
"""


def shared(name: str, start: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What ``start(folder)`` answered in the process that came first: a dictionary with the ``pid``, or with
    the ``pids`` of several that belong together."""
    folder = Path(os.environ[FOLDER_VARIABLE]) / name
    with (folder.parent / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = folder.parent / f"{name}.json"
        if told.exists():
            known: dict[str, Any] = json.loads(told.read_text())
            return known
        folder.mkdir()
        made = start(folder)
        told.write_text(json.dumps(made))
        run = folder.parent.name.rpartition("-")[2]
        for pid in _pids(made):
            detached([sys.executable, "-c", _GUARD, run, str(pid)])
        return made


def _pids(told: dict[str, Any]) -> list[int]:
    found: list[int] = told.get("pids") or [told["pid"]]
    return found


def detached(command: Sequence[str | Path], output: Any = subprocess.DEVNULL, **options: Any) -> int:
    """The pid of a new process that goes on without this one."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        **options,
    )
    # Not a child to be waited for: without this its object would complain when it goes.
    process.returncode = 0
    return process.pid


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for doesn't."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status not in "ZX"


def stop(pid: int, how: signal.Signals = signal.SIGINT) -> None:
    """End a server and wait until it is gone."""
    if not alive(pid):
        return
    os.kill(pid, how)
    deadline = time.monotonic() + _STOP_S
    while alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit it.
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="everthread-servers-", suffix=f"-{os.getpid()}")
        # A server may run as another user.
        os.chmod(folder, 0o711)
        os.environ[FOLDER_VARIABLE] = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or FOLDER_VARIABLE not in os.environ:
        return
    folder = Path(os.environ.pop(FOLDER_VARIABLE))
    for told in folder.glob("*.json"):
        for pid in _pids(json.loads(told.read_text())):
            stop(pid)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_server_folder() -> Iterator[Path]:
    """A folder for a server of the test's own, which another user can reach too."""
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=os.environ[FOLDER_VARIABLE]))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
