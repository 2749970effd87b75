"""Steps of a workflow, without an engine: resets, retries, rewinds and forks, told by pointers alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import FencedError, InvalidValueError, ThreadExistsError, ThreadNotFoundError
from everthread.engines import Execution, ThreadRef, latest
from everthread.engines.local import LocalEngine
from everthread.engines.steps import append, end, enter_step, open_thread, rewind
from everthread.engines.sync import steps as blocking
from everthread.threads.runtime import Runtime
from tests.unit.cli.calling import Program
from tests.unit.sessions.clock import Clock

Scenario = Callable[[Any], Awaitable[None]]

A = Execution("run-a", started=1000.0, scheduler="run-a", origin="run-a", owner="w")
#: The same workflow, reset.
B = dataclasses.replace(A, run="run-b", scheduler="run-b", started=2000.0)
C = dataclasses.replace(A, run="run-c", scheduler="run-c", started=3000.0)


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"

    def go(scenario: Scenario) -> None:
        async def inside() -> None:
            async with everthread.open_async(url, durability="process") as store:
                await scenario(store)
                assert (await store.verify()).ok

        asyncio.run(inside())

    return go


def early(where: Execution, scheduler: Execution) -> Execution:
    """A step that ``scheduler`` had scheduled before ``where`` was made of it by a reset."""
    return dataclasses.replace(where, scheduler=scheduler.run)


async def say(store: Any, ref: ThreadRef, turn: int, where: Execution, text: str) -> ThreadRef:
    async with enter_step(store, ref, ("turn", turn), where) as step:
        if not step.done:
            step.messages.append({"role": "assistant", "content": text})
            step.state["last"] = text
            step.result = text
    return step.ref


async def tool(store: Any, ref: ThreadRef, slot: int, where: Execution, text: str) -> ThreadRef:
    async with enter_step(store, ref, ("tools", 1), where, slot=slot) as step:
        if not step.done:
            step.messages.append({"role": "tool", "content": text})
            step.state.increment("tools")
            step.result = text
    return step.ref


async def overtaken(store: Any, ref: ThreadRef, where: Execution, verb: Callable[[], Any]) -> None:
    """A tool, and what somebody else does while it is under way."""
    async with enter_step(store, ref, ("tools", 1), where, slot=1) as late:
        late.messages.append({"role": "tool", "content": "late"})
        await verb()


async def contents(store: Any, name: str = "t") -> list[str]:
    thread = await store.thread(name)
    return [message["content"] for message in await thread.messages.read()]


def test_a_run_carries_a_pointer_and_the_thread_what_was_said(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t", system="be brief")
        for turn in range(3):
            ref = await say(store, ref, turn, A, f"a{turn}")
        ref = await end(store, ref, A, "completed")
        assert await contents(store) == ["be brief", "a0", "a1", "a2"]
        head = (await store.thread("t")).head
        assert (ref.thread, ref.version, ref.run, ref.origin) == ("t", head.id, "run-a", "run-a")
        assert (head.step, head.label, head.metadata["run"]) == (("run-a", "end"), "end", "run-a")

    run(scenario)


def test_a_retry_takes_what_was_recorded_and_its_pointer(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        first = await open_thread(store, A, name="t")
        again = dataclasses.replace(A, attempt=2)
        assert await open_thread(store, again, name="t") == first
        ref = await say(store, first, 0, A, "once")
        assert await say(store, first, 0, again, "twice") == ref
        assert await contents(store) == ["once"]

    run(scenario)


@pytest.mark.parametrize("taken_back", [0, 1, 2, 3])
def test_a_reset_run_goes_on_from_where_it_stood(run: Callable[[Scenario], None], taken_back: int) -> None:
    async def scenario(store: Any) -> None:
        refs = [await open_thread(store, A, name="t", system="s")]
        for turn in range(3):
            refs.append(await say(store, refs[-1], turn, A, f"a{turn}"))
        await end(store, refs[-1], A)
        ref = refs[taken_back]
        for turn in range(taken_back, 4):
            ref = await say(store, ref, turn, B, f"b{turn}")
        expected = [f"a{turn}" for turn in range(taken_back)] + [f"b{turn}" for turn in range(taken_back, 4)]
        assert await contents(store) == ["s", *expected]
        assert (await store.thread("t")).state["last"] == "b3"

    run(scenario)


def test_a_reset_to_before_the_beginning_begins_anew(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        await say(store, await open_thread(store, A, name="t", system="s"), 0, A, "a")
        await say(store, await open_thread(store, B, name="t", system="s"), 0, B, "b")
        assert await contents(store) == ["s", "b"]

    run(scenario)


def test_a_reset_run_that_went_on_with_a_thread_finds_where_it_began(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        thread = await store.thread("t")
        thread.messages.append({"content": "before"})
        await thread.commit()
        ref = await open_thread(store, A, mode="continue", name="t")
        await end(store, await say(store, ref, 0, A, "a"), A)
        assert await open_thread(store, B, mode="continue", name="t") == dataclasses.replace(ref, run="run-b")
        await say(store, ref, 0, B, "b")
        assert await contents(store) == ["before", "b"]

    run(scenario)


def test_nothing_of_an_older_run_lands(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        with pytest.raises(FencedError):
            await overtaken(store, ref, A, lambda: say(store, ref, 7, B, "b"))
        # Nor does it take the thread back, or hand out what it had.
        for verb in (
            lambda: say(store, ref, 1, A, "late"),
            lambda: rewind(store, ref, ref, A),
            lambda: append(store, ref, {"id": "m", "content": "late"}, A),
            lambda: end(store, ref, A),
        ):
            with pytest.raises(FencedError):
                await verb()
        assert await contents(store) == ["b"]

    run(scenario)


def test_a_later_attempt_fences_off_an_earlier_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        again = dataclasses.replace(A, attempt=2)
        with pytest.raises(FencedError):
            await overtaken(store, ref, A, lambda: tool(store, ref, 1, again, "second"))
        assert await contents(store) == ["second"]

    run(scenario)


def test_what_follows_a_tool_that_failed_takes_its_place(run: Callable[[Scenario], None]) -> None:
    """A tool was tried twice, another one in its place three times; then its result is told in its name."""

    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")

        def attempt(task: str, number: int, started: float) -> Execution:
            return dataclasses.replace(A, task=task, attempt=number, started=started)

        async def fail(where: Execution) -> None:
            with pytest.raises(ZeroDivisionError):
                async with enter_step(store, ref, ("tools", 1), where, slot=1):
                    raise ZeroDivisionError

        async def tell(where: Execution) -> ThreadRef:
            told = {"id": "m", "content": "it failed"}
            return await append(store, ref, told, where, key=("tools", 1), slot=1)

        async def others() -> None:
            await fail(attempt("4", 2, 1001.0))
            for number in (1, 2, 3):
                await fail(attempt("5", number, 1001.0 + number))
            # Of what was handed out before, and enters now, nothing counts any more.
            with pytest.raises(FencedError):
                await tool(store, ref, 1, attempt("4", 2, 1001.0), "late")
            await tell(attempt("6", 1, 1006.0))

        with pytest.raises(FencedError, match="must stop"):
            await overtaken(store, ref, attempt("4", 1, 1000.0), others)
        assert (await tell(attempt("6", 2, 1007.0))).version == (await store.thread("t")).head.id
        assert await contents(store) == ["it failed"]

    run(scenario)


def test_parallel_tools_stand_in_the_order_of_their_calls(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        refs = [await tool(store, ref, slot, A, f"a{slot}") for slot in (2, 0, 1)]
        assert await contents(store) == ["a0", "a1", "a2"]
        thread = await store.thread("t")
        assert latest(refs).version == thread.head.id
        assert thread.state["tools"] == 3

    run(scenario)


def test_siblings_from_before_the_reset_stay(run: Callable[[Scenario], None]) -> None:
    """Tools 0 and 2 are done in the history of the run that was reset, 1 was under way, a turn followed."""

    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        refs = [await tool(store, base, slot, A, f"a{slot}") for slot in (0, 2)]
        refs.append(await tool(store, base, 1, A, "a1"))
        await say(store, latest(refs), 0, A, "answer of a")
        # It was recorded already, though the history doesn't say so: its result is the one.
        assert await tool(store, base, 1, early(B, A), "b1") == dataclasses.replace(refs[2], run="run-b")
        assert await contents(store) == ["a0", "a1", "a2"]
        await say(store, latest(refs), 0, B, "answer of b")
        assert await contents(store) == ["a0", "a1", "a2", "answer of b"]

    run(scenario)


def test_siblings_from_before_two_resets_stay(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        await tool(store, base, 0, A, "a0")
        await tool(store, base, 1, early(B, A), "b1")
        ref = await tool(store, base, 2, early(B, A), "b2")
        await say(store, ref, 0, B, "b")
        # Of this history 0 and 1 are part, 2 is still under way; each run has a sibling in it.
        await tool(store, base, 2, early(C, A), "c2")
        assert await contents(store) == ["a0", "b1", "b2"]

    run(scenario)


def test_siblings_that_another_run_has_scheduled_are_not_mistaken_for_own_ones(
    run: Callable[[Scenario], None],
) -> None:
    """Each of the three runs goes on from the same answer of the model; in the last one, tool 1 is done."""

    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        await tool(store, base, 1, A, "a1")
        for slot in range(3):
            await tool(store, base, slot, B, f"b{slot}")
        await tool(store, base, 0, early(C, A), "c0")
        assert await contents(store) == ["c0", "a1"]

    run(scenario)


def test_siblings_scheduled_anew_run_anew(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        for slot in range(3):
            await tool(store, base, slot, A, f"a{slot}")
        refs = await asyncio.gather(*(tool(store, base, slot, B, f"b{slot}") for slot in range(3)))
        assert await contents(store) == ["b0", "b1", "b2"]
        thread = await store.thread("t")
        assert (thread.state["tools"], latest(refs).version) == (3, thread.head.id)

    run(scenario)


def test_attempts_of_the_run_before_fence_off_nobody(run: Callable[[Scenario], None]) -> None:
    """The old run had begun a tool for the third time when it was reset; the new one counts from one."""

    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        await tool(store, base, 0, A, "a0")
        with contextlib.suppress(ZeroDivisionError):
            async with enter_step(store, base, ("tools", 1), dataclasses.replace(A, attempt=3), slot=1):
                raise ZeroDivisionError
        await tool(store, base, 2, A, "a2")
        where = early(B, A)
        with contextlib.suppress(ZeroDivisionError):
            async with enter_step(store, base, ("tools", 1), where, slot=1):
                raise ZeroDivisionError
        again = dataclasses.replace(where, attempt=2)
        with pytest.raises(FencedError):
            await overtaken(store, base, where, lambda: tool(store, base, 1, again, "b1"))
        assert await contents(store) == ["a0", "b1", "a2"]

    run(scenario)


def test_a_turn_taken_back_by_the_run_itself(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        before = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        base = await say(store, before, 1, A, "bad plan")
        with pytest.raises(FencedError):
            await overtaken(store, base, A, lambda: rewind(store, base, before, A))
        ref = await rewind(store, base, before, A)
        # One that begins only now stands on what is gone.
        with pytest.raises(FencedError, match="gone back behind"):
            await tool(store, base, 0, A, "late")
        # A retry finds it done, also after the run has gone on.
        assert await rewind(store, base, before, dataclasses.replace(A, attempt=2)) == ref
        after = await say(store, ref, 2, A, "good plan")
        assert await rewind(store, base, before, A) == ref
        assert await contents(store) == ["a0", "good plan"]
        # The workflow is reset to before its tool took the turn back, and takes it back again.
        await tool(store, base, 0, B, "b")
        assert await contents(store) == ["a0", "bad plan", "b"]
        await say(store, await rewind(store, base, before, B), 2, B, "better plan")
        assert await contents(store) == ["a0", "better plan"]
        await say(store, after, 3, C, "c")
        assert await contents(store) == ["a0", "good plan", "c"]

    run(scenario)


def test_a_message_told_twice_is_there_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        told = {"id": "m1", "role": "user", "content": "hello"}
        ref = await append(store, ref, told, A)
        ref = await append(store, ref, told, A)
        # The next run of the workflow, which continue-as-new made.
        following = Execution("run-2", started=1500.0, origin="run-2", owner="w")
        ref = await append(store, ref, [told, {"id": "m2", "content": "and"}], following)
        assert await contents(store) == ["hello", "and"]
        for message in ({}, [], {"id": ""}, [told, {"content": "no id"}]):
            with pytest.raises(InvalidValueError, match="id"):
                await append(store, ref, message, following)

    run(scenario)


def test_what_others_write_stays(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        thread = await store.thread("t")
        thread.messages.append({"content": "from outside"})
        await thread.commit()
        await say(store, ref, 1, A, "a1")
        assert await contents(store) == ["a0", "from outside", "a1"]

    run(scenario)


def test_a_person_who_goes_back_does_not_confuse_a_run(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        first = await open_thread(store, A, name="t")
        ref = await say(store, first, 0, A, "a0")
        await (await store.thread("t")).rewind(first.version)
        await say(store, ref, 1, A, "a1")
        assert await contents(store) == ["a0", "a1"]

    run(scenario)


def test_forks_are_made_once_and_begin_where_they_were_made(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        before = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        await say(store, before, 1, A, "a1")
        for at, expected in ((before, ["a0"]), (ThreadRef("t"), ["a0", "a1"])):
            child = Execution("child", started=1.0, origin=f"child-{at.version}")
            name = f"fork-{at.version}"
            ref = await open_thread(store, child, mode="fork", name=name, source=at)
            assert await contents(store, name) == expected
            await say(store, ref, 0, child, "c")
            again = dataclasses.replace(child, run="child, reset", started=2.0)
            ref = await open_thread(store, again, mode="fork", name=name, source=at)
            await say(store, ref, 0, again, "d")
            assert await contents(store, name) == [*expected, "d"]
            other = Execution("other", started=3.0)
            with pytest.raises(ThreadExistsError):
                await open_thread(store, other, mode="fork", name=name, source=at)
        assert await contents(store) == ["a0", "a1"]

    run(scenario)


def test_bad_beginnings_change_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        other = Execution("other", started=5000.0)
        cases: list[tuple[type[Exception], dict[str, Any]]] = [
            (ThreadExistsError, {"name": "t"}),
            (ThreadNotFoundError, {"mode": "continue", "name": "none"}),
            (ThreadNotFoundError, {"mode": "fork", "name": "f", "source": ThreadRef("none")}),
            (InvalidValueError, {"mode": "fork", "name": "f"}),
            (InvalidValueError, {"mode": "again", "name": "t"}),
        ]
        for error, options in cases:
            with pytest.raises(error):
                await open_thread(store, other, **options)
        assert [info.name async for info in store.threads()] == ["t"]
        assert await contents(store) == ["a0"]
        await say(store, ThreadRef("t"), 1, A, "a1")

    run(scenario)


def test_a_deleted_thread_is_not_brought_back(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        await (await store.thread("t")).delete()
        for verb in (lambda: say(store, ref, 0, A, "a"), lambda: rewind(store, ref, ref, A)):
            with pytest.raises(ThreadNotFoundError, match="is gone"):
                await verb()
        assert [info.name async for info in store.threads()] == []

    run(scenario)


def test_after_its_end_a_thread_is_free_for_a_session(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        with pytest.raises(everthread.SessionBusyError):
            async with store.session("t"):
                pass
        await end(store, ref, A)
        # The activity was retried: its answer had been lost.
        await end(store, ref, dataclasses.replace(A, attempt=2))
        async with store.session("t"):
            pass

    run(scenario)


async def last_run(store: Any, name: str = "t") -> tuple[Any, ...]:
    found = (await (await store.session_records(name)).runs())[0]
    return found.id, found.status, found.reason, found.ended_at is not None


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("max_turns", "failed"),
        ("waiting_for_input", "waiting_for_input"),
    ],
)
def test_a_run_that_ended_says_why(run: Callable[[Scenario], None], reason: str, status: str) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        assert await last_run(store) == ("run-a", "running", None, False)
        await end(store, ref, A, reason)
        assert await last_run(store) == ("run-a", status, reason, True)
        # The activity was retried: its answer had been lost.
        await end(store, ref, dataclasses.replace(A, attempt=2), reason)
        assert await last_run(store) == ("run-a", status, reason, True)
        async with store.session("t") as session:
            found = session.found.last_run
            assert (found.id, found.status, found.reason) == ("run-a", status, reason)

    run(scenario)


def test_a_run_that_ended_for_no_known_reason_is_refused(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        with pytest.raises(InvalidValueError, match="completed, max_turns"):
            await end(store, ref, A, "done")
        assert (await store.thread("t")).head.id == ref.version
        assert await last_run(store) == ("run-a", "running", None, False)

    run(scenario)


def test_nothing_of_an_ended_run_is_written_but_a_retry_of_its_end(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        before = await open_thread(store, A, name="t")
        ref = await say(store, before, 0, A, "a0")
        ended = await end(store, ref, A, "cancelled")
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: say(store, ended, 1, A, "late"),
            lambda: say(store, ref, 1, A, "late"),
            lambda: tool(store, ref, 0, A, "late"),
            lambda: append(store, ref, {"id": "m", "content": "late"}, A),
            lambda: rewind(store, ref, before, A),
        ]
        for verb in verbs:
            with pytest.raises(FencedError, match="has ended"):
                await verb()
        assert await end(store, ref, dataclasses.replace(A, attempt=2), "cancelled") == ended
        assert (await store.thread("t")).head.id == ended.version
        assert await contents(store) == ["a0"]
        assert await last_run(store) == ("run-a", "cancelled", "cancelled", True)
        # Others may have the thread; a retry of the end still finds it, and takes it from nobody.
        async with store.session("t") as session:
            session.thread.messages.append({"content": "session"})
            await session.thread.commit()
            assert await end(store, ref, dataclasses.replace(A, attempt=3), "cancelled") == ended
        # A reset is another run.
        await say(store, ref, 1, B, "b1")
        assert await contents(store) == ["a0", "b1"]

    run(scenario)


def test_a_tool_in_progress_when_its_run_ends_records_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        with pytest.raises(FencedError, match="has ended"):
            await overtaken(store, ref, A, lambda: end(store, ref, A, "cancelled"))
        assert await contents(store) == ["a0"]
        assert await last_run(store) == ("run-a", "cancelled", "cancelled", True)
        async with store.session("t"):
            pass

    run(scenario)


def test_a_tool_in_progress_when_its_run_ends_begins_no_effect(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        made: list[str] = []
        ref = await open_thread(store, A, name="t")
        async with enter_step(store, ref, ("tools", 1), A, slot=1) as late:
            assert await late.call("first", made.append, "first") is None
            await end(store, ref, A, "cancelled")
            with pytest.raises(FencedError, match="has ended"):
                await late.call("second", made.append, "second")
            late.leave()
        assert made == ["first"]

    run(scenario)


@pytest.mark.parametrize("after", range(0, 40, 3))
@pytest.mark.parametrize("verb", ["rewind", "tool"])
def test_whatever_is_in_progress_when_a_run_ends_comes_before_the_end_or_not_at_all(
    run: Callable[[Scenario], None], verb: str, after: int
) -> None:
    async def scenario(store: Any) -> None:
        before = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        ref = await say(store, before, 1, A, "plan")
        verbs = {"rewind": lambda: rewind(store, ref, before, A), "tool": lambda: tool(store, ref, 0, A, "x")}
        task = asyncio.create_task(verbs[verb]())
        for _ in range(after):
            await asyncio.sleep(0)
        ended = await end(store, ref, A, "cancelled")
        with contextlib.suppress(FencedError):
            await task
        assert (await store.thread("t")).head.id == ended.version
        assert await last_run(store) == ("run-a", "cancelled", "cancelled", True)

    run(scenario)


@pytest.mark.parametrize("after", range(0, 80, 4))
def test_an_end_that_is_cancelled_anywhere_is_recorded_once_by_its_retry(
    run: Callable[[Scenario], None], after: int
) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 0, A, "a0")
        task = asyncio.create_task(end(store, ref, A))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        ended = await end(store, ref, dataclasses.replace(A, attempt=2))
        thread = await store.thread("t")
        assert [each.key[-1] async for each in thread.steps()].count("end") == 1
        assert thread.head.id == ended.version
        assert await last_run(store) == ("run-a", "completed", "completed", True)
        with pytest.raises(FencedError, match="has ended"):
            await say(store, ref, 1, A, "late")

    run(scenario)


def test_a_run_that_was_reset_has_an_end_of_its_own(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await say(store, await open_thread(store, A, name="t"), 1, A, "a1")
        # Reset before its end: the run before was superseded, its successor ends.
        await end(store, await say(store, ref, 2, B, "b"), B)
        assert await last_run(store) == ("run-b", "completed", "completed", True)
        runs = await (await store.session_records("t")).runs()
        assert [(each.id, each.status) for each in runs] == [("run-b", "completed"), ("run-a", "superseded")]
        # One whose end came before its successor keeps it.
        await end(store, ref, C)
        runs = await (await store.session_records("t")).runs()
        assert [each.status for each in runs] == ["completed", "completed", "superseded"]

    run(scenario)


def test_the_end_of_a_run_that_failed_names_the_error(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        with pytest.raises(InvalidValueError, match="no error to record"):
            await end(store, ref, A, "completed", ("ValueError", "no such city"))
        assert await last_run(store) == ("run-a", "running", None, False)
        failed = await end(store, ref, A, "failed", ("ValueError", "no such city"))
        # Told again, after a lost answer: it is recorded once.
        assert await end(store, ref, A, "failed", ("ValueError", "no such city")) == failed
        records = await store.session_records("t")
        assert (records.last_run.reason, records.last_run.error) == ("failed", "ValueError")
        (error,) = await records.errors()
        assert (error.text, error.run) == ("workflow: ValueError: no such city", "run-a")
        # The run that is reset from it has not failed.
        await say(store, ref, 0, B, "b")
        assert (await store.session_records("t")).last_run.error is None

    run(scenario)


def test_what_a_person_s_run_failed_with_is_sealed_and_shown_masked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    program = Program(url, tmp_path)
    for name, user in (("plain", None), ("sealed", "ann")):
        with everthread.open(url) as store:
            with store.session(name, user_id=user):
                pass
            ref = blocking.open_thread(store, A, name=name, mode="continue")
            blocking.end(store, ref, A, "failed", ("ValueError", "no such city"))
            (error,) = store.session_records(name).errors()
            assert (error.message, error.personal) == ("no such city", user is not None)
        said = "•••" if user else "no such city"
        assert f"run 2 failed: ValueError: {said}" in program("show", name).out
        assert "run 2 failed: ValueError, ended" in program("runs", name).out
        told = program("resume", name, "--briefing").out
        assert "Last: run 2 failed: ValueError" in told
        assert f"workflow: ValueError: {said}" in told


def test_a_pointer_whose_version_was_pruned_says_so_and_the_way_out(run: Callable[[Scenario], None]) -> None:
    """A workflow slept, others wrote, and gc() took what it points to; or it was reset to before that."""

    async def scenario(store: Any) -> None:
        refs = [await open_thread(store, A, name="t")]
        for turn in range(3):
            refs.append(await say(store, refs[-1], turn, A, f"a{turn}"))
        thread = await store.thread("t")
        thread.messages.append({"content": "somebody else"})
        await thread.commit()
        await store.gc(everthread.Retention(keep_last=1))
        said = await contents(store)
        where = dataclasses.replace(C, origin="run-c", owner="x")
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: say(store, refs[-1], 3, A, "late"),
            lambda: append(store, refs[-1], {"id": "m", "content": "late"}, A),
            lambda: tool(store, refs[-1], 0, A, "late"),
            lambda: rewind(store, refs[-1], refs[1], A),
            lambda: LocalEngine(store, A).load(refs[1]),
            lambda: open_thread(store, where, name="fork", mode="fork", source=refs[1]),
            lambda: end(store, refs[-1], A),
            lambda: say(store, refs[1], 1, B, "reset"),
        ]
        for verb in verbs:
            with pytest.raises(
                everthread.VersionPrunedError, match=r"points to.*pruned.*mode=.continue"
            ) as told:
                await verb()
            assert "keep_within" in str(told.value)
        assert await contents(store) == said
        # The way out.
        where = dataclasses.replace(C, origin="run-c")
        ref = await open_thread(store, where, name="t", mode="continue")
        await say(store, ref, 0, where, "goes on")
        assert await contents(store) == [*said, "goes on"]

    run(scenario)


def test_a_pointer_to_the_newest_version_outlives_pruning(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        refs = [await open_thread(store, A, name="t")]
        for turn in range(3):
            refs.append(await say(store, refs[-1], turn, A, f"a{turn}"))
        await (await store.thread("t")).pin(refs[1].version)
        await store.gc(everthread.Retention(keep_last=1))
        await say(store, refs[-1], 3, A, "a3")
        assert await contents(store) == ["a0", "a1", "a2", "a3"]
        # What is pinned can be gone back to.
        await say(store, refs[1], 1, B, "b1")
        assert await contents(store) == ["a0", "b1"]

    run(scenario)


def test_another_process_of_the_run_ends_it(tmp_path: Path) -> None:
    """The one that ends it hasn't begun it; the command line tells how it ended."""
    url = f"sqlite:///{tmp_path}/s.db"
    program = Program(url, tmp_path)

    with everthread.open(url) as store:
        ref = blocking.open_thread(store, A, name="t")
    (found,) = program.json("runs", "t")["runs"]
    assert (found["status"], found["reason"], found["ended_at"]) == ("running", None, None)
    with everthread.open(url) as store:
        blocking.end(store, ref, A)
    (found,) = program.json("runs", "t")["runs"]
    assert (found["status"], found["reason"]) == ("completed", "completed")
    assert found["ended_at"] is not None
    for command in ("status", "show", "resume"):
        told = program(command, "t").out
        assert "completed" in told
        assert "crashed" not in told


def test_a_run_that_nothing_was_heard_of_is_silent_and_goes_on(tmp_path: Path) -> None:
    """A model may take long, a person days: that a workflow says nothing is no crash."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    clock.now_us = time.time_ns() // 1000 - 3 * 86_400 * 1_000_000
    program = Program(url, tmp_path)
    with everthread.open(url, runtime=Runtime(now_us=clock)) as store:
        ref = blocking.open_thread(store, A, name="t")
        assert store.session_records("t").status == "running"
    (found,) = program.json("runs", "t")["runs"]
    assert (found["status"], found["ended_at"]) == ("silent", None)
    assert program.json("status")["threads"][0]["session"] == "silent"
    for command in ("runs", "show", "resume"):
        told = program(command, "t").out
        assert "run 1 silent" in told
        assert "last heard of 3 d ago" in told
        assert "crashed" not in told
    assert program.json("resume", "t")["report"]["crashed"] is False
    assert "Last: run 1 silent" in program("resume", "t", "--briefing").out
    with everthread.open(url) as store:
        # The workflow goes on.
        with blocking.enter_step(store, ref, ("turn", 0), A) as step:
            step.messages.append({"content": "a"})
        assert store.session_records("t").status == "running"
        # Another run may have the thread, and then it is that one's.
        with blocking.enter_step(store, step.ref, ("turn", 1), B) as step:
            step.messages.append({"content": "b"})
        runs = store.session_records("t").runs()
        assert [(each.id, each.status) for each in runs] == [("run-b", "running"), ("run-a", "superseded")]


def test_a_session_of_a_process_takes_the_place_of_a_silent_run(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    with everthread.open(url, runtime=Runtime(now_us=clock)) as store:
        ref = blocking.open_thread(store, A, name="t")
        clock.go(301)
        assert store.session_records("t").status == "silent"
        with store.session("t") as session:
            assert session.found.status == "silent"
        runs = store.session_records("t").runs()
        assert [each.status for each in runs] == ["completed", "superseded"]
        with pytest.raises(FencedError):
            blocking.append(store, ref, {"id": "late"}, A)


def test_steps_of_an_engine_that_works_in_order(run: Callable[[Scenario], None]) -> None:
    """A run that was taken back keeps its name: what it had recorded later is gone, siblings stay."""

    async def scenario(store: Any) -> None:
        first = Execution("w", claim="w#1", orderly=True, started=1.0)
        again = dataclasses.replace(first, claim="w#2", started=2.0)
        base = await open_thread(store, first, name="t")
        refs = [await tool(store, base, slot, first, f"a{slot}") for slot in range(2)]
        await say(store, latest(refs), 0, first, "a")
        # Taken back to before tool 1 was recorded.
        await tool(store, base, 1, again, "b1")
        assert await contents(store) == ["a0", "a1"]
        with pytest.raises(FencedError):
            await say(store, latest(refs), 0, first, "late")
        await say(store, latest(refs), 0, again, "b")
        assert await contents(store) == ["a0", "a1", "b"]

    run(scenario)


def test_a_step_that_is_left_or_fails_leaves_the_pointer(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        ref = await open_thread(store, A, name="t")
        async with enter_step(store, ref, ("turn", 0), A, label="l", metadata={"model": "m"}) as step:
            step.leave()
        assert step.ref == ref
        async with enter_step(store, ref, ("turn", 0), A, label="l", metadata={"model": "m"}) as step:
            step.result = 1
        version = (await store.thread("t")).head
        assert (version.label, version.metadata) == ("l", {"model": "m", "run": "run-a"})

    run(scenario)


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_a_step_that_is_cancelled_anywhere_is_done_once_by_its_retry(
    run: Callable[[Scenario], None], after: int
) -> None:
    """The new run meets what the one before it has left, so that it takes over, rewinds and writes."""

    async def scenario(store: Any) -> None:
        base = await open_thread(store, A, name="t")
        await say(store, await say(store, base, 0, A, "a0"), 1, A, "a1")
        task = asyncio.create_task(say(store, base, 0, B, "b"))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await say(store, base, 0, dataclasses.replace(B, attempt=2), "b")
        assert await contents(store) == ["b"]
        with pytest.raises(FencedError):
            await say(store, base, 0, A, "late")

    run(scenario)


def test_latest_is_the_newest_version() -> None:
    refs = [ThreadRef("t", f"{seq}-{'0' * 24}") for seq in (9, 10, 2)]
    assert latest(refs) is refs[1]
    assert latest([ThreadRef("t")]) == ThreadRef("t")
    with pytest.raises(InvalidValueError, match="at least one"):
        latest([])


def test_the_blocking_twin(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        ref = blocking.open_thread(store, A, name="t", system="s")
        with blocking.enter_step(store, ref, ("turn", 0), A) as step:
            step.messages.append({"content": "a"})
        with blocking.enter_step(store, ref, ("turn", 0), B) as step:
            assert not step.done
            step.messages.append({"content": "b"})
        after = blocking.append(store, step.ref, {"id": "m", "content": "m"}, B)
        blocking.end(store, blocking.rewind(store, after, step.ref, B), B)
        assert [message["content"] for message in store.thread("t").messages] == ["s", "b"]
        with pytest.raises(FencedError):
            blocking.append(store, ref, {"id": "n"}, A)


def test_nothing_of_an_ended_run_is_written_in_blocking_code(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        ref = blocking.open_thread(store, A, name="t")
        late = blocking.enter_step(store, ref, ("tools", 1), A, slot=1)
        step = late.__enter__()
        step.messages.append({"content": "late"})
        ended = blocking.end(store, ref, A, "cancelled")
        with pytest.raises(FencedError, match="has ended"):
            late.__exit__(None, None, None)
        with pytest.raises(FencedError, match="has ended"):
            blocking.append(store, ref, {"id": "m"}, A)
        assert blocking.end(store, ref, A, "cancelled") == ended
        assert store.session_records("t").status == "cancelled"
        with store.session("t"):
            assert list(store.thread("t").messages) == []
