"""Threads of a saver as a whole: how long they live, which there are, and what another saver has of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.types import Command, interrupt

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore
from everthread.errors import InvalidValueError, StateCorruptedError, ThreadExistsError
from everthread.threads.runtime import Runtime
from tests.adapters.langgraph.graphs import config, echo, talking

MINUTE_US = 60_000_000


class Clock:
    """Time that a test moves."""

    now = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now


def talk(saver: BaseCheckpointSaver[Any], thread_id: str, text: str = "hello") -> Any:
    return talking(echo).compile(checkpointer=saver).invoke({"messages": [("user", text)]}, config(thread_id))


async def atalk(saver: BaseCheckpointSaver[Any], thread_id: str) -> Any:
    graph = talking(echo).compile(checkpointer=saver)
    return await graph.ainvoke({"messages": [("user", "hello")]}, config(thread_id))


def test_a_thread_expires_after_its_last_checkpoint() -> None:
    clock = Clock()
    with everthread.open("memory:", runtime=Runtime(now_us=clock)) as store:
        saver = EverthreadSaver(store, ttl=600)
        talk(saver, "t")
        clock.now += 9 * MINUTE_US
        assert len(talk(saver, "t")["messages"]) == 4, "each checkpoint renews it"
        saver.copy_thread("t", "copy")
        assert len(talk(saver, "copy")["messages"]) == 6
        clock.now += 11 * MINUTE_US
        assert saver.get_tuple(config("t")) is None
        assert saver.get_tuple(config("copy")) is None
        assert saver.thread_ids() == []
        assert len(talk(saver, "t")["messages"]) == 2, "the same id is a new thread"
        talk(EverthreadSaver(store), "ever")
        clock.now += 1000 * MINUTE_US
        assert saver.thread_ids() == ["ever"]


def test_what_tasks_returned_expires_with_its_thread() -> None:
    clock = Clock()
    with everthread.open("memory:", runtime=Runtime(now_us=clock)) as store:
        saver = EverthreadSaver(store, ttl=600)
        talk(saver, "t")
        latest = saver.get_tuple(config("t"))
        assert latest is not None
        saver.put_writes(latest.config, [("count", 1)], "task")
        stream = store.events(f"{saver.thread_name('t')}#0/{latest.checkpoint['id'][:7]}")
        assert len(stream)
        clock.now += 11 * MINUTE_US
        store.gc()
        assert not len(stream)


def test_a_lifetime_must_be_positive() -> None:
    with everthread.open("memory:") as store, pytest.raises(InvalidValueError):
        EverthreadSaver(store, ttl=-1)


def test_the_ids_of_all_threads(store: everthread.Store, url: str) -> None:
    saver = EverthreadSaver(store)
    ids = sorted(["a", "b/c", "x" * 2000, "ü", "%2F"])
    for thread_id in ids:
        talk(saver, thread_id)
    store.thread("not of a graph").update(lambda draft: draft.state.update(n=1))
    assert saver.thread_ids() == ids
    saver.delete_thread("a")
    ids.remove("a")
    assert saver.thread_ids() == ids

    async def main() -> list[str]:
        async with everthread.open_async(url) as opened:
            return await EverthreadSaver(opened).athread_ids()

    assert asyncio.run(main()) == saver.thread_ids()


# ── importing ────────────────────────────────────────────────────────────────────────────────────


def shown(saver: BaseCheckpointSaver[Any], thread_id: str) -> list[Any]:
    return sorted(
        (
            each.config["configurable"]["checkpoint_ns"],
            each.checkpoint["id"],
            each.checkpoint["channel_values"],
            each.metadata,
            each.parent_config,
            sorted(each.pending_writes or [], key=str),
        )
        for each in saver.list(config(thread_id))
    )


def approving() -> Any:
    def ask(state: Any) -> Any:
        return {"count": interrupt("how many?")}

    builder = talking(echo)
    builder.add_node("ask", ask)
    builder.add_edge("answer", "ask")
    return builder


def filled() -> InMemorySaver:
    """Return a saver with a branched thread, and one that waits for a person."""
    saver = InMemorySaver()
    talk(saver, "t")
    first = next(iter(saver.list(config("t"))))
    talk(saver, "t", "again")
    graph = talking(echo).compile(checkpointer=saver)
    graph.invoke({"messages": [("user", "branch")]}, first.config)
    approving().compile(checkpointer=saver).invoke({"messages": [("user", "hello")]}, config("waiting"))
    return saver


def test_threads_of_another_saver_are_imported_whole(store: everthread.Store) -> None:
    other = filled()
    saver = EverthreadSaver(store)
    assert saver.import_from(other) == len(list(other.list(None)))
    for thread_id in ("t", "waiting"):
        assert shown(saver, thread_id) == shown(other, thread_id)
    assert saver.import_from(other) == 0, "what is here is not copied again"
    # Both go on: the one with its latest state, the other with what the person says.
    assert len(talk(saver, "t", "more")["messages"]) == len(talk(other, "t", "more")["messages"])
    resumed = approving().compile(checkpointer=saver).invoke(Command(resume=7), config("waiting"))
    assert resumed["count"] == 7
    with pytest.raises(ThreadExistsError, match="waiting"):
        saver.import_from(other, ["waiting"])


def test_one_thread_is_imported_in_async_code(url: str) -> None:
    other = filled()

    async def main() -> None:
        async with everthread.open_async(url) as opened:
            saver = EverthreadSaver(opened)
            assert await saver.aimport_from(other, ["t"]) == len(list(other.list(config("t"))))
            assert await saver.athread_ids() == ["t"]
            assert await saver.aimport_from(other) == len(list(other.list(config("waiting"))))
            expected = await atalk(other, "t")
            assert len((await atalk(saver, "t"))["messages"]) == len(expected["messages"])

    asyncio.run(main())


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_a_cycle_of_parents_ends_with_an_error(store: everthread.Store) -> None:
    saver = EverthreadSaver(store)
    first, second = str(uuid6()), str(uuid6())
    for parent, own in ((second, first), (first, second)):
        checkpoint = {**empty_checkpoint(), "id": own}
        saver.put(config("t", checkpoint_ns="", checkpoint_id=parent), checkpoint, {}, {})
    with pytest.raises(StateCorruptedError, match="its own ancestor"):
        saver.get_delta_channel_history(config=config("t", checkpoint_id=second), channels=["x"])
    with pytest.raises(StateCorruptedError, match="its own ancestor"):
        asyncio.run(saver.aget_delta_channel_history(config=config("t"), channels=["x"]))


@pytest.mark.parametrize("label", ["a.b", "", "a\0b", 7])
def test_a_batch_refuses_the_labels_that_put_and_get_refuse(store: everthread.Store, label: Any) -> None:
    memories = EverthreadStore(store)
    wrong = ("users", label)
    for op in (
        GetOp(wrong, "k"),
        PutOp(wrong, "k", {"n": 1}),
        PutOp(wrong, "k", None),
        SearchOp(wrong),
        ListNamespacesOp((MatchCondition("prefix", wrong),)),
    ):
        # Nothing of the batch is done, also what stands before it.
        with pytest.raises(InvalidNamespaceError):
            memories.batch([PutOp(("users",), "first", {"n": 1}), op])
        with pytest.raises(InvalidNamespaceError):
            asyncio.run(memories.abatch([PutOp(("users",), "first", {"n": 1}), op]))
    assert memories.search(()) == []
