"""``store.search()`` on stores with an index and without, in both colours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import InvalidValueError, Personal, Store
from everthread.search.index import Indexer

Open = Callable[[], Store]
WORDS = "march april invoice pay twice müller audit fifo ledger".split()


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("postgres", "valkey"):
        url: str = request.getfixturevalue(f"{request.param}_url")
        return url
    return {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
        "file": f"file://{tmp_path}/store",
    }[request.param]


@pytest.fixture
def store(url: str) -> Any:
    with everthread.open(url, durability="process", keyring="memory:") as opened:
        yield opened


def found(store: Store, text: str, **options: Any) -> set[tuple[str, str, str]]:
    return {(hit.thread, hit.kind, hit.id) for hit in store.search(text, **options)}


def test_every_kind_is_found(store: Store) -> None:
    with store.session("bot") as session:
        session.messages.append(
            {"id": "m1", "role": "user", "content": [{"type": "text", "text": "Pay Müller"}]}
        )
        todo = session.work.add_todo("pay the invoice")
        loop = session.work.add_open_loop("will they pay?", context={"who": "müller"})
        intention = session.work.set_intention("pay all")
        rule = session.work.add_constraint("never pay twice")
        session.work.set_context("payee", "muller pay")
        decision = session.decide("pay now", rationale="due", planned_action="wire")
        task = session.tasks.add("pay task")
    expected = {
        ("bot", "message", "m1"),
        ("bot", "todo", todo.id),
        ("bot", "open_loop", loop.id),
        ("bot", "intention", intention.id),
        ("bot", "constraint", rule.id),
        ("bot", "context", "payee"),
        ("bot", "decision", decision.id),
        ("bot", "task", task.id),
    }
    assert expected <= found(store, "pay")
    assert found(store, "muller", kinds=["message", "context"]) == {
        ("bot", "message", "m1"),
        ("bot", "context", "payee"),
    }


def test_a_hit_says_where(store: Store) -> None:
    thread = store.thread("bot")
    thread.messages.extend({"id": f"m{n}", "content": f"number {n}"} for n in range(50))
    thread.messages.append({"id": "x", "content": "the needle"})
    thread.log("tools").append({"id": "t", "out": "needle too"})
    thread.commit()
    hits = {hit.kind: hit for hit in store.search("needle")}
    assert (hits["message"].log, hits["message"].index) == ("messages", 50)
    assert (hits["item"].log, hits["item"].index, hits["item"].id) == ("tools", 0, "t")
    hit = hits["message"]
    assert [hit.excerpt[start:stop] for start, stop in hit.marks] == ["needle"]


def test_what_changed_is_found_and_what_is_gone_is_not(store: Store) -> None:
    thread = store.thread("bot")
    thread.messages.append({"id": "a", "content": "alpha"})
    thread.state["todos"] = {"1": {"content": "alpha todo"}}
    first = thread.commit()
    assert found(store, "alpha") == {("bot", "message", "a"), ("bot", "todo", "1")}
    thread.messages.append({"id": "b", "content": "beta"})
    thread.state["todos"]["1"]["content"] = "beta todo"
    thread.commit()
    assert found(store, "beta") == {("bot", "message", "b"), ("bot", "todo", "1")}
    assert found(store, "alpha") == {("bot", "message", "a")}
    fork = thread.fork("other")
    assert found(store, "beta", kinds=["message"]) == {("bot", "message", "b")}, "shared, and told once"
    assert found(store, "beta", prefix="oth") == {("other", "message", "b"), ("other", "todo", "1")}
    thread.rewind(first)
    assert found(store, "beta") == {("other", "message", "b"), ("other", "todo", "1")}
    fork.delete()
    assert found(store, "beta") == set()
    assert found(store, "alpha") == {("bot", "message", "a"), ("bot", "todo", "1")}


def test_sealed_values_are_never_found(store: Store) -> None:
    thread = store.thread("bot")
    thread.messages.append({"id": "a", "content": Personal("u1", "the canary sings"), "note": "open"})
    thread.messages.append(Personal("u1", {"content": "another canary"}))
    thread.state["todos"] = {"1": {"content": Personal("u1", "canary todo")}}
    thread.commit()
    assert found(store, "canary") == set()
    assert found(store, "open") == {("bot", "message", "a")}


def test_namespaces_dont_see_each_other(url: str, tmp_path: Path) -> None:
    if url == "memory:":
        url = f"sqlite:///{tmp_path}/other.db"
    for space in ("a", "b"):
        with everthread.open(url, namespace=space, durability="process") as store:
            thread = store.thread("bot")
            thread.messages.append({"id": space, "content": "needle"})
            thread.commit()
            assert found(store, "needle") == {("bot", "message", space)}


def test_bad_questions_are_refused(store: Store) -> None:
    for options in ({"kinds": ["nonsense"]}, {"limit": 0}, {"limit": 1001}, {"limit": True}):
        with pytest.raises(InvalidValueError):
            store.search("x", **options)
    with pytest.raises(InvalidValueError):
        store.search("' --")


@pytest.mark.parametrize(
    "text", ['a" OR b', "a NEAR(b)", "a*", "a:b", "-a", "^a", "a AND", "{a b}:c", "a%' --"]
)
def test_signs_of_the_index_mean_nothing(store: Store, text: str) -> None:
    thread = store.thread("bot")
    thread.messages.append({"id": "m", "content": "b only"})
    thread.commit()
    assert found(store, text) == set()


def test_async_is_the_same(url: str) -> None:
    async def run() -> None:
        async with everthread.open_async(url, durability="process") as store:
            thread = await store.thread("bot")
            thread.messages.append({"id": "a", "content": "needle"})
            await thread.commit()
            (hit,) = await store.search("needle")
            assert (hit.thread, hit.id) == ("bot", "a")

    asyncio.run(run())


def test_index_and_scan_agree(url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over random histories the index, brought up to date bit by bit, finds what a scan does."""
    from everthread.search import query

    rng = random.Random(seed)
    with everthread.open(url, durability="process") as store:
        names = ["t0"]
        number = 0
        for _ in range(30):
            number = _change(store, rng, names, number)
            for word in rng.sample(WORDS, 3):
                prefix = rng.choice(("", *names))
                kept = found(store, word, limit=1000, prefix=prefix)
                with monkeypatch.context() as patched:
                    patched.setattr(query, "Indexed", query.Scan)
                    assert found(store, word, limit=1000, prefix=prefix) == kept, (seed, word, prefix)


def _change(store: Store, rng: random.Random, names: list[str], number: int) -> int:
    thread = store.thread(rng.choice(names))
    for _ in range(rng.randrange(1, 6)):
        number += 1
        text = " ".join(rng.choices(WORDS, k=3))
        thread.messages.append({"id": f"m{number}", "content": text})
        if rng.random() < 0.5:
            thread.state.setdefault("todos", {})[f"{rng.randrange(5)}"] = {"content": text}
    thread.commit()
    action = rng.random()
    if action < 0.2:
        thread.rewind(rng.choice(list(thread.history(limit=10))))
    elif action < 0.4:
        name = f"t{number}"
        thread.fork(name, at=rng.choice(list(thread.history(limit=10))))
        names.append(name)
    elif action < 0.5 and len(names) > 1:
        names.remove(thread.name)
        thread.delete()
    elif action < 0.6:
        thread.messages.truncate_from(thread.messages[len(thread.messages) // 2]["id"])
        thread.commit()
    return number


def test_a_restored_backup_is_indexed_anew(tmp_path: Path) -> None:
    """The positions of the versions that a restore took back come to hold other items."""
    with everthread.open(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
        thread = store.thread("bot")
        thread.messages.append({"id": "a", "content": "alpha"})
        thread.commit()
        store.backup(tmp_path / "backup.db")
        thread.messages.append({"id": "b", "content": "beta"})
        thread.commit()
        assert found(store, "beta") == {("bot", "message", "b")}
        store.restore(tmp_path / "backup.db")
        thread = store.thread("bot")
        thread.messages.append({"id": "c", "content": "gamma"})
        thread.commit()
        assert found(store, "gamma") == {("bot", "message", "c")}
        assert found(store, "beta") == set()


def test_only_what_is_new_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
        thread = store.thread("bot")
        thread.messages.extend({"id": f"m{n}", "content": f"number {n}"} for n in range(2000))
        thread.state["todos"] = {f"{n}": {"content": f"todo {n}"} for n in range(500)}
        thread.commit()
        assert len(store.search("number", limit=1000)) == 1000
        backend: Any = store.core.backend
        covered = []
        cover = backend.cover_texts

        def noted(space: str, update: Any) -> Any:
            covered.append(update)
            return cover(space, update)

        monkeypatch.setattr(backend, "cover_texts", noted)
        thread.messages.append({"id": "new", "content": "needle"})
        thread.state["todos"]["7"]["content"] = "needle"
        thread.commit()
        assert len(store.search("needle")) == 2
        assert store.search("needle")[0].excerpt == "needle"
        assert [(len(update.texts), len(update.gone)) for update in covered] == [(2, 1)]


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 500, None])
def test_an_index_that_is_damaged_or_gone_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    for _ in range(2):
        with everthread.open(url, durability="process") as store:
            thread = store.thread("bot")
            thread.messages.append({"id": "a", "content": "alpha"})
            thread.commit()
            assert found(store, "alpha") == {("bot", "message", "a")}
        index = tmp_path / "store.db-search"
        assert index.stat().st_mode & 0o077 == 0
        if damage is None:
            index.unlink()
        else:
            index.write_bytes(damage)


def test_the_index_holds_words_and_no_texts(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
        thread = store.thread("bot")
        thread.messages.append({"id": "a", "content": "the quick brown fox"})
        thread.commit()
        store.search("fox")
        store.core.backend.drop_texts()
        for path in tmp_path.glob("store.db-search*"):
            assert b"quick" not in path.read_bytes()
    assert found_again(tmp_path) == {("bot", "message", "a")}


def found_again(folder: Path) -> set[tuple[str, str, str]]:
    with everthread.open(f"sqlite:///{folder}/store.db") as store:
        return found(store, "fox")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_erasure_meanwhile_hides_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process empties the index between a search that brought it up to date and its question."""
    url = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else f"file://{tmp_path}/store"
    with everthread.open(url, keyring="memory:") as store, everthread.open(url, keyring="memory:") as other:
        thread = store.thread("bot")
        thread.messages.append({"id": "a", "content": "alpha"})
        thread.commit()
        backend: Any = store.core.backend
        find, emptied = backend.find_texts, list[str]()

        def meanwhile(space: str, wanted: Any) -> Any:
            if not emptied:
                emptied.append("once")
                other.erase("somebody")
                backend_of_other: Any = other.core.backend
                backend_of_other.drop_texts()
            return find(space, wanted)

        monkeypatch.setattr(backend, "find_texts", meanwhile)
        assert found(store, "alpha") == {("bot", "message", "a")}
        assert emptied


def test_threads_that_are_deleted_meanwhile_are_left_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with everthread.open(url, durability="process", keyring="memory:") as store:
        for name in ("one", "two"):
            thread = store.thread(name)
            thread.messages.append({"id": name, "content": "alpha"})
            thread.commit()
        backend: Any = store.core.backend
        lines = backend.lines

        def meanwhile(*args: Any) -> Any:
            page = lines(*args)
            if page:
                store.core.head_cache.clear()
                store.thread("one").delete()
            return page

        monkeypatch.setattr(backend, "lines", meanwhile)
        answer = store.search("alpha")
        assert {hit.thread for hit in answer} == {"two"}
        assert not answer.skipped


def test_who_fills_an_emptied_index_with_an_older_view_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listed the threads before the newest commit, and indexes them after an erasure emptied the index."""
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url, keyring="memory:") as store, everthread.open(url, keyring="memory:") as other:
        thread = store.thread("bot")
        thread.messages.append({"id": "a", "content": "alpha"})
        thread.commit()
        theirs: Any = other.core.backend
        (older,) = theirs.lines("", "", None, 10)
        thread.messages.append({"id": "b", "content": "beta"})
        thread.commit()
        backend: Any = store.core.backend
        find, done = backend.find_texts, list[str]()

        def meanwhile(space: str, wanted: Any) -> Any:
            if not done:
                done.append("once")
                theirs.drop_texts()
                indexer = Indexer(other.core)
                indexer.begin()
                indexer.cover(older)
            return find(space, wanted)

        monkeypatch.setattr(backend, "find_texts", meanwhile)
        assert found(store, "beta") == {("bot", "message", "b")}
        assert done


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_forks_share_is_indexed_once(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else f"file://{tmp_path}/s"
    index = tmp_path / ("s.db-search" if kind == "sqlite" else "s/search.index")

    def indexed() -> int:
        connection = apsw.Connection(str(index))
        ((count,),) = connection.execute("SELECT count(*) FROM text").fetchall()
        connection.close()
        return int(count)

    with everthread.open(url, durability="process") as store:
        thread = store.thread("source")
        for number in range(50):
            thread.messages.append({"id": f"m{number}", "content": f"invoice {number}"})
            thread.commit()
        assert len(store.search("invoice", limit=100)) == 50
        assert indexed() == 50
        for number in range(10):
            fork = thread.fork(f"fork {number}", at=40)
            fork.messages.append({"id": "own", "content": "invoice of its own"})
            fork.commit()
        below = store.thread("fork 3").fork("below")
        assert len(store.search("invoice", limit=100)) == 50 + 10
        assert indexed() == 50 + 10
        assert {hit.thread for hit in store.search("invoice 7")} == {"source"}
        assert {hit.thread for hit in store.search("invoice 7", prefix="fork 3")} == {"fork 3"}
        assert found(store, "invoice 45", prefix="fork") == set(), "not in the part that they share"
        assert found(store, "own", prefix="below") == {("below", "message", "own")}
        thread.messages.truncate_from("m5")
        thread.commit()
        assert {hit.thread for hit in store.search("invoice 7")} == {"fork 0"}, "the oldest that holds it"
        assert indexed() == 5 + 35 + 10
        thread.delete()
        assert {hit.thread for hit in store.search("invoice 3")} == {"fork 0"}
        assert indexed() == 40 + 10
        store.thread("fork 0").delete()
        assert {hit.thread for hit in store.search("invoice 3")} == {"fork 1"}
        for number in range(1, 10):
            store.thread(f"fork {number}").delete()
        assert {(hit.thread, hit.index) for hit in store.search("invoice 3")} == {("below", 3)}
        assert len(store.search("invoice", limit=100)) == 41 == indexed()
        below.delete()
        assert not store.search("invoice")
        assert indexed() == 0
