"""Beginnings that may be repeated, forks from within, slices of logs, and what decisions know, in both
colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import EffectsDeniedError, InvalidValueError, SessionBusyError, Store, ThreadExistsError
from everthread.sessions import lease as leases
from everthread.testing.driver import open_driven


@pytest.fixture(params=["blocking", "async"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    open_ = everthread.open if request.param == "blocking" else open_driven
    with open_(f"sqlite:///{tmp_path}/s.db", durability="process") as store:
        yield store


def _die() -> None:
    """What a killed process leaves: a lease that nobody gives back, and no run of this process."""
    leases.live.clear()


# ── beginnings ───────────────────────────────────────────────────────────────────────────────


def test_a_session_on_a_fork_without_effects(store: Store) -> None:
    with store.session("s") as session:
        session.call("pay 1", lambda: "receipt 1")
    for _ in range(2):
        with store.session("f", mode="fork", source="s", key="try 1", effects="deny") as fork:
            assert fork.thread.effects == "deny"
            assert fork.call("pay 1", pytest.fail) == "receipt 1"
            with pytest.raises(EffectsDeniedError):
                fork.call("pay 2", pytest.fail)
    with store.session("g", mode="fork", source="s") as fork:
        assert fork.call("pay 2", lambda: "receipt 2") == "receipt 2"
    for options in ({"effects": "deny"}, {"effects": "none", "mode": "fork", "source": "s"}):
        with pytest.raises(InvalidValueError, match="effects is"):
            store.session("h", **options)


def test_a_new_session_repeated_with_its_key_goes_on(store: Store) -> None:
    options: Any = {"mode": "new", "key": "job 7", "system": "be short", "initial": {"n": 1}}
    first = store.session("s", **options)
    first.messages.append({"content": "hello"})
    with pytest.raises(SessionBusyError):
        store.session("s", **options)
    _die()
    with store.session("s", **options) as again:
        assert [each["content"] for each in again.messages] == ["be short", "hello"]
        assert again.state["n"] == 1
        again.rewind(1)
    with store.session("s", **options) as again:
        assert again.run.number == 3


@pytest.mark.parametrize("key", [None, "job 8"])
def test_a_new_session_of_another_call_is_refused(store: Store, key: str | None) -> None:
    with store.session("s", mode="new", key="job 7"):
        pass
    with pytest.raises(ThreadExistsError):
        store.session("s", mode="new", key=key)
    store.thread("t").commit()
    thread = store.thread("t")
    thread.state["x"] = 1
    thread.commit(key="session:job 7")
    thread.state["x"] = 2
    thread.commit(key="session:job 9")
    with pytest.raises(ThreadExistsError):
        # It isn't what this key began.
        store.session("t", mode="new", key="job 9")


def test_a_forked_session_repeated_with_its_key_goes_on(store: Store) -> None:
    with store.session("s") as source:
        source.messages.append({"content": "one"})
        at = source.thread.head
        source.messages.append({"content": "two"})
    for number in (1, 2):
        with store.session("f", mode="fork", source="s", at=at, key="try 1") as fork:
            assert [each["content"] for each in fork.messages][:1] == ["one"]
            fork.messages.append({"content": f"run {number}"})
    assert [each["content"] for each in store.thread("f").messages] == ["one", "run 1", "run 2"]
    with pytest.raises(ThreadExistsError):
        store.session("f", mode="fork", source="s", at=at, key="try 2")
    with pytest.raises(ThreadExistsError):
        store.session("f", mode="fork", source="s", at=at)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "k"},
        {"mode": "new", "prepare": list},
        {"mode": "new", "transform": dict},
        {"at": 1},
        {"mode": "new", "key": ""},
    ],
)
def test_options_that_make_no_sense_are_refused(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(everthread.UsageError):
        store.session("s", **wrong)
    assert not list(store.threads())


def test_the_functions_of_a_forked_session_see_every_log(store: Store) -> None:
    with store.session("s") as source:
        source.messages.extend([{"content": "one"}, {"content": "two"}])
        source.log("notes").extend([{"content": "three"}, {"content": "four"}])
        source.decide("go on")
    seen = []

    def transform(item: Any, log: str) -> Any:
        seen.append(log)
        return {**item, "content": item["content"].upper()}

    def prepare(items: list[Any], log: str) -> list[Any]:
        return items[-1:] if log == "notes" else items

    with store.session("f", mode="fork", source="s", prepare=prepare, transform=transform) as fork:
        assert [each["content"] for each in fork.messages] == ["ONE", "TWO"]
        assert [each["content"] for each in fork.log("notes")] == ["FOUR"]
        assert len(fork.incomplete_decisions()) == 1
    assert seen == ["messages", "messages", "notes"]
    # Without a second parameter they are for messages.
    with store.session("g", mode="fork", source="s", prepare=lambda messages: messages[:1]) as fork:
        assert (len(fork.messages), len(fork.log("notes"))) == (1, 2)


def test_a_transform_that_returns_none_is_an_error(store: Store) -> None:
    with store.session("s") as source:
        source.messages.append({"content": "one"})
    with pytest.raises(InvalidValueError, match="transform returned None"):
        store.session("f", mode="fork", source="s", transform=lambda message: None)
    with pytest.raises(InvalidValueError, match="transform returned None"):
        store.thread("s").fork("f", transform=lambda message: None)
    assert [each.name for each in store.threads()] == ["s"]


def test_a_session_forks_its_thread(store: Store) -> None:
    with store.session("s") as session:
        start = session.thread.head
        session.messages.append({"content": "one"})
        session.state["x"] = 1
        fork = session.fork("f", key="k")
        assert (fork.state["x"], len(fork.messages)) == (1, 1)
        assert len(session.fork("g", start).messages) == 0
        assert session.fork("f", key="k").head.id == fork.head.id
        session.messages.append({"content": "two"})
    assert len(store.thread("f").messages) == 1


# ── slices of logs ───────────────────────────────────────────────────────────────────────────


def test_a_log_has_a_slice_of_its_own_that_round_trips(store: Store) -> None:
    tasks = [
        ["t1", {"subject": "look", "blocks": ["elsewhere"]}],
        ["t2", {"subject": "do", "blocked_by": ["t1"]}],
    ]
    with store.session("s") as session:
        session.merge_update(mood="calm")
        worker = session.log("worker")
        assert worker.slice() == {}
        worker.merge_update({"tasks": tasks, "status": "running"}, goal="find it")
        told = worker.slice()
        assert [pair[0] for pair in told["tasks"]] == ["t1", "t2"]
        assert told["tasks"][0][1]["blocks"] == ["t2", "elsewhere"]
        assert told["goal"] == "find it"
        assert "status" not in told
        other = session.log("other")
        other.merge_update(told)
        assert other.slice() == told
        assert session.slice() == session.messages.slice() == {"mood": "calm"}
        with pytest.raises(InvalidValueError, match="not 'lost'"):
            worker.merge_update(tasks=[["t", {"subject": "x", "status": "lost"}]])
        with pytest.raises(InvalidValueError):
            worker.merge_update(todos=[])
        assert worker.slice() == told
    with store.session("s") as session:
        assert session.log("worker").slice() == told


# ── decisions and checkpoints ────────────────────────────────────────────────────────────────


def test_a_decision_knows_its_agent_and_the_message_it_followed(store: Store) -> None:
    with store.session("s", agent="planner") as session:
        early = session.decide("begin")
        made = session.messages.append({"role": "user", "content": "use FIFO"})
        late = session.decide("use FIFO")
        assert (early.agent, early.after) == ("planner", None)
        assert (late.agent, late.after) == ("planner", made)
        session.record_outcome(late.id, "done")
    with store.session("s") as session:
        session.log("messages").append("a text has no id")
        assert session.decide("later").agent is None
    found = store.session_records("s").decisions()
    assert [(each.agent, each.after) for each in found] == [
        (None, None),
        ("planner", made),
        ("planner", None),
    ]
    assert store.session_records("s").open_decisions()[0].agent == "planner"


def test_what_a_checkpoint_kept_is_read_while_the_run_is_live(store: Store) -> None:
    with store.session("s") as session:
        session.set_working("plan", ["a", "b"])
        session.checkpoint("middle")
        records = store.session_records("s")
        assert records.holder_alive
        found = records.get_checkpoint("middle")
        assert found == {"plan": ["a", "b"]}
        assert records.get_checkpoint("end") is None
        found["plan"].append("c")
        session.set_working("plan", ["c"])
        session.checkpoint("middle")
        assert records.get_checkpoint("middle") == {"plan": ["a", "b"]}
        assert records.again().get_checkpoint("middle") == {"plan": ["c"]}
        head = session.thread.head
    assert store.thread("s").head == head
