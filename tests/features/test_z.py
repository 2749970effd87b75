"""Z: threads (the rows that the core itself answers for)."""

from __future__ import annotations

import asyncio
import datetime
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import FencedError, InvalidValueError, Store
from everthread.hooks import SessionLifecycle
from everthread.subagents import Outcome, Subagent, Task, delete_with_children, subagents_of
from everthread.testing.driver import run
from everthread.threads.runtime import Runtime
from tests.servers.colours import Url, behind


def test_Z1_new_continue_and_fork(store: Store) -> None:
    thread = store.thread("new")
    thread.state["tasks"] = {"t1": {"subject": "pay"}}
    thread.messages.append({"role": "system", "content": "be kind"})
    thread.commit()
    again = store.thread("new")
    again.messages.append({"role": "user", "content": "go on"})
    again.commit()
    fork = again.fork("branch")
    fork.state["tasks"]["t1"]["done"] = True
    fork.messages.append({"role": "user", "content": "elsewhere"})
    fork.commit()
    assert fork.state.plain() == {"tasks": {"t1": {"subject": "pay", "done": True}}}
    assert [m["content"] for m in fork.messages] == ["be kind", "go on", "elsewhere"]
    source = store.thread("new")
    assert source.state.plain() == {"tasks": {"t1": {"subject": "pay"}}}
    assert [m["content"] for m in source.messages] == ["be kind", "go on"]


def test_Z2_appending_is_idempotent_by_id(store: Store) -> None:
    thread = store.thread("t")
    batch = [
        {"id": "sys", "role": "system", "content": "prompt"},
        {"id": "u1", "role": "user", "content": "hi"},
    ]
    thread.messages.extend(batch)
    thread.commit()
    # Retried as a whole, by somebody who didn't see the answer: nothing doubles, nothing is lost.
    retry = store.thread("t")
    retry.messages.extend(batch)
    assert not retry.dirty
    retry.commit()
    assert [m["id"] for m in store.thread("t").messages] == ["sys", "u1"]
    with pytest.raises(InvalidValueError, match="other content"):
        retry.messages.append({"id": "u1", "role": "user", "content": "something else"})
    # An id that was truncated away appends anew.
    retry.messages.truncate_from("u1")
    retry.messages.append({"id": "u1", "role": "user", "content": "something else"})
    retry.commit()
    assert store.thread("t").messages[-1]["content"] == "something else"
    # Ids are per thread and per log.
    other = store.thread("other")
    other.messages.append({"id": "u1", "content": "mine"})
    other.log("tools").append({"id": "u1", "content": "also mine"})
    other.commit()
    assert len(other.messages) == len(other.log("tools")) == 1
    # Deleted and created again: a new thread, which knows none of the old ids.
    retry.delete()
    fresh = store.thread("t")
    fresh.messages.append({"id": "sys", "content": "another prompt"})
    fresh.commit()
    assert [m["content"] for m in store.thread("t").messages] == ["another prompt"]


def test_Z3_truncation_and_rewind_of_a_turn(store: Store) -> None:
    thread = store.thread("t")
    for turn in range(3):
        thread.state["tasks"] = {"turn": turn}
        thread.messages.append({"id": f"m{turn}"})
        thread.commit(label=f"turn {turn}")
    thread.messages.truncate_from("absent")
    assert not thread.dirty
    thread.messages.truncate_from("m1")
    thread.commit()
    assert [m["id"] for m in thread.messages] == ["m0"]
    before = thread.head
    thread.rewind(1)
    assert thread.state.plain() == {"tasks": {"turn": 0}}
    assert [m["id"] for m in thread.messages] == ["m0"]
    assert before is not None
    thread.rewind(before.seq - 1)
    assert thread.state.plain() == {"tasks": {"turn": 2}}
    assert [m["id"] for m in thread.messages] == ["m0", "m1", "m2"]


def test_Z4_ids_are_derived_and_a_late_attempt_is_fenced(store: Store) -> None:
    zombie_handle, retry_handle = store.thread("t"), store.thread("t")
    zombie = zombie_handle.step(("turn 1", 0), attempt=1)
    zombie.__enter__()
    zombie.messages.append({"content": "late"})
    with retry_handle.step(("turn 1", 0), attempt=2) as retry:
        assert not retry.done
        assert retry.message_id(0) == zombie.message_id(0)
        retry.messages.append({"content": "in time"})
        retry.result = {"tokens": 7}
    with pytest.raises(FencedError) as caught:
        zombie.__exit__(None, None, None)
    assert (caught.value.attempt, caught.value.newest) == (1, 2)
    thread = store.thread("t")
    assert [m["content"] for m in thread.messages] == ["in time"]
    with thread.step(("turn 1", 0), attempt=3) as third:
        assert third.done
        assert third.result == {"tokens": 7}


def test_Z4_parallel_tool_results_land_in_call_order(store: Store) -> None:
    base = store.thread("t")
    base.messages.append({"id": "call", "content": "three tools"})
    base.commit()
    handles = [store.thread("t") for _ in range(3)]
    steps = [handle.step(("turn 1", "tools"), slot=slot) for slot, handle in enumerate(handles)]
    for step in steps:
        step.__enter__()
        step.messages.append({"content": f"result {step.slot}"})
        step.result = step.slot
    for slot in (2, 0, 1):
        steps[slot].__exit__(None, None, None)
    expected = ["three tools", "result 0", "result 1", "result 2"]
    assert [m["content"] for m in store.thread("t").messages] == expected
    # A retried sibling finds itself done and removes nothing.
    with store.thread("t").step(("turn 1", "tools"), attempt=2, slot=0) as again:
        assert again.done
        assert again.result == 0
    assert [m["content"] for m in store.thread("t").messages] == expected


def test_Z9_fork_hooks_are_applied_once_to_the_new_thread(store: Store) -> None:
    thread = store.thread("t")
    for i in range(6):
        thread.messages.append({"id": f"m{i}", "content": f"text {i}"})
    thread.commit()
    calls: list[str] = []

    def prepare(messages: list[dict[str, str]]) -> list[dict[str, str]]:
        calls.append("prepare")
        return messages[-2:]

    def transform(message: dict[str, str]) -> dict[str, str]:
        calls.append("transform")
        return {**message, "content": message["content"].upper()}

    fork = thread.fork("f", prepare=prepare, transform=transform)
    assert calls == ["prepare", "transform", "transform"]
    assert [m["content"] for m in fork.messages] == ["TEXT 4", "TEXT 5"]
    assert [m["content"] for m in store.thread("f").messages] == ["TEXT 4", "TEXT 5"]
    assert fork.head is not None
    assert fork.head.kind == "fork"
    assert [m["content"] for m in store.thread("t").messages] == [f"text {i}" for i in range(6)]


def test_Z5_the_slice_is_apart_from_bookkeeping_and_goes_on(store: Store) -> None:
    with store.session("z5") as session:
        task = session.tasks.add("a")
        session.merge_update({"phase": "one", "turns": 99, "status": "failed", "usage": {}}, budget=3)
        assert session.slice() == {
            "tasks": [[task.id, session.state["tasks"][task.id].plain() | {"blocks": []}]],
            "phase": "one",
            "budget": 3,
        }
        version = session.version
        session.merge_update(phase="two", budget=4)
        assert session.version == version + 1
        with session.turn() as turn:
            turn.add_usage(input_tokens=10, output_tokens=3)
            turn.add_usage(input_tokens=1)
        session.add_usage(cost_usd=0.5)
        assert session.usage == {"input_tokens": 11, "output_tokens": 3, "cost_usd": 0.5}
        with pytest.raises(InvalidValueError, match="session's own calls"):
            session.merge_update(todos={})
        assert session.status == "running"
    with store.session("z5") as session:
        assert session.slice()["phase"] == "two"
        assert session.turns == 1
        with session.turn() as turn:
            turn.add_usage(input_tokens=1)
        assert (session.turns, session.usage.input_tokens, session.run.turns) == (2, 12, 1)
        # Tasks that are given replace all of them, with both sides of every edge.
        session.merge_update(tasks={"x": {"subject": "x", "blocks": ["y"]}, "y": {"subject": "y"}})
        assert [one.id for one in session.tasks] == ["x", "y"]
        assert session.tasks["y"].blocked_by == ("x",)
        with pytest.raises(everthread.InvalidStateError, match="waits for it already"):
            session.merge_update(
                tasks={"x": {"subject": "x", "blocked_by": ["y"]}, "y": {"subject": "y", "blocked_by": ["x"]}}
            )
        assert [one.id for one in session.tasks] == ["x", "y"]
    with store.session("fork", mode="fork", source="z5") as session:
        # Rehydrated, and what the source has used isn't counted twice.
        assert session.slice()["phase"] == "two"
        assert (session.turns, session.usage) == (0, {})


SLICES = """
import os, signal, sys, everthread
store = everthread.open(sys.argv[1])
session = store.session("z5")
with session.turn() as turn:
    session.state["phase"] = "after turn 1"
    turn.add_usage(input_tokens=7)
with session.turn() as turn:
    session.state["phase"] = "in turn 2"
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_Z5_the_slice_is_saved_at_every_turn(url: Url) -> None:
    assert subprocess.run([sys.executable, "-c", SLICES, url]).returncode == -signal.SIGKILL
    with url.open() as store, store.session("z5") as session:
        assert session.slice() == {"phase": "after turn 1"}
        assert (session.turns, session.usage.input_tokens) == (2, 7)


def test_Z5_usage_of_subagents_counts(store: Store) -> None:
    with store.session("parent") as parent:
        parent.add_usage(tokens=1)
        with store.session("child", parent=parent) as child:
            child.add_usage(tokens=10)
            with child.turn():
                pass
            assert (parent.turns, parent.usage.tokens) == (1, 11)
            with store.session("grandchild", parent=child) as grandchild:
                grandchild.add_usage(tokens=100)
            assert child.usage.tokens == 110
        with store.session("child", parent=parent) as child:
            child.add_usage(tokens=1000)
        assert (parent.usage.tokens, parent.turns) == (1111, 1)
        store.thread("child").delete()
        assert parent.usage.tokens == 1111
    with store.session("parent") as parent:
        assert parent.usage.tokens == 1111
    assert store.session_records("parent").usage.tokens == 1111


def test_Z6_statuses_reasons_and_hooks_on_every_path(store: Store) -> None:
    def run(body: Any, **options: Any) -> tuple[str | None, str, list[Any]]:
        told: list[Any] = []
        lifecycle = SessionLifecycle()
        lifecycle.register("on_session_start", lambda session: told.append(("start", session.session_id)))
        lifecycle.register("on_turn", lambda turn: told.append(("turn", turn.number)))
        lifecycle.register("on_tool_use", lambda use: told.append((use.phase, use.name)))
        lifecycle.register(
            "on_sandbox_ready", lambda sandbox_id, base_snapshot: told.append((sandbox_id, base_snapshot))
        )
        lifecycle.register(
            "on_session_end", lambda reason, turns, usage: told.append((reason, turns, dict(usage)))
        )
        lifecycle.register(
            "on_session_exit",
            lambda sandbox_id, snapshot, thread: told.append((sandbox_id, snapshot, thread.name)),
        )
        session = store.session(f"z6-{len(list(store.threads()))}", hooks=lifecycle, **options)
        try:
            with session:
                assert session.status == "running"
                assert session.exit_reason is None
                body(session)
        except BaseException as error:
            told.append(type(error).__name__)
        with pytest.raises(everthread.SessionBusyError), store.session(session.session_id):
            store.session(session.session_id)
        return session.exit_reason, session.status, [entry for entry in told if entry[0] != "start"]

    def work(session: Any) -> None:
        with session.turn() as turn:
            turn.add_usage(tokens=1)
            with turn.tool("look"):
                pass

    def sandboxed(session: Any) -> None:
        session.sandbox_ready("sb-1", "base")
        session.exit_snapshot = "snap-1"

    def leaking(session: Any) -> None:
        session.sandbox_ready("sb-2")
        raise OSError("set-up failed")

    def raising(error: BaseException) -> Any:
        def body(session: Any) -> None:
            with session.turn():
                raise error

        return body

    def endless(session: Any) -> None:
        while True:
            with session.turn():
                pass

    assert [info.name for info in store.threads()] == []
    assert run(work) == (
        "completed",
        "completed",
        [
            ("turn", 1),
            ("pre", "look"),
            ("post", "look"),
            ("completed", 1, {"tokens": 1}),
            (None, None, "z6-0"),
        ],
    )
    reason, status, told = run(sandboxed)
    assert (reason, told) == (
        "completed",
        [("sb-1", "base"), ("completed", 0, {}), ("sb-1", "snap-1", "z6-1")],
    )
    # A set-up that fails still tears its sandbox down.
    reason, status, told = run(leaking)
    assert (reason, status) == ("failed", "failed")
    assert told == [("sb-2", None), ("failed", 0, {}), ("sb-2", None, "z6-2"), "OSError"]
    for error in (KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1)):
        reason, status, told = run(raising(error))
        assert (reason, status, told[-1]) == ("cancelled", "cancelled", type(error).__name__)
    reason, status, told = run(raising(ValueError("no")))
    assert (reason, status, told[1][0]) == ("failed", "failed", "failed")
    reason, status, told = run(endless, max_turns=2)
    assert (reason, status) == ("max_turns", "failed")
    assert told[:3] == [("turn", 1), ("turn", 2), ("max_turns", 2, {})]
    assert told[-1] == "MaxTurnsError"
    assert run(endless, max_turns=0)[2][0] == ("max_turns", 0, {})
    assert run(lambda session: session.wait_for_input())[:2] == ("waiting_for_input", "waiting_for_input")
    assert run(lambda session: session.cancel())[:2] == ("cancelled", "cancelled")
    assert run(lambda session: session.fail("gave up"))[:2] == ("failed", "failed")
    assert run(lambda session: session.complete())[:2] == ("completed", "completed")


def test_Z6_a_failing_hook_changes_nothing_and_is_reported(store: Store) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("hook")

    names = ("on_session_start", "on_turn", "on_tool_use", "on_session_end", "on_session_exit")
    with store.session("z6", hooks=dict.fromkeys(names, broken)) as session, session.turn():
        session.state["x"] = 1
        session.call("k", lambda: 1)
    assert session.exit_reason == "completed"
    assert store.thread("z6").state["x"] == 1
    where = [error.where for error in reversed(store.session_records("z6").errors())]
    assert [text.rpartition(" ")[2] for text in where] == [
        "on_session_start",
        "on_turn",
        "on_tool_use",
        "on_tool_use",
        "on_session_end",
        "on_session_exit",
    ]


def test_Z6_turns(store: Store) -> None:
    with store.session("z6") as session:
        with session.turn() as turn:
            with pytest.raises(everthread.InvalidStateError, match="turn 1 isn't over"), session.turn():
                pass
            first = turn.message_id("assistant")
            assert first == turn.message_id("assistant") != turn.message_id("tool")
            turn.messages.append({"id": first, "role": "assistant"})
        with pytest.raises(everthread.InvalidStateError, match="inside its with block"):
            turn.messages.append({"role": "late"})
        with session.turn() as turn:
            assert turn.message_id("assistant") != first
    with store.session("z6") as session, session.turn() as turn:
        # Counted over runs.
        assert turn.number == 3


def test_Z7_tasks(store: Store) -> None:
    with store.session("z7") as session:
        tasks = session.tasks
        a = tasks.add("a", "first", active_form="doing a", metadata={"owner": "x"})
        b = tasks.add("b", blocked_by=[a.id])
        c = tasks.add("c", blocked_by=[a.id, b.id])
        d = tasks.add("d", blocks=[c.id])
        assert (a.subject, a.description, a.active_form, a.status) == ("a", "first", "doing a", "pending")
        assert tasks[a.id].blocks == (b.id, c.id)
        assert tasks[c.id].blocked_by == (a.id, b.id, d.id)
        assert [task.subject for task in tasks.ready()] == ["a", "d"]
        assert [task.subject for task in tasks.blocked()] == ["b", "c"]
        for blocker in (b, c):
            with pytest.raises(everthread.InvalidStateError, match="waits for it already"):
                tasks.block(a.id, by=blocker.id)
        with pytest.raises(everthread.InvalidStateError, match="waits for it already"):
            tasks.block(a.id, by=a.id)
        with pytest.raises(everthread.InvalidStateError, match="waits for it already"):
            tasks.add("between", blocked_by=[c.id], blocks=[a.id])
        with pytest.raises(everthread.NotFoundError):
            tasks.add("e", blocked_by=["unknown"])
        assert len(tasks) == 4
        # Enforced: what is blocked can't be started or finished.
        with pytest.raises(everthread.InvalidStateError, match="waits for"):
            tasks.start(b.id)
        with pytest.raises(everthread.InvalidStateError, match="waits for"):
            tasks.complete(c.id)
        assert tasks.start(a.id).status == "in_progress"
        tasks.complete(a.id)
        assert [task.subject for task in tasks.ready()] == ["b", "d"]
        tasks.update(a.id, metadata={"owner": None, "n": 1}, subject="A")
        assert (dict(tasks[a.id].metadata), tasks[a.id].subject) == ({"n": 1}, "A")
        # Deleting cleans both sides up, unblocking removes an edge.
        tasks.delete(b.id)
        assert tasks[c.id].blocked_by == (a.id, d.id)
        assert tasks[a.id].blocks == (c.id,)
        tasks.unblock(c.id, by=d.id)
        assert tasks[d.id].blocks == ()
        assert [task.subject for task in tasks.ready()] == ["c", "d"]
        tasks.update(d.id, blocks=[c.id])
        assert tasks[c.id].blocked_by == (a.id, d.id)
        before = session.thread.head
        assert before is not None
        tasks.complete(d.id)
        session.rewind(before)
        assert tasks[d.id].status == "pending"
    with store.session("z7") as session:
        assert [task.subject for task in session.tasks] == ["A", "c", "d"]


def test_Z7_both_sides_agree_after_a_merge(store: Store) -> None:
    with store.session("z7") as session:
        a, b = session.tasks.add("a"), session.tasks.add("b")
        other = session.thread.fork("other")
        with store.session("other") as side:
            side.tasks.block(b.id, by=a.id)
            side.tasks.add("c", blocked_by=[a.id])
        session.tasks.add("d", blocked_by=[a.id])
        other.refresh()
        assert session.thread.merge(other)
        tasks = session.tasks
        assert {tasks[id_].subject for id_ in tasks[a.id].blocks} == {"b", "c", "d"}
        assert [task.subject for task in tasks.ready()] == ["a"]


def test_Z8_version_and_waiting_for_a_change(store: Store) -> None:
    with store.session("z8") as session:
        version = session.version
        with session.turn() as turn:
            turn.add_usage(tokens=5)
        session.call("effect", lambda: 1)
        session.heartbeat()
        assert session.version == version
        session.wait_for_input()
        assert session.version == version + 1
        session.tasks.add("a")
        assert session.version == version + 2
        session.rewind(1)
        assert session.version == version + 3
        view = store.session_records("z8")
        assert (view.version, view.status, view.turns) == (session.version, "waiting_for_input", 1)
        assert session.wait_for_change(session.version, timeout=0) == session.version
        assert session.wait_for_change(version) == session.version

        now = session.version
        waiting = threading.Thread(target=lambda: seen.append(view.wait_for_change(now)))
        seen: list[Any] = []
        waiting.start()
        session.merge_update(phase="next")
        waiting.join()
        assert seen[0].version == now + 1
        assert seen[0].slice() == {"phase": "next"}
        session.complete()
    # The end ends every wait.
    assert session.wait_for_change(10_000) == session.version
    assert store.session_records("z8").wait_for_change(10_000).status == "completed"


def test_Z10_messages_are_stored_as_given_and_read_in_every_shape(store: Store) -> None:
    from everthread import Personal
    from everthread.messages import for_openai_chat

    thinking = {"type": "thinking", "thinking": "…", "signature": "c2ln"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "March"}}
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "content": [thinking, use]}
    with store.session("z10", system="Be brief.") as session:
        session.messages.append({"role": "user", "content": Personal("u1", "I am Ada")})
        session.messages.append(answer, shape="anthropic")
        # The same again, by somebody who didn't see the answer.
        session.messages.append(answer, shape="anthropic")
        assert session.messages[-1] == {"id": "msg_1", "shape": "anthropic", "message": answer}
        assert len(session.messages) == 3

        request = session.messages.for_anthropic(reveal=True)
        assert request["system"][0]["text"] == "Be brief."
        assert [message["role"] for message in request["messages"]] == ["user", "assistant", "user"]
        assert request["messages"][1]["content"] == [thinking, use]
        assert request["messages"][2]["content"][0]["tool_use_id"] == "toolu_1", "the orphan is completed"
        assert [change.kind for change in request.report.changes] == ["added"]

        assert "Ada" not in str(dict(session.messages.for_openai_chat()))
        chat = session.messages.for_openai_chat(orphans="cut")
        assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
        assert {change.what for change in chat.report.dropped} == {"tool call", "reasoning"}
        assert session.messages.for_openai_responses()["input"][1]["call_id"] == "toolu_1"
        assert session.messages.for_google()["contents"][1]["parts"][0]["function_call"]["id"] == "toolu_1"
        assert session.messages.for_langchain().messages[2]["data"]["tool_calls"][0]["args"] == {
            "at": "March"
        }

        assert "look" in session.briefing()

    # The same for a plain thread; what has no shape that can be told is refused, and says which it is.
    thread = store.thread("z10")
    assert for_openai_chat(thread.messages, orphans="cut")["messages"] == chat["messages"]
    thread.messages.append({"payload": 3})
    with pytest.raises(InvalidValueError, match="message 3 has no shape"):
        for_openai_chat(thread.messages)


# ── the side of the adapters ─────────────────────────────────────────────────────────────────────


@pytest.mark.blocking("start is a coroutine in the async form: tests/unit/subagents/test_modes.py")
def test_Z11_subagents_in_four_modes_are_found_again(store: Store) -> None:
    def work(task: Task) -> Outcome:
        thread = store.thread(task.thread)
        log = thread.log(task.log)
        log.append({"id": task.key, "role": "user", "content": task.prompt})
        thread.commit()
        return Outcome({"length": len(log)}, usage={"tokens": 5}, snapshot=f"snap-{task.prompt}")

    parent = store.thread("boss")
    parent.messages.append({"id": "m0", "role": "user", "content": "hello"})
    parent.commit()
    lengths = []
    for number, mode in enumerate(("new", "continue", "continue", "fork", "fork", "parent")):
        parent.messages.append({"id": f"a{number}", "role": "assistant", "calls": [f"c{number}"]})
        parent.commit()
        helper = Subagent(mode, work, thread=mode, result=dict[str, int])  # type: ignore[arg-type]
        outcome = helper.call(parent, f"c{number}", number)
        lengths.append(outcome.value["length"])
        parent.refresh()
        parent.messages.append({"id": f"t{number}", "role": "tool", "content": outcome.text})
        parent.commit()
    # A fork has the parent's messages from before the call: three turns of two, and the first one.
    assert lengths == [1, 1, 2, 8, 9, 1]
    found = {child.name: child for child in subagents_of(store.thread("boss"))}
    assert {name: child.status for name, child in found.items()} == dict.fromkeys(found, "completed")
    assert [found["continue"].snapshot, found["fork"].snapshot] == ["snap-2", "snap-4"]
    assert found["continue"].version == store.thread(found["continue"].thread).head.id
    # A fork of the parent goes on with what its children were then.
    fork = store.thread("boss").fork("twin", at="head~8")
    assert [child.name for child in subagents_of(fork)] == ["new", "continue", "fork"]
    assert delete_with_children(store, "boss")[-1] == "boss"
    assert [info.name for info in store.threads()] == ["twin"]


def test_Z13_idle_threads_move_to_an_archive_and_come_back(url: Url, tmp_path: Path) -> None:
    clock = [1_800_000_000 * 1_000_000]
    options: Any = {"runtime": Runtime(now_us=lambda: clock[0]), "cold": tmp_path / "cold"}

    def whole(store: Store, name: str) -> Any:
        thread = store.thread(name)
        return [
            (version, (then := thread.at(version)).state.plain(), list(then.messages))
            for version in thread.history(limit=1000)
        ]

    with url.open(**options) as store:
        for name in ("idle", "busy"):
            thread = store.thread(name)
            for number in range(100):
                thread.state["step"] = number
                thread.messages.append({"id": f"{name}-{number}", "content": "words " * number})
                thread.commit(key=f"{name} {number}")
        late = store.thread("idle")
        late.messages.append({"id": "late", "content": "written while it was moved"})
        before = whole(store, "idle")
        clock[0] += 30 * 86_400 * 1_000_000
        store.thread("busy").update(lambda draft: draft.state.increment("step"))
        taken = store.stats().bytes
        assert store.cool(datetime.timedelta(days=7)).threads == 1
        assert store.stats().bytes < taken
        # It knows nothing of the move, and goes on top.
        late.commit()
    assert any((tmp_path / "cold").iterdir())
    with url.open(**options) as store:
        # Another process continues it: listed, found, committed to; what is asked of its past comes back.
        assert [info.name for info in store.threads()] == ["busy", "idle"]
        thread = store.thread("idle")
        assert thread.state["step"] == 99
        assert thread.commit(key="idle 7").seq == 8
        thread.messages.append({"id": "idle-3", "content": "words " * 3})
        assert len(thread.messages) == 101
        assert whole(store, "idle")[1:] == before
        assert store.thread("idle").messages[-1]["content"] == "written while it was moved"
        assert store.verify()


def test_Z13_every_write_renews_the_lifetime(url: Url, tmp_path: Path) -> None:
    clock = [1_800_000_000 * 1_000_000]
    options: Any = {"runtime": Runtime(now_us=lambda: clock[0]), "cold": tmp_path / "cold"}
    with url.open(**options) as store:
        for number in range(5):
            thread = store.thread("session", ttl=3600)
            thread.messages.append({"content": str(number)})
            thread.commit()
            clock[0] += 3000 * 1_000_000
            store.cool(600)
        assert [message["content"] for message in store.thread("session").messages] == list("01234")
        clock[0] += 601 * 1_000_000
        assert store.thread("session").head is None
        assert store.gc().expired == ("session",)


def test_Z1_adapters_begin_continue_and_fork(store: Store) -> None:
    from everthread.adapters.adk import EverthreadSessionService
    from everthread.adapters.openai_agents import EverthreadSession

    async def main() -> None:
        session = EverthreadSession("s", behind(store))
        await session.add_items([{"role": "user", "content": "one"}])
        await EverthreadSession("s", behind(store)).add_items([{"role": "user", "content": "two"}])
        fork = await session.branch("fork", at=1)
        await fork.add_items([{"role": "user", "content": "elsewhere"}])
        assert [item["content"] for item in await fork.get_items()] == ["one", "elsewhere"]
        assert [item["content"] for item in await session.get_items()] == ["one", "two"]

        service = EverthreadSessionService(behind(store))
        key: Any = {"app_name": "app", "user_id": "u1", "session_id": "s"}
        await service.create_session(**key, state={"tasks": {"t1": "open"}})
        copy = await service.fork(**key, new_session_id="copy")
        await service.append_event(copy, _event(tasks={"t1": "done"}))
        source = await service.get_session(**key)
        assert source is not None
        assert source.state == {"tasks": {"t1": "open"}}

    asyncio.run(main())


def _event(event_id: str = "", **delta: Any) -> Any:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions

    named = {"id": event_id} if event_id else {}
    return Event(author="a", invocation_id="i", actions=EventActions(state_delta=delta), **named)


def test_Z2_adapters_append_once(store: Store) -> None:
    from everthread.adapters.adk import EverthreadSessionService
    from everthread.adapters.claude import EverthreadSessionStore

    async def main() -> None:
        sessions = EverthreadSessionStore(behind(store))
        key: Any = {"project_key": "p", "session_id": "s"}
        batch: Any = [{"type": "system", "uuid": "0"}, {"type": "user", "uuid": "1"}]
        for _ in range(2):
            await sessions.append(key, batch)
        assert await sessions.load(key) == batch, "nor is the first entry lost when its append is retried"
        await sessions.delete(key)
        await sessions.append(key, batch)
        assert await sessions.load(key) == batch

        service = EverthreadSessionService(behind(store))
        session = await service.create_session(app_name="app", user_id="u1", session_id="s")
        event = _event("e1", n=1)
        for _ in range(2):
            await service.append_event(session, event.model_copy(deep=True))
        found = await service.get_session(app_name="app", user_id="u1", session_id="s")
        assert found is not None
        assert len(found.events) == len(session.events) == 1

    asyncio.run(main())


def test_Z3_adapters_rewind_messages_and_state_together(store: Store) -> None:
    from everthread.adapters.adk import EverthreadSessionService
    from everthread.adapters.openai_agents import EverthreadSession

    session = EverthreadSession("s", behind(store))
    run(session.add_items([{"role": "user", "content": "one"}]))
    thread = store.thread("s")
    thread.state["phase"] = "first"
    thread.commit()
    run(session.add_items([{"role": "user", "content": "two"}]))
    thread.refresh()
    thread.state["phase"] = "second"
    thread.commit()
    run(session.rewind(turns=1))
    assert [item["content"] for item in run(session.get_items())] == ["one"]
    assert store.thread("s").state["phase"] == "first"

    async def main() -> None:
        service = EverthreadSessionService(behind(store))
        key: Any = {"app_name": "app", "user_id": "u1", "session_id": "s"}
        made = await service.create_session(**key)
        await service.append_event(made, _event(**{"n": 1, "user:n": 1}))
        before = await service.rewind(**key, before_invocation_id="i")
        assert (before.events, before.state) == ([], {})

    asyncio.run(main())


def test_Z4_adapters_refuse_a_late_write(store: Store) -> None:
    from google.adk.errors import StaleSessionError
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import ConversationConflict

    from everthread.adapters.adk import EverthreadSessionService
    from everthread.adapters.pydantic_ai import EverthreadConversationStore

    async def main() -> None:
        service = EverthreadSessionService(behind(store))
        key: Any = {"app_name": "app", "user_id": "u1", "session_id": "s"}
        late = await service.create_session(**key)
        current = await service.get_session(**key)
        assert current is not None
        await service.append_event(current, _event(n=1))
        with pytest.raises(StaleSessionError):
            await service.append_event(late, _event(n=2))

        conversations = EverthreadConversationStore(behind(store))
        await conversations.save(Conversation(conversation_id="c"))
        first, second = await conversations.load("c"), await conversations.load("c")
        assert first is not None
        assert second is not None
        await conversations.save(first)
        with pytest.raises(ConversationConflict):
            await conversations.save(second)

    asyncio.run(main())
