"""The lock of a thread, taken through the handle of a session."""

from __future__ import annotations

import everthread


def test_a_session_takes_the_lock_of_its_thread() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        with session.thread.lock(timeout_s=30) as draft:
            draft["balance"] = 10
        session.messages.append({"role": "user", "content": "go on"})
        assert session.state["balance"] == 10
