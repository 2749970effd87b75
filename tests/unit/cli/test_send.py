"""``everthread send``: what a run at work on the thread gets of it."""

from __future__ import annotations

import everthread
from tests.unit.cli.calling import Program


def test_a_run_gets_what_was_sent(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as session:
        told = program.json("send", "bot", "skip March", "--key", "k")
        assert program.json("send", "bot", "skip March", "--key", "k")["id"] == told["id"]
        assert session.next_input(timeout_s=0) == {
            "id": told["id"],
            "role": "user",
            "content": "skip March",
        }
        assert session.next_input(timeout_s=0) is None


def test_a_thread_that_is_not_there_is_told(program: Program, store: everthread.Store) -> None:
    store.thread("other").commit()
    ended = program("send", "bot", "hello", code=3)
    assert "no thread 'bot' to send to" in ended.err
