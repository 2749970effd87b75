"""Messages from outside reach a live run, on every store."""

from __future__ import annotations

import threading

import pytest

from everthread import Personal, Store, ThreadDeletedError, ThreadNotFoundError
from tests.servers.colours import Url

HELLO = {"role": "user", "content": "hello"}


def test_a_message_from_outside_reaches_a_live_run(url: Url) -> None:
    with url.open() as store, url.open() as elsewhere, store.session("bot") as session:
        made = elsewhere.send("bot", HELLO)
        assert len(session.messages) == 0
        with session.turn() as turn:
            assert turn.received == [{"id": made, **HELLO}]
            assert list(session.messages) == [{"id": made, **HELLO}]
        with session.turn() as turn:
            assert turn.received == []
    assert session.turns == 2


def test_a_message_waits_for_the_next_run(store: Store) -> None:
    with store.session("bot"):
        pass
    made = store.send("bot", HELLO)
    store.send("bot", "and a text")
    with store.session("bot") as session, session.turn() as turn:
        assert turn.received == [{"id": made, **HELLO}, "and a text"]
    with store.session("bot") as session:
        assert session.next_input(timeout_s=0) is None
        assert len(session.messages) == 2


def test_sent_again_with_its_key_it_is_the_same_message(store: Store) -> None:
    with store.session("bot") as session:
        assert store.send("bot", HELLO, key="mail 7") == store.send("bot", HELLO, key="mail 7")
        with session.turn() as turn:
            assert len(turn.received) == 1
        store.send("bot", HELLO, key="mail 7")
        assert session.next_input(timeout_s=0) is None
        store.send("bot", HELLO, key="mail 8")
        assert session.next_input(timeout_s=0) is not None
        assert len(session.messages) == 2


def test_next_input_waits_for_what_is_sent_meanwhile(url: Url) -> None:
    with url.open() as store, url.open() as elsewhere, store.session("bot") as session:
        for text in ("first", "second"):
            sending = threading.Timer(0.05, elsewhere.send, ("bot", {"content": text}))
            sending.start()
            found = session.next_input(timeout_s=60)
            sending.join()
            assert found["content"] == text
        assert session.next_input(timeout_s=0.01) is None


def test_a_rewind_past_a_message_does_not_deliver_it_again(store: Store) -> None:
    with store.session("bot") as session:
        start = session.thread.head
        store.send("bot", HELLO)
        assert session.next_input(timeout_s=0) is not None
        session.rewind(start)
        assert len(session.messages) == 0
        assert session.next_input(timeout_s=0) is None
    with store.session("bot") as session, session.turn() as turn:
        assert turn.received == []


def test_what_was_sent_to_a_thread_is_not_its_forks(store: Store) -> None:
    with store.session("bot"):
        pass
    store.send("bot", HELLO)
    with store.session("what if", mode="fork", source="bot") as fork:
        assert fork.next_input(timeout_s=0) is None
        store.send("what if", {"content": "for you"})
        assert fork.next_input(timeout_s=0)["content"] == "for you"
    with store.session("bot") as session:
        assert session.next_input(timeout_s=0)["content"] == "hello"


def test_nobody_sends_to_a_thread_that_is_not_there(store: Store) -> None:
    with pytest.raises(ThreadNotFoundError, match="no thread 'bot' to send to"):
        store.send("bot", HELLO)
    with store.session("bot"):
        pass
    thread = store.thread("bot")
    store.send(thread, HELLO)
    store.thread("bot").delete()
    with pytest.raises(ThreadNotFoundError):
        store.send("bot", HELLO)
    with pytest.raises(ThreadDeletedError):
        store.send(thread, HELLO)
    # Another thread of the same name gets nothing that was meant for the one before.
    with store.session("bot") as session:
        assert session.next_input(timeout_s=0) is None
        with pytest.raises(ThreadDeletedError):
            store.send(thread, HELLO)


def test_a_personal_value_on_its_way_is_sealed_and_erased(store: Store) -> None:
    with store.session("bot"):
        pass
    store.send("bot", {"content": Personal("anna", "Anna Berg")})
    store.send("bot", {"content": Personal("anna", "Anna Berg again")})
    assert not list(store.scan("Anna Berg"))
    with store.session("bot") as session:
        assert session.next_input(timeout_s=0)["content"].value == "Anna Berg"
        assert session.messages[0]["content"].value == "Anna Berg"
    store.erase("anna")
    with store.session("bot") as session:
        assert "Erased" in repr(session.next_input(timeout_s=0))
        assert len(session.messages) == 2


def test_a_message_that_was_taken_stays_taken_when_versions_are_pruned(store: Store) -> None:
    from everthread import Retention

    with store.session("bot") as session:
        for number in range(5):
            store.send("bot", {"content": str(number)})
            session.next_input(timeout_s=0)
        session.rewind(1)
        for number in range(40):
            session.state["n"] = number
            session.save()
    store.gc(Retention(keep_last=1))
    with store.session("bot") as session:
        assert session.next_input(timeout_s=0) is None
        store.send("bot", {"content": "new"})
        assert session.next_input(timeout_s=0)["content"] == "new"
