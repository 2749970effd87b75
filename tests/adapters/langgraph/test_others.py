"""What other frameworks write to a graph's thread: shown to the graph, and never removed by it unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import everthread
from everthread import ConflictError, Store
from everthread.adapters.langgraph import EverthreadSaver
from everthread.messages.pairing import NO_RESULT
from everthread.values import Personal

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"{len(state['messages'])} seen")]}


def compiled(store: Store, node: Any = echo, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=EverthreadSaver(store, **options))


def other_writes(store: Store, *texts: str, name: str = "langgraph/t") -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    store.thread(name).update(lambda draft: draft.messages.extend(messages))


def texts(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with everthread.open(f"sqlite:///{tmp_path}/agent.db") as opened:
        yield opened
        assert opened.verify().ok


def test_state_history_and_the_named_checkpoint_show_the_same(store: Store) -> None:
    graph = compiled(store)
    graph.invoke({"messages": [("user", "one")]}, CONFIG)
    other_writes(store, "two")
    state = graph.get_state(CONFIG)
    assert texts(state.values) == ["one", "1 seen", "two"]
    assert next(iter(graph.get_state_history(CONFIG))) == state
    assert graph.get_state(state.config) == state
    assert texts(graph.invoke({"messages": [("user", "three")]}, state.config))[2:] == [
        "two",
        "three",
        "4 seen",
    ]


def test_a_thread_begun_elsewhere_has_a_checkpoint_to_return_to(store: Store) -> None:
    other_writes(store, "one", "two")
    graph = compiled(store)
    begun = graph.get_state(CONFIG)
    assert texts(graph.invoke({"messages": [("user", "three")]}, CONFIG)) == ["one", "two", "three", "3 seen"]
    history = list(graph.get_state_history(CONFIG))
    assert history[-1].config == begun.config
    assert texts(history[-1].values) == ["one", "two"]
    again = graph.invoke({"messages": [("user", "other")]}, begun.config)
    assert texts(again) == ["one", "two", "other", "3 seen"]
    # A process that remembers nothing reads the same.
    assert texts(compiled(store).get_state(CONFIG).values) == texts(again)


def test_a_run_during_which_others_write_is_refused_and_keeps_what_they_wrote(store: Store) -> None:
    def interrupted(state: MessagesState) -> dict[str, Any]:
        other_writes(store, "meanwhile")
        return echo(state)

    compiled(store).invoke({"messages": [("user", "one")]}, CONFIG)
    for options in ({}, {"on_conflict": "fork"}):
        graph = compiled(store, interrupted, **options)
        with pytest.raises(ConflictError, match="invoke the graph again"):
            graph.invoke({"messages": [("user", "two")]}, CONFIG, durability="sync")
    assert [item.get("content") for item in store.thread("langgraph/t").messages][-1] == "meanwhile"
    state = compiled(store).invoke({"messages": [("user", "three")]}, CONFIG)
    assert texts(state).count("meanwhile") == 2


def test_a_document_that_others_write_to_is_kept(store: Store) -> None:
    def noting(state: MessagesState) -> dict[str, Any]:
        count = len(state["messages"])
        store.thread("langgraph/t").update(lambda draft: draft.state.update(note=count))
        return echo(state)

    graph = compiled(store, noting)
    graph.invoke({"messages": [("user", "one")]}, CONFIG)
    assert texts(graph.invoke({"messages": [("user", "two")]}, CONFIG)) == ["one", "1 seen", "two", "3 seen"]
    assert store.thread("langgraph/t").state["note"] == 3


def test_what_others_wrote_goes_only_if_the_graph_removes_it(store: Store) -> None:
    other_writes(store, "one", "two", "three")
    kept = [store.thread("langgraph/t").messages[at] for at in (0, 2)]

    def forget(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=state["messages"][1].id)]}

    graph = compiled(store, forget)
    assert texts(graph.invoke({"messages": [("user", "four")]}, CONFIG)) == ["one", "three", "four"]
    assert list(store.thread("langgraph/t").messages)[:2] == kept


def test_an_item_of_several_messages_may_lose_one_of_them(store: Store) -> None:
    thread = store.thread("langgraph/t")
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": f"r{n}"} for n in (1, 2)]
    thread.messages.append({"shape": "anthropic", "message": {"role": "assistant", "content": calls}})
    thread.messages.append({"shape": "anthropic", "message": {"role": "user", "content": results}})
    thread.messages.append({"role": "user", "content": "and"})
    thread.commit()
    first, last = thread.messages[0], thread.messages[2]

    def forget(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=state["messages"][1].id)]}

    graph = compiled(store, forget)
    assert texts(graph.invoke({"messages": [("user", "go")]}, CONFIG)) == ["", "r2", "and", "go"]
    stored = list(store.thread("langgraph/t").messages)
    assert stored[0] == first
    assert stored[2] == last
    assert stored[1]["shape"] == "langchain"
    # The call whose result was removed is completed when the thread is loaded: no model takes an open call.
    assert texts(compiled(store).get_state(CONFIG).values) == ["", NO_RESULT, "r2", "and", "go"]


def test_an_interrupted_run_resumes_after_others_have_written(store: Store) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('sure?')}, {len(state['messages'])} seen")]}

    compiled(store, ask).invoke({"messages": [("user", "one")]}, CONFIG)
    other_writes(store, "two")
    state = compiled(store, ask).invoke(Command(resume="yes"), CONFIG)
    assert texts(state) == ["one", "two", "yes, 2 seen"]


def test_a_graph_without_messages_leaves_those_of_others_alone(store: Store) -> None:
    class State(TypedDict):
        count: Annotated[int, lambda old, new: old + new]

    other_writes(store, "one")
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"count": 1})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=EverthreadSaver(store))
    graph.invoke({"count": 1}, CONFIG)
    assert graph.invoke({"count": 1}, CONFIG)["count"] == 4
    assert [item["content"] for item in store.thread("langgraph/t").messages] == ["one"]


def test_a_copied_checkpoint_is_no_conflict(store: Store) -> None:
    graph = compiled(store)
    graph.invoke({"messages": [("user", "one")]}, CONFIG)
    graph.invoke({"messages": [("user", "two")]}, CONFIG)
    earlier = list(graph.get_state_history(CONFIG))[3]
    copied = graph.update_state(earlier.config, None, as_node="__copy__")
    assert texts(graph.get_state(copied).values) == texts(earlier.values)


def test_a_replay_with_a_subgraph_that_keeps_its_state_is_no_conflict(store: Store) -> None:
    def outcomes(saver: Any) -> list[Any]:
        inner = StateGraph(MessagesState)
        inner.add_node("inner", echo)
        inner.add_edge(START, "inner")
        builder = StateGraph(MessagesState)
        builder.add_node("sub", inner.compile(checkpointer=True))
        builder.add_edge(START, "sub")
        graph = builder.compile(checkpointer=saver)
        states = [
            graph.invoke({"messages": [HumanMessage(text, id=text)]}, CONFIG) for text in ("one", "two")
        ]
        before = [each for each in graph.get_state_history(CONFIG) if each.next == ("sub",)]
        states += [graph.invoke(None, each.config) for each in before]
        forked = graph.update_state(before[-1].config, {"messages": [HumanMessage("fork", id="fork")]})
        return [texts(each) for each in [*states, graph.invoke(None, forked)]]

    assert outcomes(EverthreadSaver(store)) == outcomes(InMemorySaver())


def test_two_runs_from_the_same_latest_checkpoint_are_told(store: Store) -> None:
    graph, second = compiled(store), compiled(store)
    graph.invoke({"messages": [("user", "one")]}, CONFIG)

    def late(state: MessagesState) -> dict[str, Any]:
        second.invoke({"messages": [("user", "first")]}, CONFIG)
        return echo(state)

    with pytest.raises(ConflictError, match="another run went on"):
        compiled(store, late).invoke({"messages": [("user", "later")]}, CONFIG, durability="sync")
    assert texts(graph.get_state(CONFIG).values)[-2:] == ["first", "4 seen"]


def test_tuples_come_back_as_langgraphs_own_saver_brings_them(store: Store) -> None:
    class State(TypedDict):
        pair: tuple[int, ...]
        deep: dict[str, Any]

    def outcome(saver: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("node", lambda state: {"pair": (1, 2), "deep": {"a": [(1, (2,))], "b": {(1, 2): 3}}})
        builder.add_edge(START, "node")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"pair": (0,)}, CONFIG)
        return graph.get_state(CONFIG).values

    assert repr(outcome(EverthreadSaver(store))) == repr(outcome(InMemorySaver()))


def test_a_sealed_graph_leaves_what_others_wrote_as_it_is(store: Store) -> None:
    other_writes(store, "one", "two")
    kept = list(store.thread("langgraph/t").messages)
    for text in ("three", "four"):
        # A saver that remembers nothing, each time.
        state = compiled(store, subject="u1").invoke({"messages": [("user", text)]}, CONFIG)
    assert texts(state)[:3] == ["one", "two", "three"]
    stored = list(store.thread("langgraph/t").messages)
    assert stored[:2] == kept
    assert all(isinstance(item["message"], Personal) for item in stored[2:])
    store.erase("u1")
    assert texts(compiled(store).get_state(CONFIG).values) == ["one", "two"]
