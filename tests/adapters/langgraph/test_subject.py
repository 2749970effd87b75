"""Threads of a person: sealed as a whole, and gone when the person is erased."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.messages import for_openai_chat
from everthread.messages.model import ERASED, WITHHELD
from tests.adapters.conftest import stored_bytes
from tests.adapters.langgraph.graphs import agent, call, config, echo, talking


def whose(asked: Any) -> str:
    """The first part of the thread's id, which every config has."""
    return str(asked["configurable"]["thread_id"].partition(":")[0])


def script() -> list[AIMessage]:
    return [call("add", {"a": 1, "b": 2}, "c1"), AIMessage("three, Lovelace")]


def test_a_conversation_is_sealed_and_can_be_erased(store: everthread.Store, url: str) -> None:
    saver = EverthreadSaver(store, subject=whose)
    graph = agent(script()).compile(checkpointer=saver)
    talk = talking(echo).compile(checkpointer=saver)
    long = "Lovelace " * 400
    state = graph.invoke({"messages": [HumanMessage("I am Ada Lovelace", id="h1")]}, config("ada:1"))
    for turn in range(3):
        talk.invoke({"messages": [HumanMessage(f"Lovelace {turn}")], "steps": ["Lovelace"]}, config("ada:2"))
    talk.update_state(config("ada:2"), {"steps": [long]})
    talk.invoke({"messages": [HumanMessage("I am Grace")]}, config("grace:1"))
    # One that isn't sealed, to see that one would see it.
    talking(echo).compile(checkpointer=EverthreadSaver(store)).invoke(
        {"messages": [HumanMessage("in the open")]}, config("open")
    )

    for reader in (saver, EverthreadSaver(store, subject=whose), EverthreadSaver(store)):
        found: Any = reader.get_tuple(config("ada:1"))
        assert found.checkpoint["channel_values"]["messages"] == state["messages"]
        assert len(list(reader.list(config("ada:1")))) == 5
    assert talk.get_state(config("ada:2")).values["steps"][-1] == long
    assert len(list(saver.list(None, limit=3))) == 3
    assert WITHHELD in str(for_openai_chat(saver.thread("ada:1").messages))
    if not url.startswith("valkey"):
        assert b"in the open" in stored_bytes(url)
        for text in (b"Lovelace", b"Grace", b"three"):
            assert text not in stored_bytes(url)

    # Other ways to the same content keep their seal.
    saver.copy_thread("ada:1", "ada:copy")
    first = list(saver.list(config("ada:2")))[-2].config["configurable"]["checkpoint_id"]
    saver.rewind("ada:2", first)
    saver.fork("ada:2", "ada:fork", first)
    assert talk.get_state(config("ada:fork")).values["messages"][0].content == "Lovelace 0"
    if not url.startswith("valkey"):
        assert b"Lovelace" not in stored_bytes(url)

    store.erase("ada")
    for reader in (saver, EverthreadSaver(store, subject=whose), EverthreadSaver(store)):
        for thread in ("ada:1", "ada:2", "ada:copy", "ada:fork"):
            for each in reader.list(config(thread)):
                values = {**each.checkpoint["channel_values"]}
                assert not any(values.values()), values
                assert not each.pending_writes
    assert ERASED in str(for_openai_chat(saver.thread("ada:1").messages))
    grace = talk.get_state(config("grace:1")).values["messages"]
    assert [each.content for each in grace] == ["I am Grace", "heard: I am Grace"]


def test_a_run_goes_on_after_its_person_was_erased(store: everthread.Store) -> None:
    saver = EverthreadSaver(store, subject="ada")
    graph = talking(echo).compile(checkpointer=saver)
    for turn in range(2):
        graph.invoke({"messages": [HumanMessage(f"old {turn}")]}, config("t"))
    held: Any = saver.get_tuple(config("t"))
    store.erase("ada")
    # One that was under way stores what is new, and nothing of what was erased.
    grown = {
        **held.checkpoint,
        "id": str(uuid6()),
        "channel_values": {
            **held.checkpoint["channel_values"],
            "messages": [*held.checkpoint["channel_values"]["messages"], HumanMessage("new", id="n")],
        },
        "channel_versions": {**held.checkpoint["channel_versions"], "messages": 99},
    }
    saver.put(held.config, grown, {"source": "loop", "step": 9, "parents": {}}, {"messages": 99})
    left: Any = EverthreadSaver(store).get_tuple(config("t"))
    assert [each.content for each in left.checkpoint["channel_values"]["messages"]] == ["new"]
    state = graph.invoke({"messages": [HumanMessage("hello")]}, config("t"))
    assert [each.content for each in state["messages"]] == ["new", "hello", "heard: hello"]
    again: Any = EverthreadSaver(store).get_tuple(config("t"))
    assert again.checkpoint["channel_values"]["messages"] == state["messages"]


def test_what_looks_sealed_comes_back_as_it_was(saver: EverthreadSaver) -> None:
    graph = talking(echo).compile(checkpointer=saver)
    odd: Any = {"langgraph.sealed": {"langgraph.sealed": 1}}
    graph.invoke(
        {"messages": [HumanMessage("x", additional_kwargs=odd)], "count": 1, "steps": [odd]}, config("t")
    )
    found: Any = EverthreadSaver(saver._store).get_tuple(config("t"))
    values = found.checkpoint["channel_values"]
    assert values["steps"][0] == odd
    assert values["messages"][0].additional_kwargs == odd


def test_sealing_an_unchanged_list_again_costs_nothing(store: everthread.Store) -> None:
    saver = EverthreadSaver(store, subject="ada")
    graph = talking(echo).compile(checkpointer=saver)
    counts = []
    for _ in range(12):
        graph.invoke({"messages": [HumanMessage("x")]}, config("t"))
        counts.append(store.erase("ada", dry_run=True).summary())
    sealed = [int(each.split()[2].replace(",", "")) for each in counts]
    steps = [after - before for before, after in pairwise(sealed)]
    assert len(set(steps[-4:])) == 1, steps
