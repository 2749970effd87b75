"""Bugs that were found and mended, each by the shortest program that showed it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread as e
from everthread.keyring.keyring import MemoryKeyring
from everthread.stores.sqlite import store as sqlite_backend

Open = Callable[..., e.Store]


@pytest.fixture
def new(tmp_path: Path) -> Open:
    def opened(**options: Any) -> e.Store:
        return e.open(f"sqlite:///{tmp_path}/{uuid.uuid4().hex}.db", **options)

    return opened


def thread_with(store: e.Store, name: str, **state: Any) -> e.Thread:
    thread = store.thread(name)
    thread.state.update(state)
    thread.commit()
    return thread


def failing_once(store: e.Store, verb: str) -> None:
    """The next write lands, its answer is lost."""
    backend: Any = store.core.backend
    real = getattr(backend, verb)

    def once(*args: Any) -> None:
        setattr(backend, verb, real)
        real(*args)
        raise e.StorageWriteError("fsync failed")

    setattr(backend, verb, once)


def test_a_key_is_seen_while_another_process_folds(new: Open) -> None:
    store = new()
    a = thread_with(store, "t", n=0)
    a.state.increment("n")
    a.commit(key="k")
    with a.step("pay") as step:
        step.result = "paid"
    fold = store.core.maintain
    store.core.maintain = lambda line, head: head  # type: ignore[method-assign]
    for i in range(63):
        a.state["z"] = i
        a.commit()
    other = e.open(store.url)
    backend: Any = other.core.backend
    b = other.thread("t")
    assert b.head is not None
    keyed = backend.keyed

    def folding_in_between(*args: Any) -> Any:
        found = keyed(*args)
        backend.keyed = keyed
        assert a.handle.line is not None
        assert a.handle.head is not None
        fold(a.handle.line, a.handle.head)
        return found

    backend.keyed = folding_in_between
    b.state.increment("n")
    version = b.commit(key="k")
    assert version is not None
    assert (version.seq, b.state["n"]) == (2, 1)
    with b.step("pay") as again:
        assert again.done


def test_restoring_a_newer_backup_touches_nothing(new: Open, tmp_path: Path) -> None:
    store = new()
    thread = thread_with(store, "a", x=1)
    store.backup(tmp_path / "backup.db")
    connection = apsw.Connection(str(tmp_path / "backup.db"))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    thread.state["x"] = "precious"
    thread.commit()
    with pytest.raises(e.SchemaVersionError):
        store.restore(tmp_path / "backup.db")
    assert e.open(store.url).thread("a").state["x"] == "precious"


def test_after_a_restore_an_old_handle_finds_no_stranger(new: Open, tmp_path: Path) -> None:
    store = new()
    thread_with(store, "a", x=1)
    store.backup(tmp_path / "backup.db")
    old = thread_with(store, "old", x=1)
    store.restore(tmp_path / "backup.db")
    thread_with(store, "victim", secret=1)
    old.messages.append({"id": "1"})
    with pytest.raises(e.ThreadDeletedError):
        old.commit()
    assert store.thread("old").head is None
    assert [info.name for info in store.threads()] == ["a", "victim"]


def test_a_personal_value_travels_with_its_bytes(new: Open) -> None:
    keyring = MemoryKeyring()
    store = new(keyring=keyring)
    a, b = store.thread("a"), store.thread("b")
    a.state["p"] = e.Personal("u", "secret")
    kept = a.state["p"]
    a.discard()
    b.state["p"] = kept
    b.commit()
    assert store.thread("b").state["p"].value == "secret"
    elsewhere = new(keyring=keyring, namespace="tenant-2")
    c = elsewhere.thread("c")
    c.state["p"] = store.thread("b").state["p"]
    c.commit()
    assert elsewhere.thread("c").state["p"].value == "secret"


def test_a_personal_value_read_before_the_key_was_destroyed_is_not_stored_again(new: Open) -> None:
    keyring = MemoryKeyring()
    a = new(keyring=keyring).thread("a")
    a.state["p"] = e.Personal("u", "x")
    a.messages.append({"id": "1", "c": e.Personal("u", "x")})
    a.commit()
    kept = a.state["p"]
    a.state["q"] = kept
    keyring.destroy("u")
    with pytest.raises(e.SealError):
        a.commit()
    a.discard()
    a.messages.append({"id": "1", "c": e.Personal("u", "x")})
    assert not a.dirty, "against an erased item the same id is a no-op"
    with pytest.raises(e.SealError):
        a.commit(metadata={"who": kept})


def test_merging_back_and_forth_loses_no_deletion() -> None:
    store = e.open("memory:")
    a = store.thread("a")
    for i in range(20):
        a.state["n"] = i
        a.commit()
    b = a.fork("b")
    b.state.update({"d": 1, "k": 1})
    b.commit()
    for i in range(10):
        a.state["n"] = 100 + i
        a.commit()
    assert b.merge(a)
    assert a.merge(b)
    del b.state["d"]
    b.commit()
    assert a.merge(b)
    assert "d" not in a.state
    b.state["k"] = 2
    b.commit()
    assert a.merge(b)
    assert a.state["k"] == 2


def test_merging_goes_on_after_a_merged_thread_was_deleted(new: Open) -> None:
    store = new()
    a = thread_with(store, "a", x=0)
    x = a.fork("x")
    x.state["y"] = 1
    x.commit()
    x.rewind(2)
    x.state["z"] = 1
    x.commit()
    a.merge(x)
    x.delete()
    b = a.fork("b")
    b.state["w"] = 1
    b.commit()
    a.state["v"] = 1
    a.commit()
    assert a.merge(b)
    assert a.state.plain() == {"x": 0, "y": 1, "z": 1, "v": 1, "w": 1}
    assert store.verify().ok


def test_a_document_larger_than_one_payload_opens_again(new: Open) -> None:
    store = new(limits=e.Limits(payload_bytes_max=100_000), durability="process")
    thread = store.thread("t")
    for i in range(9):
        thread.state[str(i)] = os.urandom(60_000)
        thread.commit()
    assert len(e.open(store.url).thread("t").state) == 9
    thread.state["x"] = os.urandom(120_000)
    with pytest.raises(e.LimitError):
        thread.commit()


def test_ids_of_every_type_are_recognised(new: Open) -> None:
    store = new()
    a = thread_with(store, "a", x=1)
    b = store.thread("a")
    assert b.head is not None
    name = uuid.UUID(int=1)
    assert a.messages.append({"id": name, "c": 1}) == name
    assert a.messages.append({"id": name, "c": 1}) == name
    assert len(a.messages) == 1
    with pytest.raises(e.InvalidValueError):
        a.messages.append({"id": name, "c": 2})
    a.commit()
    b.messages.append({"id": "mine"})
    b.rebase()
    b.commit()
    assert [m["id"] for m in b.messages] == [name, "mine"]


def test_a_zombie_whose_handle_moved_is_still_fenced(new: Open) -> None:
    store = new()
    thread_with(store, "a", x=0)
    first, second = store.thread("a"), store.thread("a")
    zombie = first.step("k", attempt=1).__enter__()
    with second.step("k", attempt=2) as winner:
        winner.result = "winner"
    first.refresh()
    zombie.result = "zombie"
    with pytest.raises(e.FencedError):
        zombie.__exit__(None, None, None)


def test_rebase_knows_a_commit_whose_answer_was_lost(new: Open) -> None:
    store = new()
    thread = thread_with(store, "t", n=0)
    thread.state.increment("n")
    thread.log("z").append("plain")
    failing_once(store, "append")
    with pytest.raises(e.StorageWriteError):
        thread.commit()
    thread_with(store, "t", other=1)
    thread.rebase()
    thread.commit()
    assert thread.state.plain() == {"n": 1, "other": 1}
    assert thread.log("z")[:] == ["plain"]


def test_a_lost_answer_to_a_rewind_or_a_first_commit_is_recognised(new: Open) -> None:
    store = new()
    thread = thread_with(store, "t", a=1)
    thread.state["a"] = 2
    thread.commit()
    failing_once(store, "append")
    with pytest.raises(e.StorageWriteError):
        thread.rewind(1)
    assert thread.rewind(1).seq == 3
    first = store.thread("new")
    first.state["a"] = 1
    failing_once(store, "create")
    with pytest.raises(e.StorageWriteError):
        first.commit()
    version = first.commit()
    assert version is not None
    assert version.seq == 1


def test_deleting_the_last_fork_removes_what_only_it_reached(new: Open) -> None:
    store = new()
    a = thread_with(store, "a", x="secret")
    f = a.fork("f")
    f.state["y"] = 1
    f.commit()
    a.delete()
    assert store.thread("f").state.plain() == {"x": "secret", "y": 1}
    store.thread("f").delete()
    backend: Any = store.core.backend
    with backend._reading() as db:
        assert db.execute("SELECT count(*) FROM record WHERE kind <> 3").fetchall() == [(0,)]


def test_a_fork_never_sees_its_parents_later_items(new: Open) -> None:
    store = new(durability="process")
    a = store.thread("a")
    for n in range(10):
        a.messages.append({"id": f"a{n}"})
        a.commit()
    f = a.fork("f", at=5)
    f.messages.append({"id": "f"})
    f.commit()
    for n in range(10, 100):
        a.messages.append({"id": f"a{n}"})
        a.commit()
    assert [m["id"] for m in f.messages] == ["a0", "a1", "a2", "a3", "a4", "f"]
    assert [m["id"] for m in f.at(2).messages] == ["a0", "a1"]


def test_reading_never_repeats_an_item() -> None:
    thread = e.open("memory:").thread("a")
    for n in range(400):
        thread.messages.append({"id": str(n), "content": "x" * 1000})
        thread.commit()
        if n % 7 == 0:
            assert [m["id"] for m in thread.messages[:]] == [str(i) for i in range(n + 1)]


def test_metadata_is_found_whatever_the_order_of_its_keys(new: Open) -> None:
    store = new()
    thread_with(store, "a", x=1).commit(metadata={"m": {"a": 1, "b": 2}})
    assert [info.name for info in store.threads(metadata={"m": {"b": 2, "a": 1}})] == ["a"]
    with pytest.raises(e.InvalidNameError):
        store.threads(prefix="\ud800")


def test_a_commit_from_a_signal_handler_is_not_lost_with_the_write_it_interrupts(
    new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new()
    thread, saved = store.thread("t"), thread_with(store, "saved on SIGTERM", x=0)
    for i in range(64):
        thread.state["n"] = i
        thread.commit()
    insert = sqlite_backend._add_chunks
    refused: list[e.EverthreadError] = []

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(sqlite_backend, "_add_chunks", insert)
        saved.state["x"] = "precious"
        try:
            saved.commit()
        except e.StoreBusyError as error:
            refused.append(error)
        insert(*args)

    monkeypatch.setattr(sqlite_backend, "_add_chunks", interrupted)
    thread.state["n"] = 99
    thread.commit()
    assert len(refused) == 1, "refused at once rather than acknowledged inside another transaction"
    saved.commit()
    assert e.open(store.url).thread("saved on SIGTERM").state["x"] == "precious"
    assert store.verify().ok


def test_another_verb_is_not_taken_for_a_commit_that_landed(new: Open) -> None:
    store = new()
    thread = thread_with(store, "a", x=1)
    thread.state["x"] = 2
    thread.commit()
    failing_once(store, "append")
    with pytest.raises(e.StorageWriteError):
        thread.commit(label="l")
    assert thread.rewind(1).kind == "rewind"
    assert thread.state["x"] == 1
    failing_once(store, "append")
    with pytest.raises(e.StorageWriteError):
        thread.commit(label="m")
    version = thread.commit(label="n")
    assert version is not None
    assert version.label == "n"


def test_personal_values_are_copied_with_their_seal(new: Open) -> None:
    store = new(keyring="memory:")
    thread = store.thread("a")
    thread.messages.append({"id": "1", "p": e.Personal("v", 1)})
    thread.state["box"] = {"p": e.Personal("v", 2)}
    box = thread.state["box"]
    thread.commit()
    fork = thread.fork("b", transform=lambda message: {**message, "seen": True})
    assert fork.messages[0]["p"].value == 1
    thread.discard()
    thread.state["again"] = box
    thread.commit()
    assert store.thread("a").state["again"]["p"].value == 2


def test_hundreds_of_slots_land_in_call_order() -> None:
    """More than are looked at in one go; the last slots finish first, and the first one at the end."""
    with e.open("memory:") as store:
        thread = store.thread("a")
        for slot in (*range(300, 0, -1), 0):
            with thread.step("tools", slot=slot) as step:
                step.messages.append({"id": f"slot {slot}"})
                step.result = slot
        assert [item["id"] for item in thread.messages] == [f"slot {slot}" for slot in range(301)]


def test_the_result_of_a_step_is_named_as_it_is_written(new: Open) -> None:
    with new() as store:
        with pytest.raises(e.InvalidValueError) as refused, store.thread("t").step("k") as step:
            step.result = {"when": object()}
        assert refused.value.path == "step.result.when"
