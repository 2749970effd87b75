"""``run_agent`` under an engine that kills and replays it: the thread is as if nothing had happened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.engines import (
    AgentResult,
    AgentState,
    Answer,
    Carry,
    Execution,
    Inbox,
    Rewind,
    Sandbox,
    ThreadRef,
    ToolCall,
    ToolRequest,
    Turn,
    WaitForInput,
    run_agent,
)
from everthread.engines.local import LocalEngine
from tests.kit.replay import NotTheSame, Replay

#: What the model says, by the number of answers that stand. The third is taken back twice.
SCRIPT = (
    ("look", ("step", "plain", "step")),
    ("ask", ("wait",)),
    ("judge", ("step", "judge")),
    ("done", ()),
)


class Host:
    """A workflow, and the activities that a worker would run for it."""

    def __init__(self, store: everthread.AsyncStore, replay: Replay, name: str) -> None:
        self.store, self.replay, self.name = store, replay, name
        self.where = Execution("run-1", origin="origin", owner=name, started=1.0)
        self.state = AgentState()
        self.ends: list[str] = []

    def _verb(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(LocalEngine(self.store, self.where), name)(*args, **kwargs)

        return self.replay.durable(name, call)

    async def _model(self, turn: Turn) -> Answer:
        engine = LocalEngine(self.store, self.where)
        async with engine.step(turn.ref, *turn.key) as step:
            if not step.done:
                messages = await step.messages.read()
                text, tools = SCRIPT[sum(each["role"] == "assistant" for each in messages)]
                step.messages.append({"id": turn.message_id, "role": "assistant", "content": text})
                step.result = [text, [[f"{text}.{slot}", name] for slot, name in enumerate(tools)]]
        text, calls = step.result
        return Answer(step.ref, text, [ToolRequest(*each) for each in calls], {"tokens": 1})

    async def _step(self, call: ToolCall) -> ThreadRef:
        engine = LocalEngine(self.store, self.where)
        async with engine.step(call.ref, *call.key, slot=call.slot) as step:
            if not step.done:
                step.messages.append({"role": "tool", "content": f"{call.id} {call.turn}"})
                step.state.increment("steps")
        return step.ref

    async def workflow(self) -> AgentResult:
        """A new process each time: whatever it knows comes out of the replay."""
        self.state, inbox, due = AgentState(), Inbox(), iter([False, False, True, False, False, False, False])
        inbox.put({"id": "m1", "role": "user", "content": "go"})

        async def plain(call: ToolCall) -> str:
            self.state.merge_update(plain=call.turn)
            return f"plain {call.turn}"

        async def wait(call: ToolCall) -> WaitForInput:
            inbox.put({"id": "m2", "role": "user", "content": "yes"})
            inbox.put({"id": "m1", "role": "user", "content": "go"})
            return WaitForInput("asked")

        async def judge(call: ToolCall) -> Any:
            self.state.merge_update(judged=call.turn)
            return Rewind() if call.turn < 5 else "good"

        class Verbs:
            append, rewind, end = (staticmethod(self._verb(each)) for each in ("append", "rewind", "end"))
            load, save = (staticmethod(self._verb(each)) for each in ("load", "save"))

        async def make(*_: Any) -> str:
            return "box"

        options: dict[str, Any] = {
            "engine": Verbs,
            "model": self.replay.durable("model", self._model),
            "tools": {
                "step": self.replay.durable("tool", self._step),
                "plain": plain,
                "wait": wait,
                "judge": judge,
            },
            "hooks": {"on_session_end": lambda reason: self.ends.append(f"{reason}")},
            "sandbox": Sandbox(self.replay.durable("create", make), self.replay.durable("destroy", make)),
            "inbox": inbox,
            "state": self.state,
        }
        opening = self._verb("open_thread")(self.name, mode="new", system="be brief")
        first = await run_agent(opening, recycle=lambda: next(due), **options)
        assert isinstance(first.carry, Carry)
        inbox.put({"id": "m1", "role": "user", "content": "go"})
        return await run_agent(carry=first.carry, **options)


async def told(store: everthread.AsyncStore, name: str) -> tuple[list[Any], Any]:
    thread = await store.thread(name)
    return [each["content"] for each in await thread.messages.read()], thread.state.plain()


EXPECTED = (
    [
        *("be brief", "go", "look", "look.0 1", "plain 1", "look.2 1", "ask", "asked", "yes"),
        *("judge", "judge.0 5", "good", "done"),
    ],
    {"steps": 3, "plain": 1, "judged": 5},
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/agent.db"


def check(result: AgentResult, found: Any) -> None:
    assert found == EXPECTED
    assert (result.reason, result.turns, result.usage, result.text) == ("completed", 6, {"tokens": 6}, "done")


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_each_event_the_thread_is_as_without(url: str, before: bool) -> None:
    async def test() -> None:
        async with everthread.open_async(url, durability="process") as store:
            plain = Replay()
            host = Host(store, plain, "plain")
            check(await plain.play(host.workflow), await told(store, "plain"))
            for at in range(len(plain.events)):
                replay = Replay(at)
                host = Host(store, replay, f"killed {at}")
                await replay.play(host.workflow, dies_at=at, before=before)
                # Nobody took the kill for an end: hooks are told once it is recorded.
                is_recorded = any(asked.startswith("end") for _, asked, _, _ in replay.events)
                assert host.ends == ["completed"] * is_recorded
                host.ends.clear()
                check(await replay.play(host.workflow), await told(store, host.name))
                assert host.ends == ["completed"]
                # What was asked and answered isn't done again, but for what nobody had heard of.
                assert len(replay.done) == len(replay.events) + (not before)
            assert (await store.verify()).ok

    asyncio.run(test())


def test_killed_again_and_again_it_comes_to_the_same_end(url: str, seed: int) -> None:
    async def test() -> None:
        async with everthread.open_async(url, durability="process") as store:
            for each in range(5):
                replay = Replay(seed + each)
                host = Host(store, replay, f"t{each}")
                for at in range(0, 200, 3):
                    if await replay.play(host.workflow, dies_at=at, before=bool((seed + at) % 2)):
                        break
                check(await replay.play(host.workflow), await told(store, host.name))

    asyncio.run(test())


def test_reset_to_each_event_the_thread_is_what_that_run_says(url: str) -> None:
    async def test() -> None:
        async with everthread.open_async(url, durability="process") as store:
            replay = Replay()
            host = Host(store, replay, "reset")
            await replay.play(host.workflow)
            events = list(replay.events)
            for number, at in enumerate(range(len(events) - 1, 0, -1), 2):
                # Another run of the same workflow, which has what the first one knew by then.
                replay.events = events[:at]
                host.where = Execution(f"run-{number}", origin="origin", owner="reset", started=float(number))
                check(await replay.play(host.workflow), await told(store, "reset"))
            assert (await store.verify()).ok

    asyncio.run(test())


def test_the_kit_notices_code_that_asks_for_something_else() -> None:
    async def test() -> None:
        replay, asked = Replay(), ["a"]

        async def answer(name: str) -> str:
            return name

        async def workflow() -> str:
            return await replay.durable("answer", answer)(asked.pop())

        assert await replay.play(workflow) == "a"
        asked.append("b")
        with pytest.raises(NotTheSame):
            await replay.play(workflow)

    asyncio.run(test())
