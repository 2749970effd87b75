"""The examples of the page on PostgreSQL run on a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "postgresql.md"
SHOWN = "postgresql://agents@db.example/agents"


def test_the_examples_run(postgres_url: str) -> None:
    text = PAGE.read_text(encoding="utf-8").replace(SHOWN, postgres_url)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), namespace)
    (query,) = re.findall(r"^(SELECT thread.*?;)$", text, re.MULTILINE | re.DOTALL)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(query).fetchall() == [("invoice-bot", "reconcile")]


def test_every_option_is_on_the_page() -> None:
    from everthread.stores.postgres import settings

    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in (*settings._NUMBERS, *settings._TEXTS) if f"`{name}`" not in text] == []
