"""Threads brought together, deleted and measured."""

from __future__ import annotations

import pytest

import everthread
from tests.unit.cli.calling import Committer, Program


def test_merge_brings_in_what_a_fork_did(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 2).fork("what-if")
    fork = store.thread("what-if")
    fork.state["found"] = "it"
    fork.commit()
    told = program("merge", "bot", "what-if", "--label", "joined")
    assert "bot is at version 3, with what what-if did" in told.out
    assert f"to undo it: everthread rewind bot 2 --store {program.url}\n" in told.err
    thread = store.thread("bot")
    assert thread.state["found"] == "it"
    assert thread.head is not None
    assert (thread.head.kind, thread.head.label) == ("merge", "joined")
    program("merge", "bot", "nobody", code=3)


def test_a_merge_of_effects_alone_says_what_came(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 2).fork("what-if")
    with store.session("what-if") as session:
        session.call("pay", lambda: "paid")
    told = program("merge", "bot", "what-if")
    assert told.out == "the ledger of bot has 1 effect more, of what-if\n"
    assert "no version was made" in told.err
    assert "nothing to merge" not in told.err
    assert [effect.key for effect in store.session_records("bot").effects(None)] == ["pay"]
    assert program.json("merge", "bot", "what-if")["effects"] == 0


def test_a_merge_of_nothing_says_so_and_advises_no_undoing(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 2).fork("what-if")
    commits("bot", 1)
    head = store.thread("bot").head
    told = program("merge", "bot", "what-if", "--label", "joined")
    assert told.out == ""
    assert "nothing to merge: bot has every version of what-if already" in told.err
    assert "no version was made, and none is called 'joined'" in told.err
    assert "rewind" not in told.err
    data = program.json("merge", "bot", "what-if")
    assert (data["version"], data["conflicts"]) == (None, [])
    assert "can't be merged with itself" in program("merge", "bot", "bot", code=2).err
    assert store.thread("bot").head == head


def test_merge_shows_conflicts_and_changes_nothing_until_a_side_is_preferred(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    thread = commits("bot", 1)
    thread.fork("what-if")
    for name, value in (("bot", "here"), ("what-if", "there")):
        store.thread(name).update(lambda draft, value=value: draft.state.update(n=value))
    told = program("merge", "bot", "what-if", code=1)
    assert "n: 'here' here, 'there' there" in told.out
    assert "--prefer" in told.err
    (conflict,) = program.json("merge", "bot", "what-if", code=1)["conflicts"]
    assert (conflict["ours"], conflict["theirs"]) == ("here", "there")
    assert store.thread("bot").state["n"] == "here"
    program("merge", "bot", "what-if", "--prefer", "theirs")
    assert store.thread("bot").state["n"] == "there"


def test_delete_shows_asks_and_leaves_forks(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 3).fork("what-if")
    assert "bot with 3 versions; its forks live on: what-if" in program("delete", "bot", "--dry-run").out
    assert "nothing was changed" in program("delete", "bot", input="n\n", code=1).err
    assert "say --yes" in program("delete", "bot", "--json", code=2).err
    assert store.thread("bot").head is not None
    program("delete", "bot", input="y\n")
    program("show", "bot", code=3)
    assert store.thread("what-if").state["n"] == 3
    program("delete", "bot", "--yes", code=3)


@pytest.mark.parametrize("arguments", [["delete", "bot", "--yes"], ["merge", "bot", "other"]])
def test_what_changes_a_thread_is_refused_while_a_run_is_at_work(
    program: Program, commits: Committer, store: everthread.Store, arguments: list[str]
) -> None:
    commits("other", 1)
    with store.session("bot") as session:
        session.work.add_todo("x")
        assert "a run is at work on 'bot'" in program(*arguments, code=5).err
    assert store.thread("bot").head is not None


def test_stats_tell_what_threads_take_up(program: Program, commits: Committer) -> None:
    commits("small", 1)
    commits("large", 40)
    told = program("stats").out
    assert told.index("large") < told.index("small")
    assert "by kind: " in told
    found = program.json("stats", "--limit", "1")
    assert [each["name"] for each in found["threads"]] == ["large"]
    assert (found["count"], found["versions"]) == (2, 41)
    assert "and 1 more" in program("stats", "--limit", "1").err
