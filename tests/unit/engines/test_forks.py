"""Runs that an engine forks, and engines that go back by numbers of steps: told by pointers alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import FencedError, InvalidValueError, ThreadExistsError, ThreadNotFoundError
from everthread.engines import Execution, ThreadRef, latest
from everthread.engines.steps import append, end, enter_step, open_thread, rewind

Scenario = Callable[[Any], Awaitable[None]]

W = Execution("w", claim="w#1", orderly=True, started=1000.0, origin="w", owner="w")


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


def at(where: Execution, number: int) -> Execution:
    return replace(where, number=number)


def again(where: Execution, *recorded: int) -> Execution:
    """The same run, handed out anew when its history held these steps."""
    number = int(where.claim[-1]) + 1
    return replace(
        where, claim=f"{where.run}#{number}", started=where.started + 1, recorded=frozenset(recorded)
    )


def forked(where: Execution, run: str, *recorded: int) -> Execution:
    return replace(
        where,
        run=run,
        claim=f"{run}#1",
        started=where.started + 10,
        recorded=frozenset(recorded),
        forked_from=where.run,
    )


async def say(store: Any, ref: ThreadRef, number: int, where: Execution, text: str) -> ThreadRef:
    async with enter_step(store, ref, ("turn", number), at(where, number)) as step:
        if not step.done:
            step.messages.append({"role": "assistant", "content": text})
            step.result = text
    return step.ref


async def tool(store: Any, ref: ThreadRef, number: int, slot: int, where: Execution, text: str) -> ThreadRef:
    async with enter_step(store, ref, ("tools", 1), at(where, number), slot=slot) as step:
        if not step.done:
            step.messages.append({"role": "tool", "content": text})
            step.state.increment("tools")
            step.result = text
    return step.ref


async def contents(store: Any, name: str = "t") -> list[str]:
    thread = await store.thread(name)
    return [message["content"] for message in await thread.messages.read()]


async def worked(store: Any) -> tuple[ThreadRef, list[ThreadRef], ThreadRef]:
    """Opened (1), three tools that end in another order (2, 3, 4), an answer (5), the end (6)."""
    base = await open_thread(store, at(W, 1), name="t")
    tools = {slot: await tool(store, base, 2 + slot, slot, W, f"a{slot}") for slot in (2, 0, 1)}
    refs = [tools[slot] for slot in range(3)]
    answer = await say(store, latest(refs), 5, W, "answer")
    await end(store, answer, at(W, 6))
    return base, refs, answer


@pytest.mark.parametrize("back_to", [2, 3, 4])
@pytest.mark.parametrize("kind", ["rewind", "fork"])
def test_tools_that_were_taken_back_are_done_anew_and_the_others_stay(
    run: Callable[[Scenario], None], back_to: int, kind: str
) -> None:
    async def scenario(store: Any) -> None:
        base, refs, _ = await worked(store)
        recorded = range(1, back_to)
        where, name = (again(W, *recorded), "t") if kind == "rewind" else (forked(W, "f", *recorded), "t~f")
        made = [tool(store, base, 2 + slot, slot, where, f"b{slot}") for slot in range(back_to - 2, 3)]
        refs = [*refs[: back_to - 2], *await asyncio.gather(*made)]
        expected = [f"{'a' if 2 + slot < back_to else 'b'}{slot}" for slot in range(3)]
        assert await contents(store, name) == expected
        ref = await say(store, latest(refs), 5, where, "another")
        assert (ref.thread, ref.run, ref.origin) == (name, where.run, "w")
        assert await contents(store, name) == [*expected, "another"]
        assert (await store.thread(name)).state["tools"] == 3
        if kind == "fork":
            assert await contents(store) == ["a0", "a1", "a2", "answer"]

    run(scenario)


@pytest.mark.parametrize("kind", ["rewind", "fork"])
def test_tools_that_are_not_called_again_are_gone(run: Callable[[Scenario], None], kind: str) -> None:
    """All were taken back, and the code that goes on calls fewer."""

    async def scenario(store: Any) -> None:
        base, _, _ = await worked(store)
        where, name = (again(W, 1), "t") if kind == "rewind" else (forked(W, "f", 1), "t~f")
        await tool(store, base, 2, 0, where, "b0")
        assert await contents(store, name) == ["b0"]

    run(scenario)


def test_a_recovery_takes_what_was_recorded(run: Callable[[Scenario], None]) -> None:
    """Of three tools the history holds one; another was recorded when the process died."""

    async def scenario(store: Any) -> None:
        base = await open_thread(store, at(W, 1), name="t")
        for slot in (0, 2):
            await tool(store, base, 2 + slot, slot, W, f"a{slot}")
        where = again(W, 1, 2)
        for slot in (1, 2):
            await tool(store, base, 2 + slot, slot, where, f"b{slot}")
        assert await contents(store) == ["a0", "b1", "a2"]
        with pytest.raises(FencedError):
            await tool(store, base, 3, 1, W, "late")

    run(scenario)


def test_a_recovery_of_a_rewind_does_the_rest_anew(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base, _, _ = await worked(store)
        # Rewound to the second tool; its process dies when that is recorded, and before the third was begun.
        await tool(store, base, 3, 1, again(W, 1, 2), "b1")
        where = again(again(W), 1, 2)
        assert (await tool(store, base, 3, 1, where, "c1")).run == "w"
        await tool(store, base, 4, 2, where, "c2")
        assert await contents(store) == ["a0", "b1", "c2"]

    run(scenario)


def test_steps_of_other_keys_from_one_pointer_leave_each_other_alone(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base = await open_thread(store, at(W, 1), name="t")
        for number in (2, 3):
            await say(store, base, number, W, f"a{number}")
        assert await contents(store) == ["a2", "a3"]

    run(scenario)


def test_a_fork_of_a_fork_among_its_tools(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base, refs, _ = await worked(store)
        first = forked(W, "f", 1, 2)
        made = [await tool(store, base, 2 + slot, slot, first, f"b{slot}") for slot in (1, 2)]
        second = forked(first, "g", 1, 2, 3)
        third = await tool(store, base, 4, 2, second, "c2")
        assert third.thread == "t~g"
        assert await contents(store, "t~g") == ["a0", "b1", "c2"]
        ref = await say(store, latest([refs[0], made[0], third]), 5, second, "another")
        assert await contents(store, ref.thread) == ["a0", "b1", "c2", "another"]
        assert await contents(store, "t~f") == ["a0", "b1", "b2"]

    run(scenario)


def test_every_verb_of_a_fork_is_about_its_own_thread(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        base, _, answer = await worked(store)
        before = await contents(store)
        for verb, expected in (
            (lambda where: append(store, answer, {"id": "m", "content": "m"}, where), [*before, "m"]),
            (lambda where: rewind(store, answer, base, where), []),
            (lambda where: end(store, answer, where), before),
        ):
            where = at(forked(W, f"f{len(expected)}", 1, 2, 3, 4, 5), 6)
            ref = await verb(where)
            assert (ref.thread, ref.run) == (f"t~{where.run}", where.run)
            assert await contents(store, ref.thread) == expected
        assert await contents(store) == before
        # From where the fork stands to where both stood.
        where = forked(W, "g", 1, 2, 3, 4)
        ref = await rewind(store, await say(store, answer, 5, where, "g"), base, at(where, 6))
        assert (ref.thread, await contents(store, "t~g")) == ("t~g", [])
        with pytest.raises(InvalidValueError, match="of a thread"):
            await rewind(store, answer, ThreadRef("other", base.version, "w"), at(where, 7))

    run(scenario)


@pytest.mark.parametrize("mode", ["new", "continue", "fork"])
def test_a_fork_that_opens_a_thread_opens_its_own(run: Callable[[Scenario], None], mode: Any) -> None:
    async def scenario(store: Any) -> None:
        other = await store.thread("other")
        other.messages.append({"content": "other"})
        await other.commit()
        name = "other" if mode == "continue" else "t"
        options: Any = {"mode": mode, "name": name, "system": "s", "source": ThreadRef("other")}
        begun = await open_thread(store, at(W, 1), **options)
        first = await contents(store, name)
        await end(store, await say(store, begun, 2, W, "a"), at(W, 3))
        where = forked(W, "f")
        ref = await open_thread(store, at(where, 1), **options)
        assert ref.thread == f"{name}~f"
        await end(store, await say(store, ref, 2, where, "b"), at(where, 3))
        assert await contents(store, f"{name}~f") == [*first, "b"]
        assert await contents(store, name) == [*first, "a"]
        # It goes back to its beginning, also if it was forked later than there.
        late = forked(W, "g", 1)
        await end(store, await say(store, begun, 2, late, "c"), at(late, 3))
        for back in (again(where), again(late)):
            ref = await open_thread(store, at(back, 1), **options)
            await say(store, ref, 2, back, "d")
            assert await contents(store, ref.thread) == [*first, "d"]

    run(scenario)


def test_what_a_fork_can_not_have(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: Any) -> None:
        where = at(forked(W, "f"), 1)
        with pytest.raises(ThreadNotFoundError):
            await open_thread(store, where, mode="continue", name="none")
        with pytest.raises(ThreadNotFoundError, match="is gone"):
            await say(store, ThreadRef("none", "1-" + "0" * 24, "w"), 2, where, "b")
        taken = await store.thread("t~f")
        taken.state["by"] = "a person"
        await taken.commit()
        with pytest.raises(ThreadExistsError):
            await open_thread(store, where, name="t")
        assert [info.name async for info in store.threads()] == ["t~f"]

    run(scenario)


@pytest.mark.parametrize("mode", ["new", "fork"])
def test_a_fork_at_step_1_makes_no_effect_again_as_a_fork_at_any_other_step(
    run: Callable[[Scenario], None], mode: Any
) -> None:
    async def scenario(store: Any) -> None:
        paid: list[str] = []

        async def pay(ref: ThreadRef, where: Execution) -> ThreadRef:
            async with enter_step(store, ref, ("pay",), at(where, 2)) as step:
                if not step.done:
                    await step.call("pay", paid.append, "paid")
            return step.ref

        other = await store.thread("other")
        other.messages.append({"content": "other"})
        await other.commit()
        options: Any = {"mode": mode, "name": "t", "source": ThreadRef("other")}
        begun = await open_thread(store, at(W, 1), **options)
        await end(store, await pay(begun, W), at(W, 3))
        await pay(begun, forked(W, "later", 1))
        first = forked(W, "first")
        await pay(await open_thread(store, at(first, 1), **options), first)
        # A fork of a fork.
        second = replace(forked(first, "second"), forked_from="first")
        await pay(await open_thread(store, at(second, 1), **options), second)
        assert paid == ["paid"]

    run(scenario)
