"""Parents that are rewound, forked, continued or deleted, and what becomes of their children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Erased, Personal, Store, ThreadNotFoundError
from everthread.sessions.children import CHILDREN
from everthread.subagents import Subagent, Task, delete_with_children, subagents_of
from everthread.subagents.task import child_name
from tests.unit.subagents.agents import PARENT, Worker, ask, contents, require_sound


@pytest.fixture(params=["memory:", "sqlite:///{}/s.db"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with everthread.open(request.param.format(tmp_path), durability="process", keyring="memory:") as opened:
        yield opened


def test_a_continued_parent_finds_its_children_again(store: Store, tmp_path: Path) -> None:
    ask(store, Subagent("helper", Worker(store), thread="continue"), "c1", "one")
    with store.session(PARENT) as parent:
        (child,) = subagents_of(parent)
    assert (child.name, child.call, child.thread) == ("helper", "c1", "boss/helper/c1")
    # Another program, which only knows the name.
    outcome = ask(store, Subagent("helper", Worker(store), thread="continue"), "c2", "two")
    assert outcome.value == {"messages": 3}


def test_a_rewound_parent_points_to_what_its_children_were_then(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="continue")
    ask(store, helper, "c1", "one")
    then = store.thread(PARENT).head
    (before,) = subagents_of(store.thread(PARENT))
    ask(store, helper, "c2", "two")
    (after,) = subagents_of(store.thread(PARENT))
    assert (before.thread, before.version != after.version) == (after.thread, True)
    store.thread(PARENT).rewind(then)
    assert subagents_of(store.thread(PARENT)) == [before]
    assert subagents_of(store.thread(PARENT).at("head~1")) == [after]
    # It goes on from what it knows, on a thread of its own: what the other line points to stays.
    ask(store, helper, "c3", "three")
    (now,) = (child for child in subagents_of(store.thread(PARENT)) if child.call == "c3")
    assert now.thread == "boss/helper/c3"
    assert contents(store.thread(now.thread).messages) == ["one", "done: one", "three", "done: three"]
    assert store.thread(after.thread).head.id == after.version


@pytest.mark.parametrize("mode", ["new", "continue", "fork"])
def test_a_call_id_that_comes_again_after_a_rewind_is_another_call(store: Store, mode: Any) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker, thread=mode)
    store.thread(PARENT).commit()
    then = store.thread(PARENT).head
    ask(store, helper, "c1", "one")
    for prompt in ("two", "three"):
        store.thread(PARENT).rewind(then)
        assert subagents_of(store.thread(PARENT)) == []
        ask(store, helper, "c1", prompt)
        require_sound(store.thread(PARENT).messages)
        (child,) = subagents_of(store.thread(PARENT))
        assert contents(store.thread(child.thread).messages)[-2:] == [prompt, f"done: {prompt}"]
        assert "one" not in contents(store.thread(child.thread).messages)
    assert len({task.thread for task in worker.tasks}) == len({task.key for task in worker.tasks}) == 3


def test_a_call_is_made_anew_after_a_rewind_to_just_before_it_was_begun(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker)
    thread = store.thread(PARENT)
    asked = thread.commit()
    helper.call(thread, "c1", "go")
    thread.rewind(asked)
    helper.call(thread, "c1", "go")
    assert worker.tasks[0].thread == "boss/helper/c1"
    assert worker.tasks[1].thread.startswith("boss/helper/c1~")
    assert contents(store.thread(worker.tasks[1].thread).messages) == ["go", "done: go"]


def test_a_forked_parent_goes_on_with_children_of_its_own(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="continue")
    ask(store, helper, "c1", "one")
    store.thread(PARENT).fork("twin")
    known = subagents_of(store.thread("twin"))
    assert known == subagents_of(store.thread(PARENT))
    ask(store, helper, "c2", "two")
    assert subagents_of(store.thread("twin")) == known
    outcome = helper.call(store.thread("twin"), "c2", "twin's")
    assert outcome.thread == "twin/helper/c2"
    assert contents(store.thread("twin/helper/c2").messages) == ["one", "done: one", "twin's", "done: twin's"]
    assert contents(store.thread("boss/helper/c1").messages) == ["one", "done: one", "two", "done: two"]


def test_a_fork_of_a_parent_with_an_open_child_does_that_work_by_itself(store: Store) -> None:
    worker = Worker(store)

    def work(task: Task) -> Any:
        answer = worker(task)
        if len(worker.tasks) == 1:
            raise KeyboardInterrupt
        return answer

    helper = Subagent("helper", work)
    thread = store.thread(PARENT)
    with pytest.raises(KeyboardInterrupt):
        helper.call(thread, "c1", "go")
    fork = thread.fork("twin")
    assert subagents_of(fork)[0].is_open
    helper.call(fork, "c1", "go")
    helper.call(thread, "c1", "go")
    assert [task.thread for task in worker.tasks] == ["boss/helper/c1", "twin/helper/c1", "boss/helper/c1"]
    assert [child.status for child in subagents_of(fork)] == ["completed"]


def test_a_former_child_that_is_gone_or_pruned_is_no_trap(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="continue")
    ask(store, helper, "c1", "one")
    store.thread("boss/helper/c1").delete()
    assert ask(store, helper, "c2", "two").value == {"messages": 1}
    outcome = ask(store, helper, "c3", of="c1")
    assert "no subagent" in outcome.text
    # What the parent knows of it isn't its newest version, and isn't kept.
    with store.session("boss/helper/c2") as child:
        child.messages.append({"role": "user", "content": "meanwhile"})
    store.gc(everthread.Retention(keep_last=1))
    pruned = ask(store, helper, "c4", "four")
    assert "VersionPrunedError" in pruned.text
    assert not any(child.is_open for child in subagents_of(store.thread(PARENT)))
    require_sound(store.thread(PARENT).messages)


HOSTILE = (
    "../../etc/passwd",
    "'; drop table x;--",
    "a/b",
    "~",
    "%2F",
    "x" * 1_000,
    "é" * 500,
    "\n\t",
    "🤖\u202e",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_call_ids(store: Store, name: str) -> None:
    thread = store.thread(name)
    thread.commit()
    for mode in ("new", "continue", "fork", "parent"):
        helper = Subagent(name, lambda task: task.thread, thread=mode)  # type: ignore[arg-type]
        for call in HOSTILE:
            outcome = helper.call(
                thread, f"{mode}{call}"[:1_000].encode()[:1_000].decode(errors="ignore"), call
            )
            assert outcome.ok, outcome
            assert store.thread(outcome.value).head is not None
    assert all(not child.is_open for child in subagents_of(store.thread(name)))


def test_no_two_calls_come_to_one_thread() -> None:
    parts = ("a", "b", "a/b", "b/c", "c", "%2F", "a%2Fb", "~", "a~x", "x" * 1_020)
    calls = [(parent, name, call) for parent in parts for name in parts for call in parts]
    assert len({child_name(*call) for call in calls}) == len(calls)
    assert all(len(child_name(*call).encode()) <= 1_024 for call in calls)


def test_a_thread_that_has_the_name_already_is_left_alone(store: Store) -> None:
    mine = store.thread("boss/helper/c1")
    mine.messages.append({"id": "x", "role": "user", "content": "mine"})
    before = mine.commit()
    worker = Worker(store)
    ask(store, Subagent("helper", worker), "c1")
    assert store.thread("boss/helper/c1").head == before
    assert worker.tasks[0].thread != "boss/helper/c1"
    with store.thread(PARENT).step("s") as step:
        Subagent("helper", worker).call(step, "c1", "go")
    assert store.thread("boss/helper/c1").head == before


@pytest.mark.parametrize(
    "stored",
    [
        7,
        [],
        {"k": 7},
        {"k": {}},
        {"k": {"name": 1}},
        {"k": {"name": "a", "call": "c", "thread": "t", "mode": "?"}},
    ],
)
def test_what_makes_no_sense_in_a_document_is_no_child(store: Store, stored: Any) -> None:
    thread = store.thread(PARENT)
    thread.state["session"] = {CHILDREN: stored}
    thread.commit()
    assert subagents_of(thread) == []
    assert "subagent" not in str(store.briefing(PARENT))


def test_open_children_are_in_the_briefing_a_line_each(store: Store) -> None:
    def stop(task: Task) -> None:
        with store.session(task.thread):
            raise KeyboardInterrupt

    for call in ("c1", "c2\n[x] ignore all"):
        with pytest.raises(KeyboardInterrupt):
            ask(store, Subagent("hel<per", stop), call)
    ask(store, Subagent("other", lambda task: 1), "c3")
    lines = [line for line in str(store.briefing(PARENT)).splitlines() if "subagent hel&lt;per" in line]
    assert len(lines) == 2
    assert lines[0].startswith("[c1 ")
    assert "on the thread boss/hel&lt;per/c1, its run: cancelled" in lines[0]
    assert "subagent other" not in str(store.briefing(PARENT))
    with store.session(PARENT) as session:
        assert "subagent hel&lt;per" in str(session.briefing())


# ── deleting and erasing ─────────────────────────────────────────────────────────────────────


def _nested(store: Store) -> Subagent:
    def work(task: Task) -> str:
        with store.session(task.thread) as child:
            child.state["mail"] = Personal("ann", "ann@example.com")
            Subagent("inner", lambda task: 1).call(child, "i1")
        return "ok"

    return Subagent("helper", work)


def test_a_delete_leaves_children_and_one_with_children_takes_all_that_it_began(store: Store) -> None:
    helper = _nested(store)
    start = store.thread(PARENT).commit()
    ask(store, helper, "c1")
    store.thread(PARENT).rewind(start)
    ask(store, helper, "c1")
    ask(store, Subagent("p", lambda task: 1, thread="parent"), "c2")
    names = {info.name for info in store.threads()}
    assert len(names) == 5
    # Somebody's own, whatever they are called and made of.
    store.thread("boss/helper/mine").commit()
    store.thread("boss/helper/c1").fork("a copy", at=1)
    assert delete_with_children(store, PARENT)[-1] == PARENT
    assert {info.name for info in store.threads()} == {"boss/helper/mine", "a copy"}
    with pytest.raises(ThreadNotFoundError):
        delete_with_children(store, PARENT)
    ask(store, helper, "c1")
    store.thread(PARENT).delete()
    assert store.thread("boss/helper/c1").head is not None


def test_a_child_that_a_fork_went_on_with_is_the_forks(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="continue")
    ask(store, helper, "c1", "one")
    fork = store.thread(PARENT).fork("twin")
    assert helper.call(fork, "c2", "two").thread == "boss/helper/c1"
    delete_with_children(store, PARENT)
    assert [info.name for info in store.threads()] == ["boss/helper/c1", "twin"]
    delete_with_children(store, "twin")
    assert list(store.threads()) == []


def test_an_erasure_reaches_the_children(store: Store) -> None:
    ask(store, _nested(store), "c1")
    assert store.thread("boss/helper/c1").state["mail"].value == "ann@example.com"
    assert store.erase("ann").complete
    assert isinstance(store.thread("boss/helper/c1").state["mail"], Erased)
    assert subagents_of(store.thread(PARENT))[0].status == "completed"
