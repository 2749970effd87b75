"""Feature B8: what a store in PostgreSQL can be asked in SQL, and by embeddings."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everthread
from everthread import InvalidValueError, Personal, Store, UnsupportedError
from everthread.testing.driver import open_driven

#: Blocking and async.
BOTH = pytest.mark.parametrize("open_", [everthread.open, open_driven])


def _sql(url: str, text: str, *values: Any) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(text, values).fetchall()


@BOTH
def test_B8_documents_are_queried_as_json(postgres_url: str, open_: Any) -> None:
    with open_(postgres_url, keyring="memory:") as store:
        for number in range(30):
            thread = store.thread(f"bot {number}")
            thread.state["phase"] = "reconcile" if number % 3 == 0 else "idle"
            thread.state["deep"] = {"n": number, "at": datetime(2026, 1, 1, tzinfo=UTC), "odd": "a\0b"}
            thread.state["email"] = Personal("ann", "ann@example.org")
            thread.commit()
        assert store.refresh_documents() == 30
        assert store.refresh_documents() == 0
        found = _sql(
            postgres_url,
            "SELECT thread, document->'deep'->>'n' FROM everthread.documents "
            "WHERE document @> '{\"phase\": \"reconcile\"}' AND namespace = '' AND current ORDER BY thread",
        )
        assert len(found) == 10
        assert ("bot 27", "27") in found
        store.thread("bot 0").delete()
        thread = store.thread("bot 3")
        thread.state["phase"] = "done"
        thread.commit()
        # A deleted thread is gone at once; one that has moved on says so.
        names = {name for (name,) in _sql(postgres_url, "SELECT thread FROM everthread.documents")}
        assert "bot 0" not in names
        assert _sql(postgres_url, "SELECT thread FROM everthread.documents WHERE NOT current") == [("bot 3",)]
        assert store.refresh_documents() == 1
        # What is sealed is nowhere in clear.
        everything = str(_sql(postgres_url, "SELECT document::text FROM everthread.document"))
        assert "ann@example.org" not in everything
        assert '"email": {"personal": true}' in everything


@BOTH
def test_B8_many_users_at_once(postgres_url: str, open_: Any) -> None:
    """Readers never wait for writers, and see whole versions only."""
    with open_(postgres_url) as store:
        thread = store.thread("shared")
        thread.state.update({"a": 0, "b": 0})
        thread.commit()
        stop = threading.Event()
        torn: list[Any] = []

        def read() -> None:
            with open_(postgres_url) as other:
                while not stop.is_set():
                    state = other.thread("shared").state.plain()
                    if state["a"] != state["b"]:
                        torn.append(state)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(1, 200):
            thread.state.update({"a": number, "b": number})
            thread.commit()
        stop.set()
        for reader in readers:
            reader.join()
        assert torn == []


@BOTH
def test_B8_knowledge_by_embedding_and_metadata(postgres_url: str, open_: Any) -> None:
    with open_(postgres_url, namespace="a") as store, open_(postgres_url, namespace="b") as other:
        knowledge = store.knowledge
        for number in range(20):
            metadata = {"kind": "even" if number % 2 == 0 else "odd", "n": number, "list": [{"x": number}]}
            knowledge.add(f"text {number}", [1.0, number / 10, 0.0], metadata, id=f"k{number}")
        other.knowledge.add("text of another tenant", [1.0, 0.5, 0.0], {"kind": "odd"})
        found = knowledge.search([1.0, 0.5, 0.0], where={"kind": "odd"}, limit=3)
        assert found[0].id == "k5"
        assert {passage.id for passage in found} <= {f"k{n}" for n in range(1, 20, 2)}
        assert found[0].distance < 1e-6
        assert found[0].metadata["list"] == [{"x": 5}]
        assert [p.distance for p in found] == sorted(p.distance for p in found)
        assert [p.text for p in knowledge.search([0, 0, 1], {"list": [{"x": 7}]})] == ["text 7"]
        assert knowledge.search([1.0, 0.5], limit=5) == []
        knowledge.add("another text", [0.0, 0.0, 1.0], {"kind": "odd"}, id="k5")
        assert knowledge.search([0.0, 0.0, 1.0], limit=1)[0].text == "another text"
        assert knowledge.remove("k5")
        assert not knowledge.remove("k5")
        hostile = "'; DROP TABLE everthread.knowledge; --"
        knowledge.add(hostile, [1, 2, 3], {hostile: hostile}, id=hostile)
        assert knowledge.search([1, 2, 3], {hostile: hostile})[0].id == hostile


@BOTH
def test_B8_nothing_personal_becomes_knowledge(postgres_url: str, open_: Any) -> None:
    with open_(postgres_url) as store:
        knowledge = store.knowledge
        secret = Personal("ann", "secret")
        for text, embedding, metadata in [
            (secret, [1.0], None),
            ("text", [1.0], {"who": secret}),
            ("text", [1.0], {"deep": [{"who": secret}]}),
        ]:
            with pytest.raises(InvalidValueError, match="belongs to a person"):
                knowledge.add(text, embedding, metadata)
        for text, embedding, metadata in [
            ("", [1.0], None),
            ("a\0b", [1.0], None),
            ("text", [], None),
            ("text", [float("nan")], None),
            ("text", ["x"], None),
            ("text", [1e39], None),
            ("text", [1.0], {"a": "\0"}),
            ("text", [1.0], {"a": b"bytes"}),
            ("text", [1.0], {"a": float("inf")}),
            ("text", [1.0], ["list"]),
        ]:
            with pytest.raises(InvalidValueError):
                knowledge.add(text, embedding, metadata)
        assert _sql(postgres_url, "SELECT count(*) FROM everthread.knowledge") == [(0,)]


@BOTH
def test_B8_backups_are_the_servers_own_business(postgres_url: str, open_: Any, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with open_(postgres_url) as store:
        assert not store.capabilities.backup
        store.thread("a").commit(label="kept")
        for verb in (store.backup, store.restore):
            with pytest.raises(UnsupportedError, match=r"pg_dump.*export\(\)"):
                verb(str(path))
        assert not path.exists()
        assert store.thread("a").head.label == "kept"


def test_B8_other_stores_say_what_to_do(tmp_path: Path) -> None:
    for url in ("memory:", f"sqlite:///{tmp_path}/a.db", f"file://{tmp_path}/files"):
        with everthread.open(url) as store:
            with pytest.raises(UnsupportedError, match="postgresql://"):
                _ = store.knowledge
            with pytest.raises(UnsupportedError, match="copy_to"):
                store.refresh_documents()

    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            with pytest.raises(UnsupportedError):
                await store.refresh_documents()

    asyncio.run(main())


def test_B8_without_the_extension(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"has_vector": b"SELECT 1 WHERE false", "make_vector": b"CREATE EXTENSION no_such_extension"}
    with everthread.open(postgres_url) as store:
        pool: Any = store.core.backend.pool  # type: ignore[attr-defined]
        monkeypatch.setattr(pool, "statements", {**pool.statements, **missing})
        shelf: Any = _unknown(store)
        shelf.add("text", [1.0])
        with pytest.raises(UnsupportedError, match="CREATE EXTENSION vector"):
            shelf.search([1.0])


def _unknown(store: Store) -> Any:
    backend: Any = store.core.backend
    backend._has_vectors = False
    return store.knowledge
