"""EverthreadSessionStore: the SDK's own suite, and what it doesn't ask."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

import everthread
from everthread import AsyncStore, InvalidNameError, Store, StoreClosedError
from everthread.adapters.claude import EverthreadSessionStore
from everthread.messages import for_anthropic, for_openai_chat
from tests.adapters.conftest import stored_bytes

KEY: Any = {"project_key": "proj", "session_id": "sess"}
OnStore = Callable[[Callable[[AsyncStore], Awaitable[Any]]], Any]


def entry(uuid: str | None, **more: Any) -> Any:
    return {"type": "user", **({} if uuid is None else {"uuid": uuid}), **more}


def said(uuid: str, role: str, content: Any) -> Any:
    return entry(uuid, type=role, message={"role": role, "content": content})


#: How many contracts the SDK's suite says it has. Each asks for a store of its own; one more is only probed.
CONTRACTS = int(re.findall(r"\d+", run_session_store_conformance.__doc__ or "")[0])


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_the_sdks_own_suite(colour: str, url: str) -> None:
    # All optional methods are there, so that none of its contracts is left out.
    for name in ("list_sessions", "list_session_summaries", "delete", "list_subkeys"):
        assert callable(getattr(EverthreadSessionStore, name))
    numbers = itertools.count()

    async def main() -> None:
        # Each contract gets a store of its own: a namespace does.
        if colour == "async":
            stores: list[AsyncStore] = []

            async def fresh() -> EverthreadSessionStore:
                stores.append(await everthread.open_async(url, namespace=f"n{next(numbers)}"))
                return EverthreadSessionStore(stores[-1])

            await run_session_store_conformance(fresh)
            assert len(stores) == 1 + CONTRACTS
            for store in stores:
                assert (await store.verify()).ok
                await store.close()
        else:
            opened: list[Store] = []

            def fresh_blocking() -> EverthreadSessionStore:
                opened.append(everthread.open(url, namespace=f"n{next(numbers)}"))
                return EverthreadSessionStore(opened[-1])

            await run_session_store_conformance(fresh_blocking)
            assert len(opened) == 1 + CONTRACTS
            for each in opened:
                each.close()

    asyncio.run(main())
    # A probe, then one for each of the 14.
    assert next(numbers) == 15


def test_an_entry_is_added_once(on_store: OnStore) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        batch = [entry("a", n=1), entry(None, title="t"), entry("b", n=2), entry("a", n=1)]
        await sessions.append(KEY, batch)
        # The batch again, because its answer was lost: what has no uuid can't be told from new.
        await sessions.append(KEY, [*batch, entry("c", n=3)])
        assert await sessions.load(KEY) == [*batch[:3], batch[1], entry("c", n=3)]
        # The first one counts.
        await sessions.append(KEY, [entry("a", n=99)])
        assert (await sessions.load(KEY) or [])[0] == entry("a", n=1)
        for odd in (["x"], 7, ""):
            await sessions.append(KEY, [{"type": "x", "uuid": odd}])  # type: ignore[typeddict-item]
        assert len(await sessions.load(KEY) or []) == 8

    on_store(work)


def test_many_at_once_lose_nothing(on_store: OnStore) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        keys = [KEY, {**KEY, "subpath": "subagents/1"}]
        stamp = "2026-01-01T00:00:00Z"
        await asyncio.gather(
            *(sessions.append(key, [entry(str(at), timestamp=stamp)]) for at in range(15) for key in keys)
        )
        for key in keys:
            loaded = await sessions.load(key)
            assert sorted(int(each["uuid"]) for each in loaded or []) == list(range(15))

    on_store(work)


@pytest.mark.parametrize("strange", ["../../x", "a/b", "%2F", "'; drop table x; --", "é\n", "*", "a"])
def test_keys_of_any_kind_are_kept_apart(on_store: OnStore, strange: str) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        for project, session in ((strange, "b"), ("a", strange), (f"{strange}/b", "c"), (strange, "b/c")):
            key: Any = {"project_key": project, "session_id": session}
            await sessions.append(key, [entry("u", at=[project, session])])
            await sessions.append({**key, "subpath": strange}, [entry("s")])
            assert await sessions.load(key) == [entry("u", at=[project, session])]
            assert await sessions.list_subkeys(key) == [strange]
        listed = {each["session_id"] for each in await sessions.list_sessions(strange)}
        assert {"b", "b/c"} <= listed
        assert "c" not in listed

    on_store(work)


def test_bad_keys_are_refused(on_store: OnStore) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        for wrong in ({"session_id": 7}, {"session_id": "x" * 2000}, {"project_key": "a\0"}):
            with pytest.raises(InvalidNameError):
                await sessions.append({**KEY, **wrong}, [entry("u")])

    on_store(work)


def test_a_session_is_a_thread_with_its_subagents(on_store: OnStore) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        sub: Any = {**KEY, "subpath": "subagents/1"}
        await sessions.append(KEY, [entry("a")])
        await sessions.append(sub, [entry("s1")])
        thread = await store.thread(sessions.thread_name(KEY))
        before = thread.head
        assert before is not None
        await sessions.append(sub, [entry("s2")])
        await sessions.append(KEY, [entry("b")])
        await thread.fork("claude/proj/copy")
        await thread.refresh()
        await thread.rewind(before)
        assert await sessions.load(KEY) == [entry("a")]
        assert await sessions.load(sub) == [entry("s1")]
        copy: Any = {**KEY, "session_id": "copy"}
        await sessions.append(copy, [entry("c")])
        assert [each["uuid"] for each in await sessions.load(copy) or []] == ["a", "c"]
        assert {each["session_id"] for each in await sessions.list_sessions("proj")} == {"sess", "copy"}

    on_store(work)


def test_a_transcript_is_read_as_messages(on_store: OnStore) -> None:
    async def work(store: AsyncStore) -> None:
        sessions = EverthreadSessionStore(store)
        use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}
        thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        await sessions.append(
            KEY,
            [
                {"type": "summary", "summary": "listing"},
                said("1", "user", "what is here?"),
                said("2", "assistant", [thought]),
                said("3", "assistant", [use]),
                said("4", "user", [result]),
                {"type": "mode", "mode": "plan"},
            ],
        )
        items = await (await store.thread(sessions.thread_name(KEY))).messages.read()
        request = for_anthropic(items, cache=None)
        assert [message["role"] for message in request.messages] == ["user", "assistant", "user"]
        assert request.messages[1]["content"] == [thought, use]
        assert [each["role"] for each in for_openai_chat(items)["messages"]] == ["user", "assistant", "tool"]

    on_store(work)


def test_entries_of_a_person_are_sealed_and_can_be_erased(url: str) -> None:
    async def main() -> None:
        with everthread.open(url) as store:
            sessions = EverthreadSessionStore(store, subject=lambda key: key["project_key"])
            await sessions.append(KEY, [said("1", "user", "I am Ada Lovelace")])
            await sessions.append(KEY, [said("2", "user", "still Ada Lovelace")])
            assert [each["uuid"] for each in await sessions.load(KEY) or []] == ["1", "2"]
            (summary,) = await sessions.list_session_summaries("proj")
            assert "Ada" in str(summary["data"])
            assert KEY["session_id"].encode() in stored_bytes(url)
            assert b"Lovelace" not in stored_bytes(url)
            store.erase("proj")
            assert await sessions.load(KEY) == []
            assert await sessions.list_session_summaries("proj") == []
            await sessions.append(KEY, [said("3", "user", "back again")])
            assert [each["uuid"] for each in await sessions.load(KEY) or []] == ["3"]

    asyncio.run(main())


def test_a_store_that_was_opened_here_is_closed_here(url: str) -> None:
    async def main() -> None:
        sessions = EverthreadSessionStore(url)
        await sessions.append(KEY, [entry("a")])
        sessions.close()
        with pytest.raises(StoreClosedError):
            await sessions.load(KEY)
        again = EverthreadSessionStore(url)
        assert await again.load(KEY) == [entry("a")]
        again.close()

    asyncio.run(main())
