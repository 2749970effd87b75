"""show --tree and delete --children: the subagents of a thread, and theirs."""

from __future__ import annotations

from typing import Any

import pytest

import everthread
from everthread.subagents import Outcome, Subagent, Task
from tests.unit.cli.calling import Program


@pytest.fixture
def family(store: everthread.Store) -> everthread.Version:
    """A parent with a child that has one itself, one that continued, one that failed and one that is open;
    the version before the last three."""

    def work(task: Task) -> Any:
        with store.session(task.thread) as child:
            if task.prompt == "deeper":
                Subagent("inner", lambda task: Outcome(1, usage={"tokens": 1_200})).call(child, "i1")
            if task.prompt == "fail":
                raise RuntimeError
            if task.prompt == "stop":
                raise KeyboardInterrupt
            child.messages.append({"role": "user", "content": "x"})

    helper, again = Subagent("hel\x1bper", work), Subagent("again", work, thread="continue")
    with store.session("boss") as parent:
        helper.call(parent, "c1", "deeper")
        again.call(parent, "a1")
        then = parent.thread.head
        again.call(parent, "a2")
        Subagent("here", lambda task: 1, thread="parent").call(parent, "h1")
        helper.call(parent, "c2", "fail")
        with pytest.raises(KeyboardInterrupt):
            helper.call(parent, "c3", "stop")
    assert then is not None
    return then


def test_the_tree_shows_what_became_of_each(program: Program, family: everthread.Version) -> None:
    text = program("show", "boss", "--tree").out
    assert "\x1b" not in text
    rows = [line.strip("│├└─ ") for line in text.splitlines()]
    assert rows[0].startswith("boss  version")
    assert "inner  completed, new: boss/" in rows[2]
    assert "tokens=1,200" in rows[2]
    assert "again  completed, continue: boss/again/a1 v4" in rows[3]
    assert "here  completed, on this thread" in rows[4]
    assert "failed, new: boss/" in rows[5]
    assert "open, its run is cancelled, new: boss/" in rows[6]
    data = program.json("show", "boss", "--tree")
    first, again, here, failed, open_ = data["subagents"]
    assert [first["subagents"][0]["name"], data["complete"]] == ["inner", True]
    assert (again["mode"], again["call"], here["thread"]) == ("continue", "a2", "boss")
    assert (failed["reason"], failed["session"], open_["status"]) == ("failed", "failed", "open")


def test_the_tree_of_an_older_version_shows_what_was_then(
    program: Program, store: everthread.Store, family: everthread.Version
) -> None:
    first, again = program.json("show", "boss", str(family.seq), "--tree")["subagents"]
    assert (again["call"], again["has_gone_on"], first["has_gone_on"]) == ("a1", True, False)
    assert "went on since" in program("show", "boss", str(family.seq), "--tree").out
    store.thread("boss/again/a1").delete()
    (_, again) = program.json("show", "boss", str(family.seq), "--tree")["subagents"]
    assert again["is_gone"]
    assert "gone" in program("show", "boss", str(family.seq), "--tree").out


def test_the_document_shows_them_in_words(program: Program, family: everthread.Version) -> None:
    text = program("show", "boss").out
    assert "per: open" in text
    assert "✓ again: completed" in text
    assert "✗ hel" in text
    assert "parent_version" not in text


def test_a_document_that_leads_in_a_circle_ends(program: Program, store: everthread.Store) -> None:
    entry = {"name": "a", "call": "c", "thread": "x", "mode": "new"}
    thread = store.thread("x")
    thread.state["session"] = {"subagents": {str(n): entry for n in range(12)}}
    thread.commit()
    answer = program("show", "x", "--tree", "--json")
    assert not answer.data["complete"]
    assert "not all of them were read" in program("show", "x", "--tree").err


def test_a_thread_without_any(program: Program, store: everthread.Store) -> None:
    store.thread("x").commit()
    answer = program("show", "x", "--tree")
    assert "it has no subagents there" in answer.err
    assert program.json("show", "x", "--tree")["subagents"] == []


def test_delete_takes_children_only_if_asked(
    program: Program, store: everthread.Store, family: everthread.Version
) -> None:
    store.thread("boss/again/mine").commit()
    dry = program.json("delete", "boss", "--children", "--dry-run")
    assert len(dry["children"]) == 5
    assert "5 threads of subagents" in program("delete", "boss", "--children", "--dry-run").out
    program("delete", "boss", "--children", "--yes")
    assert [info.name for info in store.threads()] == ["boss/again/mine"]


def test_delete_says_that_forks_live_on_but_not_children(program: Program, store: everthread.Store) -> None:
    with store.session("boss") as parent:
        parent.messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "f", "arguments": "x"}]}
        )
        Subagent("f", lambda task: 1, thread="fork").call(parent, "c1", "x")
    store.thread("boss").fork("other")
    assert program.json("delete", "boss", "--dry-run")["forks"] == ["boss/f/c1", "other"]
    data = program.json("delete", "boss", "--children", "--dry-run")
    assert (data["children"], data["forks"]) == (["boss/f/c1"], ["other"])
    text = program("delete", "boss", "--children", "--yes").out
    assert "of subagents: boss/f/c1; its forks live on: other\n" in text
    assert [info.name for info in store.threads()] == ["other"]


def test_delete_with_children_waits_for_a_run_on_a_child(
    program: Program, store: everthread.Store, family: everthread.Version
) -> None:
    with store.session("boss/again/a1"):
        program("delete", "boss", "--children", "--yes", code=5)
    assert store.thread("boss").head is not None
