"""``run_agent`` point by point, on a store and without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidValueError, Personal, ToolVetoError, UsageError
from everthread.engines import (
    AgentResult,
    AgentState,
    Answer,
    Inbox,
    Rewind,
    Sandbox,
    ThreadRef,
    Tool,
    ToolCall,
    ToolRequest,
    Turn,
    WaitForInput,
    run_agent,
)
from everthread.engines.local import LocalEngine


def to_its_end(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agent.db"}[request.param]


#: What the model says in each turn: text, and the tools it wants.
Script = Sequence[tuple[str, Sequence[str]]]


class World:
    """An agent: a model that follows a script by the answers that stand in the thread, and tools."""

    def __init__(
        self, store: everthread.AsyncStore, script: Script = (("done", ()),), run: str = "r1"
    ) -> None:
        self.store, self.script = store, script
        self.engine = LocalEngine(store, run)
        self.turns: list[Turn] = []
        self.calls: list[ToolCall] = []

    async def model(self, turn: Turn) -> Answer:
        self.turns.append(turn)
        async with self.engine.step(turn.ref, *turn.key) as step:
            if not step.done:
                messages = await step.messages.read()
                text, wanted = self.script[sum(each["role"] == "assistant" for each in messages)]
                calls = [{"id": f"{text}.{slot}", "name": name} for slot, name in enumerate(wanted)]
                step.messages.append({"id": turn.message_id, "role": "assistant", "content": text})
                step.result = {"text": text, "calls": calls}
        calls = [ToolRequest(**each) for each in step.result["calls"]]
        return Answer(step.ref, step.result["text"], calls, {"tokens": 10})

    async def tool(self, call: ToolCall) -> ThreadRef:
        """One that is a step of its own."""
        self.calls.append(call)
        async with self.engine.step(call.ref, *call.key, slot=call.slot) as step:
            if not step.done:
                step.messages.append({"role": "tool", "content": f"{call.id} {call.name}"})
        return step.ref

    async def run(self, ref: Any, **options: Any) -> AgentResult:
        return await run_agent(ref, engine=self.engine, model=self.model, **options)

    async def said(self, name: str = "t") -> list[str]:
        return [each["content"] for each in await (await self.store.thread(name)).messages.read()]


@asynccontextmanager
async def world(url: str, script: Script = (("done", ()),)) -> AsyncIterator[tuple[World, ThreadRef]]:
    async with everthread.open_async(url) as store:
        made = World(store, script)
        yield made, await made.engine.open_thread("t", mode="new")


def user(text: str, name: str = "m1") -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


# ── 1, 2: begun from a configuration; new, continue, fork ────────────────────────────────────────


@to_its_end
async def test_a_run_gives_thread_message_reason_usage_and_turns(url: str) -> None:
    async with world(url, [("look", ["search"]), ("done", ())]) as (w, ref):
        result = await w.run(ref, message=user("go"), tools={"search": w.tool})
        assert (result.ref.thread, result.text, result.reason) == ("t", "done", "completed")
        assert (result.turns, result.usage, result.sandbox_id, result.snapshot) == (
            2,
            {"tokens": 20},
            None,
            None,
        )
        assert await w.said() == ["go", "look", "look.0 search", "done"]
        thread = await w.store.thread("t")
        assert thread.head is not None
        assert thread.head.id == result.ref.version
        assert (await w.store.session_records("t")).status != "running"


@to_its_end
async def test_new_begins_with_the_system_message_and_continue_appends_what_is_new(url: str) -> None:
    async with everthread.open_async(url) as store:
        first = World(store)
        opening = first.engine.open_thread("t", mode="new", system="be brief")
        await first.run(opening, message=user("one"))
        second = World(store, [("done", ()), ("again", ())], "r2")
        await second.run(second.engine.open_thread("t", mode="continue"), message=user("two", "m2"))
        assert await second.said() == ["be brief", "one", "done", "two", "again"]


@to_its_end
async def test_fork_has_messages_and_state_and_leaves_its_source_alone(url: str) -> None:
    async with everthread.open_async(url) as store:
        first = World(store)
        state = AgentState()
        state.merge_update(colour="red", tasks=[["t-1", {"subject": "fetch", "status": "pending"}]])
        done = await first.run(first.engine.open_thread("t", mode="new"), message=user("one"), state=state)
        second, forked = World(store, [("done", ()), ("other", ())], "r2"), AgentState()
        transform = lambda item: {**item, "content": item["content"].upper()}  # noqa: E731
        opening = second.engine.open_thread("f", mode="fork", source=done.ref, transform=transform)
        await second.run(opening, message=user("two", "m2"), state=forked)
        assert await second.said("f") == ["ONE", "DONE", "two", "other"]
        assert await second.said("t") == ["one", "done"]
        assert forked.slice() == state.slice()
        assert forked.slice()["colour"] == "red"


@to_its_end
async def test_what_is_loaded_counts_as_one_version_and_replaces_all_tasks(url: str) -> None:
    async with world(url) as (w, ref):
        thread = await w.store.thread("t")
        thread.state.update({"a": 1, "b": 2, "tasks": {"t-2": {"subject": "x", "status": "pending"}}})
        await thread.commit()
        state, versions = AgentState(), []
        state.merge_update(tasks=[["t-1", {"subject": "gone", "status": "pending"}]])
        state.version = 0
        where = ThreadRef("t", thread.head.id, ref.run, ref.origin)  # type: ignore[union-attr]
        hooks = {"on_session_start": lambda found: versions.append(found.version)}
        await w.run(where, state=state, hooks=hooks)
        # The pointer is one version, what was loaded another.
        assert versions == [2]
        assert [name for name, _ in state.slice()["tasks"]] == ["t-2"]
        assert (state.slice()["a"], state.slice()["b"]) == (1, 2)


@to_its_end
async def test_personal_values_stay_in_the_thread(url: str) -> None:
    async with world(url) as (w, ref):
        thread = await w.store.thread("t")
        thread.state.update({"a": 1, "who": {"name": Personal("u1", "Ada")}})
        await thread.commit()
        state = AgentState()
        where = ThreadRef("t", thread.head.id, ref.run, ref.origin)  # type: ignore[union-attr]
        await w.run(where, state=state)
        assert state.slice() == {"a": 1}
        await thread.refresh()
        assert thread.state["who"]["name"].value == "Ada"


# ── 3: a turn ────────────────────────────────────────────────────────────────────────────────────


@to_its_end
async def test_the_id_of_the_answer_is_known_before_the_call_and_used(url: str) -> None:
    async with world(url, [("a", ["search"]), ("b", ())]) as (w, ref):
        await w.run(ref, tools={"search": w.tool})
        ids = [each["id"] for each in await (await w.store.thread("t")).messages.read()]
        assert [ids[0], ids[2]] == [turn.message_id for turn in w.turns]
        assert ids[0] != ids[2]


@to_its_end
async def test_the_model_is_told_the_tools_of_this_turn(url: str) -> None:
    class Query:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "object", "properties": {"q": {"type": "string"}}}

    async with world(url, [("a", ["search"]), ("b", ())]) as (w, ref):
        state = AgentState()

        def tools(found: AgentState) -> Mapping[str, Any]:
            made = {"search": Tool(w.tool, "finds", Query)}
            return made if found.turns < 2 else {**made, "fetch": w.tool}

        await w.run(ref, tools=tools, state=state)
        (first,), second = w.turns[0].tools, w.turns[1].tools
        assert first == {"name": "search", "description": "finds", "input_schema": Query.model_json_schema()}
        assert [each["name"] for each in second] == ["search", "fetch"]
        assert state.tools == second


@to_its_end
async def test_results_of_parallel_tools_stand_in_the_order_of_the_calls(url: str) -> None:
    async with world(url, [("a", ["slow", "quick", "plain"]), ("b", ())]) as (w, ref):
        quick_is_done, order = asyncio.Event(), []

        async def slow(call: ToolCall) -> ThreadRef:
            await quick_is_done.wait()
            order.append("slow")
            return await w.tool(call)

        async def quick(call: ToolCall) -> ThreadRef:
            made = await w.tool(call)
            order.append("quick")
            quick_is_done.set()
            return made

        async def plain(call: ToolCall) -> dict[str, int]:
            return {"n": 3}

        result = await w.run(ref, tools={"slow": slow, "quick": quick, "plain": plain})
        assert order == ["quick", "slow"]
        assert await w.said() == ["a", "a.0 slow", "a.1 quick", '{"n": 3}', "b"]
        thread = await w.store.thread("t")
        assert result.ref.version == thread.head.id  # type: ignore[union-attr]


@to_its_end
async def test_a_tool_that_is_not_parallel_runs_while_no_other_does(url: str) -> None:
    async with world(url, [("a", ["p", "p", "alone", "p"]), ("b", ())]) as (w, ref):
        running, together = 0, []

        async def tool(call: ToolCall) -> str:
            nonlocal running
            running += 1
            await asyncio.sleep(0)
            together.append((call.slot, running))
            await asyncio.sleep(0)
            running -= 1
            return str(call.slot)

        await w.run(ref, tools={"p": tool, "alone": Tool(tool, parallel=False)})
        assert together == [(0, 2), (1, 2), (2, 1), (3, 1)]
        assert await w.said() == ["a", "0", "1", "2", "3", "b"]


@to_its_end
async def test_a_tool_that_there_is_not_or_that_a_hook_refuses_is_told_to_the_model(url: str) -> None:
    async with world(url, [("a", ["absent", "search"]), ("b", ())]) as (w, ref):

        def veto(use: Any) -> None:
            if use.phase == "pre" and use.name == "search":
                raise ToolVetoError("not today")

        await w.run(ref, tools={"search": w.tool}, hooks={"on_tool_use": veto})
        said = await w.said()
        assert "There is no tool 'absent'; there are: search." in said[1]
        assert said[2] == "The tool was refused: not today"
        assert w.calls == []


@to_its_end
async def test_what_a_tool_raises_fails_the_run_unless_it_is_made_a_result(url: str) -> None:
    async with world(url, [("a", ["bad", "hang"]), ("b", ())]) as (w, ref):
        phases, ended = [], []

        begun = asyncio.Event()

        async def bad(call: ToolCall) -> str:
            await begun.wait()
            raise LookupError("nothing there")

        async def hang(call: ToolCall) -> str:
            begun.set()
            try:
                return await asyncio.Event().wait() and ""
            finally:
                ended.append("hang")

        hooks = {"on_tool_use": lambda use: phases.append((use.phase, use.name))}
        with pytest.raises(LookupError, match="nothing there"):
            await w.run(ref, tools={"bad": bad, "hang": hang}, hooks=hooks)
        assert ended == ["hang"]
        assert ("failure", "bad") in phases

    async with world("memory:", [("a", ["bad"]), ("b", ())]) as (w, ref):
        recover = lambda call, error: f"{call.name}: {error}"  # noqa: E731
        await w.run(ref, tools={"bad": bad}, recover=recover)
        assert await w.said() == ["a", "bad: nothing there", "b"]


@to_its_end
async def test_usage_of_subagents_is_added_and_their_message_is_the_result(url: str) -> None:
    async with world(url, [("a", ["sub"]), ("b", ())]) as (w, ref):

        async def sub(call: ToolCall) -> AgentResult:
            child = World(w.store, [("a", ()), ("child says", ())], "child")
            opening = child.engine.open_thread("c", mode="fork", source=call.before)
            child.script = [("child says", ())]
            return await child.run(opening, message=user("do it", "c1"))

        result = await w.run(ref, message=user("go"), tools={"sub": sub})
        assert result.usage == {"tokens": 30}
        assert await w.said() == ["go", "a", "child says", "b"]
        # Forked before the call: no call without a result.
        assert await w.said("c") == ["go", "do it", "child says"]


# ── 4: a turn is taken back ──────────────────────────────────────────────────────────────────────


@to_its_end
async def test_a_turn_that_is_taken_back_leaves_nothing_and_stays_counted(url: str) -> None:
    async with world(url, [("a", ["write", "judge"]), ("b", ())]) as (w, ref):
        state = AgentState()

        async def write(call: ToolCall) -> ThreadRef:
            state.merge_update(written=call.turn)
            return await w.tool(call)

        async def judge(call: ToolCall) -> Any:
            if call.turn < 3:
                return Rewind("not like this")
            return "good"

        tools = {"write": Tool(write, parallel=False), "judge": judge}
        result = await w.run(ref, message=user("go"), tools=tools, state=state)
        assert await w.said() == ["go", "a", "a.0 write", "good", "b"]
        assert (result.turns, result.usage["tokens"]) == (4, 40)
        assert len({turn.message_id for turn in w.turns[:3]}) == 1
        assert w.turns[3].message_id != w.turns[0].message_id
        assert state.slice() == {"written": 3}
        assert (await w.store.thread("t")).state.plain() == {"written": 3}


@to_its_end
async def test_tasks_and_fields_go_back_with_the_turn(url: str) -> None:
    async with world(url, [("a", ["judge"]), ("b", ())]) as (w, ref):
        state = AgentState()
        state.merge_update(phase="begun")

        async def judge(call: ToolCall) -> Any:
            seen.append(state.slice())
            state.merge_update(phase="wrong", tasks=[["t-1", {"subject": "x", "status": "pending"}]])
            return Rewind() if call.turn == 1 else "ok"

        seen: list[Any] = []
        await w.run(ref, tools={"judge": judge}, state=state)
        assert seen == [{"phase": "begun"}] * 2


@to_its_end
async def test_siblings_of_a_rewind_are_cancelled_and_land_nowhere(url: str) -> None:
    async with world(url, [("a", ["late", "judge"]), ("b", ())]) as (w, ref):
        entered, was_cancelled = asyncio.Event(), []

        async def late(call: ToolCall) -> Any:
            if call.turn > 1:
                return "late"
            try:
                async with w.engine.step(call.ref, *call.key, slot=call.slot) as step:
                    step.messages.append({"role": "tool", "content": "of a turn that is gone"})
                    entered.set()
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                was_cancelled.append(True)
                raise

        async def judge(call: ToolCall) -> Any:
            await entered.wait()
            return Rewind() if call.turn == 1 else "ok"

        await w.run(ref, tools={"late": late, "judge": judge})
        assert was_cancelled == [True]
        assert await w.said() == ["a", "late", "ok", "b"]


@to_its_end
async def test_a_tool_cannot_spin_for_ever(url: str) -> None:
    async with world(url, [("a", ["judge"])]) as (w, ref):

        async def judge(call: ToolCall) -> Any:
            return Rewind()

        result = await w.run(ref, message=user("go"), tools={"judge": judge}, max_turns=3)
        assert (result.reason, result.turns, result.text) == ("max_turns", 3, None)
        assert await w.said() == ["go"]


# ── 5: waiting ───────────────────────────────────────────────────────────────────────────────────


@to_its_end
async def test_a_run_waits_for_input_and_goes_on_with_it(url: str) -> None:
    async with world(url, [("may I?", ["ask"]), ("thanks", ())]) as (w, ref):
        inbox, state = Inbox(), AgentState()

        async def ask(call: ToolCall) -> Any:
            return WaitForInput("asked")

        running = asyncio.create_task(w.run(ref, tools={"ask": ask}, inbox=inbox, state=state))
        while state.status == "running":
            await state.wait_for_change(state.version)
        assert (state.status, running.done()) == ("waiting_for_input", False)
        assert inbox.put(user("yes"))
        assert not inbox.put(user("yes"))
        assert (await running).reason == "completed"
        assert await w.said() == ["may I?", "asked", "yes", "thanks"]
        assert state.status == "completed"


@to_its_end
async def test_waiting_ends_with_its_own_reason(url: str) -> None:
    async def ask(call: ToolCall) -> Any:
        return WaitForInput()

    ends: list[Any] = []
    for options in ({"inbox": Inbox(), "wait_s": 0.01}, {}):
        async with world("memory:", [("may I?", ["ask"])]) as (w, ref):
            state = AgentState()
            hooks = {"on_session_end": lambda reason, turns: ends.append((reason, turns))}
            result = await w.run(ref, tools={"ask": ask}, state=state, hooks=hooks, **options)
            assert (result.reason, result.text) == ("waiting_for_input", "may I?")
            assert ends.pop() == ("waiting_for_input", 1)
            assert state.status == "waiting_for_input"


@to_its_end
async def test_a_chat_goes_on_until_nothing_more_comes(url: str) -> None:
    async with world(url, [("one", ()), ("two", ())]) as (w, ref):
        inbox = Inbox()
        inbox.put(user("a", "m1"))
        state = AgentState()
        running = asyncio.create_task(w.run(ref, inbox=inbox, chat=True, state=state))
        while state.status == "running":
            await state.wait_for_change(state.version)
        inbox.put(user("b", "m2"))
        inbox.close()
        result = await running
        assert (result.reason, result.text) == ("completed", "two")
        assert await w.said() == ["a", "one", "b", "two"]
        assert not inbox.put(user("c", "m3"))


@to_its_end
async def test_a_message_told_again_in_a_later_run_wakes_nobody(url: str) -> None:
    async with world(url, [("one", ()), ("two", ())]) as (w, ref):
        first = Inbox()
        first.put(user("a", "m1"))
        due = iter((False, True))
        cut = await w.run(ref, inbox=first, chat=True, recycle=lambda: next(due))
        assert (cut.reason, cut.carry.status) == (None, "waiting_for_input")  # type: ignore[union-attr]
        for carry in (cut.carry, None):
            # With what the run before remembers, and with what the thread knows alone.
            again = Inbox()
            again.put(user("a", "m1"))
            again.close()
            later = World(w.store, w.script, f"r2 {carry is None}")
            options: dict[str, Any] = {"carry": carry} if carry else {}
            if carry is None:
                stands = ThreadRef("t", cut.ref.version)  # type: ignore[union-attr]
                taken = await later.engine.append(stands, user("a", "m1"))
                assert taken.version == stands.version
                continue
            result = await later.run(None, inbox=again, chat=True, **options)
            assert (result.reason, later.turns) == ("completed", [])
            assert await w.said() == ["a", "one"]


@to_its_end
async def test_a_waiting_run_can_go_on_without_a_message(url: str) -> None:
    async with world(url, [("may I?", ["ask"]), ("thanks", ())]) as (w, ref):
        inbox = Inbox()

        async def ask(call: ToolCall) -> Any:
            inbox.go_on()
            return WaitForInput("asked")

        await w.run(ref, tools={"ask": ask}, inbox=inbox)
        assert await w.said() == ["may I?", "asked", "thanks"]


@to_its_end
async def test_what_is_told_during_the_last_turn_is_heard(url: str) -> None:
    async with world(url, [("one", ()), ("two", ())]) as (w, ref):
        inbox = Inbox()

        async def model(turn: Turn) -> Answer:
            answer = await w.model(turn)
            if turn.number == 1:
                inbox.put(user("wait"))
            return answer

        result = await run_agent(ref, engine=w.engine, model=model, inbox=inbox)
        assert (result.turns, await w.said()) == (2, ["one", "wait", "two"])
        assert not inbox.put(user("too late", "m2"))
        with pytest.raises(InvalidValueError, match="closed"):
            inbox.check(user("too late", "m2"))
        assert await w.said() == ["one", "wait", "two"]


@to_its_end
async def test_what_is_told_while_the_run_is_handed_on_is_taken_first(url: str) -> None:
    async with world(url, [("one", ()), ("two", ())]) as (w, ref):
        inbox, state, plain_save = Inbox(), AgentState(), w.engine.save

        async def save(*args: Any, **kwargs: Any) -> ThreadRef:
            saved = await plain_save(*args, **kwargs)
            inbox.put(user("hello", "m2"))
            return saved

        w.engine.save = save  # type: ignore[method-assign]
        state.merge_update(n=1)
        cut = await w.run(ref, message=user("go"), inbox=inbox, chat=True, state=state, recycle=lambda: True)
        assert (cut.reason, len(inbox), await w.said()) == (None, 0, ["go", "hello"])
        # It isn't closed: another run goes on.
        assert inbox.put(user("more", "m3"))


@to_its_end
async def test_what_was_told_before_a_failure_stands_in_the_thread(url: str) -> None:
    async with world(url) as (w, ref):
        inbox = Inbox()

        async def model(turn: Turn) -> Answer:
            inbox.put(user("hello"))
            raise LookupError("no model")

        with pytest.raises(LookupError):
            await run_agent(ref, engine=w.engine, model=model, inbox=inbox)
        assert await w.said() == ["hello"]


def _nested(depth: int) -> Any:
    value: Any = "inside"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "message",
    [
        *({"role": "user"}, {"id": ""}, {"id": 7}, "text", None),
        *({"id": "m", "content": object()}, {"id": "m", "content": "\ud800"}),
        {"id": "m", "content": _nested(200)},
    ],
)
def test_a_message_that_cannot_be_kept_is_refused(message: Any) -> None:
    inbox = Inbox()
    for hand in (inbox.check, inbox.put):
        with pytest.raises(InvalidValueError):
            hand(message)
    assert len(inbox) == 0


def test_checking_a_message_changes_nothing() -> None:
    inbox, message = Inbox(), {"id": "m1", "content": Personal("ann", "hello")}
    for _ in range(2):
        inbox.check(message)
    assert len(inbox) == 0
    assert inbox.put(message)
    # Told again it is fine, and counts once.
    inbox.check(message)
    assert not inbox.put(message)
    assert len(inbox) == 1


@to_its_end
async def test_messages_that_were_told_stay_when_the_run_is_cancelled_meanwhile(url: str) -> None:
    async with world(url, [("one", ()), ("two", ())]) as (w, ref):
        inbox, plain_append = Inbox(), w.engine.append
        waits, go = asyncio.Event(), asyncio.Event()

        async def append(ref: ThreadRef, message: Any, **options: Any) -> ThreadRef:
            waits.set()
            await go.wait()
            return await plain_append(ref, message, **options)

        w.engine.append = append  # type: ignore[method-assign]
        assert inbox.put(user("a", "m1"))
        assert inbox.put(user("b", "m2"))
        task = asyncio.create_task(w.run(ref, inbox=inbox))
        await waits.wait()
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await w.said() == ["a", "b"]


@to_its_end
async def test_a_run_that_is_cancelled_while_a_turn_is_taken_back_ends_where_it_is(url: str) -> None:
    async with world(url, [("plan", ["judge"])]) as (w, ref):
        plain_rewind = w.engine.rewind
        waits, go = asyncio.Event(), asyncio.Event()

        async def rewind(ref: ThreadRef, to: ThreadRef) -> ThreadRef:
            waits.set()
            await go.wait()
            return await plain_rewind(ref, to)

        w.engine.rewind = rewind  # type: ignore[method-assign]
        task = asyncio.create_task(w.run(ref, tools={"judge": lambda call: Rewind("no")}))
        await waits.wait()
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await w.said() == []
        thread = await w.engine.store.thread(ref.thread)
        assert thread.head is not None
        assert thread.head.label == "end"


@to_its_end
async def test_a_run_fails_with_what_its_tool_raised_not_with_the_cancelled_sibling(url: str) -> None:
    class CancelledError(Exception):
        """As an engine wraps the cancellation of a tool: its cause says so."""

        cause = asyncio.CancelledError()

    async with world(url, [("go", ["slow", "bad"])]) as (w, ref):
        began = asyncio.Event()

        async def slow(call: ToolCall) -> str:
            try:
                began.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise CancelledError from None
            return "never"

        async def bad(call: ToolCall) -> str:
            await began.wait()
            raise LookupError("no such city")

        with pytest.raises(LookupError, match="no such city"):
            await w.run(ref, tools={"slow": slow, "bad": bad})
        records = await w.engine.store.session_records(ref.thread)
        assert records.last_run.text == "run 1 failed: LookupError"


@to_its_end
async def test_options_go_to_everything_that_the_loop_does_itself(url: str) -> None:
    async with world(url, [("a", ["plain"]), ("b", ["judge"]), ("b", ()), ("c", ())]) as (w, ref):
        seen: dict[str, Any] = {}

        class Recording:
            TAKES_OPTIONS = True

            def __getattr__(self, verb: str) -> Any:
                async def call(*args: Any, limit: int, **more: Any) -> Any:
                    seen[verb] = limit
                    return await getattr(w.engine, verb)(*args, **more)

                return call

        def plain(call: ToolCall) -> str:
            state.merge_update(seen=call.id)
            return "told"

        def judge(call: ToolCall) -> Any:
            return Rewind("no") if call.turn == 2 else "good"

        state = AgentState()
        await run_agent(
            ref,
            engine=Recording(),  # type: ignore[arg-type]
            model=w.model,
            tools={"plain": plain, "judge": judge},
            state=state,
            max_turns=3,
            options={"limit": 7},
        )
        assert seen == dict.fromkeys(("append", "rewind", "end", "load", "save"), 7)
        with pytest.raises(InvalidValueError, match="no activities"):
            await w.run(ref, options={"limit": 7})


# ── another run goes on ──────────────────────────────────────────────────────────────────────────


@to_its_end
async def test_another_run_goes_on_without_an_end_in_between(url: str) -> None:
    script = [("a", ["search"]), ("b", ["search"]), ("c", ())]
    async with world(url, script) as (w, ref):
        told: list[str] = []
        made: list[str] = []

        async def create(restore: Any) -> str:
            made.append("box")
            return "box-1"

        async def destroy(name: str) -> None:
            made.append(f"destroyed {name}")

        hooks = {
            event: (lambda *_, event=event: told.append(event))
            for event in ("on_session_start", "on_sandbox_ready", "on_session_end", "on_session_exit")
        }
        box = Sandbox(create, destroy)
        options: dict[str, Any] = {"tools": {"search": w.tool}, "hooks": hooks, "sandbox": box}
        due = iter((False, True))
        first = await w.run(ref, message=user("go"), recycle=lambda: next(due), **options)
        assert (first.reason, told, made) == (None, ["on_session_start", "on_sandbox_ready"], ["box"])
        second = await w.run(None, carry=first.carry, **options)
        assert (second.reason, second.turns, second.usage) == ("completed", 3, {"tokens": 30})
        assert told == ["on_session_start", "on_sandbox_ready", "on_session_end", "on_session_exit"]
        assert (made, second.sandbox_id) == (["box", "destroyed box-1"], "box-1")
        assert await w.said() == ["go", "a", "a.0 search", "b", "b.0 search", "c"]


# ── 6: the end, on every path ────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def watched(order: list[str]) -> AsyncIterator[dict[str, Any]]:
    """Options of a run that notes what happens at its end."""

    async def create(restore: Any) -> str:
        order.append("create")
        return "box-1"

    async def destroy(name: str) -> None:
        order.append("destroy")

    async def snapshot(name: str) -> str:
        order.append("snapshot")
        return f"{name}@{order.count('snapshot')}"

    hooks = {
        "on_session_start": lambda: order.append("start"),
        "on_sandbox_ready": lambda sandbox_id, base: order.append(f"ready {sandbox_id} {base}"),
        "on_session_end": lambda reason, turns: order.append(f"end {reason} {turns}"),
        "on_session_exit": lambda sandbox_id, snapshot: order.append(f"exit {sandbox_id} {snapshot}"),
    }
    yield {"hooks": hooks, "sandbox": Sandbox(create, destroy, snapshot, at_end="snapshot")}


@to_its_end
async def test_the_end_has_an_order(url: str) -> None:
    async with world(url) as (w, ref):
        order: list[str] = []
        state = AgentState()
        state.merge_update(n=1)
        plain_save, plain_end = w.engine.save, w.engine.end

        async def save(*args: Any, **kwargs: Any) -> ThreadRef:
            order.append("save")
            return await plain_save(*args, **kwargs)

        async def end(*args: Any, **about: Any) -> ThreadRef:
            order.append("record")
            return await plain_end(*args, **about)

        w.engine.save, w.engine.end = save, end  # type: ignore[method-assign]

        async def model(turn: Turn) -> Answer:
            raise LookupError("no model")

        async with watched(order) as options:
            with pytest.raises(LookupError, match="no model"):
                await run_agent(ref, engine=w.engine, model=model, state=state, **options)
        assert order == [
            *("start", "create", "snapshot", "ready box-1 box-1@1"),
            *("save", "record", "end failed 1", "snapshot", "destroy", "exit box-1 box-1@2"),
        ]
        assert (await w.store.thread("t")).state.plain() == {"n": 1}


@pytest.mark.parametrize("which", ["save", "end", "snapshot", "destroy"])
def test_a_failure_at_the_end_is_a_warning_and_masks_nothing(which: str) -> None:
    async def test(fails: bool) -> None:
        async with world("memory:") as (w, ref):
            order: list[str] = []
            state = AgentState()

            async def broken(*args: Any, **kwargs: Any) -> Any:
                raise OSError("disk")

            async def model(turn: Turn) -> Answer:
                state.merge_update(n=1)
                if fails:
                    raise LookupError("no model")
                return await w.model(turn)

            async with watched(order) as options:
                if which in ("snapshot", "destroy"):
                    given: Sandbox = options["sandbox"]
                    working = {"create": given.create, "destroy": given.destroy, "at_end": "destroy"}
                    if which == "snapshot":
                        working |= {"restore": "earlier", "at_end": "snapshot", "snapshot": broken}
                    else:
                        working["destroy"] = broken
                    options["sandbox"] = Sandbox(**working)  # type: ignore[arg-type]
                else:
                    setattr(w.engine, which, broken)
                running = run_agent(ref, engine=w.engine, model=model, state=state, **options)
                if fails or which == "save":
                    # What can't be saved after a turn isn't at the end yet: the run fails by it.
                    with pytest.raises(LookupError if fails else OSError) as caught:
                        await running
                    warnings = caught.value.__notes__
                else:
                    warnings = (await running).warnings
                assert any("disk" in warning for warning in warnings)
            assert [each.split()[0] for each in order if each[0] == "e"] == ["end", "exit"]
            # What a snapshot could not keep is still there.
            assert ("destroy" in order) is (which not in ("destroy", "snapshot"))

    asyncio.run(test(fails=True))
    asyncio.run(test(fails=False))


@to_its_end
async def test_a_run_that_fails_records_with_what(url: str) -> None:
    async with world(url) as (w, ref):

        async def model(turn: Turn) -> Answer:
            raise LookupError("no model\nand a second line")

        with pytest.raises(LookupError):
            await run_agent(ref, engine=w.engine, model=model)
        records = await w.store.session_records("t")
        assert records.last_run.text == "run 1 failed: LookupError"
        assert [error.text for error in await records.errors()] == ["workflow: LookupError: no model"]


@to_its_end
async def test_a_thread_that_cannot_be_opened_ends_the_run_as_well(url: str) -> None:
    async with everthread.open_async(url) as store:
        w, order = World(store), []
        hooks = {
            "on_session_end": lambda reason: order.append(f"{reason}"),
            "on_session_exit": lambda *, thread: order.append(thread),
        }
        with pytest.raises(everthread.ThreadNotFoundError):
            await w.run(w.engine.open_thread("absent", mode="continue"), hooks=hooks)
        assert order == ["failed", None]


class Points:
    """Every place where something is awaited: before each call and after it. At some of them the task is
    cancelled."""

    def __init__(self, *cancelled_at: int) -> None:
        self.count = 0
        self.cancelled_at = cancelled_at
        self.task: asyncio.Future[Any] | None = None

    async def pass_one(self) -> None:
        self.count += 1
        if self.count in self.cancelled_at and self.task is not None:
            self.task.cancel()
        await asyncio.sleep(0)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self.pass_one()
            result = await function(*args, **kwargs)
            await self.pass_one()
            return result

        return call


async def cancelled_run(url: str, points: Points) -> tuple[asyncio.Future[Any], list[str], list[str]]:
    order: list[str] = []
    async with everthread.open_async(url) as store:
        w = World(store, [("a", ["search", "plain"]), ("b", ())], f"r{points.cancelled_at}")
        for verb in ("append", "rewind", "end", "load", "save"):
            setattr(w.engine, verb, points.around(getattr(w.engine, verb)))
        name, state = f"t{points.cancelled_at}", AgentState()
        state.merge_update(n=1)

        async def plain(call: ToolCall) -> str:
            return "plain"

        async with watched(order) as options:
            given: Sandbox = options["sandbox"]
            options["sandbox"] = Sandbox(
                *map(points.around, (given.create, given.destroy, given.snapshot)),  # type: ignore[arg-type]
                at_end="snapshot",
            )
            running = run_agent(
                points.around(w.engine.open_thread)(name, mode="new"),
                engine=w.engine,
                model=points.around(w.model),
                message=user("go"),
                tools={"search": points.around(w.tool), "plain": points.around(plain)},
                state=state,
                **options,
            )
            points.task = asyncio.ensure_future(running)
            await asyncio.wait({points.task})
        assert (await store.verify()).ok
        thread = await store.thread(name)
        return points.task, order, [v.label for v in [v async for v in thread.history()] if v.label]


@to_its_end
async def test_cancelled_at_each_await_the_end_is_the_same(url: str) -> None:
    """Wherever it is cancelled, and again while it ends: state saved, end recorded, hooks told, the sandbox
    gone, each once."""
    for at in range(1, 200):
        points = Points(at, at + 3)
        task, order, labels = await cancelled_run(url, points)
        reason = "cancelled" if task.cancelled() else task.result().reason
        kinds = [each.split()[0] for each in order]
        assert (kinds.count("end"), kinds.count("exit")) == (1, 1)
        assert kinds.count("destroy") == kinds.count("create")
        assert labels in (["end", "open"], [])
        if at > points.count:
            assert reason == "completed"
            break
        assert task.cancelled()
    else:
        pytest.fail("it never came to its end")
    assert at > 20


# ── 7: what is kept, and what others see ─────────────────────────────────────────────────────────


@to_its_end
async def test_tasks_and_fields_are_saved_after_each_turn_and_nothing_else_is(url: str) -> None:
    async with world(url, [("a", ["note"]), ("b", ())]) as (w, ref):
        state, seen = AgentState("weaver", {"team": 1}), []
        state.merge_update(status="mine", turns=99, colour="red")

        async def note(call: ToolCall) -> str:
            state.merge_update(noted=True)
            return "noted"

        async def look() -> None:
            seen.append((await w.store.thread("t")).state.plain())

        await w.run(ref, tools={"note": note}, state=state, hooks={"on_turn": look}, files=lambda at: "tree")
        assert seen == [{}, {"colour": "red", "noted": True}]
        assert (await w.store.thread("t")).state.plain() == {"colour": "red", "noted": True}
        assert (state.status, state.turns, state.files) == ("completed", 2, "tree")


@to_its_end
async def test_a_save_leaves_alone_what_steps_have_changed(url: str) -> None:
    async with world(url, [("a", ["step"]), ("b", ())]) as (w, ref):
        state = AgentState()

        async def step(call: ToolCall) -> ThreadRef:
            state.merge_update(mine=1)
            async with w.engine.step(call.ref, *call.key, slot=call.slot) as made:
                made.state["theirs"] = 2
            return made.ref

        await w.run(ref, tools={"step": step}, state=state)
        assert (await w.store.thread("t")).state.plain() == {"mine": 1, "theirs": 2}


@to_its_end
async def test_whoever_waits_for_a_change_hears_of_it(url: str) -> None:
    state = AgentState()
    assert await state.wait_for_change(-1) == 0
    assert await state.wait_for_change(0, timeout_s=0.001) == 0
    waiting = asyncio.create_task(state.wait_for_change(0))
    await asyncio.sleep(0)
    state.merge_update(a=1)
    assert await waiting == 1
    found = state.slice()
    found["a"] = 2
    assert state.slice() == {"a": 1}
    with pytest.raises(InvalidValueError):
        state.merge_update(todos=[])


# ── 8: sandboxes ─────────────────────────────────────────────────────────────────────────────────


async def of_sandbox(sandbox: Callable[..., Sandbox]) -> tuple[list[str], AgentResult]:
    async with world("memory:") as (w, ref):
        order: list[str] = []
        async with watched(order) as options:
            full: Sandbox = options["sandbox"]
            result = await w.run(ref, hooks=options["hooks"], sandbox=sandbox(full))
        return order, result


def test_a_base_snapshot_is_taken_of_a_fresh_one_with_the_policy_snapshot_only() -> None:
    kept, result = asyncio.run(of_sandbox(lambda full: full))
    assert kept[1:4] == ["create", "snapshot", "ready box-1 box-1@1"]
    assert (result.sandbox_id, result.snapshot) == ("box-1", "box-1@2")
    again = lambda full: Sandbox(full.create, full.destroy, full.snapshot, restore="x", at_end="snapshot")  # noqa: E731
    restored, result = asyncio.run(of_sandbox(again))
    assert restored[1:3] == ["create", "ready box-1 None"]
    assert result.snapshot == "box-1@1"
    plain, result = asyncio.run(of_sandbox(lambda full: Sandbox(full.create, full.destroy, full.snapshot)))
    assert "snapshot" not in plain
    assert plain[-2:] == ["destroy", "exit box-1 None"]
    assert result.snapshot is None


def test_a_sandbox_of_somebody_else_is_used_and_left_alone() -> None:
    order, result = asyncio.run(of_sandbox(lambda full: Sandbox(full.create, full.destroy, id="theirs")))
    assert order == ["start", "end completed 1", "exit theirs None"]
    assert result.sandbox_id == "theirs"


def test_a_sandbox_that_makes_no_sense_is_refused() -> None:
    async def ok(*_: Any) -> str:
        return ""

    for options in ({}, {"create": ok}, {"create": ok, "destroy": ok, "at_end": "forget"}):
        with pytest.raises(InvalidValueError):
            Sandbox(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="snapshot="):
        Sandbox(ok, ok, at_end="snapshot")


# ── bad calls ────────────────────────────────────────────────────────────────────────────────────


@to_its_end
async def test_bad_calls_say_what_to_do(url: str) -> None:
    async with world(url) as (w, ref):
        for options, words in (
            ({"max_turns": 0}, "max_turns"),
            ({"message": "text"}, "message"),
            ({"tools": [1]}, "tools"),
        ):
            with pytest.raises(InvalidValueError, match=words):
                await w.run(ref, **options)
        with pytest.raises(InvalidValueError, match="max_turns"):
            await w.run(w.engine.open_thread("u"), max_turns=-1)
        with pytest.raises(InvalidValueError, match="open_thread"):
            await w.run(None)
        with pytest.raises(UsageError, match="engine="):
            await run_agent(ref, model=w.model)

        async def odd(turn: Turn) -> Any:
            return "text"

        with pytest.raises(InvalidValueError, match="returns an Answer"):
            await run_agent(ref, engine=w.engine, model=odd)
