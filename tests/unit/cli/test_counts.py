"""Commands that show the newest entries say how many there are."""

from __future__ import annotations

import pytest

import everthread
from tests.unit.cli.calling import Program

COUNT = 27


def fill(store: everthread.Store) -> None:
    for number in range(COUNT):
        with store.session("bot") as session:
            session.call(f"pay-{number}", lambda: None)


@pytest.mark.parametrize("command", ["runs", "effects"])
def test_the_command_line_says_how_many_there_are(
    program: Program, store: everthread.Store, command: str
) -> None:
    fill(store)
    assert f"20 of {COUNT}" in program(command, "bot").err
    assert program(command, "bot", "--limit", "50").err == ""


def with_other_kinds(store: everthread.Store) -> None:
    """Three threads that are listed; journals, an inbox, an expired and a deleted thread that aren't."""
    for name in ("one", "two"):
        with store.session(name) as session:
            session.call("pay", lambda: None)
            session.messages.append({"role": "user", "content": name})
    store.send("one", "hello")
    deleted = store.thread("deleted")
    for number in range(3):
        deleted.state["n"] = number
        deleted.commit()
    deleted.fork("fork")
    deleted.delete()
    expired = store.thread("expired")
    expired.update(lambda draft: draft.state.update(n=1))
    expired.expire(0.001)
    while "expired" in {info.name for info in store.threads()}:
        pass


def test_stats_counts_the_threads_that_are_listed_and_names_the_rest(
    program: Program, store: everthread.Store
) -> None:
    with_other_kinds(store)
    listed = [info.name for info in store.threads()]
    found = store.stats()
    assert (found.count, sorted(found.threads)) == (len(listed), listed) == (3, ["fork", "one", "two"])
    others = {"journal": 2, "inbox": 1, "expired thread": 1, "deleted thread": 1}
    assert dict(found.others) == others
    told = program.json("stats")
    assert (told["count"], told["others"]) == (3, others)
    first = program("stats").out.splitlines()[0]
    for words in ("3 threads, ", "2 journals", "1 inbox", "1 expired thread", "1 deleted thread"):
        assert words in first


def test_gc_counts_the_threads_that_are_listed_and_names_the_rest(
    program: Program, store: everthread.Store
) -> None:
    with_other_kinds(store)
    listed = {info.name for info in store.threads()}
    dry = program.json("gc", "--keep-last", "1", "--dry-run")
    done = program.json("gc", "--keep-last", "1", "--yes")
    for told in (dry, done):
        assert told["report"]["threads"] <= len(listed)
        assert told["report"]["others"]["journal"] == 2
        assert " journals" in told["summary"]
    assert dry["report"]["others"] == done["report"]["others"]
    assert dry["report"]["threads"] == done["report"]["threads"]
