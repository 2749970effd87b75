"""Agents on DBOS: whatever is killed, recovered, forked or rewound, the thread is what the history says."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS, SetWorkflowID, error

import everthread
from everthread import FencedError, UsageError
from everthread.engines import ThreadRef
from everthread.engines import dbos as engine
from tests.engines import dbos_agent
from tests.engines.dbos_agent import PROMPT, agent, blocking_agent, second_thoughts, world
from tests.engines.dbos_bench import WAIT_S, Bench, ended, stop, texts, wake
from tests.engines.dbos_loop import clumsy_agent, failing_agent, loop_agent, sleeper


@pytest.fixture(params=["sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "sqlite":
        return Bench(tmp_path, f"sqlite:///{tmp_path}/dbos.db", f"sqlite:///{tmp_path}/agent.db")
    url = request.getfixturevalue("postgres_url")
    return Bench(tmp_path, url, url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Bench:
    return Bench(tmp_path, f"sqlite:///{tmp_path}/dbos.db", f"sqlite:///{tmp_path}/agent.db")


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Run a scenario as a process of the application."""

    def go(bench: Bench, scenario: Callable[[], Awaitable[None]]) -> None:
        dbos_agent.launch(bench.folder, bench.database, bench.options())
        asyncio.run(scenario())
        bench.verify()

    yield go
    dbos_agent.leave()


async def result(handle: Any) -> Any:
    return await handle.get_result(polling_interval_sec=0.05)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} didn't come"
        await asyncio.sleep(0.02)


async def wait_for(event: Any, what: str) -> None:
    assert await asyncio.to_thread(event.wait, WAIT_S), f"{what} didn't come"


async def checked(bench: Bench, workflow: str) -> list[Any]:
    return await asyncio.to_thread(bench.check, workflow)


def test_a_fork_at_every_step_has_a_thread_of_its_own(bench: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(agent, 1, 3)
        await result(handle)
        steps = await checked(bench, handle.workflow_id)
        said, contents = texts(steps), bench.contents(handle.workflow_id)
        assert len(contents) == 7
        forks = [await DBOS.fork_workflow_async(handle.workflow_id, step["function_id"]) for step in steps]
        for start, fork in enumerate(forks, 1):
            ref = await result(fork)
            assert ref.thread == f"{handle.workflow_id}~{fork.workflow_id}"
            found = texts(await checked(bench, fork.workflow_id))
            # What came before is shared, what comes after was done anew.
            assert {number for number in said if said[number] == found[number]} == set(said) & set(
                range(start)
            )
        assert bench.contents(handle.workflow_id) == contents
        # Forks of a fork: among its tools, and at its beginning.
        again = [await DBOS.fork_workflow_async(forks[4].workflow_id, start) for start in (6, 1)]
        for fork in again:
            assert (await result(fork)).thread == f"{handle.workflow_id}~{fork.workflow_id}"
            await checked(bench, fork.workflow_id)
        await checked(bench, forks[4].workflow_id)

    run(bench, scenario)


def test_a_rewind_to_every_step_takes_the_thread_along(bench: Bench, run: Any) -> None:
    async def scenario() -> None:
        handles = [await DBOS.start_workflow_async(agent, 1, 3) for _ in range(8)]
        before = []
        for handle in handles:
            await result(handle)
            before.append(texts(await checked(bench, handle.workflow_id)))
        for start, handle in enumerate(handles, 1):
            await DBOS.rewind_workflow_async(handle.workflow_id, start_step=start)
        for start, (handle, said) in enumerate(zip(handles, before, strict=True), 1):
            rewound = await DBOS.retrieve_workflow_async(handle.workflow_id)
            assert (await result(rewound)).thread == handle.workflow_id
            found = texts(await checked(bench, handle.workflow_id))
            assert {number for number in said if said[number] == found[number]} == set(said) & set(
                range(start)
            )

    run(bench, scenario)


def test_a_fork_goes_back_behind_where_it_was_forked(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(agent, 1, 3)
        await result(handle)
        contents = sqlite.contents(handle.workflow_id)
        forks = [await DBOS.fork_workflow_async(handle.workflow_id, 7) for _ in range(3)]
        for fork in forks:
            await result(fork)
        for fork, start in zip(forks, (1, 3, 5), strict=True):
            await DBOS.rewind_workflow_async(fork.workflow_id, start_step=start)
        for fork in forks:
            ref = await result(await DBOS.retrieve_workflow_async(fork.workflow_id))
            assert ref.thread == f"{handle.workflow_id}~{fork.workflow_id}"
            await checked(sqlite, fork.workflow_id)
        assert sqlite.contents(handle.workflow_id) == contents

    run(sqlite, scenario)


def test_a_fork_of_a_workflow_that_went_on_with_a_thread_leaves_that_alone(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        async with everthread.open_async(**sqlite.options()) as store:
            chat = await store.thread("chat")
            chat.messages.append({"content": "before"})
            await chat.commit()
        handle = await DBOS.start_workflow_async(agent, 0, 0, "chat", "continue")
        await result(handle)
        contents = sqlite.contents("chat")
        assert contents[:2] == ["before", PROMPT["content"]]
        fork = await DBOS.fork_workflow_async(handle.workflow_id, 1)
        assert (await result(fork)).thread == f"chat~{fork.workflow_id}"
        assert sqlite.contents("chat") == contents
        forked = sqlite.contents(f"chat~{fork.workflow_id}")
        assert (forked[:2], len(forked)) == (contents[:2], 3)
        assert forked[2] != contents[2]
        # Another workflow goes on where this one ended, and its keys are its own.
        await result(await DBOS.start_workflow_async(agent, 0, 0, "chat", "continue"))
        assert [text.partition(" #")[0] for text in sqlite.contents("chat")][3:] == ["turn 0"]

    run(sqlite, scenario)


def test_a_workflow_takes_a_turn_back(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(second_thoughts)
        await result(handle)
        contents = sqlite.contents(handle.workflow_id)
        assert [text.partition(" #")[0] for text in contents] == ["be brief", "turn 1"]
        forks = [await DBOS.fork_workflow_async(handle.workflow_id, start) for start in range(1, 6)]
        for fork in forks:
            found = sqlite.contents((await result(fork)).thread)
            assert [text.partition(" #")[0] for text in found] == ["be brief", "turn 1"]
        assert sqlite.contents(handle.workflow_id) == contents

    run(sqlite, scenario)


def test_blocking_workflows_and_steps(bench: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await asyncio.to_thread(DBOS.start_workflow, blocking_agent, 2)
        await asyncio.to_thread(handle.get_result)
        contents = bench.contents(handle.workflow_id)
        assert [text.partition(" #")[0] for text in contents] == ["be brief", "go on", "turn 0", "turn 1"]
        forks = [await DBOS.fork_workflow_async(handle.workflow_id, start) for start in (1, 4, 6)]
        for fork, shared in zip(forks, (2, 3, 4), strict=True):
            found = bench.contents((await result(fork)).thread)
            assert (len(found), found[:shared]) == (4, contents[:shared])
            assert found[shared:] == [] or found[shared] != contents[shared]
        assert bench.contents(handle.workflow_id) == contents

    run(bench, scenario)


KILLS = ("before-model-0", "after-model-0", "in-tool-1")


def test_a_killed_process_leaves_nothing_out_and_nothing_twice(bench: Bench) -> None:
    benches = []
    for number, point in enumerate(KILLS):
        folder = bench.folder / str(number)
        folder.mkdir()
        database = bench.database.replace(str(bench.folder), str(folder))
        benches.append(replace(bench, folder=folder, database=database, schema=f"dbos{number}"))
        (folder / f"kill.{point}").touch()
    victims = [each.process(point, begins=True) for each, point in zip(benches, KILLS, strict=True)]
    assert ended(*victims) == [-signal.SIGKILL] * len(KILLS)
    rescuers = [each.process(point) for each, point in zip(benches, KILLS, strict=True)]
    assert ended(*rescuers) == [0] * len(KILLS)
    bench.verify()
    for each, point in zip(benches, KILLS, strict=True):
        world.folder = each.folder
        notes = world.notes("model") + world.notes("tool")
        contents = each.contents(point)
        # What was noted last is what counts, and it stands there once.
        said = {(note.get("slot", -1), note["turn"]): note["text"] for note in notes}
        assert contents == [
            "be brief",
            PROMPT["content"],
            *(said[at] for at in ((-1, 0), (0, 0), (1, 0), (2, 0), (-1, 1))),
        ]
        if point == "after-model-0":
            # It was recorded in the thread, and wasn't asked again though DBOS didn't know its answer.
            assert [note["turn"] for note in notes].count(0) == 4
        assert each.state(point) == {"turns": 2, "tools": 3}


@pytest.mark.parametrize("point", ["before-model-0", "in-tool-0"])
def test_nothing_of_a_stopped_process_lands_when_it_wakes(bench: Bench, point: str) -> None:
    bench = replace(bench, schema=f"stopped_{point[:2]}", tools=1)
    world.folder = bench.folder
    (bench.folder / f"stop.{point}").touch()
    late = bench.process(point, begins=True)
    asyncio.run(until(lambda: bool(world.notes("trapped")), "the trap"))
    stop(late, bench)
    try:
        assert ended(bench.process(point)) == [0]
        contents = bench.contents(point)
        assert len(contents) == 5
    finally:
        wake(late, bench)
    # It learns from DBOS how its workflow has ended.
    assert ended(late) == [0]
    assert len(world.notes("ended")) == 2
    assert bench.contents(point) == contents
    bench.verify()


def test_an_execution_that_is_late_to_enter_takes_nothing_back(sqlite: Bench, run: Any) -> None:
    """It was cancelled and rewound while its step was on the way to the store, and enters before the run
    ends: the end would fence it by itself."""

    async def scenario() -> None:
        late_reached, late_free = world.hold("enter-model-0")
        with SetWorkflowID("late"):
            await DBOS.start_workflow_async(agent, 1, 3)
        await wait_for(late_reached, "the late step")
        await DBOS.cancel_workflow_async("late")
        reached, free = world.hold("before-model-0")
        handle = await DBOS.rewind_workflow_async("late", start_step=3)
        await wait_for(reached, "the step of the execution that counts")
        try:
            with everthread.open(**sqlite.options()) as store:
                thread = store.thread("late")
                version, contents = thread.head.id, sqlite.contents("late")
                late_free.set()
                await until(lambda: bool(world.notes("fenced")), "the refusal")
                assert (thread.refresh().id, sqlite.contents("late")) == (version, contents)
        finally:
            free.set()
        await result(handle)
        await _settled()
        await checked(sqlite, "late")

    run(sqlite, scenario)


async def _settled() -> None:
    """Until no other task of this loop is left."""
    await asyncio.wait(
        {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}, timeout=WAIT_S
    )


def test_run_agent_forked_at_every_step(sqlite: Bench, run: Any) -> None:
    """A fork replays what came before: each step is asked for in the same order, whatever ended first."""

    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(loop_agent)
        ended = await result(handle)
        assert (ended.reason, ended.turns, ended.usage) == ("completed", 4, {"tokens": 4})
        contents = sqlite.contents(handle.workflow_id)
        shape = "be brief,go on,look,look.0,look.1,look.2,judge,judge.0,good,done".split(",")
        assert [text.partition(" #")[0] for text in contents] == shape
        assert sqlite.state(handle.workflow_id) == {"weighed": "judge.0"}
        steps = await DBOS.list_workflow_steps_async(handle.workflow_id)
        forks = [await DBOS.fork_workflow_async(handle.workflow_id, step["function_id"]) for step in steps]
        for number, fork in enumerate(forks, 1):
            again = await result(fork)
            found = sqlite.contents(again.ref.thread)
            assert [text.partition(" #")[0] for text in found] == shape, number
            assert sqlite.state(again.ref.thread) == {"weighed": "judge.0"}
            history = await DBOS.list_workflow_steps_async(fork.workflow_id)
            weighed = [step["output"] for step in history if step["function_name"] == "weigh"]
            # The third belongs to the turn that was taken back.
            assert [found[3], found[5], found[7]] == [weighed[at] for at in (0, 1, 3)]
        assert sqlite.contents(handle.workflow_id) == contents

    run(sqlite, scenario)


@DBOS.step()
async def two_steps(ref: ThreadRef) -> ThreadRef:
    async with engine.step(ref, "once") as s:
        s.result = 1
    raise FencedError("for the record", attempt=1, newest=2)


@DBOS.workflow()
async def careless(what: str) -> str:
    if what == "step":
        async with engine.step(ThreadRef("t"), "key"):
            pass
    elif what == "open":
        everthread.open("memory:")
    elif what == "store":
        await (await engine.store()).thread("t")
    return "nothing was wrong"


@DBOS.workflow()
async def failing() -> ThreadRef:
    return await two_steps(await engine.open_thread())


def test_a_run_that_failed_names_what_the_step_raised(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(failing_agent)
        with pytest.raises(error.DBOSMaxStepRetriesExceeded):
            await result(handle)
        async with everthread.open_async(**sqlite.options()) as store:
            records = await store.session_records(handle.workflow_id)
            assert records.last_run.text == "run 1 failed: ValueError"
            assert [each.text for each in await records.errors()] == ["workflow: ValueError: no such city"]

    run(sqlite, scenario)


def test_a_plain_exception_of_a_tool_fails_the_run_and_the_workflow(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(clumsy_agent, "plain", False)
        with pytest.raises(LookupError, match="this tool is broken"):
            await result(handle)
        name = handle.workflow_id
        assert (await handle.get_status()).status == "ERROR"
        with everthread.open(**sqlite.options()) as opened:
            assert opened.session_records(name).last_run.text == "run 1 failed: LookupError"

    run(sqlite, scenario)


@pytest.mark.parametrize("tool", ["broken", "plain"])
def test_a_tool_that_dbos_has_retried_can_be_recovered(sqlite: Bench, run: Any, tool: str) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(clumsy_agent, tool, True)
        assert (await result(handle)).reason == "completed"
        with everthread.open(**sqlite.options()) as opened:
            said = [each["content"] for each in opened.thread(handle.workflow_id).messages]
            assert said == ["hm", "recovered", "hm"]

    run(sqlite, scenario)


def test_a_pointer_whose_version_was_pruned_fails_the_workflow_once(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        handle = await DBOS.start_workflow_async(sleeper)
        # Tried again it would be told of as tried too often.
        with pytest.raises(everthread.VersionPrunedError, match=r"mode=.continue"):
            await result(handle)

    run(sqlite, scenario)


def test_a_store_in_the_code_of_a_workflow_is_refused(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        for what in ("step", "open", "store"):
            with pytest.raises(UsageError, match=r"in the code of a (DBOS )?workflow"):
                await careless(what)
        assert await careless("nothing") == "nothing was wrong"
        with pytest.raises(UsageError, match="no workflow runs here"):
            async with engine.step(ThreadRef("t"), "key"):
                pass
        with pytest.raises(UsageError, match="no workflow runs here"):
            await engine.open_thread()

    run(sqlite, scenario)


def test_errors_are_kept_in_the_history(sqlite: Bench, run: Any) -> None:
    async def scenario() -> None:
        with SetWorkflowID("failing"), pytest.raises(FencedError, match="for the record"):
            await failing()
        error = (await DBOS.list_workflow_steps_async("failing"))[-1]["error"]
        assert (type(error), error.attempt, error.newest) == (FencedError, 1, 2)

    run(sqlite, scenario)


def test_use_says_which_store(tmp_path: Path) -> None:
    engine.close()
    with pytest.raises(UsageError, match="use"):
        engine.blocking_store()
    with pytest.raises(UsageError, match="not int"):
        engine.use(7)  # type: ignore[arg-type]
    engine.use("memory:")
    with pytest.raises(UsageError, match="outlive"):
        engine.blocking_store()
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        engine.use(store)
        assert engine.blocking_store() is store
        with pytest.raises(UsageError, match="give it a URL"):
            asyncio.run(engine.store())
        engine.close()
        assert store.thread("still open").head is None
    engine.use({"url": f"sqlite:///{tmp_path}/s.db"})
    first = engine.blocking_store()

    async def both() -> None:
        assert len({id(each) for each in await asyncio.gather(engine.store(), engine.store())}) == 1

    asyncio.run(both())
    engine.close()
    with pytest.raises(everthread.StoreClosedError):
        first.thread("t")
    engine.close()
