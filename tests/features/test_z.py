"""Z: threads (the rows that the core itself answers for)."""

from __future__ import annotations

import pytest

from everthread import FencedError, InvalidValueError, Store


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
