"""The index of texts after redaction and erasure: in PostgreSQL's tables nothing of it is left."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from everthread import Personal
from tests.servers.colours import Url

SECRET = "secretword4711x"


def _words(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.execute("SELECT words::text FROM everthread.text_entry").fetchall())


@pytest.mark.parametrize("colour", ["", "async"])
def test_redaction_and_erasure_drop_the_index(postgres_url: str, colour: str) -> None:
    options: dict[str, Any] = {"keyring": "memory:", "durability": "process"}
    with Url(postgres_url, colour).open(**options) as store:
        thread = store.thread("t")
        for number in range(5):
            thread.messages.append({"id": f"m{number}", "content": f"zebra {SECRET} {number}"})
            thread.commit()
        assert len(list(store.search(SECRET))) == 5
        assert SECRET in _words(postgres_url), "a control"
        report = store.redact(SECRET, reason="a test")
        assert SECRET not in _words(postgres_url)
        assert any("VACUUM (FULL)" in each for each in report.unreached), "what stays is named"
        assert [hit.excerpt for hit in store.search("zebra 3")] == ["zebra [redacted] 3"]
        assert list(store.search(SECRET)) == []

        thread.refresh()
        thread.messages.append({"id": "p", "content": Personal("ann", "giraffe")})
        thread.commit()
        assert list(store.search("giraffe")) == []
        assert "zebra" in _words(postgres_url)
        assert store.erase("ann")
        assert "zebra" not in _words(postgres_url), "dropped, and made anew by whoever searches"
        assert len(list(store.search("zebra"))) == 5
        assert "giraffe" not in _words(postgres_url)


@pytest.mark.parametrize("colour", ["", "async"])
def test_redaction_reaches_the_documents_that_sql_is_shown(postgres_url: str, colour: str) -> None:
    def shown() -> dict[str, str]:
        with psycopg.connect(postgres_url) as connection:
            found = "SELECT thread, document::text FROM everthread.documents"
            return dict(connection.execute(found).fetchall())

    with Url(postgres_url, colour).open(keyring="memory:", durability="process") as store:
        thread = store.thread("t")
        thread.state["note"] = f"call {SECRET} now"
        thread.commit()
        thread.fork("f").commit(label="a fork")
        store.thread("other").commit(label="x")
        store.refresh_documents()
        assert [SECRET in text for text in map(shown().get, "tf")] == [True, True]  # type: ignore[operator]
        store.knowledge.add(f"about {SECRET}", [1.0], id="k")
        report = store.redact(SECRET, reason="a test")
        assert SECRET not in str(shown())
        assert "other" in shown(), "nobody else's is gone"
        assert any("store.knowledge" in each for each in report.unreached)
        store.refresh_documents()
        assert shown()["f"] == shown()["t"] == '{"note": "call [redacted] now"}'
