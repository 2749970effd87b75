"""What a saver remembers is bounded, and what it has forgotten it reads again."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.langgraph.sync import lane as lanes
from everthread.errors import ThreadDeletedError
from tests.adapters.langgraph.graphs import config, echo, talking


def test_states_that_were_used_longest_ago_are_forgotten(
    store: everthread.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = EverthreadSaver(store)
    graph = talking(echo).compile(checkpointer=saver)
    for number in range(4):
        graph.invoke({"messages": [HumanMessage("x" * 10_000)]}, config(f"t{number}"))
    memories = [saver._engine.lane(saver.thread_name(f"t{number}")).memory for number in range(4)]  # type: ignore[union-attr]
    assert all(10_000 < memory.weight < 50_000 for memory in memories)
    monkeypatch.setattr(lanes, "REMEMBERED_BYTES_MAX", 60_000)
    # A long conversation has its place; of the others as many as fit beside it, the latest first.
    graph.invoke({"messages": [HumanMessage("x" * 10_000)]}, config("t1"))
    assert [bool(memory.weight) for memory in memories] == [False, True, False, False]
    assert sum(memory.weight for memory in memories) <= 60_000
    for number in range(4):
        graph.invoke({"messages": [HumanMessage("again")]}, config(f"t{number}"))
    read = EverthreadSaver(store)
    for number in range(4):
        state: Any = read.get_tuple(config(f"t{number}"))
        assert len(state.checkpoint["channel_values"]["messages"]) == (6 if number == 1 else 4)
        assert graph.get_state(config(f"t{number}")).values == state.checkpoint["channel_values"]


def test_many_threads_share_a_bounded_number_of_handles(
    store: everthread.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LANES_MAX", 3)
    saver = EverthreadSaver(store)
    graph = talking(echo).compile(checkpointer=saver)
    for turn in range(2):
        for number in range(6):
            # Used all the time, so that it stays.
            graph.invoke({"messages": [HumanMessage("hot")]}, config("hot"))
            hot = saver._engine.lane(saver.thread_name("hot"))  # type: ignore[union-attr]
            state = graph.invoke({"messages": [HumanMessage(f"{turn}")]}, config(f"t{number}"))
            assert len(state["messages"]) == 2 * (turn + 1)
            assert saver._engine.lane(saver.thread_name("hot")) is hot  # type: ignore[union-attr]
    assert len(saver._engine._lanes._lanes) == 3  # type: ignore[union-attr]


def test_a_late_write_of_a_deleted_thread_leaves_nothing_behind(store: everthread.Store) -> None:
    """Another process deletes the thread; the one that runs it has all that it needs in memory."""
    running, deleting = EverthreadSaver(store), EverthreadSaver(store)
    graph = talking(echo).compile(checkpointer=running)
    graph.invoke({"messages": [HumanMessage("hello")]}, config("t"))
    latest: Any = running.get_tuple(config("t"))
    deleting.delete_thread("t")
    with pytest.raises(ThreadDeletedError):
        running.put_writes(latest.config, [("messages", HumanMessage("late"))], "task")
    assert store.core.backend.streams(store.core.space, running.thread_name("t"), None, 10) == []
    assert running.get_tuple(config("t")) is None
    graph.invoke({"messages": [HumanMessage("anew")]}, config("t"))
    assert len(graph.get_state(config("t")).values["messages"]) == 2
