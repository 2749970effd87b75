"""The fence: a run that was taken over writes nothing, by whatever way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import everthread
from everthread import AgentSession, InDoubtError, InvalidValueError, SessionFencedError, Store
from everthread.threads.runtime import Runtime
from tests.unit.sessions.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    runtime = Runtime(now_us=clock)
    with everthread.open(f"sqlite:///{tmp_path}/h.db", durability="process", runtime=runtime) as store:
        yield store
        assert store.verify().ok


def _stale(store: Store, clock: Clock) -> AgentSession:
    """A session whose lease has run out."""
    session = store.session("s", agent="old", lease_ttl=60)
    session.merge_update(by="old")
    clock.go(61)
    return session


def test_a_swallowed_refusal_opens_no_way_round(store: Store, clock: Clock) -> None:
    old = _stale(store, clock)
    with suppress(SessionFencedError), old.thread.step("k") as step:
        step.state["by"] = "zombie"
        with store.session("s"):
            pass
        # Looking moves the handle onto what the new run wrote; leaving the step would build on that.
        old.thread.discard()
        with suppress(SessionFencedError):
            old.thread.refresh()
        step.state["by"] = "zombie"
    with suppress(SessionFencedError):
        old.thread.commit(label="zombie")
    old.thread.discard()
    for attempt in (
        lambda: old.thread.rewind(1),
        lambda: old.thread.update(lambda draft: draft.update(by="zombie")),
        lambda: old.thread.merge(store.thread("s")),
        lambda: old.thread.step("z").__enter__(),
        lambda: old.save(label="zombie"),
    ):
        with pytest.raises(SessionFencedError):
            attempt()
    thread = store.thread("s")
    assert thread.state["by"] == "old"
    assert [version.label for version in thread.history()] == [None] * len(list(thread.history()))
    with pytest.raises(SessionFencedError):
        old.close()


def test_what_the_new_run_settled_is_not_taken_for_the_old_ones(store: Store, clock: Clock) -> None:
    old = _stale(store, clock)
    taken: list[AgentSession] = []

    def slow() -> str:
        clock.go(61)
        new = store.session("s")
        taken.append(new)
        with pytest.raises(InDoubtError):
            new.call("k", slow)
        assert new.call("k", lambda: "new", verify=lambda: False) == "new"
        return "old"

    # The old one comes back from its function.
    with pytest.raises(SessionFencedError):
        old.call("k", slow)
    with taken[0] as new:
        assert new.call("k", lambda: "new") == "new"
        assert [effect.result for effect in new.effects() if effect.state == "done"] == ["new"]
    with pytest.raises(SessionFencedError):
        old.close()


def test_the_fence_holds_after_the_new_run_has_ended(store: Store, clock: Clock) -> None:
    old = _stale(store, clock)
    with store.session("s"):
        pass
    with pytest.raises(SessionFencedError):
        old.messages.append({})
    with store.session("s"):
        pass
    with pytest.raises(SessionFencedError):
        old.close()
    assert [run.status for run in store.session_records("s").runs()] == ["completed", "completed", "crashed"]


def test_a_run_that_stopped_while_it_began_is_fenced_off_as_well(store: Store, clock: Clock) -> None:
    """Between its lease and its fence somebody else takes over."""
    from everthread.sessions.sync import run_start as sessions

    with store.session("s"):
        pass
    real = sessions._started

    def overtaken(*args: object) -> object:
        sessions._started = real
        clock.go(61)
        taken.append(store.session("s", agent="new"))
        return real(*args)  # type: ignore[arg-type]

    taken: list[AgentSession] = []
    sessions._started = overtaken  # type: ignore[assignment]
    try:
        with pytest.raises(SessionFencedError):
            store.session("s", agent="old", lease_ttl=60)
    finally:
        sessions._started = real
    (new,) = taken
    new.messages.append({})
    new.close()
    # The lease says that the old one had begun.
    runs = store.session_records("s").runs()
    assert [(run.agent, run.status) for run in runs] == [
        ("new", "completed"),
        ("old", "crashed"),
        (None, "completed"),
    ]


def test_others_may_write_to_the_thread_of_a_session(store: Store) -> None:
    """The lease is about runs; whoever has a handle of the thread may still commit to it."""
    with store.session("s") as session:
        for number in range(5):
            store.thread("s").update(lambda draft, number=number: draft.update({f"theirs {number}": 1}))
            session.merge_update({f"ours {number}": 1})
        assert len(session.slice()) == 10


def test_a_parent_that_is_no_session_holds_nothing(store: Store) -> None:
    for wrong in ("parent", store, 5):
        with pytest.raises(InvalidValueError, match="session that began this one"):
            store.session("child", parent=wrong)  # type: ignore[arg-type]
    assert [info.name for info in store.threads()] == []
    store.session("child").close()


def test_subagents_that_died_are_counted_once(store: Store) -> None:
    with store.session("parent") as parent:
        child = store.session("child", parent=parent)
        child.add_usage(tokens=5)
        del child
        gc.collect()
        assert parent.usage.tokens == 5
    with store.session("parent") as parent:
        assert parent.usage.tokens == 5
        with store.session("child", parent=parent) as child:
            child.add_usage(tokens=1)
            assert parent.usage.tokens == 6
        assert parent.usage.tokens == 6
        # Without a parent it is somebody else's work.
        with store.session("child") as child:
            child.add_usage(tokens=100)
        assert parent.usage.tokens == 6
        with store.session("child", parent=parent) as child:
            child.add_usage(tokens=2)
        assert parent.usage.tokens == 8
        # A fork of the parent has used nothing of that.
        parent.thread.fork("fork")
    assert store.session_records("fork").usage == {}


def test_a_takeover_that_fails_before_its_fence_leaves_it_to_the_next_run(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease was given back, but the run before both may still wake up."""
    from everthread.sessions.sync import run_start as sessions

    old = _stale(store, clock)

    def fail(*args: object) -> None:
        raise RuntimeError("no fence")

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "_begin_now", fail)
        with pytest.raises(RuntimeError, match="no fence"):
            store.session("s")
    with store.session("s") as new:
        for zombie in (lambda: old.messages.append({}), lambda: old.call("k", lambda: 1)):
            with pytest.raises(SessionFencedError):
                zombie()
        assert len(new.messages) == 0
