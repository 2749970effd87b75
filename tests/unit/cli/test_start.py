"""What a start loads. Milliseconds are measured by `bench/start.py`; here stands what must stay out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import SOURCE, Committer, Program

#: Loaded only by commands that need them.
STAYS_OUT = (
    "asyncio",
    "concurrent.futures",
    "cryptography",
    "everthread.briefing",
    "everthread.cli.demo",
    "everthread.cli.render",
    "everthread.sessions",
    "everthread.verifiers",
    "everthread.working",
    "importlib.metadata",
    "logging",
    "multiprocessing",
    "pydantic",
    "rich",
    "subprocess",
    "tempfile",
    "unicodedata",
    "zstandard",
)
#: Neither does ``status`` need these, each of which takes milliseconds.
STATUS_STAYS_OUT = (
    "dataclasses",
    "everthread.threads.sync.thread",
    "ipaddress",
    "socket",
    "urllib.parse",
    "yaml",
)
#: Of modules altogether, over those of a bare interpreter: what there is today, and a little room.
STATUS_MODULES_MAX = 200

PROBE = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
sys.argv[1:2] = []
from everthread.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr)
"""


def loaded(program: Program, *arguments: str) -> set[str]:
    command = [sys.executable, "-I", "-c", PROBE, str(SOURCE), *arguments]
    found = subprocess.run(command, env=program.environment(), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    modules = set(found.stderr.split())
    assert "everthread.cli.main" in modules
    return modules


def heavy(modules: set[str]) -> list[str]:
    return sorted(
        each for each in modules if any(each == out or each.startswith(out + ".") for out in STAYS_OUT)
    )


def test_version_loads_no_store(program: Program) -> None:
    modules = loaded(program, "--version")
    assert {"apsw", "everthread.store", "everthread.codec"}.isdisjoint(modules)
    assert not heavy(modules)


def test_help_opens_no_store(program: Program) -> None:
    modules = loaded(program, "--help")
    assert {"apsw", "everthread.store"}.isdisjoint(modules)
    assert not heavy(modules)
    for command in ("show", "gc", "demo"):
        assert {"apsw", "everthread.store"}.isdisjoint(loaded(program, command, "--help")), command


def test_status_loads_what_it_needs(program: Program, commits: Committer) -> None:
    for number in range(3):
        commits(f"bot {number}", 2)
    # Once before: compiling a module for the first time loads what running it doesn't.
    loaded(program, "status")
    modules = loaded(program, "status")
    assert not heavy(modules)
    assert modules.isdisjoint(STATUS_STAYS_OUT), sorted(modules & set(STATUS_STAYS_OUT))
    assert len(modules) <= STATUS_MODULES_MAX, len(modules)


def test_status_of_sessions_loads_little_more(program: Program, store: everthread.Store) -> None:
    store.session("bot").close()
    loaded(program, "status")
    modules = loaded(program, "status")
    assert {name for name in modules if name.startswith("everthread.sessions.")} == {
        f"everthread.sessions.{each}" for each in ("journal", "lease", "records", "usage")
    } | {f"everthread.sessions.{each}" for each in ("sync", "sync.journal", "sync.lease", "sync.logs")}
    assert modules.isdisjoint(STATUS_STAYS_OUT), sorted(modules & set(STATUS_STAYS_OUT))
    assert not [name for name in heavy(modules) if not name.startswith("everthread.sessions")]


@pytest.mark.parametrize(
    "arguments", [["log", "bot", "--json"], ["show", "bot", "--json"], ["diff", "bot", "--json"]]
)
def test_data_needs_no_drawing(program: Program, commits: Committer, arguments: list[str]) -> None:
    commits("bot", 2)
    modules = loaded(program, *arguments)
    assert "rich" not in modules
    assert Path(everthread.__file__).exists()
