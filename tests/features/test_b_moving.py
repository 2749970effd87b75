"""B9: backends mix, and what is in one is copied into another."""

from __future__ import annotations

from pathlib import Path

import everthread
from everthread import Personal
from tests.unit.cli.calling import here


def test_B9_backends_mix_and_are_copied_between(tmp_path: Path) -> None:
    threads_url, events_url = f"sqlite:///{tmp_path}/threads.db", f"file://{tmp_path}/events"
    with everthread.open(threads_url) as threads, everthread.open(events_url) as events:
        with threads.session("bot", user_id="u1") as session:
            session.work.add_todo("reconcile")
            session.call("pay-1", lambda: "paid")
            session.messages.append({"role": "user", "content": Personal("u1", "my name is Ann")})
        threads.thread("bot").fork("what-if")
        threads.users.set("u1", "email", "ann@example.org")
        events.events("tasks").append("task_created", {"n": 1})
        head = threads.thread("bot").head
    goal = f"sqlite:///{tmp_path}/goal.db"
    for url in (threads_url, events_url):
        assert here("copy", url, goal, "--json").data["report"]["skipped"] == {}
    here("export", str(tmp_path / "a"), "--store", goal)
    here("import", str(tmp_path / "a"), "--store", f"file://{tmp_path}/back")
    for url in (goal, f"file://{tmp_path}/back"):
        with everthread.open(url) as store:
            assert store.thread("bot").head == store.thread("what-if").head == head
            assert store.thread("bot").messages[-1]["content"].value == "my name is Ann"
            assert store.users.get("u1", "email") == "ann@example.org"
            assert [event.seq for event in store.events("tasks")] == [1]
            assert store.verify()
            with store.session("bot") as session:
                assert session.call("pay-1", lambda: "twice") == "paid"


def test_B9_example(tmp_path: Path) -> None:
    from tests.features.test_b import _example

    assert _example("moving.py", folder=tmp_path).endswith("all of it verified\n")
