"""What the page on stores says that each can do is what each declares: by this alone are rules left out."""

from __future__ import annotations

import re
from pathlib import Path

from everthread.records.opening import open_memory
from everthread.stores.files.store import FileBackend
from everthread.stores.postgres.aio.store import AsyncPostgresBackend
from everthread.stores.postgres.sync.store import PostgresBackend
from everthread.stores.sqlite.store import SqliteBackend
from everthread.stores.valkey.aio.store import AsyncValkeyBackend
from everthread.stores.valkey.sync.store import ValkeyBackend
from everthread.testing import rules

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COLUMNS = {
    "SQLite": (SqliteBackend,),
    "files": (FileBackend,),
    "PostgreSQL": (PostgresBackend, AsyncPostgresBackend),
    "Valkey, Redis": (ValkeyBackend, AsyncValkeyBackend),
    "memory": (open_memory(),),
}


def table() -> dict[str, dict[str, bool]]:
    """Capability → store → whether the page says yes."""
    text = (GUIDES / "stores.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^\| capability \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()]
    said = {}
    for first, *cells in rows:
        assert len(cells) == len(head) - 1
        assert all(cell.startswith(("yes", "no")) for cell in cells)
        said[first.split("`")[1]] = {
            store.strip(" |"): cell.startswith("yes") for store, cell in zip(head[1:], cells, strict=True)
        }
    return said


def test_each_store_declares_what_the_page_says() -> None:
    said = table()
    assert set(said) == {"durable", "multi_process", "backup", "prune", "texts", "cold"}
    for capability, stores in said.items():
        assert set(stores) == set(COLUMNS)
        for store, backends in COLUMNS.items():
            for backend in backends:
                assert getattr(backend.capabilities, capability) is stores[store], (capability, store)


def test_rules_are_left_out_by_these_only() -> None:
    folder = Path(rules.__path__[0])
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    needed = set(re.findall(r'needs\(store, "(\w+)"\)', sources))
    assert {"durable", "multi_process", "backup", "cold"} <= needed <= set(table())
    assert len(re.findall(r"SkipTest|\.skip\b|skipif", sources)) == 1, (
        "needs() is the one way to leave a rule out"
    )
