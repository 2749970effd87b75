"""EverthreadSession: what the OpenAI Agents SDK asks of a session, and what a thread has beyond it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesCompactionSession, RunConfig, Runner, function_tool
from agents.memory import Session
from agents.memory import session as sdk_session

import everthread
from everthread import (
    InvalidValueError,
    Personal,
    Store,
    StoreClosedError,
    ThreadExistsError,
    UsageError,
)
from everthread.adapters.openai_agents import EverthreadSession
from everthread.messages.model import ERASED, WITHHELD
from tests.adapters.conftest import stored_bytes
from tests.adapters.openai_scripted import Scripted, call, say

QUIET = RunConfig(tracing_disabled=True)
USER = {"role": "user", "content": "hi"}
OnStore = Callable[[Callable[[Any], Awaitable[Any]]], Any]


def text(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"text {number}"}


@pytest.fixture(params=["blocking", "async", "url"])
def on_session(request: pytest.FixtureRequest, url: str) -> Callable[..., Any]:
    """Runs an async function on a session, on a store of each colour or one that the session opens."""

    def run(work: Callable[[EverthreadSession], Awaitable[Any]], **options: Any) -> Any:
        async def main() -> Any:
            if request.param == "async":
                async with everthread.open_async(url) as store:
                    return await work(EverthreadSession("s", store, **options))
            if request.param == "blocking":
                with everthread.open(url) as store:
                    return await work(EverthreadSession("s", store, **options))
            session = EverthreadSession("s", url, **options)
            try:
                return await work(session)
            finally:
                session.close()

        return asyncio.run(main())

    return run


def test_it_is_a_session(url: str) -> None:
    session = EverthreadSession("s", url)
    assert isinstance(session, Session)
    session.close()


def test_items_come_back_exactly(on_session: Callable[..., Any]) -> None:
    items: list[Any] = [
        {"content": "ä\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "role": "user"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "status": None},
        {"type": "function_call", "arguments": '{ "a":1}', "call_id": "c", "id": "fc_1", "name": "f"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": ""}]},
        {"type": "x_new", "deep": [{"é": 1.5, "t": True, "n": None}], "shape": "x", "message": {}},
        # The same item, under the same id, again and with other content.
        {"id": "msg_1", "role": "assistant", "content": "a", "type": "message"},
        {"id": "msg_1", "role": "assistant", "content": "a", "type": "message"},
        {"id": "msg_1", "role": "assistant", "content": "b", "type": "message"},
    ]

    async def work(session: EverthreadSession) -> None:
        await session.add_items(items[:4])
        await session.add_items(items[4:])
        assert [repr(item) for item in await session.get_items()] == [repr(item) for item in items]
        for item in reversed(items):
            assert repr(await session.pop_item()) == repr(item)
        assert await session.pop_item() is None
        assert await session.get_items() == []

    on_session(work)


def test_limits(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        await session.add_items([text(at) for at in range(10)])
        assert await session.get_items() == [text(7), text(8), text(9)]
        assert await session.get_items(2) == [text(8), text(9)]
        assert await session.get_items(0) == []
        assert len(await session.get_items(-1)) == 10
        assert len(await session.get_items(99)) == 10

    on_session(work, session_settings={"limit": 3})


def test_nothing_is_there_before_and_after(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        assert await session.versions() == []
        await session.add_items([USER])
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([USER])
        assert await session.get_items() == [USER]

    on_session(work)


def test_what_is_no_item_is_refused_and_nothing_is_added(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        for wrong in ("text", {"role": "user", "content": object()}):
            with pytest.raises(InvalidValueError):
                await session.add_items([USER, wrong])  # type: ignore[list-item]
        assert await session.get_items() == []

    on_session(work)


def test_many_at_once_lose_nothing(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        await asyncio.gather(*(session.add_items([text(at), text(100 + at)]) for at in range(20)))
        items = await session.get_items()
        assert sorted(map(str, items)) == sorted(
            str(text(at + more)) for at in range(20) for more in (0, 100)
        )
        # What was added together stands together.
        numbers = [int(item["content"].split()[1]) for item in items]
        assert all(b == a + 100 for a, b in zip(numbers[::2], numbers[1::2], strict=True))
        popped = await asyncio.gather(*(session.pop_item() for _ in range(10)))
        assert sorted(map(str, popped + await session.get_items())) == sorted(map(str, items))

    on_session(work)


def test_a_cancelled_write_is_over_before_the_caller_hears_of_it(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        for at in range(5):
            task = asyncio.create_task(session.add_items([text(at)]))
            for _ in range(at):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held = len(await session.get_items())
            await asyncio.sleep(0.01)
            assert len(await session.get_items()) == held, "nothing goes on behind the caller's back"

    on_session(work)


def test_a_closed_session_says_so(url: str) -> None:
    async def main() -> None:
        own = EverthreadSession("s", url)
        await own.add_items([USER])
        own.close()
        own.close()
        with pytest.raises(StoreClosedError):
            await own.add_items([])
        with everthread.open(url) as store:
            session = EverthreadSession("s", store)
            assert await session.get_items() == [USER]
            session.close()
            assert store.thread("s").head is not None, "a store that was handed over stays open"
            other = EverthreadSession("s", store)
        with pytest.raises(StoreClosedError):
            await other.get_items()

    asyncio.run(main())


def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"everthread\.open\(\)"):
        EverthreadSession("s", everthread.open_async(url))  # type: ignore[arg-type]


def test_every_history_method_takes_the_run_context(on_session: Callable[..., Any]) -> None:
    seen: list[Any] = []

    class Watched(EverthreadSession):
        async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
            seen.append(wrapper)
            return await super().get_items(limit, wrapper=wrapper)

    async def work(session: EverthreadSession) -> None:
        for method in (session.get_items, session.add_items, session.pop_item, session.clear_session):
            assert "wrapper" in inspect.signature(method).parameters
        await session.add_items([USER], wrapper=None)
        watched = Watched("s", session._in_use.given)
        agent = Agent(name="a", model=Scripted(say("yes")))
        await Runner.run(agent, "?", session=watched, context={"tenant": "t1"}, run_config=QUIET)
        if _hands_over_the_context():
            assert [wrapper.context for wrapper in seen] == [{"tenant": "t1"}] * len(seen)
        assert seen

    on_session(work)


def _hands_over_the_context() -> bool:
    """Releases of the SDK from a time on do."""
    return hasattr(sdk_session, "_session_accepts_wrapper")


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


@function_tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def test_a_run_remembers_the_last(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        model = Scripted(call("weather", "c1", city="Oslo"), say("Rain."), say("Yes."))
        agent = Agent(name="a", model=model, tools=[weather])
        await Runner.run(agent, "Oslo?", session=session, run_config=QUIET)
        result = await Runner.run(agent, "Sure?", session=session, run_config=QUIET)
        assert result.final_output == "Yes."
        kinds = [item.get("type", "message") for item in model.asked[-1]]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message"]

    on_session(work)


def test_killed_within_a_tool_and_resumed(url: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    journal = tmp_path / "journal"
    command = [sys.executable, "-m", "tests.adapters.openai_killed", url, str(journal)]
    paths = [str(Path(everthread.__file__).parents[1]), str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    options: Any = {"cwd": root, "env": environment, "capture_output": True, "text": True, "timeout": 120}
    first = subprocess.run([*command, "first"], **options)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = subprocess.run([*command, "second"], **options)
    assert second.returncode == 0, second.stderr
    output, asked = json.loads(second.stdout)
    assert output == "all booked"
    # The turn that was done is there, the call that was killed left no half of a pair behind.
    assert [item.get("type", "message") for item in asked] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert journal.read_text().split() == ["1", "2", "3"]
    with everthread.open(url) as store:
        assert store.verify().ok
        calls = [item["message"].get("call_id") for item in store.thread("books").messages]
        assert [each for each in calls if each] == ["call_1", "call_1", "call_3", "call_3"]


def test_a_run_that_waits_for_an_approval_goes_on_in_another_session(url: str) -> None:
    async def begin() -> None:
        agent = Agent(name="a", model=Scripted(call("pay", "c1", amount=7)), tools=[pay])
        session = EverthreadSession("s", url)
        result = await Runner.run(agent, "Pay 7", session=session, run_config=QUIET)
        assert len(result.interruptions) == 1
        await session.save_run_state(result.to_state())
        session.close()

    async def go_on() -> None:
        agent = Agent(name="a", model=Scripted(say("Paid.")), tools=[pay])
        session = EverthreadSession("s", url)
        state = await session.load_run_state(agent)
        assert state is not None
        (waiting,) = state.get_interruptions()
        state.approve(waiting)
        result = await Runner.run(agent, state, session=session, run_config=QUIET)
        assert result.final_output == "Paid."
        await session.save_run_state(None)
        assert await session.load_run_state(agent) is None
        outputs = [item.get("output") for item in await session.get_items()]
        assert [each for each in outputs if each] == ["paid 7"]
        session.close()

    asyncio.run(begin())
    asyncio.run(go_on())


# ── beyond ───────────────────────────────────────────────────────────────────────────────────────


def test_branches_share_the_past_and_go_their_own_ways(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        await session.add_items([text(1)])
        await session.add_items([text(2)])
        newest, first = await session.versions()
        other = await session.branch("other", at=first)
        await other.add_items([text(3)])
        assert await other.get_items() == [text(1), text(3)]
        assert await session.get_items() == [text(1), text(2)]
        assert await (await session.branch("third")).get_items() == [text(1), text(2)]
        with pytest.raises(ThreadExistsError):
            await session.branch("other")
        assert newest.seq == 2

    on_session(work)


def test_rewinding_to_a_version_and_by_turns(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        answer = {"role": "assistant", "content": "a"}
        for at in range(3):
            await session.add_items([text(at)])
            await session.add_items([answer])
        before = (await session.versions(1))[0]
        await session.rewind(turns=2)
        assert await session.get_items() == [text(0), answer]
        await session.rewind(before)
        assert len(await session.get_items()) == 6
        # All in one version: then only the items go.
        await session.clear_session()
        await session.add_items([text(0), answer, text(1), answer])
        await session.rewind(turns=1)
        assert await session.get_items() == [text(0), answer]
        for wrong in ({"turns": 5}, {"turns": 0}, {}, {"to": 1, "turns": 1}):
            with pytest.raises(InvalidValueError):
                await session.rewind(**wrong)

    on_session(work)


def test_run_state_is_rewound_with_the_items(url: str) -> None:
    async def main() -> None:
        agent = Agent(name="a", model=Scripted(call("pay", "c1", amount=7)), tools=[pay])
        session = EverthreadSession("s", url)
        await session.add_items([text(0)])
        (before,) = await session.versions()
        result = await Runner.run(agent, "Pay 7", session=session, run_config=QUIET)
        await session.save_run_state(result.to_state())
        await session.rewind(before)
        assert await session.load_run_state(agent) is None
        assert await session.get_items() == [text(0)]
        session.close()

    asyncio.run(main())


def test_compaction_is_one_version_that_can_be_rewound(on_session: Callable[..., Any]) -> None:
    calls: list[int] = []

    async def compact(items: list[Any]) -> list[Any] | None:
        calls.append(len(items))
        return None if len(items) < 4 else [{"role": "user", "content": f"{len(items)} said"}, items[-1]]

    async def work(session: EverthreadSession) -> None:
        await session.add_items([text(0)])
        await session.run_compaction()
        assert await session.get_items() == [text(0)]
        await session.add_items([text(1), text(2), text(3)])
        (before,) = await session.versions(1)
        await session.run_compaction({"force": True})
        assert await session.get_items() == [{"role": "user", "content": "4 said"}, text(3)]
        assert calls == [1, 4]
        await session.rewind(before)
        assert len(await session.get_items()) == 4

    on_session(work, compact=compact)


SUMMARY = {"type": "compaction", "encrypted_content": "summary"}


def compacting(session: EverthreadSession, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Return the SDK's compaction of a session; ``meanwhile`` runs while the model compacts."""

    async def compact(**request: Any) -> Any:
        if meanwhile is not None:
            await meanwhile()
        return SimpleNamespace(output=[SUMMARY], usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    return OpenAIResponsesCompactionSession(
        "s", session, client=client, compaction_mode="input", should_trigger_compaction=lambda _: True
    )


def test_the_sdks_compaction_is_one_version_that_can_be_rewound(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        await session.add_items([text(0), text(1)])
        before = len(await session.versions())
        await compacting(session).run_compaction({"force": True})
        assert await session.get_items() == [SUMMARY]
        versions = await session.versions()
        assert len(versions) == before + 1
        await session.rewind(versions[1])
        assert await session.get_items() == [text(0), text(1)]

    on_session(work)


def test_the_sdks_compaction_keeps_what_was_added_while_the_model_compacted(
    on_session: Callable[..., Any],
) -> None:
    async def work(session: EverthreadSession) -> None:
        async def meanwhile() -> None:
            await session.add_items([text(7)])

        agent = Agent(name="a", model=Scripted(say("hello"), response_id="r1"))
        await Runner.run(agent, "hi", session=compacting(session, meanwhile), run_config=QUIET)
        kept = await session.get_items()
        assert [item.get("role") for item in kept] == ["user", "assistant", "user"]
        assert kept[-1] == text(7)

    on_session(work)


def test_the_sdks_compaction_replaces_the_part_that_the_model_was_shown(
    on_session: Callable[..., Any],
) -> None:
    async def work(session: EverthreadSession) -> None:
        await session.add_items([text(0), text(1), text(2)])
        agent = Agent(name="a", model=Scripted(say("hello"), response_id="r1"))
        limited = RunConfig(tracing_disabled=True, session_settings={"limit": 1})
        await Runner.run(agent, "hi", session=compacting(session), run_config=limited)
        assert await session.get_items() == [text(0), text(1), SUMMARY]

    on_session(work)


def test_the_sdks_compaction_writes_by_the_methods_of_a_subclass(url: str) -> None:
    class Redacting(EverthreadSession):
        async def add_items(self, items: list[Any], **options: Any) -> None:
            await super().add_items([{**item, "redacted": True} for item in items], **options)

    async def main() -> None:
        session = Redacting("s", url)
        await session.add_items([text(0)])
        await compacting(session).run_compaction({"force": True})
        agent = Agent(name="a", model=Scripted(say("hello"), response_id="r1"))
        await Runner.run(agent, "hi", session=compacting(session), run_config=QUIET)
        assert all(item["redacted"] for item in await session.get_items())
        session.close()

    asyncio.run(main())


def test_a_deleted_session_is_gone_and_its_branch_is_not(on_session: Callable[..., Any]) -> None:
    async def work(session: EverthreadSession) -> None:
        await session.add_items([USER])
        branch = await session.branch("other")
        await session.delete()
        assert await session.get_items() == []
        assert await branch.get_items() == [USER]

    on_session(work)


def test_a_thread_of_another_framework_is_read_and_continued(store: Store) -> None:
    with store.session("s", system="Be brief.") as begun:
        begun.messages.append({"role": "user", "content": "Weather?"})
        use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
        begun.messages.append(
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]}, shape="anthropic"
        )
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "rain"}
        begun.messages.append({"role": "user", "content": [result]}, shape="anthropic")

    async def main() -> None:
        session = EverthreadSession("s", store)
        items = await session.get_items()
        kinds = [(item.get("type"), item.get("role")) for item in items]
        assert kinds == [
            ("message", "system"),
            ("message", "user"),
            ("message", "assistant"),
            ("function_call", None),
            ("function_call_output", None),
        ]
        assert await session.get_items(2) == items[-2:]
        agent = Agent(name="a", model=Scripted(say("Rain.")))
        await Runner.run(agent, "So?", session=session, run_config=QUIET)
        # Popping takes one item, also of a message that is two.
        for _ in range(3):
            await session.pop_item()
        assert (await session.pop_item() or {}).get("type") == "function_call"
        assert await session.get_items() == items[:3]

    asyncio.run(main())


def test_items_of_a_person_are_sealed_and_can_be_erased(url: str) -> None:
    async def main() -> None:
        with everthread.open(url) as store:
            await EverthreadSession("open", store).add_items([{"role": "user", "content": "I am somebody"}])
            session = EverthreadSession("s", store, subject="u1")
            await session.add_items([{"role": "user", "content": "I am Ada Lovelace"}])
            assert await session.get_items() == [{"role": "user", "content": "I am Ada Lovelace"}]
            # Another's eyes.
            assert WITHHELD in str(await EverthreadSession("s", store).get_items())
            assert isinstance(store.thread("s").messages[0]["message"], Personal)
            assert b"I am somebody" in stored_bytes(url)
            assert b"Lovelace" not in stored_bytes(url)
            store.erase("u1")
            assert ERASED in str(await session.get_items())

    asyncio.run(main())
