"""What other session systems got wrong, one test each (../shared/research/threads.md)."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidStateError, InvalidValueError, StorageWriteError, Store, ThreadExistsError
from tests.unit.sessions.faulty import faulty_store


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with everthread.open(f"sqlite:///{tmp_path}/f.db", durability="process", keyring="memory:") as store:
        yield store


@pytest.mark.parametrize("landing", [False, True])
def test_retrying_the_first_append_keeps_the_system_prompt(tmp_path: Path, landing: bool) -> None:
    for number in range(6):
        store, faulty = faulty_store(tmp_path / f"{number}.db")
        with store:
            faulty.fail(number, landing=landing)
            for _ in range(2):
                try:
                    with store.session("s", system="be brief") as session:
                        session.messages.append({"id": "m1", "role": "user"})
                except StorageWriteError:
                    continue
            assert [message["role"] for message in store.thread("s").messages] == ["system", "user"]


def test_the_system_prompt_is_never_appended_again(store: Store) -> None:
    with pytest.raises(InvalidValueError, match="system"):
        store.session("s", system="")
    assert store.thread("s").head is None
    with store.session("s", system="be brief"):
        pass
    for options in ({}, {"mode": "fork", "source": "s"}):
        with pytest.raises(InvalidStateError, match="replace_system"):
            store.session("fork" if options else "s", system="be long", **options)
    with store.session("fork", mode="fork", source="s", system="be brief") as session:
        assert [message["content"] for message in session.messages] == ["be brief"]


def test_a_new_session_never_shows_old_state(store: Store) -> None:
    with store.session("s", mode="new") as session:
        session.state["x"] = 1
    with pytest.raises(ThreadExistsError):
        store.session("s", mode="new")
    with store.session("s") as session:
        assert session.state["x"] == 1
    store.thread("s").delete()
    with store.session("s", mode="new") as session:
        assert session.slice() == {}
        assert (session.turns, session.errors, session.found.last_run) == (0, [], None)
        assert session.list_checkpoints() == []


def test_ids_that_a_provider_uses_again_lose_nothing(store: Store) -> None:
    with store.session("s") as session:
        for _ in range(2):
            with session.turn() as turn:
                turn.messages.append(
                    {"id": turn.message_id("tool/0"), "role": "tool", "tool_call_id": "call_0"}
                )
                # Appended again by a retry: the same id, once.
                turn.messages.append(
                    {"id": turn.message_id("tool/0"), "role": "tool", "tool_call_id": "call_0"}
                )
        assert [message["tool_call_id"] for message in session.messages] == ["call_0", "call_0"]


def test_cancellation_is_not_a_failure(store: Store) -> None:
    async def main() -> None:
        with store.session("s") as session, session.turn():
            await asyncio.sleep(60)

    async def cancelled() -> None:
        task = asyncio.create_task(main())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    records = store.session_records("s")
    assert (records.status, records.errors()) == ("cancelled", [])
    assert records.last_run is not None
    assert records.last_run.reason == "cancelled"


def test_a_rewound_turn_takes_back_everything_but_what_happened(store: Store) -> None:
    effects: list[int] = []
    with store.session("s") as session:
        session.messages.append({"id": "m0"})
        with session.turn() as turn:
            turn.add_usage(tokens=3)
            turn.messages.append({"id": turn.message_id("assistant")})
            session.tasks.add("a")
            session.work.add_todo("a")
            session.merge_update(phase="x")
            session.state["unsaved"] = True
            session.call("k", effects.append, 1)
            turn.rewind()
            # What a cancelled sibling appends late doesn't land after the truncation.
            late = threading.Thread(target=lambda: seen.append(_refused(turn)))
            seen: list[bool] = []
            late.start()
            late.join()
            assert seen == [True]
        assert [message["id"] for message in session.messages] == ["m0"]
        assert (session.slice(), session.work.todos) == ({}, [])
        assert (session.turns, session.usage.tokens) == (1, 3)
        session.call("k", effects.append, 1)
        with session.turn() as turn:
            assert turn.number == 2
    assert effects == [1]


def _refused(turn: Any) -> bool:
    try:
        turn.messages.append({"id": "late"})
    except InvalidStateError:
        return True
    return False


def test_a_message_from_outside_waits_for_the_end_of_the_turn(store: Store) -> None:
    with store.session("s") as session:
        session.receive({"id": "h0"})
        with session.turn() as turn:
            turn.messages.append({"id": "call"})
            session.receive({"id": "h1"})
            session.receive({"id": "h2"})
            assert [message["id"] for message in session.messages] == ["h0", "call"]
            # It is durable all the same.
            assert store.thread("s").state["session"]["inbox"].plain() == [{"id": "h1"}, {"id": "h2"}]
            turn.messages.append({"id": "result"})
        assert [message["id"] for message in session.messages] == ["h0", "call", "result", "h1", "h2"]
        with session.turn() as turn:
            session.receive({"id": "same", "by": "human"})
            turn.messages.append({"id": "same", "by": "model"})
        assert [message["by"] for message in session.messages[-2:]] == ["model", "human"]
        assert "inbox" not in session.state["session"]


def test_what_waited_when_a_run_died_is_delivered_by_the_next(store: Store) -> None:
    session = store.session("s")
    session.turn().__enter__()
    session.receive({"id": "h1"})
    del session
    gc.collect()
    with store.session("s") as session, session.turn() as turn:
        assert [message["id"] for message in turn.messages] == ["h1"]


def test_forks_and_rewinds_lose_no_late_append(store: Store) -> None:
    """Foreign writers on the same thread: their messages are brought together with the session's."""
    with store.session("s") as session:
        other = store.thread("s")
        other.messages.append({"id": "theirs"})
        other.commit()
        session.messages.append({"id": "ours"})
        assert [message["id"] for message in session.messages] == ["theirs", "ours"]
        other.refresh()
        other.state["x"] = 1
        other.commit()
        session.state["y"] = 2
        session.save()
        assert session.slice() == {"x": 1, "y": 2}


def test_a_conflict_with_a_foreign_writer_is_told(store: Store) -> None:
    with store.session("s") as session:
        session.merge_update(x=0)
        other = store.thread("s")
        other.state["x"] = 1
        other.commit()
        with pytest.raises(everthread.MergeConflictError):
            session.merge_update(x=2)
        # The change of the failed call is gone, the session goes on.
        session.merge_update(y=3)
        assert session.slice() == {"x": 1, "y": 3}
