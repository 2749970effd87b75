"""LangGraph's long-term store on Everthread: items, filters, lifetimes, meaning."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore
from everthread.adapters.langgraph.sync import items as pages
from everthread.errors import InvalidValueError, UsageError
from everthread.threads.runtime import Runtime
from tests.adapters.langgraph.graphs import Talk, config

HOSTILE = ["a", "b/c", "b", "c", "#", "a#b", "%2F", "'; drop table cell; --", "..", "*", "ü" * 40, "x" * 2000]


#: LangGraph itself refuses a dot in a namespace.
NAMES = [name for name in HOSTILE[:-1] if "." not in name]


class Clock:
    """Time that a test moves."""

    now = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now


def embed(texts: list[str]) -> list[list[float]]:
    """By the letters a, b and c: near is who uses the same."""
    return [[text.count(letter) + 0.01 for letter in "abc"] for text in texts]


def test_items(store: everthread.Store) -> None:
    memories = EverthreadStore(store)
    assert memories.get(("users", "1"), "name") is None
    memories.put(("users", "1"), "name", {"text": "Ada", "age": 36})
    memories.put(("users", "2"), "name", {"text": "Bob", "age": 20})
    memories.put(("users",), "all", {"text": "everybody"})
    first = memories.get(("users", "1"), "name")
    assert first is not None
    assert (first.value, first.key, first.namespace) == ({"text": "Ada", "age": 36}, "name", ("users", "1"))
    memories.put(("users", "1"), "name", {"text": "Ada L."})
    again = memories.get(("users", "1"), "name")
    assert again is not None
    assert (again.value, again.created_at) == ({"text": "Ada L."}, first.created_at)
    assert again.updated_at >= first.updated_at
    assert [item.value["text"] for item in memories.search(("users",))] == ["Ada L.", "everybody", "Bob"]
    assert [item.key for item in memories.search(("users",), filter={"age": {"$lt": 30}})] == ["name"]
    assert memories.search(("user",)) == []
    assert memories.list_namespaces() == [("users",), ("users", "1"), ("users", "2")]
    assert memories.list_namespaces(prefix=("users",), max_depth=1) == [("users",)]
    assert memories.list_namespaces(suffix=("2",)) == [("users", "2")]
    memories.delete(("users", "1"), "name")
    memories.delete(("users", "1"), "name")
    assert memories.get(("users", "1"), "name") is None
    assert memories.list_namespaces() == [("users",), ("users", "2")]


def test_the_same_as_the_store_in_memory(store: everthread.Store, seed: int) -> None:
    """Any sequence of operations with hostile names gives what LangGraph's own store gives."""
    rng = random.Random(seed)
    ours, theirs = EverthreadStore(store), InMemoryStore()
    for _ in range(120):
        namespace = tuple(rng.choice(NAMES) for _ in range(rng.randint(1, 3)))
        key, value = rng.choice(HOSTILE), {"n": rng.randint(0, 5), "t": rng.choice(["x", "y"])}
        change = rng.random()
        for each in (ours, theirs):
            if change < 0.7:
                each.put(namespace, key, value)
            else:
                each.delete(namespace, key)
    assert ours.list_namespaces(limit=1000) == [
        each
        for each in theirs.list_namespaces(limit=1000)
        if theirs.search(each, limit=1000)
        and any(item.namespace == each for item in theirs.search(each, limit=1000))
    ]
    for prefix in [(), ("a",), ("b",), ("b/c",), ("b", "c"), ("a#b", "*")]:
        for filter in (None, {"n": 3}, {"t": {"$ne": "x"}, "n": {"$gte": 2}}, {"missing": None}):
            found = ours.search(prefix, filter=filter, limit=1000)
            wanted = theirs.search(prefix, filter=filter, limit=1000)
            assert {(i.namespace, i.key, tuple(i.value.items())) for i in found} == {
                (i.namespace, i.key, tuple(i.value.items())) for i in wanted
            }
    pages = [ours.search((), limit=7, offset=at) for at in range(0, 400, 7)]
    assert [item.key for page in pages for item in page] == [item.key for item in ours.search((), limit=1000)]


def test_lifetimes(url: str) -> None:
    clock = Clock()
    with everthread.open(url, durability="process", runtime=Runtime(now_us=clock)) as store:
        memories = EverthreadStore(store, ttl={"default_ttl": 10, "refresh_on_read": True})
        memories.put(("t",), "short", {"n": 1}, ttl=1)
        memories.put(("t",), "usual", {"n": 2})
        memories.put(("t",), "ever", {"n": 3}, ttl=None)
        clock.now += 50_000_000
        assert memories.get(("t",), "short") is not None, "reading keeps it alive"
        clock.now += 50_000_000
        assert memories.get(("t",), "short", refresh_ttl=False) is not None
        clock.now += 50_000_000
        assert memories.get(("t",), "short") is None
        assert [item.key for item in memories.search(("t",))] == ["ever", "usual"]
        clock.now += 11 * 60_000_000
        assert memories.search(("t",), refresh_ttl=False)[0].key == "ever"
        assert memories.list_namespaces() == [("t",)]
        assert memories.sweep() == 1
        assert memories.sweep() == 0


def test_sweeping_in_async_code(url: str) -> None:
    clock = Clock()
    runtime = Runtime(now_us=clock)

    async def main() -> None:
        async with everthread.open_async(url, durability="process", runtime=runtime) as store:
            memories = EverthreadStore(store)
            await memories.aput(("t",), "short", {"n": 1}, ttl=1)
            await memories.aput(("t",), "ever", {"n": 2}, ttl=None)
            with pytest.raises(everthread.UsageError, match="await asweep"):
                memories.sweep()
            clock.now += 61_000_000
            assert [await memories.asweep() for _ in range(2)] == [1, 0]
            await memories.aput(("t",), "short", {"n": 3}, ttl=1)
        with everthread.open(url, durability="process", runtime=runtime) as blocking:
            clock.now += 61_000_000
            assert [await EverthreadStore(blocking).asweep() for _ in range(2)] == [1, 0]
            assert [item.key for item in EverthreadStore(blocking).search(("t",))] == ["ever"]

    asyncio.run(main())


def test_meaning(store: everthread.Store) -> None:
    memories = EverthreadStore(store, index={"dims": 3, "embed": embed, "fields": ["text"]})
    memories.put(("t",), "a", {"text": "aaaa"})
    memories.put(("t",), "b", {"text": "bbbb", "kind": "x"})
    memories.put(("t",), "hidden", {"text": "aaaa"}, index=False)
    memories.put(("t",), "other", {"text": "cc", "title": "bbb"}, index=["title"])
    found = memories.search(("t",), query="ab" * 3 + "b", limit=2)
    assert [item.key for item in found] == ["b", "other"] or [item.key for item in found] == ["other", "b"]
    assert found[0].score is not None
    assert 0.5 < found[0].score <= 1.001
    assert memories.search(("t",), query="aaa")[0].key == "a"
    assert [item.key for item in memories.search(("t",), query="aaa", filter={"kind": "x"})] == ["b"]
    wrong = EverthreadStore(store, index={"dims": 4, "embed": embed})
    with pytest.raises(InvalidValueError, match="index is for 4"):
        wrong.put(("t",), "a", {"text": "x"})


def test_an_item_costs_the_same_among_many(tmp_path: Path) -> None:
    """Statements, and the steps that SQLite takes in them, which grow with the rows that it looks at."""
    seen: list[int] = []

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(
            apsw.SQLITE_TRACE_PROFILE,
            lambda event: seen.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
        )

    apsw.connection_hooks.append(watch)
    try:
        counted = []
        with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
            items = EverthreadStore(store)
            for size in (100, 3_000):
                for number in range(size):
                    items.put(("users", f"u{number % 7}"), f"k{number}", {"n": number})
                each = []
                for work in (
                    partial(items.put, ("users", "u1"), f"new {size}", {"n": 0}),
                    lambda: items.put(("users", "u1"), "k1", {"n": -1}),
                    lambda: items.get(("users", "u1"), "k1"),
                    lambda: items.delete(("users", "u1"), "k8"),
                ):
                    seen.clear()
                    work()
                    each.append((len(seen), sum(seen)))
                counted.append(each)
    finally:
        apsw.connection_hooks.remove(watch)
    few, many = counted
    assert few == many
    assert all(statements <= 5 for statements, _ in few), few


def test_large_items_are_read_a_few_at_a_time(store: everthread.Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(pages, "_PAGE_BYTES", 3_000)
    monkeypatch.setattr(pages, "_FIRST_PAGE_ITEMS", 2)
    asked: list[int] = []
    cells = store.core.backend.cells

    def counting(space: str, prefix: str, after: str | None, limit: int, now_us: int) -> Any:
        asked.append(limit)
        return cells(space, prefix, after, limit, now_us)

    items = EverthreadStore(store)
    rng = random.Random(1)
    for number in range(20):
        items.put(("a",), f"{number:02}", {"blob": rng.randbytes(1_000 if number < 10 else 10)})
    monkeypatch.setattr(store.core.backend, "cells", counting)
    found = items.search(("a",), limit=100)
    assert sorted(each.key for each in found) == [f"{number:02}" for number in range(20)]
    # Two to begin with, then as many as fit, more of them where they are small.
    assert max(asked[:4]) == 2
    assert max(asked) > 8


def test_batches_and_refusals(store: everthread.Store) -> None:
    memories = EverthreadStore(store)
    results = memories.batch(
        [PutOp(("t",), "k", {"n": 1}), GetOp(("t",), "k"), SearchOp(("t",)), PutOp(("t",), "k", None)]
    )
    assert results[0] is None
    assert results[1].value == {"n": 1}  # type: ignore[union-attr]
    assert len(results[2]) == 1  # type: ignore[arg-type]
    assert memories.get(("t",), "k") is None
    with pytest.raises(InvalidValueError, match="personal"):
        memories.put(("t",), "k", {"name": everthread.Personal("u1", "Ada")})
    memories.put(("t",), "k", {"n": 1})
    with pytest.raises(InvalidValueError, match="operator"):
        memories.search(("t",), filter={"n": {"$where": "1"}})
    memories.put(("t",), "objects", {"when": {1, 2}, "who": HumanMessage("x", id="1")})
    assert memories.get(("t",), "objects").value == {"when": {1, 2}, "who": HumanMessage("x", id="1")}  # type: ignore[union-attr]


def test_in_a_graph_of_either_colour(url: str, opening: Callable[..., Any]) -> None:
    def remember(state: Talk, *, store: BaseStore) -> dict[str, Any]:
        store.put(("notes",), "last", {"text": state["messages"][-1].content})
        return {"messages": [AIMessage("noted")]}

    async def aremember(state: Talk, *, store: BaseStore) -> dict[str, Any]:
        await store.aput(("notes",), "last", {"text": state["messages"][-1].content})
        return {"messages": [AIMessage("noted")]}

    with everthread.open(url, durability="process") as opened:
        builder = StateGraph(Talk)
        builder.add_node("remember", remember)
        builder.add_edge(START, "remember")
        graph = builder.compile(checkpointer=EverthreadSaver(opened), store=EverthreadStore(opened))
        graph.invoke({"messages": [HumanMessage("milk")]}, config("t"))
        assert EverthreadStore(opened).get(("notes",), "last").value == {"text": "milk"}  # type: ignore[union-attr]

    async def run(colour: str) -> None:
        async with opening(url, colour) as saver:
            memories = EverthreadStore(saver._store)
            builder = StateGraph(Talk)
            builder.add_node("remember", aremember)
            builder.add_edge(START, "remember")
            graph = builder.compile(checkpointer=saver, store=memories)
            await graph.ainvoke({"messages": [HumanMessage(colour)]}, config("t"))
            assert (await memories.aget(("notes",), "last")).value == {"text": colour}  # type: ignore[union-attr]
            assert [item.key async for item in _each(memories)] == ["last"]
            if colour == "async":
                with pytest.raises(UsageError, match="aput"):
                    memories.get(("notes",), "last")

    for colour in ("sync", "async"):
        asyncio.run(run(colour))


async def _each(memories: EverthreadStore) -> Any:
    for item in await memories.asearch(("notes",)):
        yield item


def test_it_is_set_up_and_swept_as_langgraphs_own_stores(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/agent.db") as store:
        items = EverthreadStore(store, ttl={"default_ttl": 0.0001, "sweep_interval_minutes": 0.0001})  # type: ignore[typeddict-item]
        items.setup()
        asyncio.run(items.asetup())
        items.put(("a",), "k", {"x": 1})
        swept = threading.Event()
        sweep = items.sweep

        def watched() -> int:
            count = sweep()
            if count:
                swept.set()
            return count

        items.sweep = watched  # type: ignore[method-assign]
        future = items.start_ttl_sweeper()
        assert items.start_ttl_sweeper() is future
        assert swept.wait(60)
        assert items.stop_ttl_sweeper()
        assert future.result(60) is None
        assert items.sweep_ttl() == 0
        cancelled = items.start_ttl_sweeper()
        assert cancelled.cancel()
        assert items.stop_ttl_sweeper()
        assert EverthreadStore(store).start_ttl_sweeper().done()
