"""The inbox beside a thread: what senders, runs and maintenance may rely on, in both colours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidValueError, SessionFencedError, Store, ThreadDeletedError, ThreadNotFoundError
from everthread.sessions import lease as leases
from everthread.testing.driver import open_driven
from everthread.threads.runtime import Runtime
from everthread.threads.sync.journals import INBOX, beside, space_beside
from everthread.threads.sync.thread import Thread
from tests.unit.sessions.clock import Clock

INBOXES = space_beside("", INBOX)


@pytest.fixture(params=["blocking", "async"])
def open_(request: pytest.FixtureRequest) -> Any:
    return everthread.open if request.param == "blocking" else open_driven


@pytest.fixture(params=["sqlite", "file"])
def store(request: pytest.FixtureRequest, open_: Any, tmp_path: Path) -> Iterator[Store]:
    with open_(f"{request.param}:///{tmp_path}/s.db", durability="process") as store:
        yield store


def _begun(store: Store, name: str = "s") -> None:
    with store.session(name):
        pass


# ── sending ──────────────────────────────────────────────────────────────────────────────────


def test_a_message_gets_an_id_unless_it_has_one(store: Store) -> None:
    _begun(store)
    given = store.send("s", {"content": "a"})
    assert store.send("s", {"id": "mine", "content": "b"}) == "mine"
    assert store.send("s", "text") is None
    with store.session("s") as session, session.turn() as turn:
        assert [each if isinstance(each, str) else each["id"] for each in turn.received] == [
            given,
            "mine",
            "text",
        ]


def test_an_id_that_another_message_has_is_replaced(store: Store) -> None:
    with store.session("s") as session:
        session.messages.append({"id": "m", "content": "first"})
        store.send("s", {"id": "m", "content": "second"})
        assert session.next_input(timeout_s=0)["content"] == "second"
        assert [each["content"] for each in session.messages] == ["first", "second"]
        # The very message that is there is taken, and there once.
        store.send("s", {"id": "m", "content": "first"})
        assert session.next_input(timeout_s=0) == {"id": "m", "content": "first"}
        assert session.next_input(timeout_s=0) is None
        assert len(session.messages) == 2


def test_a_providers_own_message_is_kept_as_it_is(store: Store) -> None:
    own = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    with store.session("s") as session:
        store.send("s", own, shape="anthropic")
        assert session.next_input(timeout_s=0)["message"] == own
        assert session.messages.for_anthropic()["messages"][0]["role"] == "user"


@pytest.mark.parametrize("wrong", [None, {"content": object()}])
def test_what_cannot_be_kept_is_refused_and_changes_nothing(store: Store, wrong: Any) -> None:
    _begun(store)
    with pytest.raises(InvalidValueError):
        store.send("s", wrong)
    with store.session("s") as session:
        assert session.next_input(timeout_s=0) is None


def test_many_senders_at_once_lose_nothing(store: Store) -> None:
    with store.session("s") as session:
        senders = [
            threading.Thread(
                target=lambda who=who: [
                    store.send("s", {"n": f"{who} {n}"}, key=f"{who} {n}") for n in range(10)
                ]
            )
            for who in range(4)
        ]
        for sender in senders:
            sender.start()
        found = []
        while len(found) < 40:
            message = session.next_input(timeout_s=60)
            assert message is not None
            found.append(message["n"])
        for sender in senders:
            sender.join()
        assert session.next_input(timeout_s=0) is None
    assert sorted(found) == sorted(f"{who} {n}" for who in range(4) for n in range(10))
    assert [each["n"] for each in store.thread("s").messages] == found
    # Each sender's in its own order.
    for who in range(4):
        assert [each for each in found if each.startswith(f"{who} ")] == [f"{who} {n}" for n in range(10)]


# ── taking ───────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_dies_after_taking_leaves_the_message_once(store: Store) -> None:
    """Between the version that took it and anything else that the run would have written."""
    session = store.session("s")
    store.send("s", {"content": "a"})
    store.send("s", {"content": "b"})
    assert session.next_input(timeout_s=0)["content"] == "a"
    _die()
    with store.session("s") as session, session.turn() as turn:
        assert [each["content"] for each in turn.received] == ["b"]
        assert [each["content"] for each in session.messages] == ["a", "b"]


def _die() -> None:
    """What a killed process leaves: a lease that nobody gives back, and no run of this process."""
    leases.live.clear()


@pytest.mark.parametrize("taken", range(9))
def test_a_new_run_finds_where_the_others_stopped(store: Store, taken: int) -> None:
    _begun(store)
    for number in range(8):
        store.send("s", {"n": number})
    with store.session("s") as session:
        for number in range(taken):
            assert session.next_input(timeout_s=0)["n"] == number
    with store.session("s") as session, session.turn() as turn:
        assert [each["n"] for each in turn.received] == list(range(taken, 8))
        assert [each["n"] for each in session.messages] == list(range(8))


def test_the_turn_that_takes_a_message_does_not_take_it_back(store: Store) -> None:
    with store.session("s") as session:
        store.send("s", {"content": "a"})
        with session.turn() as turn:
            turn.messages.append({"content": "answer"})
            turn.rewind()
        assert [each["content"] for each in session.messages] == ["a"]


def test_what_is_edited_meanwhile_is_kept(store: Store) -> None:
    with store.session("s") as session:
        session.state["x"] = 1
        store.send("s", {"content": "a"})
        assert session.next_input(timeout_s=0) is not None
        store.thread("s").update(lambda draft: draft.update(y=2))
        session.state["z"] = 3
        store.send("s", {"content": "b"})
        assert session.next_input(timeout_s=0) is not None
    assert store.thread("s").state.plain() == {"x": 1, "y": 2, "z": 3}


def test_waiting_keeps_the_lease(open_: Any, tmp_path: Path) -> None:
    clock = Clock()
    opened = open_(f"sqlite:///{tmp_path}/s.db", durability="process", runtime=Runtime(now_us=clock))
    with opened as store, store.session("s", lease_ttl=0.06) as session:
        before = store.session_records("s").heartbeat_us
        clock.go(0.05)
        assert session.next_input(timeout_s=0.05) is None
        assert store.session_records("s").heartbeat_us > before + 50_000


def test_who_was_taken_over_is_told_while_it_waits(open_: Any, tmp_path: Path) -> None:
    clock = Clock()
    with open_(f"sqlite:///{tmp_path}/s.db", durability="process", runtime=Runtime(now_us=clock)) as store:
        old = store.session("s", lease_ttl=60)
        clock.go(61)
        with store.session("s") as new:
            store.send("s", {"content": "a"})
            with pytest.raises(SessionFencedError):
                old.next_input(timeout_s=5)
            assert new.next_input(timeout_s=0)["content"] == "a"
            assert len(new.messages) == 1
        with pytest.raises(SessionFencedError):
            old.close()


@pytest.mark.parametrize("sent", [False, True])
def test_whoever_waits_on_a_thread_that_is_deleted_is_told(store: Store, sent: bool) -> None:
    session = store.session("s")
    if sent:
        store.send("s", {"content": "a"})
        session.next_input(timeout_s=0)
    store.thread("s").delete()
    with pytest.raises(ThreadDeletedError, match="'s' was deleted"):
        session.next_input(timeout_s=60)
    session.close()


@pytest.mark.parametrize("wrong", ["soon", float("nan")])
def test_a_time_that_is_none_is_refused(store: Store, wrong: Any) -> None:
    with store.session("s") as session, pytest.raises(everthread.UsageError):
        session.next_input(timeout_s=wrong)


# ── with the thread ──────────────────────────────────────────────────────────────────────────


def _inboxes(store: Any) -> list[str]:
    with everthread.open(store.url) as plain:
        return [found.line.name for found in plain.core.backend.lines(INBOXES, "", None, 10)]


def test_the_inbox_goes_with_its_thread(store: Store) -> None:
    _begun(store)
    store.send("s", {"content": "a"})
    assert len(_inboxes(store)) == 1
    store.thread("s").delete()
    assert _inboxes(store) == []


def test_the_inbox_of_an_expired_thread_goes(open_: Any, tmp_path: Path) -> None:
    clock = Clock()
    with open_(f"sqlite:///{tmp_path}/s.db", durability="process", runtime=Runtime(now_us=clock)) as store:
        _begun(store)
        store.thread("s").expire(60)
        store.send("s", {"content": "a"})
        clock.go(61)
        with pytest.raises(ThreadNotFoundError):
            store.send("s", {"content": "b"})
        assert store.gc().expired == ("s",)
        assert _inboxes(store) == []


def test_an_inbox_without_its_thread_is_collected(store: Store) -> None:
    _begun(store)
    uid = store.thread("s").uid
    store.thread("s").delete()
    with everthread.open(store.url) as plain:
        # As a sender leaves it that was killed while the thread was deleted.
        orphan = Thread(beside(plain.core, INBOX), uid)
        orphan.log("messages").append({"item": "i", "message": "m"})
        orphan.commit()
    assert len(_inboxes(store)) == 1
    assert store.gc().companions == 1
    assert _inboxes(store) == []


def test_messages_on_their_way_travel_with_the_thread(store: Store, open_: Any, tmp_path: Path) -> None:
    with store.session("s") as session:
        store.send("s", {"content": "taken"})
        session.next_input(timeout_s=0)
    store.send("s", {"content": "waiting"})
    store.export(tmp_path / "all.evt")
    with open_(f"sqlite:///{tmp_path}/there.db", durability="process") as there:
        there.import_from(tmp_path / "all.evt")
        with there.session("s") as session, session.turn() as turn:
            assert [each["content"] for each in turn.received] == ["waiting"]
            assert [each["content"] for each in session.messages] == ["taken", "waiting"]


def test_a_text_in_a_message_on_its_way_is_found_and_taken_out(store: Store) -> None:
    _begun(store)
    store.send("s", {"content": "the password is hunter2"})
    (place,) = store.scan("hunter2")
    assert (place.thread, place.beside) == ("s", "inbox")
    store.redact("hunter2")
    with store.session("s") as session:
        assert session.next_input(timeout_s=0)["content"] == "the password is [redacted]"


def test_another_message_under_a_known_key_is_refused(store: Store) -> None:
    def said(words: str) -> dict[str, Any]:
        return {"role": "user", "content": "one", "who": everthread.Personal("ann", words), "list": (1, 2)}

    _begun(store)
    first = store.send("s", said("hers"), key="k")
    assert store.send("s", said("hers"), key="k") == first
    for other in (
        {**said("hers"), "content": "two"},
        said("others"),
        {"role": "user", "content": "one"},
        "text",
    ):
        with pytest.raises(InvalidValueError, match="another message was sent under the key 'k'") as caught:
            store.send("s", other, key="k")
        assert caught.value.path == "key"
    store.erase("ann")
    assert store.send("s", said("whatever she said"), key="k") == first, "nobody can tell any more"
    with store.session("s") as session:
        assert session.next_input(timeout_s=0)["content"] == "one"
        assert session.next_input(timeout_s=0) is None
