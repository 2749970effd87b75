"""The life of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    AgentSession,
    InvalidStateError,
    InvalidValueError,
    MaxTurnsError,
    NotFoundError,
    Personal,
    SchemaVersionError,
    StorageWriteError,
    Store,
    ThreadExistsError,
    Usage,
)
from everthread.sessions.journal import FORMAT
from everthread.sessions.sync.journal import read_journal
from tests.unit.sessions.faulty import faulty_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process", keyring="memory:") as store:
        yield store
        assert store.verify().ok


def test_options_that_make_no_sense_are_refused(store: Store) -> None:
    for wrong in (
        {"mode": "odd"},
        {"mode": "fork"},
        {"source": "x"},
        {"lease_ttl": 0},
        {"lease_ttl": float("inf")},
        {"lease_ttl": float("nan")},
        {"lease_ttl": "5"},
        {"max_turns": -1},
        {"max_turns": 1.5},
        {"agent": ""},
        {"user_id": "a\0b"},
        {"hooks": 7},
        {"hooks": {"on_nothing": print}},
        {"system": ""},
    ):
        with pytest.raises(everthread.UsageError):
            store.session("s", **wrong)
    with pytest.raises(everthread.InvalidNameError):
        store.session("")
    with pytest.raises(InvalidValueError, match="store"):
        AgentSession("s", store=7)
    assert list(store.threads()) == []


def test_a_session_without_a_name_gets_one(store: Store) -> None:
    with store.session() as first, store.session() as second:
        assert first.session_id != second.session_id


def test_fork_mode(store: Store) -> None:
    with store.session("a") as session:
        session.merge_update(n=1)
        version = session.thread.head
        session.merge_update(n=2)
        session.messages.append({"id": "m"})
    with store.session("b", mode="fork", source="a", at=version) as fork:
        assert (fork.slice(), len(fork.messages)) == ({"n": 1}, 0)
        fork.merge_update(n=3)
    with store.session("c", mode="fork", source=store.thread("a")) as fork:
        assert (fork.slice(), len(fork.messages)) == ({"n": 2}, 1)
    with pytest.raises(ThreadExistsError):
        store.session("b", mode="fork", source="a")
    assert store.thread("a").state["n"] == 2


def test_the_agent_of_a_thread_can_be_looked_for(store: Store) -> None:
    with store.session("a", agent="weaver"), store.session("b", agent="other"):
        pass
    assert [thread.name for thread in store.threads(metadata={"agent": "weaver"})] == ["a"]


def test_everything_else_is_invisible(store: Store) -> None:
    with store.session("a", user_id="u1") as session:
        session.call("k", lambda: 1)
        session.checkpoint("p")
        session.decide("d")
        assert session.thread.logs == ["session/checkpoints", "session/decisions"]
    store.users.set("u1", "k", 1)
    assert [thread.name for thread in store.threads()] == ["a"]


def test_the_user_is_sealed(store: Store, tmp_path: Path) -> None:
    with store.session("a", user_id="ann@example.org") as session:
        session.record_error("ann@example.org complained")
        session.decide(Personal("ann@example.org", "call ann@example.org"))
    assert not any(b"ann@" in file.read_bytes() for file in tmp_path.iterdir())
    records = store.session_records("a")
    assert records.user_id == "ann@example.org"
    assert records.open_decisions()[0].decision == "call ann@example.org"
    assert records.open_decisions()[0].personal
    # Erased: the session goes on, and knows nothing of them.
    store.core.vault.keyring.destroy("ann@example.org")
    with store.session("a") as session:
        assert session.user_id is None
        assert [(error.message, error.personal) for error in session.errors] == [("", True)]
        assert [one.decision for one in session.incomplete_decisions()] == [""]
        session.messages.append({})


def test_the_end_is_the_end(store: Store) -> None:
    with store.session("s") as session:
        session.state["unsaved"] = 1
    assert store.thread("s").state["unsaved"] == 1
    for call in (
        lambda: session.messages.append({}),
        lambda: session.tasks.add("a"),
        lambda: session.call("k", print),
        lambda: session.decide("a"),
        lambda: session.checkpoint("a"),
        lambda: session.merge_update(a=1),
        session.turn,
        lambda: session.add_usage(tokens=1),
        session.heartbeat,
        lambda: session.thread.update(lambda draft: draft.update(a=1)),
        lambda: session.thread.step("a").__enter__(),
        lambda: session.rewind(1),
        lambda: session.work.add_todo("a"),
    ):
        with pytest.raises(InvalidStateError, match="has ended"):
            call()
    session.close()
    # Reading goes on.
    session.thread.discard()
    assert session.slice() == {"unsaved": 1}
    assert (session.status, session.exit_reason, session.turns) == ("completed", "completed", 0)


def test_a_thread_that_is_deleted_under_a_session(store: Store) -> None:
    with store.session("s") as session:
        store.thread("s").delete()
        with pytest.raises(everthread.ThreadDeletedError):
            session.messages.append({})
    with store.session("s") as session:
        assert session.found.last_run is None
        session.thread.delete()


def test_max_turns_ends_the_block_it_was_made_for(store: Store) -> None:
    child = store.session("child", max_turns=0)
    parent = store.session("parent")
    # Not its own: for the parent the error is an error.
    with pytest.raises(MaxTurnsError), parent:
        child.turn()
    assert parent.exit_reason == "failed"
    child.close()
    assert child.exit_reason == "completed"
    with store.session("other", max_turns=1) as session:
        with session.turn():
            pass
        with pytest.raises(MaxTurnsError) as error:
            session.turn()
        assert error.value.max_turns == 1
    assert session.exit_reason == "completed"
    with store.session("free", max_turns=None) as session:
        for _ in range(60):
            with session.turn():
                pass
        assert session.turns == 60


def test_a_turn_that_fails_is_recorded_and_over(store: Store) -> None:
    with store.session("s") as session:
        turn = session.turn()
        with pytest.raises(KeyError), turn:  # noqa: PT012
            turn.add_usage(tokens=2)
            session.state["x"] = 1
            raise KeyError("gone")
        assert (session.usage.tokens, session.run.turn, session.errors[0].where) == (2, 0, "turn 1")
        assert store.thread("s").state["x"] == 1
        with pytest.raises(InvalidStateError, match="entered once"):
            turn.__enter__()
        for wrong in ({"tokens": -1}, {"tokens": "x"}, {"tokens": float("nan")}, {"tokens": True}):
            with pytest.raises(InvalidValueError), session.turn() as turn:
                turn.add_usage(wrong)


def test_what_a_turn_used_is_durable_before_it_ends(store: Store) -> None:
    with store.session("s") as session, session.turn() as turn:
        turn.add_usage(tokens=2)
        turn.add_usage(tokens=3, calls=1)
        # What another process would find if this one were killed now.
        found = store.session_records("s").usage
        assert (found.tokens, found.calls) == (5, 1)
        assert (turn.usage.tokens, session.usage.tokens) == (5, 5)
    assert store.session_records("s").usage.tokens == 5


def test_an_end_that_cant_be_written_is_told(tmp_path: Path) -> None:
    store, faulty = faulty_store(tmp_path / "s.db")
    told: list[str] = []
    with store:
        session = store.session("s", hooks={"on_session_exit": lambda *_: told.append("exit")})
        faulty.fail(0, landing=False, only=frozenset({"create", "append"}))
        with pytest.raises(StorageWriteError):
            session.close()
        assert told == ["exit"]
        # It holds the session no longer: the next one finds a run without an end.
        with store.session("s") as session:
            assert session.found.status == "crashed"
        session = store.session("s")
        # The error that ends it is noted, and then the end itself fails.
        faulty.fail(1, landing=False, only=frozenset({"append"}))
        with pytest.raises(ZeroDivisionError) as error, session:
            _ = 1 / 0
        assert "ending the session: the disk says no" in error.value.__notes__


def test_a_beginning_that_fails_leaves_the_session_free(tmp_path: Path) -> None:
    for number in range(4):
        store, faulty = faulty_store(tmp_path / f"{number}.db")
        with store:
            with store.session("s"):
                pass
            faulty.fail(number, landing=False)
            with suppress(StorageWriteError):
                store.session("s").close()
            faulty.left = None
            with store.session("s") as session:
                session.messages.append({})


def test_a_journal_of_newer_code_is_refused(store: Store) -> None:
    with store.session("s") as session:
        uid = session.thread.uid
    assert uid is not None
    journal = read_journal(store.core, uid)
    journal.state["format"] = FORMAT + 1
    journal.commit()
    head = store.thread("s").head
    with pytest.raises(SchemaVersionError):
        store.session("s")
    with pytest.raises(SchemaVersionError):
        store.session_records("s")
    assert store.thread("s").head == head


def test_two_beginners_at_once(tmp_path: Path) -> None:
    """Many begin the same new session at once: one gets it, the others are told who has it."""
    url = f"sqlite:///{tmp_path}/s.db"
    together = threading.Barrier(6)
    got: list[Any] = []

    def begin() -> None:
        with everthread.open(url, durability="process") as store:
            together.wait()
            try:
                got.append(store.session("s"))
            except everthread.SessionBusyError as busy:
                got.append(busy.holder.run)
            together.wait()

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in got if isinstance(one, AgentSession)]
    assert [one for one in got if one is not winner] == [winner.run_id] * 5


def test_checkpoints_are_places_to_go_back_to(store: Store) -> None:
    with store.session("s") as session:
        session.scratch["n"] = 1
        session.checkpoint("a")
        session.merge_update(phase="later")
        session.scratch["n"] = 2
        session.checkpoint("b")
        session.rewind_to_checkpoint("a")
        assert (session.slice(), session.get_checkpoint("b")) == ({}, None)
        with pytest.raises(NotFoundError):
            session.rewind_to_checkpoint("b")
        assert session.scratch == {"n": 2}
        with pytest.raises(InvalidValueError):
            session.checkpoint("c", include_keys="n")


def test_own_places_that_were_overwritten_are_noticed(store: Store) -> None:
    with store.session("s") as session:
        session.merge_update(x=1)
        session.state["session"] = 7
        session.save()
        with pytest.raises(InvalidStateError, match="belongs to the session"):
            session.decide("d")
        assert session.incomplete_decisions() == []
        del session.state["session"]
        session.save()
        session.decide("d")


def test_usage() -> None:
    usage = Usage({"a": 1, "b": 2.5, "odd": "x"})
    assert (usage["a"], usage.b, usage.c, len(usage), "c" in usage) == (1, 2.5, 0, 2, False)
    assert usage + {"a": 1, "c": 1} == {"a": 2, "b": 2.5, "c": 1}
    assert repr(usage) == "Usage(a=1, b=2.5)"
    with pytest.raises(AttributeError):
        _ = usage._private


def test_records_are_of_one_moment(store: Store) -> None:
    with pytest.raises(everthread.ThreadNotFoundError):
        store.session_records("s")
    store.thread("plain").update(lambda draft: draft.update(x=1))
    plain = store.session_records("plain")
    assert (plain.status, plain.last_run, plain.runs(), plain.turns, plain.holder) == (
        None,
        None,
        [],
        0,
        None,
    )
    assert (plain.effects(), plain.open_effects(), plain.errors(), plain.checkpoints()) == ([], [], [], [])
    with store.session("s") as session:
        session.call("before", lambda: 1)
        then = store.session_records("s")
        session.call("after", lambda: 2)
        session.merge_update(x=1)
        session.record_error("later")
        assert [effect.key for effect in then.effects()] == ["before"]
        assert (then.slice(), then.errors(), then.holder_alive) == ({}, [], True)
        now = then.again()
        assert [effect.key for effect in now.effects(1)] == ["after"]
        assert (now.slice(), len(now.errors())) == ({"x": 1}, 1)
        assert now.holder is not None
        assert now.holder.run == session.run_id
    found = session.found
    assert (found.last_run, found.effects()) == (None, [])
    for _ in range(4):
        with store.session("s"):
            pass
    assert [run.number for run in store.session_records("s").runs(3)] == [5, 4, 3]


def test_after_its_end_nothing_is_taken_that_would_be_lost() -> None:
    store = everthread.open("memory:")
    for touched in (True, False):
        session = store.session("bot")
        if touched:
            session.state["a"] = {"b": 1}
        node = session.state["a"]
        held = session.state if touched else None
        session.close()
        for change in (
            lambda session=session: session.state.update(c=1),
            lambda session=session: session.state.pop("a"),
            lambda session=session: session.thread.state.update(c=1),
            lambda session=session: session.state["a"].update(c=1),
            lambda node=node: node.update(c=1),
            lambda session=session, held=held: (held if held is not None else session.state).update(c=1),
        ):
            with pytest.raises(InvalidStateError, match="has ended"):
                change()
        assert session.state.plain() == {"a": {"b": 1}}, "reading goes on"
    assert store.thread("bot").state["a"] == {"b": 1}


def test_how_many_records_are_asked_for(store: Store) -> None:
    for number in range(3):
        with store.session("s") as session:
            for place in range(10):
                session.decide(f"{number} {place}", "it is so")
                session.call(f"{number} {place}", int)
    records = store.session_records("s")
    for verb, total in (("decisions", 30), ("effects", 30), ("runs", 3), ("errors", 0), ("checkpoints", 0)):
        read = getattr(records, verb)
        assert len(read(None)) == total, verb
        assert len(read(2)) == min(2, total)
        assert read(0) == []
        for wrong in (-1, "x", 1.5, True):
            with pytest.raises(InvalidValueError, match="limit"):
                read(wrong)
    assert len(records.decisions()) == 30
