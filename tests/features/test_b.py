"""B: state as an engineering discipline (the rows that the core itself answers for)."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pydantic
import pytest

import everthread
from everthread import ConflictError, Store, ValidationError


def test_B1_memory_and_durable_have_the_same_api(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/b1.db"
    for where, survives in (("memory:", False), (url, True)):
        with everthread.open(where) as store:
            thread = store.thread("bot")
            thread.state["phase"] = "reconcile"
            thread.messages.append({"role": "user", "content": "hello"})
            thread.commit()
        with everthread.open(where) as store:
            again = store.thread("bot")
            assert (again.head is not None) is survives
            assert again.state.plain() == ({"phase": "reconcile"} if survives else {})


def test_B6_readers_go_on_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "b6.db"
    url = f"sqlite:///{path}"
    with everthread.open(url) as store:
        thread = store.thread("t")
        thread.state["n"] = 0
        thread.commit()
        program = (
            "import everthread, sys\n"
            f"t = everthread.open({url!r}).thread('t')\n"
            "for i in range(300):\n"
            "    t.state['n'] = i\n"
            "    t.messages.append({'i': i})\n"
            "    t.commit()\n"
        )
        child = subprocess.Popen([sys.executable, "-c", program])
        seen = set()
        while child.poll() is None:
            handle = store.thread("t")
            # A reader sees whole versions only: the counter and the log always agree.
            n, length = handle.state["n"], len(handle.messages)
            assert length in (0, n + 1)
            seen.add(n)
        assert child.returncode == 0
        assert store.thread("t").state["n"] == 299
        assert len(seen) > 1


def test_B6_wal_foreign_keys_and_queries_by_several_criteria(tmp_path: Path) -> None:
    import apsw

    with everthread.open(f"sqlite:///{tmp_path}/b6.db") as store:
        for name, run, kind in (("a-1", "r1", "bot"), ("a-2", "r1", "tool"), ("b-1", "r1", "bot")):
            thread = store.thread(name)
            thread.state["x"] = 1
            thread.commit(metadata={"run": run, "kind": kind})
        found = store.threads(prefix="a-", metadata={"run": "r1", "kind": "bot"})
        assert [info.name for info in found] == ["a-1"]
        # The newest value counts, also before anything was folded.
        thread = store.thread("a-1")
        thread.commit(metadata={"run": "r2"})
        assert [t.name for t in store.threads(metadata={"run": "r1", "kind": "bot"})] == ["b-1"]
        assert [t.name for t in store.threads(metadata={"run": "r2", "kind": "bot"})] == ["a-1"]
        # Filters are values: what looks like SQL matches nothing and breaks nothing.
        assert list(store.threads(metadata={"run' OR 1=1 --": "x"})) == []
        connection = apsw.Connection(f"{tmp_path}/b6.db")
        assert connection.pragma("journal_mode") == "wal"
        connection.close()
        with store._core.backend._reading() as db:  # type: ignore[attr-defined]
            assert db.pragma("foreign_keys") == 1


class Invoice(pydantic.BaseModel):
    total: int
    lines: list[str] = []


def test_B10_a_violation_names_the_path_and_commits_nothing(store: Store) -> None:
    schema = {
        "type": "object",
        "properties": {"todos": {"type": "array", "items": {"properties": {"n": {"type": "integer"}}}}},
    }
    for name, rule, good, bad, path in (
        ("json", schema, {"todos": [{"n": 1}]}, {"todos": [{"n": 1}, {"n": "two"}]}, "state.todos[1].n"),
        ("model", Invoice, {"total": 3}, {"total": "many"}, "state.total"),
    ):
        thread = store.thread(name, schema=rule)
        thread.state.update(good)
        first = thread.commit()
        thread.state.update(bad)
        with pytest.raises(ValidationError) as caught:
            thread.commit()
        assert caught.value.path == path
        assert path in str(caught.value)
        assert store.thread(name).head == first
        thread.discard()
        assert thread.state.plain() == good


def test_B10_unknown_fields_survive_a_round_trip(store: Store) -> None:
    thread = store.thread("tolerant", schema=Invoice)
    thread.state.update({"total": 1, "added_by_a_newer_version": {"deep": [1, 2]}})
    thread.commit()
    other = store.thread("tolerant")
    other.state["total"] = 2
    other.commit()
    assert store.thread("tolerant").state["added_by_a_newer_version"].plain() == {"deep": [1, 2]}


def test_B12_read_modify_write_loses_nothing(store: Store) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            thread = store.thread("counter")
            for i in range(25):

                def add(draft: everthread.threads.sync.draft.Draft, i: int = i) -> None:  # type: ignore[name-defined]
                    draft["n"] = draft.get("n", 0) + 1
                    draft.messages.append({"id": f"{worker}-{i}"})

                thread.update(add)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    thread = store.thread("counter")
    assert thread.state["n"] == 100
    assert len({m["id"] for m in thread.messages}) == len(thread.messages) == 100


def test_B12_the_loser_keeps_its_changes_and_may_rebase(store: Store) -> None:
    first, second = store.thread("t"), store.thread("t")
    first.state["a"] = 1
    first.commit()
    second.refresh()
    first.state["b"] = 2
    theirs = first.commit()
    second.state["c"] = 3
    second.messages.append({"id": "m", "content": "mine"})
    with pytest.raises(ConflictError) as caught:
        second.commit()
    assert caught.value.actual == theirs
    assert second.state["c"] == 3
    second.rebase()
    second.commit()
    assert store.thread("t").state.plain() == {"a": 1, "b": 2, "c": 3}
    assert [m["id"] for m in store.thread("t").messages] == ["m"]
