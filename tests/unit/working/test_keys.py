"""Todos and open loops that are added under a key exist once, whoever adds them and however often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.testing.faults import open_faulty

ADD = pytest.mark.parametrize(
    ("add", "found"),
    [
        (lambda state, text, key: state.add_todo(text, key=key), lambda state: state.todos),
        (lambda state, text, key: state.add_open_loop(text, key=key), lambda state: state.open_loops),
    ],
    ids=["todo", "open loop"],
)


@ADD
def test_the_same_key_again_is_the_same_item(add: Any, found: Any) -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        first = add(session.work, "reconcile March", "march")
        versions = session.thread.head
        assert add(session.work, "reconcile March, again", "march") == first
        assert session.thread.head == versions
        assert add(session.work, "reconcile April", "april").id != first.id
        assert add(session.work, "reconcile March", None).id != first.id
        assert len(found(session.work)) == 3


@ADD
def test_a_later_run_finds_the_item_of_an_earlier_one(add: Any, found: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as store, store.session("bot") as session:
        first = add(session.work, "reconcile", "k")
    with everthread.open(url) as store, store.session("bot") as session:
        assert add(session.work, "reconcile", "k") == first
        assert len(found(session.work)) == 1


@ADD
@pytest.mark.parametrize("landed", ["before", "after"])
def test_an_add_that_failed_and_is_repeated_adds_one(
    add: Any, found: Any, landed: str, tmp_path: Path
) -> None:
    store, faults = open_faulty(f"sqlite:///{tmp_path}/a.db")
    with store, store.session("bot") as session:
        faults.fail(f"append:{landed}")
        with pytest.raises(everthread.StorageWriteError):
            add(session.work, "reconcile", "k")
        add(session.work, "reconcile", "k")
        assert len(found(session.work)) == 1
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as again:
        assert len(found(everthread.WorkingState(store=again, thread="bot"))) == 1


@ADD
def test_two_that_add_at_once_get_the_item_of_the_first(add: Any, found: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as one, everthread.open(url) as two:
        first = everthread.WorkingState(store=one, thread="bot")
        second = everthread.WorkingState(store=two, thread="bot")
        add(first, "by the first", "k")
        add(second, "by the second", "k")
        first.save()
        second.save()
        for state in (second, everthread.WorkingState(store=one, thread="bot")):
            assert [item.text for item in found(state)] == ["by the first"]


def test_a_todo_that_another_process_completed_stays_completed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as one, everthread.open(url) as two, one.session("bot") as session:
        other = everthread.WorkingState(store=two, thread="bot")
        other.complete_todo(other.add_todo("reconcile", key="k"))
        other.save()
        assert session.work.add_todo("reconcile it", key="k").status == "completed"
        assert [todo.text for todo in session.work.todos] == ["reconcile"]


def test_async_states_agree_on_a_key() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store, store.session("bot") as session:
            todo = await session.work.add_todo("reconcile", key="k")
            assert await session.work.add_todo("reconcile", key="k") == todo
            loop = await session.work.add_open_loop("ask the auditor", key="k")
            assert await session.work.add_open_loop("ask", key="k") == loop

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "\0", 1])
def test_a_key_that_is_no_name_is_refused(key: Any) -> None:
    state = everthread.WorkingState()
    with pytest.raises(everthread.InvalidNameError):
        state.add_todo("reconcile", key=key)
    assert state.todos == []
