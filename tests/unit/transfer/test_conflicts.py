"""Bringing things into a store that holds others: stated rules, nothing overwritten, nothing half said."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread import Personal, Store
from everthread.errors import InvalidValueError, ThreadExistsError, UsageError
from everthread.stores.contract import DESTROYED, FINISHED, ErasedKey
from everthread.transfer.report import ImportReport


@pytest.fixture
def source() -> Store:
    store = everthread.open("memory:")
    thread = store.thread("bot")
    thread.state["n"] = 1
    thread.commit()
    thread.fork("fork of bot").fork("fork of that")
    with store.session("session") as session:
        session.call("paid", lambda: "done")
    store.thread("free").update(lambda draft: draft.state.update(n=2))
    store.events("tasks").extend([("made", {"n": 1}), ("done", {"n": Personal("u1", "secret")})])
    consumer = store.events("tasks").consumer("mailer")
    consumer.ack(consumer.poll()[0])
    store.users.set("u1", "email", "a@b")
    return store


@pytest.fixture
def target() -> Store:
    """A store in which three names and a person's data are taken."""
    store = everthread.open("memory:")
    for name in ("bot", "session"):
        store.thread(name).update(lambda draft: draft.state.update(other=True))
    store.events("tasks").append("other")
    store.users.set("u1", "email", "c@d")
    return store


def names(store: Store) -> list[str]:
    return [info.name for info in store.threads()]


def test_error_names_all_and_changes_nothing(source: Store, target: Store, tmp_path: Path) -> None:
    source.export(tmp_path / "a")
    before = target.stats().versions, names(target), len(target.events("tasks"))
    for bring in (lambda: target.import_from(tmp_path / "a"), lambda: source.copy_to(target)):
        with pytest.raises(ThreadExistsError) as raised:
            bring()
        for name in ("'bot'", "'session'", "'tasks'", "the same person"):
            assert name in str(raised.value)
        assert "'free'" not in str(raised.value)
        assert before == (target.stats().versions, names(target), len(target.events("tasks")))


def test_skip_leaves_out_what_belongs_together(source: Store, target: Store, tmp_path: Path) -> None:
    source.export(tmp_path / "a")
    report = target.import_from(tmp_path / "a", on_conflict="skip")
    assert names(target) == ["bot", "free", "session"]
    assert {"bot", "fork of bot", "fork of that", "session", "tasks"} < set(report.skipped)
    assert target.thread("bot").state["other"] is True
    assert target.users.get("u1", "email") == "c@d"
    assert [event.type for event in target.events("tasks")] == ["other"]
    assert target.events("tasks").consumer("mailer").position() == 0
    # No journal came without its session.
    assert target.gc(dry_run=True).companions == 0
    assert target.verify()


def test_rename_brings_all_under_other_names(source: Store, target: Store, tmp_path: Path) -> None:
    source.export(tmp_path / "a")
    report = target.import_from(tmp_path / "a", on_conflict="rename")
    assert report.renamed == {
        "bot": "bot (imported)",
        "session": "session (imported)",
        "tasks": "tasks (imported)",
    }
    assert target.thread("bot (imported)").head == source.thread("bot").head
    assert target.thread("fork of that").head == source.thread("bot").head
    assert [e.key for e in target.session_records("session (imported)").effects()] == ["paid"]
    moved = target.events("tasks (imported)")
    assert [(e.seq, e.type) for e in moved] == [(1, "made"), (2, "done")]
    assert moved.last is not None
    assert moved.last.data["n"].value == "secret"
    assert moved.consumer("mailer").position() == 1
    assert target.users.get("u1", "email") == "c@d"
    assert target.verify()
    again = target.import_from(tmp_path / "a", on_conflict="rename")
    assert (again.threads, again.versions, again.present) == (0, 0, 5)


def test_long_names_stay_names() -> None:
    long = "é" * 512
    with everthread.open("memory:") as a, everthread.open("memory:") as b:
        for store in (a, b):
            store.thread(long).update(lambda draft: draft.state.update(n=1))
        (new,) = a.copy_to(b, on_conflict="rename").renamed.values()
        assert len(new.encode()) <= 1024
        assert names(b) == sorted([long, new])


def test_what_was_deleted_here_stays_deleted(source: Store, tmp_path: Path) -> None:
    source.export(tmp_path / "a")
    with everthread.open("memory:") as target:
        target.import_from(tmp_path / "a")
        target.thread("free").delete()
        report = target.import_from(tmp_path / "a")
        assert "deletion is final" in report.skipped["free"]
        assert "free" not in names(target)
        # The same name, of another thread, is no obstacle.
        target.thread("free").update(lambda draft: draft.state.update(new=True))
        target.import_from(tmp_path / "a")
        assert target.thread("free").state["new"] is True


def test_what_has_no_name_is_told_in_words(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        with store.session("bot") as session:
            session.call("paid", lambda: 1)
        store.thread("bot").fork("what-if")
        store.users.set("dan", "city", "D")
        (key_id,) = store.core.vault.keyring.key_ids("dan")
        store.export(tmp_path / "archive")
        store.thread("what-if").delete()
        store.users.delete_user("dan")
        report = store.import_from(tmp_path / "archive")
        person = f"the user data of a person (key {key_id.hex()})"
        # The journal of what-if went with it: that isn't told twice, nor by an id.
        assert set(report.skipped) == {"what-if", person}
        assert f"; {person} was left out: it was deleted here" in str(report)
        store.thread("bot").delete()
        assert set(store.import_from(tmp_path / "archive").skipped) == {"bot", "what-if", person}
    with everthread.open(f"sqlite:///{tmp_path}/b.db") as other:
        other.users.set("dan", "city", "another")
        with pytest.raises(ThreadExistsError, match="because of the user data of a person"):
            other.import_from(tmp_path / "archive")


def test_a_journal_that_is_left_out_is_called_after_its_thread(tmp_path: Path) -> None:
    """Its thread comes, and what it called is not known here: somebody has to know."""
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        with store.session("bot") as session:
            session.call("paid", lambda: 1)
        store.export(tmp_path / "archive")
        backend = store.core.backend
        thread = backend.find("", "bot")
        assert thread is not None
        journal = backend.find("\0journal", thread.line.uid.hex())
        assert journal is not None
        backend.delete(journal.line)
        report = store.import_from(tmp_path / "archive")
        assert list(report.skipped) == ["the journal of 'bot'"]
        assert "the journal of 'bot' was left out: it was deleted here" in str(report)


def test_one_key_that_is_missing() -> None:
    assert "1 key of personal values isn't in the keyring here" in str(ImportReport(keys_missing=1))
    assert "2 keys of personal values aren't in the keyring here" in str(ImportReport(keys_missing=2))


def test_forks_of_a_deleted_thread_keep_their_past(tmp_path: Path) -> None:
    with everthread.open("memory:") as source, everthread.open(f"sqlite:///{tmp_path}/t.db") as target:
        thread = source.thread("name")
        for number in range(100):
            thread.messages.append({"content": str(number)})
            thread.commit()
        thread.fork("fork", at=90)
        thread.delete()
        again = source.thread("name")
        again.state["second"] = True
        again.commit()
        source.copy_to(target)
        assert names(target) == ["fork", "name"]
        assert target.thread("name").state["second"] is True
        assert len(target.thread("fork").messages) == 90
        assert list(target.thread("fork").history(limit=None)) == list(
            source.thread("fork").history(limit=None)
        )
        assert target.verify()
        assert source.copy_to(target).versions == 0
        # From there to a third, and nobody finds what was deleted.
        with everthread.open("memory:") as third:
            target.copy_to(third)
            assert names(third) == ["fork", "name"]
            assert third.verify()


def test_namespaces_go_where_they_came_from(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    for space in ("", "a", "b"):
        with everthread.open(url, namespace=space) as store:
            store.thread("same").update(lambda draft, s=space: draft.state.update(space=s))  # type: ignore[misc]
            store.users.set("u", "k", space)
    with everthread.open(url, namespace="a") as store:
        assert store.export(tmp_path / "a").threads == 1
    with everthread.open(url) as store:
        assert store.export(tmp_path / "all", every_namespace=True).threads == 3
    with everthread.open(f"sqlite:///{tmp_path}/t.db") as store:
        with pytest.raises(UsageError, match="namespace 'a'"):
            store.import_from(tmp_path / "a")
        with pytest.raises(UsageError, match="every namespace"):
            store.import_from(tmp_path / "all")
        assert names(store) == []
        store.import_from(tmp_path / "all", every_namespace=True)
    for space in ("", "a", "b"):
        with everthread.open(f"sqlite:///{tmp_path}/t.db", namespace=space) as store:
            assert store.thread("same").state["space"] == space
            assert store.users.get("u", "k") == space


def test_wrong_calls_are_named(source: Store) -> None:
    with pytest.raises(InvalidValueError, match="on_conflict"):
        source.copy_to(source, on_conflict="overwrite")
    with pytest.raises(UsageError, match="same colour"):
        source.copy_to("sqlite:///x.db")  # type: ignore[arg-type]
    with everthread.open("memory:", namespace="x") as other, pytest.raises(UsageError, match="namespace"):
        source.copy_to(other)
    assert source.copy_to(source).versions == 0


def test_who_was_erased_stays_erased(tmp_path: Path) -> None:
    """In the archive's store, or in the one that it is brought to: either way nothing comes back."""
    with everthread.open("memory:") as store:
        key_id = store.core.vault.keyring.key_for("u1").key_id
    gone = ErasedKey(key_id=key_id, phase=DESTROYED, erasure=b"e" * 16, noted_us=5)
    with everthread.open("memory:") as source, everthread.open("memory:") as target:
        for store in (source, target):
            store.thread(f"of {store is source}").update(
                lambda draft: draft.state.update(a=Personal("u1", "x"), b=Personal("u2", "y"))
            )
        source.export(tmp_path / "before")
        source.core.backend.note_erasures([gone])
        report = source.export(tmp_path / "after")
        assert report.sealed == 1
        with everthread.open("memory:") as fresh:
            assert fresh.import_from(tmp_path / "after").sealed == 1
            (entry,) = fresh.core.backend.erasures()
            assert (entry.key_id, entry.phase, entry.noted_us) == (key_id, FINISHED, 5)
            # An archive from before brings nothing of theirs, and the rest.
            with everthread.open("memory:") as other:
                other.core.backend.note_erasures([gone])
                assert other.import_from(tmp_path / "before").sealed == 1
                assert other.verify()
        assert len(target.core.backend.sealed_under([key_id], b"", 9)) == 1
        target.import_from(tmp_path / "after")
        assert target.core.backend.sealed_under([key_id], b"", 9) == []
        # What was here is purged as well: the erasure is finished here.
        assert [entry.phase for entry in target.core.backend.erasures()] == [FINISHED]
        assert target.thread("of True").state["b"].value == "y"
