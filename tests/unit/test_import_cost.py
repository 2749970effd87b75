"""`import everthread` stays cheap: what is heavy, or belongs to one feature, is loaded when it is used.

How many milliseconds it takes is measured by `bench/import_cost.py`; here stands what must stay out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import everthread

SOURCE = Path(everthread.__file__).parents[1]

# Not listed, although better left out too: `inspect`, `uuid`, `platform`, `typing_extensions` and `_socket`.
# msgspec imports them itself.
STAYS_OUT = (
    # dependencies of the core that only some calls need
    "apsw",
    "click",
    "cryptography",
    "rich",
    "zstandard",
    # never used
    "pickle",
    "sqlite3",
    # network, event loop and processes
    "asyncio",
    "concurrent.futures",
    "http",
    "multiprocessing",
    "socket",
    "ssl",
    "subprocess",
    "urllib.request",
    # extras, drivers, frameworks
    "jsonschema",
    "langgraph",
    "numpy",
    "psycopg",
    "pydantic",
    "redis",
    "valkey",
)

# What the interpreter and the .pth files of the environment load by themselves doesn't count.
PROBE = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
exec(sys.argv[2])
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` adds to those of a fresh, isolated interpreter."""
    probe = [sys.executable, "-I", "-c", PROBE, str(SOURCE), statement]
    return set(subprocess.run(probe, check=True, capture_output=True, text=True).stdout.split())


def test_import_loads_nothing_heavy() -> None:
    loaded = loaded_by("import everthread")
    assert "everthread" in loaded
    assert loaded.isdisjoint(STAYS_OUT), sorted(loaded & set(STAYS_OUT))


def test_errors_load_nothing_heavy() -> None:
    # Whoever only catches our errors, a web handler say, pays for nothing else.
    loaded = loaded_by("import everthread.errors")
    assert "everthread.errors" in loaded
    assert loaded.isdisjoint(STAYS_OUT), sorted(loaded & set(STAYS_OUT))


def test_the_probe_sees_what_is_loaded() -> None:
    assert {"sqlite3", "pickle"} <= loaded_by("import sqlite3, pickle")
