"""A restored backup and the effects that were called after it was made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import ConflictError, InDoubtError, SessionFencedError, StorageWriteError, Store
from tests.unit.sessions.faulty import faulty_store

Opened = Callable[..., Store]


@pytest.fixture(params=["sqlite", "files"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agent.db"
    if request.param == "files":
        return f"file://{tmp_path}/store"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def opened(url: str, **options: Any) -> Store:
    return everthread.open(url, durability="process", keyring="memory:", **options)


def pay(store: Store, *keys: str, thread: str = "bot") -> list[str]:
    """The keys whose function was called."""
    called: list[str] = []
    with store.session(thread) as session:
        for key in keys:
            session.call(key, called.append, key)
    return called


def test_effects_after_the_backup_are_in_doubt(url: str, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with opened(url) as store:
        pay(store, "one")
        pay(store, "one", thread="calm")
        store.backup(backup)
        pay(store, "two")
        report = store.restore(backup)
        assert report.doubtful == ("bot",)
        records = store.session_records("bot")
        assert records is not None
        assert records.losses is not None
        assert "a backup was restored" in records.losses.why
        assert pay(store, "another", thread="calm") == ["another"], "nothing of it was lost"
    with opened(url) as store:
        with pytest.raises(InDoubtError, match="lost records"):
            pay(store, "two")
        assert pay(store, "one") == [], "what is known stays known"
        with store.session("bot") as session:
            assert session.call("two", pytest.fail, "two", verify=lambda _: True) is None
        assert store.accept_loss("bot")
        assert pay(store, "two", "three") == ["three"]
        assert store.verify().ok


def test_what_the_backup_knows_nothing_of_is_in_doubt(url: str, tmp_path: Path) -> None:
    """Threads, and ledgers of threads, that came after it."""
    backup = tmp_path / "backup"
    with opened(url) as store:
        store.thread("early").commit(label="there is no ledger yet")
        store.backup(backup)
        pay(store, "one", thread="early")
        pay(store, "one", thread="late")
        assert store.restore(backup).doubtful == ("early", "late")
        assert [found.name for found in store.threads()] == ["early"]
        for thread in ("early", "late"):
            with pytest.raises(InDoubtError, match="lost records"):
                pay(store, "one", thread=thread)
            assert store.accept_loss(thread)
            assert pay(store, "one", thread=thread) == ["one"]
        store.thread("late").delete()
        assert pay(store, "one", thread="late") == ["one"], "another thread that has nothing to do with it"
        assert store.verify().ok


def test_forks_of_a_restored_thread_know(url: str, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with opened(url) as store:
        pay(store, "one")
        store.backup(backup)
        pay(store, "two")
        store.restore(backup)
        store.thread("bot").fork("twin")
        with pytest.raises(InDoubtError):
            pay(store, "two", thread="twin")


def test_one_backup_after_another(url: str, tmp_path: Path) -> None:
    """Of two backups that went different ways neither knows what the other one does."""
    with opened(url) as store:
        pay(store, "one")
        store.backup(tmp_path / "first")
        pay(store, "two", "three")
        store.backup(tmp_path / "second")
        assert store.restore(tmp_path / "first").doubtful == ("bot",)
        # Twice: what was known before the first time isn't forgotten.
        assert store.restore(tmp_path / "first").doubtful == ("bot",)
        assert store.accept_loss("bot")
        pay(store, "four")
        assert store.restore(tmp_path / "second").doubtful == ("bot",)
        with pytest.raises(InDoubtError):
            pay(store, "four")
        assert pay(store, "two", "three") == []


def test_a_thread_that_was_deleted_comes_back_in_doubt(url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        pay(store, "one")
        store.backup(tmp_path / "backup")
        pay(store, "two")
        store.thread("bot").delete()
        assert store.restore(tmp_path / "backup").doubtful == ("bot",)
        with pytest.raises(InDoubtError):
            pay(store, "two")


def test_nothing_is_in_doubt_where_nothing_was_lost(url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        pay(store, "one")
        store.backup(tmp_path / "backup")
        assert store.restore(tmp_path / "backup").doubtful == ()
        assert pay(store, "two") == ["two"]
        assert store.verify().ok


def test_other_namespaces_are_restored_and_doubted_as_well(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with opened(url) as store, opened(url, namespace="a") as other:
        pay(other, "one")
        store.backup(tmp_path / "backup")
        pay(other, "two")
        pay(other, "two", thread="late")
        assert store.restore(tmp_path / "backup").doubtful == ("bot", "late")
        for thread in ("bot", "late"):
            with pytest.raises(InDoubtError):
                pay(other, "two", thread=thread)


def test_a_session_from_before_must_stop(url: str, tmp_path: Path) -> None:
    """Also if the backup was made while it ran, so that its lease came back."""
    called: list[str] = []
    with opened(url) as store:
        session = store.session("bot")
        session.call("one", called.append, "one")
        with opened(url) as other:
            other.backup(tmp_path / "backup")
            session.call("two", called.append, "two")
            session.messages.append({"id": "after the backup"})
            other.restore(tmp_path / "backup")
        for key in ("two", "three"):
            with pytest.raises(SessionFencedError, match=r"restored from a backup .* open the session anew"):
                session.call(key, called.append, key)
        with pytest.raises(SessionFencedError, match="restored from a backup"):
            session.work.add_todo("mixed")
        with pytest.raises(SessionFencedError, match="restored from a backup"):
            session.messages.append({"id": "mixed"})
        with pytest.raises(SessionFencedError, match="restored from a backup"):
            session.heartbeat()
        with pytest.raises(SessionFencedError):
            session.close()
        assert called == ["one", "two"]
        with store.session("bot") as again:
            assert len(again.messages) == 0
            assert not again.work.todos
            with pytest.raises(InDoubtError):
                again.call("two", called.append, "two")


def test_a_session_of_which_nothing_was_lost_must_stop_as_well(url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        session = store.session("bot")
        with opened(url) as other:
            other.backup(tmp_path / "backup")
            assert other.restore(tmp_path / "backup").doubtful == ()
        with pytest.raises(SessionFencedError, match="restored from a backup"):
            session.call("one", pytest.fail, "called")
        with pytest.raises(SessionFencedError):
            session.close()


def test_a_mark_that_the_backup_has_is_made_anew(url: str, tmp_path: Path) -> None:
    """What was known not to have happened when the backup was made may have happened since."""

    def refuse(key: str) -> None:
        raise ConnectionRefusedError(key)

    with opened(url) as store:
        pay(store, "one")
        store.backup(tmp_path / "first")
        pay(store, "two")
        store.restore(tmp_path / "first")
        with store.session("bot") as session:
            with pytest.raises(ConnectionRefusedError):
                session.call("two", refuse, "two", verify=lambda _: False, retry_on=ConnectionRefusedError)
            store.backup(tmp_path / "second")
            assert session.call("two", str, "two") == "two"
        assert store.restore(tmp_path / "second").doubtful == ("bot",)
        with pytest.raises(InDoubtError):
            pay(store, "two")


def test_a_run_that_only_the_backup_knows_holds_nothing(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/agent.db") as store, store.session("bot") as session:
        store.backup(tmp_path / "backup")
        with opened(f"sqlite:///{tmp_path}/other.db") as copy:
            copy.restore(tmp_path / "backup", nothing_since=True)
            assert pay(copy, "one") == ["one"], "the run is at work on another store"
        session.heartbeat()


def test_handles_from_before_take_only_what_is_uncommitted_along(url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        work, thread = everthread.WorkingState(store=store, thread="work"), store.thread("plain")
        work.add_todo("before")
        work.save()
        thread.state["n"] = 1
        thread.commit()
        store.backup(tmp_path / "backup")
        work.add_todo("after")
        work.save()
        thread.state["n"] = 2
        thread.commit()
        with opened(url) as other:
            other.restore(tmp_path / "backup")
        work.add_todo("uncommitted")
        work.save()
        assert [todo.content for todo in work.todos] == ["before", "uncommitted"]
        thread.state["more"] = True
        with pytest.raises(ConflictError):
            thread.commit()
        thread.rebase()
        thread.commit()
        assert store.thread("plain").state.plain() == {"n": 1, "more": True}
        assert thread.state.plain() == {"n": 1, "more": True}


def test_a_restore_that_dies_before_it_has_marked_anything(tmp_path: Path) -> None:
    """The content is replaced, and nothing after that happened: what is known stands in it already."""
    store, faulty = faulty_store(tmp_path / "agent.db")
    with store:
        pay(store, "one")
        store.backup(tmp_path / "backup")
        pay(store, "two")
        pay(store, "two", thread="late")
        faulty.fail(0, landing=True, only=frozenset({"restore"}))
        with pytest.raises(StorageWriteError):
            store.restore(tmp_path / "backup")
        for thread in ("bot", "late"):
            with pytest.raises(InDoubtError):
                pay(store, "two", thread=thread)


def test_an_async_store_is_restored_alike(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with opened(url) as store:
        pay(store, "one")
        store.backup(tmp_path / "backup")
        pay(store, "two")

    async def restore() -> None:
        async with everthread.open_async(url, keyring="memory:") as store:
            report = await store.restore(tmp_path / "backup")
            assert report.doubtful == ("bot",)

    asyncio.run(restore())
    with opened(url) as store, pytest.raises(InDoubtError):
        pay(store, "two")


def test_those_who_were_erased_since_are_counted(url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        for subject in ("anna", "bert", "carl"):
            store.users.set(subject, "email", f"{subject}@example.org")
        store.erase("carl")
        store.backup(tmp_path / "backup")
        assert store.restore(tmp_path / "backup").erased == 0
        store.erase("anna")
        assert store.restore(tmp_path / "backup").erased == 1
        assert store.users.get("anna", "email") is None
        assert store.users.get("bert", "email") == "bert@example.org"
