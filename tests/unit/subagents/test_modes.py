"""The four modes: which thread a child works on, what it finds there, and what its parent knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import EffectMismatchError, InvalidNameError, InvalidValueError, Store, UsageError
from everthread.subagents import Outcome, Subagent, Task, subagents_of
from tests.unit.subagents.agents import (
    PARENT,
    AsyncWorker,
    Worker,
    answered,
    ask,
    asking,
    contents,
    require_sound,
)

URLS = ("memory:", "sqlite:///{}/s.db")


@pytest.fixture(params=URLS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with everthread.open(request.param.format(tmp_path), durability="process", keyring="memory:") as opened:
        yield opened


def test_new_is_a_thread_of_its_own_for_each_call(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker)
    first, second = (ask(store, helper, call, call) for call in ("c1", "c2"))
    assert (first.value, second.value) == ({"messages": 1}, {"messages": 1})
    assert [task.thread for task in worker.tasks] == ["boss/helper/c1", "boss/helper/c2"]
    assert contents(store.thread("boss/helper/c2").messages) == ["c2", "done: c2"]
    require_sound(store.thread(PARENT).messages)


def test_continue_goes_on_with_the_thread_of_the_child_before(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker, thread="continue")
    outcomes = [ask(store, helper, call, call) for call in ("c1", "c2", "c3")]
    assert [outcome.value["messages"] for outcome in outcomes] == [1, 3, 5]
    assert {task.thread for task in worker.tasks} == {"boss/helper/c1"}
    assert [outcome.usage for outcome in outcomes] == [{"tokens": 3}] * 3
    # One entry for each child, not for each call.
    (child,) = subagents_of(store.thread(PARENT))
    assert (child.call, child.version) == ("c3", outcomes[-1].version)
    assert child.version == store.thread("boss/helper/c1").head.id


def test_fork_begins_with_what_the_parent_held_before_it_asked(store: Store) -> None:
    worker = Worker(store)
    ask(store, Subagent("other", worker), "c0", "before")
    outcome = ask(store, Subagent("helper", worker, thread="fork"), "c1")
    child = store.thread("boss/helper/c1").messages
    assert contents(child) == ["hello", "", '{"messages": 1}', "go", "done: go"]
    require_sound(child)
    assert outcome.thread == "boss/helper/c1"
    # The parent's other children aren't the child's.
    assert subagents_of(store.thread("boss/helper/c1")) == []
    assert [child.name for child in subagents_of(store.thread(PARENT))] == ["other", "helper"]


def test_fork_of_a_parent_that_asks_in_its_first_message_begins_with_nothing(store: Store) -> None:
    parent = store.thread(PARENT)
    parent.messages.append(asking("c1"))
    parent.commit()
    Subagent("helper", Worker(store), thread="fork").call(parent, "c1", "go")
    assert contents(store.thread("boss/helper/c1").messages) == ["go", "done: go"]


def test_fork_goes_on_from_the_child_before_and_leaves_it_as_it_is(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="fork")
    ask(store, helper, "c1", "one")
    before = store.thread("boss/helper/c1").head
    ask(store, helper, "c2", "two")
    assert store.thread("boss/helper/c1").head == before
    messages = contents(store.thread("boss/helper/c2").messages)
    assert messages == ["hello", "one", "done: one", "two", "done: two"]
    sources = [child.source for child in subagents_of(store.thread(PARENT))]
    assert sources == [PARENT, "boss/helper/c1"]


def test_of_names_the_child_to_go_on_from_or_the_parent(store: Store) -> None:
    helper = Subagent("helper", Worker(store), thread="fork")
    for call in ("c1", "c2"):
        ask(store, helper, call, call, of=PARENT)
    assert contents(store.thread("boss/helper/c2").messages)[-2:] == ["c2", "done: c2"]
    assert "c1" not in contents(store.thread("boss/helper/c2").messages)
    for number, of in enumerate(("c1", "boss/helper/c1")):
        ask(store, helper, f"d{number}", "again", of=of)
        assert "done: c1" in contents(store.thread(f"boss/helper/d{number}").messages)
    outcome = ask(store, helper, "e", of="bank/accounts")
    assert outcome.error is not None
    assert "no subagent 'helper'" in outcome.text
    assert store.thread("boss/helper/e").head is None


def test_parent_works_on_the_parents_own_thread_in_a_log_of_its_own(store: Store) -> None:
    def work(task: Task) -> Any:
        session.log(task.log).append({"id": task.key, "role": "assistant", "content": task.prompt})
        session.state["found"] = 7
        return "ok"

    helper = Subagent("helper", work, thread="parent")
    with store.session(PARENT) as session:
        session.messages.append(asking("c1"))
        outcome = helper.call(session, "c1", "look")
        session.messages.append(answered("c1", outcome))
    thread = store.thread(PARENT)
    assert (outcome.thread, thread.state["found"]) == (PARENT, 7)
    assert contents(thread.log("subagent/helper")) == ["look"]
    require_sound(thread.messages)
    assert [info.name for info in store.threads()] == [PARENT]


def test_parent_knows_of_each_child_what_became_of_it(store: Store) -> None:
    worker = Worker(store)

    def work(task: Task) -> Outcome:
        return Outcome(worker(task), snapshot={"id": "snap-1"}, reason="max_turns")

    outcome = ask(store, Subagent("helper", work, sandbox={"id": "box"}), "c1")
    (child,) = subagents_of(store.thread(PARENT))
    assert worker.tasks[0].sandbox == {"id": "box"}
    assert (child.status, child.reason, child.snapshot) == ("completed", "max_turns", {"id": "snap-1"})
    assert (child.thread, child.version, child.mode) == (outcome.thread, outcome.version, "new")
    assert dict(child.usage) == {"tokens": 3} == outcome.usage
    assert child.text == "helper: completed (max_turns)"
    # The entry stays small whatever the child says.
    assert len(repr(store.thread(PARENT).state["session"].plain())) < 700


def test_a_child_that_goes_on_is_given_the_snapshot_that_it_had_left(store: Store) -> None:
    tasks: list[Task] = []

    def work(task: Task) -> Outcome:
        tasks.append(task)
        return Outcome("ok", snapshot=f"snap-{len(tasks)}")

    helper = Subagent("helper", work, thread="continue")
    for call in ("c1", "c2"):
        ask(store, helper, call)
    assert [task.snapshot for task in tasks] == [None, "snap-1"]


def test_the_same_call_again_gives_what_was_recorded(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker)
    first = ask(store, helper, "c1")
    before = store.thread(PARENT).head
    with store.session(PARENT) as parent:
        assert helper.call(parent, "c1", "go") == first
        with pytest.raises(EffectMismatchError, match="another prompt"):
            helper.call(parent, "c1", "something else")
    assert helper.call(store.thread(PARENT), "c1", "go") == first
    assert (len(worker.tasks), store.thread(PARENT).head) == (1, before)


def test_a_call_that_was_cut_short_goes_on_with_the_same_task(store: Store) -> None:
    tasks: list[Task] = []
    worker = Worker(store)

    def work(task: Task) -> Any:
        tasks.append(task)
        if len(tasks) == 1:
            worker(task)
            raise KeyboardInterrupt
        return worker(task)

    helper = Subagent("helper", work)
    with pytest.raises(KeyboardInterrupt), store.session(PARENT) as parent:
        helper.call(parent, "c1", "go")
    (child,) = subagents_of(store.thread(PARENT))
    assert (child.is_open, child.status, child.text) == (True, "open", "helper: open")
    with store.session(PARENT) as parent:
        with pytest.raises(EffectMismatchError):
            helper.call(parent, "c1", "something else")
        outcome = helper.call(parent, "c1", "go")
    assert tasks[0] == tasks[1]
    assert outcome.value == {"messages": 1}
    assert contents(store.thread(tasks[0].thread).messages) == ["go", "done: go"]


def test_a_childs_session_may_have_a_system_message_and_be_begun_as_new(store: Store) -> None:
    def work(task: Task) -> str:
        for _ in range(2):
            with store.session(task.thread, mode="new", key=task.key, system="be brief"):
                pass
        return "ok"

    ask(store, Subagent("helper", work), "c1")
    assert contents(store.thread("boss/helper/c1").messages) == ["be brief"]


def test_inside_a_step_the_entry_is_part_of_the_step(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker, thread="continue")
    thread = store.thread(PARENT)
    thread.commit()
    for attempt in (1, 2):
        try:
            with thread.step("tool", attempt=attempt) as step:
                outcome = helper.call(step, "c1", "go")
                if attempt == 1:
                    raise RuntimeError
                step.messages.append(answered("c1", outcome))
        except RuntimeError:
            assert subagents_of(store.thread(PARENT)) == []
    assert worker.tasks[0].thread == worker.tasks[1].thread
    assert worker.tasks[0].key == worker.tasks[1].key
    (child,) = subagents_of(store.thread(PARENT))
    assert (child.status, contents(store.thread(child.thread).messages)) == ("completed", ["go", "done: go"])


def test_in_two_parts_as_engines_do_it(store: Store) -> None:
    helper = Subagent("helper", Worker(store), result=int)
    thread = store.thread(PARENT)
    thread.commit()
    with thread.step("begin") as step:
        task = helper.begin(step, "c1", "go")
    assert subagents_of(store.thread(PARENT))[0].is_open
    helper.start(task)
    with thread.step("end") as step:
        assert helper.end(step, task, 7).value == 7
    with thread.step("end of another") as step:
        assert helper.end(step, helper.begin(step, "c2"), RuntimeError("no")).error is not None
    assert [child.status for child in subagents_of(thread)] == ["completed", "failed"]


@pytest.mark.parametrize("door", ["session", "step"])
def test_inside_the_effect_ledger_it_is_called_once(store: Store, door: str) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker)
    for _ in range(2):
        if door == "session":
            with store.session(PARENT) as parent:
                text = parent.call("c1", helper, parent, "c1", "go", verify=helper.verify)
        else:
            thread = store.thread(PARENT)
            with thread.step("tool", run="r1", redo=True) as step:
                text = step.call("c1", helper, step, "c1", "go", verify=helper.verify)
        assert text == '{"messages": 1}'
    assert len(worker.tasks) == 1


def test_a_call_in_the_ledger_that_was_cut_short_is_made_again_and_goes_on(store: Store) -> None:
    worker = Worker(store)

    def work(task: Task) -> Any:
        answer = worker(task)
        if len(worker.tasks) == 1:
            raise KeyboardInterrupt
        return answer

    helper = Subagent("helper", work)
    with pytest.raises(KeyboardInterrupt), store.session(PARENT) as parent:
        parent.call("c1", helper, parent, "c1", "go", verify=helper.verify)
    with store.session(PARENT) as parent:
        assert parent.call("c1", helper, parent, "c1", "go", verify=helper.verify) == '{"messages": 1}'
    assert worker.tasks[0] == worker.tasks[1]


def test_the_async_colour_and_several_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        for url in URLS:
            async with everthread.open_async(url.format(tmp_path), keyring="memory:") as store:
                worker = AsyncWorker(store)
                helpers = {
                    mode: Subagent(mode, worker, thread=mode)  # type: ignore[arg-type]
                    for mode in ("new", "continue", "fork")
                }
                async with store.session(PARENT) as parent:
                    await parent.messages.append({"id": "hello", "role": "user", "content": "hello"})
                    for call in ("c1", "c2"):
                        await parent.messages.append(asking(call))
                        made = await asyncio.gather(
                            *(helper.call(parent, call, "go") for helper in helpers.values())
                        )
                        assert all(outcome.ok for outcome in made)
                        await parent.messages.append(answered(call, made[0]))
                    new, again, fork = (outcome.value["messages"] for outcome in made)
                    assert (new, again) == (1, 3)
                    assert fork == 4
                    assert len(subagents_of(parent)) == 5
                    assert await parent.call("k", helpers["new"], parent, "c9", "go") == '{"messages": 1}'
                thread = await store.thread(PARENT)
                require_sound(await thread.messages.read())
                async with thread.step("tool", run="r") as step:
                    await helpers["continue"].call(step, "c3", "go")
                # Of those that began at once anyone may have been the first.
                assert {task.thread for task in worker.tasks if task.mode == "continue"} == {
                    worker.tasks[-1].thread
                }

    asyncio.run(run())


def test_two_calls_at_once_that_continue_one_child_get_a_thread_each(store: Store) -> None:
    worker = Worker(store)
    helper = Subagent("helper", worker, thread="continue")
    ask(store, helper, "c1", "one")
    with store.session(PARENT) as parent:
        tasks = [helper.begin(parent, call, call) for call in ("c2", "c3")]
        for task in reversed(tasks):
            helper.end(parent, task, worker(task))
    assert [task.thread for task in tasks] == ["boss/helper/c1", "boss/helper/c3"]
    assert contents(store.thread("boss/helper/c3").messages) == ["one", "done: one", "c3", "done: c3"]
    assert contents(store.thread("boss/helper/c1").messages) == ["one", "done: one", "c2", "done: c2"]


def test_what_makes_no_sense_is_refused_and_changes_nothing(store: Store) -> None:
    with pytest.raises(InvalidValueError, match="new, continue, fork, parent"):
        Subagent("helper", print, thread="old")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="start"):
        Subagent("helper", "print")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="pydantic model"):
        Subagent("helper", print, result=7)
    with pytest.raises(InvalidNameError):
        Subagent("", print)
    helper = Subagent("helper", print)
    thread = store.thread(PARENT)
    for call in ("", "a\0b", "\ud800", 7):
        with pytest.raises(InvalidNameError, match="id of a call"):
            helper.call(thread, call)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="from a session, a thread or a step"):
        helper.call("boss", "c1")  # type: ignore[call-overload]
    thread.state["x"] = 1
    with pytest.raises(UsageError, match="uncommitted changes"):
        helper.call(thread, "c1")
    with pytest.raises(UsageError, match="uncommitted changes"):
        helper.begin(thread, "c1")
    thread.discard()
    assert list(store.threads()) == []


def test_a_coroutine_in_the_blocking_colour_is_told_so(store: Store) -> None:
    async def work(task: Task) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match="async function"):
        Subagent("helper", work).call(store.thread(PARENT), "c1")
