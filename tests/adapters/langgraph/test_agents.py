"""LangGraph's own agents on Everthread: interrupts, time travel, subgraphs, failures, forks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.errors import ConflictError, ThreadDeletedError, ThreadExistsError, UsageError
from tests.adapters.langgraph.graphs import Talk, agent, call, config, echo, talking


def texts(state: Any) -> list[Any]:
    return [message.content for message in state["messages"]]


def test_a_conversation_goes_on_in_another_process_of_the_store(url: str) -> None:
    for turn in range(3):
        with everthread.open(url, durability="process") as store:
            graph = talking(echo).compile(checkpointer=EverthreadSaver(store))
            state = graph.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config("t"))
            assert texts(state)[-2:] == [f"turn {turn}", f"heard: turn {turn}"]
            assert len(state["messages"]) == 2 * (turn + 1)
            assert state["steps"] == [f"answer {each}" for each in range(turn + 1)]


def test_an_agent_calls_tools(saver: EverthreadSaver) -> None:
    script = [call("add", {"a": 2, "b": 3}, "c1"), AIMessage("it is 5")]
    graph = agent(script).compile(checkpointer=saver)
    state = graph.invoke({"messages": [HumanMessage("2 + 3?")]}, config("t"))
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    stored = graph.get_state(config("t"))
    assert stored.values["messages"] == state["messages"]
    assert stored.values["messages"][2].tool_call_id == "c1"
    items = saver.thread("t").messages.read()
    assert [item["message"]["type"] for item in items] == ["human", "ai", "tool", "ai"]


def test_interrupt_and_resume(url: str) -> None:
    script = [call("pay", {"amount": 7}, "c1"), AIMessage("done")]
    with everthread.open(url, durability="process") as store:
        graph = agent(script).compile(checkpointer=EverthreadSaver(store))
        state = graph.invoke({"messages": [HumanMessage("pay 7")]}, config("t"))
        assert state["__interrupt__"][0].value == {"pay": 7}
    # The process that asked is gone; another one gets the answer.
    with everthread.open(url, durability="process") as store:
        graph = agent(script[1:]).compile(checkpointer=EverthreadSaver(store))
        waiting = graph.get_state(config("t"))
        assert waiting.next == ("tools",)
        assert waiting.tasks[0].interrupts[0].value == {"pay": 7}
        state = graph.invoke(Command(resume="yes"), config("t"))
        assert texts(state)[-2:] == ["paid 7: yes", "done"]


def test_time_travel(saver: EverthreadSaver) -> None:
    graph = talking(echo).compile(checkpointer=saver)
    for turn in range(4):
        graph.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config("t"))
    history = list(graph.get_state_history(config("t")))
    assert len(history) == 12
    ids = [snapshot.config["configurable"]["checkpoint_id"] for snapshot in history]
    assert ids == sorted(ids, reverse=True)
    second = next(each for each in history if each.values.get("count") == 2 and not each.next)
    # Another answer from there: the old branch stays, the new one shares its beginning.
    state = graph.invoke({"messages": [HumanMessage("otherwise")]}, second.config)
    assert texts(state) == [
        "turn 0",
        "heard: turn 0",
        "turn 1",
        "heard: turn 1",
        "otherwise",
        "heard: otherwise",
    ]
    assert graph.get_state(config("t")).values == state
    assert graph.get_state(history[0].config).values["count"] == 4
    # A state changed after the fact, and gone on from.
    changed = graph.update_state(second.config, {"count": 40, "messages": [HumanMessage("edited")]})
    assert graph.get_state(changed).values["count"] == 40
    assert texts(graph.get_state(changed).values)[-1] == "edited"
    replayed = graph.invoke(None, history[-2].config)
    assert texts(replayed) == ["turn 0", "heard: turn 0"]
    # Nothing of all that changed the past.
    again = {
        each.config["configurable"]["checkpoint_id"]: each for each in graph.get_state_history(config("t"))
    }
    for snapshot in history:
        same = again[snapshot.config["configurable"]["checkpoint_id"]]
        assert (same.values, same.next, same.metadata) == (snapshot.values, snapshot.next, snapshot.metadata)
        assert same.parent_config == snapshot.parent_config


def test_messages_replaced_removed_and_trimmed(saver: EverthreadSaver) -> None:
    graph = talking(echo).compile(checkpointer=saver)
    for turn in range(5):
        graph.invoke({"messages": [HumanMessage(f"turn {turn}", id=f"h{turn}")]}, config("t"))
    graph.update_state(config("t"), {"messages": [HumanMessage("changed", id="h1")]})
    assert texts(graph.get_state(config("t")).values)[2] == "changed"
    graph.update_state(config("t"), {"messages": [RemoveMessage(id="h2")]})
    left = graph.get_state(config("t")).values["messages"]
    assert [message.id for message in left if message.type == "human"] == ["h0", "h1", "h3", "h4"]
    trimmed = [RemoveMessage(id=message.id or "") for message in left[:-2]]
    graph.update_state(config("t"), {"messages": [*trimmed, SystemMessage("a summary", id="s")]})
    assert texts(graph.get_state(config("t")).values) == ["turn 4", "heard: turn 4", "a summary"]
    fresh = EverthreadSaver(saver._store)
    assert fresh.get_tuple(config("t")) == saver.get_tuple(config("t"))


def test_a_message_changed_in_place_and_returned(store: everthread.Store) -> None:
    def redact(state: Talk) -> dict[str, Any]:
        message = state["messages"][0]
        message.content = f"[{message.content}]"
        message.additional_kwargs["redacted"] = True
        return {"messages": [message, AIMessage("ok")]}

    def careless(state: Talk) -> dict[str, Any]:
        state["messages"][-1].content = "changed, not returned"
        return {"messages": [AIMessage("fine")]}

    for durability in ("sync", "async", "exit"):
        builder = StateGraph(Talk)
        builder.add_node("redact", redact)
        builder.add_node("careless", careless)
        builder.add_edge(START, "redact")
        builder.add_edge("redact", "careless")
        graph = builder.compile(checkpointer=EverthreadSaver(store))
        messages = [HumanMessage(f"m{each}") for each in range(100)]
        at = config(durability)
        graph.invoke({"messages": messages}, at, durability=durability)  # type: ignore[call-overload]
        state = graph.invoke({"messages": [HumanMessage("more")]}, at, durability=durability)
        state = graph.invoke({"messages": [HumanMessage("and more")]}, at, durability=durability)
        assert state["messages"][0].content == "[[[m0]]]"
        plain = talking(echo).compile(checkpointer=EverthreadSaver(store))
        assert plain.get_state(at).values["messages"] == state["messages"]


def test_pending_writes_after_a_failed_node(saver: EverthreadSaver) -> None:
    runs = {"good": 0, "bad": 0}

    def good(state: Talk) -> dict[str, Any]:
        runs["good"] += 1
        return {"steps": ["good"]}

    def bad(state: Talk) -> dict[str, Any]:
        runs["bad"] += 1
        if runs["bad"] == 1:
            # Not before the other node's writes are stored: what comes after a failure LangGraph drops.
            for _ in range(500):
                stored = saver.get_tuple(config("t"))
                if stored is not None and any(c == "steps" for _, c, _ in stored.pending_writes or ()):
                    break
                time.sleep(0.02)
            raise RuntimeError("the tool broke")
        return {"steps": ["bad"]}

    builder = StateGraph(Talk)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="the tool broke"):
        graph.invoke({"count": 1}, config("t"))
    stored = saver.get_tuple(config("t"))
    assert stored is not None
    assert stored.pending_writes is not None
    assert {channel for _, channel, _ in stored.pending_writes} >= {"steps", "__error__"}
    state = graph.invoke(None, config("t"))
    assert runs == {"good": 1, "bad": 2}, "what had been done was not done again"
    assert sorted(state["steps"]) == ["bad", "good"]


def test_subgraphs_have_namespaces_of_their_own(saver: EverthreadSaver) -> None:
    def ask(state: Talk) -> dict[str, Any]:
        return {"steps": [f"child was told {interrupt('go on?')}"]}

    child = StateGraph(Talk)
    child.add_node("ask", ask)
    child.add_edge(START, "ask")
    parent = StateGraph(Talk)
    parent.add_node("child", child.compile())
    parent.add_edge(START, "child")
    parent.add_edge("child", END)
    graph = parent.compile(checkpointer=saver)
    graph.invoke({"count": 1}, config("t"))
    waiting = graph.get_state(config("t"), subgraphs=True)
    inner = waiting.tasks[0].state
    assert inner.next == ("ask",)  # type: ignore[union-attr]
    namespaces = {each.config["configurable"]["checkpoint_ns"] for each in saver.list(config("t"))}
    assert "" in namespaces
    assert len(namespaces) == 2
    state = graph.invoke(Command(resume="yes"), config("t"))
    assert state["steps"] == ["child was told yes"]
    saver.delete_thread("t")
    assert list(saver.list(config("t"))) == []
    assert list(saver._store.threads()) == []


def test_two_runs_that_go_on_from_one_checkpoint(saver: EverthreadSaver) -> None:
    """What stock savers fork silently: the second run is told."""
    inside, go = threading.Event(), threading.Event()

    def slow(state: Talk) -> AIMessage:
        if state["messages"][-1].content == "slow":
            inside.set()
            assert go.wait(30)
        return AIMessage(f"heard {state['messages'][-1].content}")

    graph = talking(slow).compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("first")]}, config("t"))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            graph.invoke({"messages": [HumanMessage("slow")]}, config("t"), durability="sync")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(30)
    # Goes on from what the slow run stored as its input, which that one will go on from too.
    graph.invoke({"messages": [HumanMessage("quick")]}, config("t"))
    go.set()
    thread.join(30)
    (error,) = errors
    assert isinstance(error, ConflictError)
    assert texts(graph.get_state(config("t")).values)[-1] == "heard quick", "the first one stands"
    # The id named on purpose: that is time travel, and may branch.
    first = list(graph.get_state_history(config("t")))[-2]
    assert texts(graph.invoke({"messages": [HumanMessage("branch")]}, first.config))[-1] == "heard branch"


def test_the_same_with_on_conflict_fork(store: everthread.Store) -> None:
    saver = EverthreadSaver(store, on_conflict="fork")
    graph = talking(echo).compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("first")]}, config("t"))
    latest = saver.get_tuple(config("t"))
    assert latest is not None
    for text in ("a", "b"):
        checkpoint = {**latest.checkpoint, "id": f"{latest.checkpoint['id']}{text}"}
        saver.put(latest.config, checkpoint, {"source": "loop"}, {})  # type: ignore[arg-type]
    children = [
        each
        for each in saver.list(config("t"))
        if each.parent_config
        and each.parent_config["configurable"]["checkpoint_id"] == latest.checkpoint["id"]
    ]
    assert len(children) == 2


def test_a_late_put_does_not_bring_a_deleted_thread_back(store: everthread.Store) -> None:
    """The run goes on in one process while another one deletes the thread."""
    running, deleting = EverthreadSaver(store), EverthreadSaver(store)

    def deleted_meanwhile(state: Talk) -> AIMessage:
        deleting.delete_thread("t")
        return AIMessage("too late")

    talking(echo).compile(checkpointer=running).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    graph = talking(deleted_meanwhile).compile(checkpointer=running)
    with pytest.raises(ThreadDeletedError):
        graph.invoke({"messages": [HumanMessage("hello")]}, config("t"))
    for saver in (running, deleting, EverthreadSaver(store)):
        assert saver.get_tuple(config("t")) is None
        assert list(saver.list(config("t"))) == []
    # Somebody starts afresh under the same id: that is a new thread, with nothing of the old one.
    state = (
        talking(echo).compile(checkpointer=running).invoke({"messages": [HumanMessage("anew")]}, config("t"))
    )
    assert texts(state) == ["anew", "heard: anew"]
    assert texts(deleting.get_tuple(config("t")).checkpoint["channel_values"]) == texts(state)  # type: ignore[union-attr]


def test_a_late_subgraph_does_not_either(store: everthread.Store) -> None:
    running, deleting = EverthreadSaver(store), EverthreadSaver(store)
    child = talking(echo)
    parent = StateGraph(Talk)

    def delete(state: Talk) -> dict[str, Any]:
        deleting.delete_thread("t")
        return {}

    parent.add_node("delete", delete)
    parent.add_node("child", child.compile())
    parent.add_edge(START, "delete")
    parent.add_edge("delete", "child")
    child.compile(checkpointer=running).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    graph = parent.compile(checkpointer=running)
    with pytest.raises(ThreadDeletedError):
        graph.invoke({"messages": [HumanMessage("hello")]}, config("t"))
    assert list(deleting.list(None)) == []
    assert list(store.threads()) == []


def test_fork_rewind_and_diff(saver: EverthreadSaver) -> None:
    graph = talking(echo).compile(checkpointer=saver)
    for turn in range(3):
        graph.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config("t"))
    done = [each for each in graph.get_state_history(config("t")) if not each.next]
    ids = [each.config["configurable"]["checkpoint_id"] for each in done]
    saver.fork("t", "copy")
    saver.fork("t", "early", ids[1])
    with pytest.raises(ThreadExistsError):
        saver.fork("t", "copy")
    assert graph.get_state(config("copy")).values == done[0].values
    assert graph.get_state(config("early")).values == done[1].values
    graph.invoke({"messages": [HumanMessage("apart")]}, config("early"))
    assert graph.get_state(config("t")).values == done[0].values
    saver.rewind("t", ids[2])
    assert graph.get_state(config("t")).values == done[2].values
    state = graph.invoke({"messages": [HumanMessage("once more")]}, config("t"))
    assert texts(state) == ["turn 0", "heard: turn 0", "once more", "heard: once more"]
    change = saver.diff("t", ids[2], ids[0])
    assert change.logs["messages"].added == 4
    saver.delete_thread("t")
    assert graph.get_state(config("copy")).values == done[0].values, "a copy lives on"


def test_async_agents_on_either_store(url: str, opening: Callable[..., Any]) -> None:
    async def run(colour: str) -> None:
        async with opening(url, colour) as saver:
            script = [call("pay", {"amount": 7}, "c1"), AIMessage("done")]
            graph = agent(script).compile(checkpointer=saver)
            at = config(f"t {colour}")
            await graph.ainvoke({"messages": [HumanMessage("pay 7")]}, at)
            state = await graph.ainvoke(Command(resume="yes"), at)
            assert texts(state)[-2:] == ["paid 7: yes", "done"]
            history = [each async for each in graph.aget_state_history(at)]
            assert history[0].values["messages"] == state["messages"]
            await saver.afork(
                f"t {colour}", f"fork {colour}", history[1].config["configurable"]["checkpoint_id"]
            )
            assert (await graph.aget_state(config(f"fork {colour}"))).values == history[1].values

    for colour in ("sync", "async"):
        asyncio.run(run(colour))


def test_blocking_calls_on_an_async_store(tmp_path: Any) -> None:
    async def run() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/a.db") as store:
            saver = EverthreadSaver(store)
            graph = talking(echo).compile(checkpointer=saver)
            with pytest.raises(UsageError, match=r"everthread\.open\(\)"):
                graph.invoke({"messages": [HumanMessage("x")]}, config("t"))
            # From another thread it safely can.
            state = await asyncio.to_thread(graph.invoke, {"messages": [HumanMessage("x")]}, config("t"))
            assert texts(state) == ["x", "heard: x"]
            assert len(await asyncio.to_thread(lambda: list(saver.list(config("t"))))) == 3

    asyncio.run(run())
    with pytest.raises(UsageError, match="open store"):
        EverthreadSaver(f"sqlite:///{tmp_path}/a.db")  # type: ignore[arg-type]
