"""Agents on a real Temporal server: whatever is killed, retried or reset, the thread is what the history
says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Replayer,
    Worker,
)

import everthread
from everthread.engines.temporal import EverthreadPlugin, activities
from tests.engines.careless import Careless, Local, Wrong, echo, note_locally, tell_wrong
from tests.engines.runs import Bench, reset, shape, until, workflow_tasks
from tests.engines.unguarded import remove_guard
from tests.engines.workflows import Agent, Task
from tests.engines.world import Agency

SAVED = Path(__file__).parent / "histories"


@pytest.fixture
def bench(temporal_address: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(temporal_address, tmp_path)
    yield made
    made.stop_workers()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


def test_an_agent_runs(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker():
            handle = await bench.begin("work 2 3")
            outcome = await handle.result()
            contents = await bench.check(handle)
            assert shape(contents)[:3] == ["be brief", "work 2 3", "turn 0"]
            assert shape(contents)[3:6] == [f"result of c0.{slot} " + "x" * 10 for slot in range(3)]
            assert len(contents) == 11
            assert (outcome.reason, outcome.turns) == ("completed", 3)
            # With no worker at all anybody sees where it stands.
            assert (await handle.query(Agent.pointer)).thread == handle.id
        async with everthread.open_async(bench.url) as opened:
            head = (await opened.thread(handle.id)).head
            assert head.id == outcome.ref.version

    run(scenario)


def test_blocking_activities_take_steps_too(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker():
            handle = await bench.begin("work 1 3", tool="use_blocking_tool")
            await handle.result()
            assert len(await bench.check(handle)) == 7
            again = await reset(bench.client, handle, workflow_tasks(await handle.fetch_history())[3])
            await again.result()
            await bench.check(again)

    run(scenario)


def test_a_reset_to_every_workflow_task_takes_the_thread_along(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker():
            handle = await bench.begin("work 1 2")
            await handle.result()
            tasks = workflow_tasks(await handle.fetch_history())
            # At last to the very end of the first run, where nothing is left to do for it.
            for event_id in (*tasks, tasks[0], tasks[-1]):
                again = await reset(bench.client, handle, event_id)
                await again.result()
                assert len(await bench.check(again)) == 6
            await bench.verify()

    run(scenario)


def test_a_reset_while_tools_are_under_way_keeps_those_that_are_done(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker():
            held = bench.world.hold("in-tool-1")
            handle = await bench.begin("work 1 3")

            async def done() -> list[int]:
                history = await handle.fetch_history()
                two = _completed(history, "use_tool")
                return [task for task in workflow_tasks(history) if task > two[1]] if len(two) == 2 else []

            await until(lambda: _found(done()), "two tools")
            # A task after both has seen them, and nothing else: the third is handed out anew.
            again = await reset(bench.client, handle, (await done())[-1])
            await again.result()
            held.free.set()
            contents = await bench.check(again)
            assert len(contents) == 7
            assert sum(note["slot"] == 1 for note in bench.world.notes("tool")) == 2
            assert all(
                sum(note["slot"] == slot for note in bench.world.notes("tool")) == 1 for slot in (0, 2)
            )

    run(scenario)


async def _found(answer: Awaitable[Any]) -> bool:
    return bool(await answer)


def _completed(history: WorkflowHistory, name: str) -> list[int]:
    """The events at which activities of a name were completed."""
    scheduled = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    return [
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        and scheduled[event.activity_task_completed_event_attributes.scheduled_event_id] == name
    ]


@pytest.mark.parametrize("point", ["before-model", "after-model", "before-tool-1", "after-tool-1"])
def test_a_killed_worker_leaves_nothing_out_and_nothing_twice(bench: Bench, point: str) -> None:
    async def scenario() -> None:
        bench.world.set_trap(point)
        first = bench.start_worker()
        handle = await bench.begin("work 1 3")
        await until(lambda: first.poll() is not None, "the kill")
        assert bench.world.notes("trapped")[0]["point"] == point
        async with bench.worker():
            await handle.result()
            contents = await bench.check(handle)
            assert shape(contents)[2:3] + shape(contents)[-1:] == ["turn 0", "done after 1, 6 messages seen"]
            asked = len(bench.world.notes("model"))
            # What was recorded isn't done again.
            assert asked == 2
            await bench.verify()

    run(scenario)


@pytest.mark.parametrize("verb", ["open_thread", "append", "end"])
def test_a_worker_that_dies_inside_a_verb_is_missed_by_its_heartbeats(bench: Bench, verb: str) -> None:
    async def scenario() -> None:
        bench.world.set_trap(f"everthread.{verb}")
        first = bench.start_worker()
        handle = await bench.begin("work 1 1")
        await until(lambda: first.poll() is not None, "the kill")
        async with bench.worker():
            await handle.result()
            await bench.check(handle)
            scheduled, started = {}, {}
            for event in (await handle.fetch_history()).events:
                if event.HasField("activity_task_scheduled_event_attributes"):
                    scheduled[event.event_id] = event.activity_task_scheduled_event_attributes
                elif event.HasField("activity_task_started_event_attributes"):
                    told = event.activity_task_started_event_attributes
                    started[scheduled[told.scheduled_event_id].activity_type.name] = told
            failure = started[f"everthread.{verb}"].last_failure.timeout_failure_info
            assert failure.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT

    run(scenario)


class _Beats(Interceptor):
    """Holds each append until two heartbeats were sent for it."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        beats, seen = self, asyncio.Queue[None]()

        class Outbound(ActivityOutboundInterceptor):
            def heartbeat(self, *details: Any) -> None:
                seen.put_nowait(None)
                super().heartbeat(*details)

        class Inbound(ActivityInboundInterceptor):
            def init(self, outbound: ActivityOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                if activity.info().activity_type == "everthread.append":
                    beats.attempts.append(activity.info().attempt)
                    for _ in range(2):
                        await seen.get()
                return await super().execute_activity(input)

        return Inbound(next)


def test_a_verb_that_takes_long_sends_heartbeats(bench: Bench) -> None:
    async def scenario() -> None:
        beats = _Beats()
        plugin = EverthreadPlugin({"url": bench.url, "durability": "process"})
        # After ours, so that it is inside of it.
        plugins = [plugin, SimplePlugin("beats", interceptors=[beats])]
        client = await Client.connect(bench.address, plugins=plugins)
        agency = Agency(bench.world).activities[:2]
        options: dict[str, Any] = {"workflows": [Agent], "activities": agency}
        async with Worker(client, task_queue=bench.queue, **options):
            bench.client = client
            handle = await bench.begin("work 0 0")
            await handle.result()
        assert beats.attempts == [1]

    run(scenario)


@pytest.mark.parametrize("comes", [True, False])
def test_a_worker_that_starts_while_its_store_is_away_tries_again_and_says_so(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture, comes: bool
) -> None:
    bench.url = f"sqlite:///{tmp_path}/mounted/agent.db"

    async def scenario() -> None:
        async with bench.worker():
            await until(lambda: "worker can't open its store, and tries again" in caplog.text, "the warning")
            if comes:
                (tmp_path / "mounted").mkdir()
                handle = await bench.begin("work 1 1")
                await handle.result()
                await bench.check(handle)
            # One whose store never comes can be shut down.

    run(scenario)


def test_a_workflow_whose_worker_lacks_the_plugin_fails_and_names_it(bench: Bench) -> None:
    async def scenario() -> None:
        client = await Client.connect(bench.address)
        agency = Agency(bench.world).activities
        with ThreadPoolExecutor(2) as pool:
            options: dict[str, Any] = {"workflows": [Agent], "activities": agency, "activity_executor": pool}
            async with Worker(client, task_queue=bench.queue, **options):
                bench.client = client
                handle = await bench.begin("work 1 1")
                with pytest.raises(WorkflowFailureError) as failed:
                    await handle.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert "EverthreadPlugin" in failed.value.cause.message

    run(scenario)


# ── workers that wake up too late ────────────────────────────────────────────────────────────


def _without_heartbeats(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The first activity of this name is silent, as one is whose process stands still."""
    usual, silent = activities._interval_s, []

    def interval_s() -> float:
        info = activity.info()
        if info.activity_type == name and not silent:
            silent.append(info)
            return 3600.0
        return usual()

    monkeypatch.setattr(activities, "_interval_s", interval_s)


@pytest.mark.parametrize("guard", ["on", "off"])
@pytest.mark.parametrize("cause", ["retry", "reset", "rewind"])
def test_a_worker_that_wakes_too_late_writes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cause: str, guard: str
) -> None:
    """It stands still in a step; the work goes on elsewhere, and isn't recorded yet when it wakes up."""
    if guard == "off":
        remove_guard(monkeypatch.setattr)
    _without_heartbeats(monkeypatch, "use_tool" if cause == "rewind" else "ask_model")

    async def scenario() -> None:
        # A blocking tool isn't told either that it was cancelled.
        async with bench.worker(activities=Agency(bench.world, is_deaf=True).activities):
            late = bench.world.hold("in-tool-1" if cause == "rewind" else "in-model-1")
            refusing = bench.world.hold("refusing")
            handle = await bench.begin("retry" if cause == "rewind" else "work 1 2")
            await until(late.reached.is_set, "the step")
            following = bench.world.hold("in-model-2" if cause == "rewind" else "in-model-1")
            refusing.free.set()
            if cause == "reset":
                event_id = workflow_tasks(await handle.fetch_history())[-1]
                handle = await reset(bench.client, handle, event_id)
            await until(following.reached.is_set, "the step that goes on")
            late.free.set()
            await until(late.over.is_set, "the end of the late one")
            following.free.set()
            await handle.result()
            messages, _ = await bench.thread(handle.id)
            landed = any(message["content"] == late.text for message in messages)
            assert landed == (guard == "off")
            if guard == "on":
                await bench.check(handle)

    run(scenario)


# ── input, cancelling, length ────────────────────────────────────────────────────────────────


def test_a_message_told_twice_over_continue_as_new_and_a_kill_is_there_once(bench: Bench) -> None:
    async def scenario() -> None:
        told = {"id": "m1", "role": "user", "content": "work 1 1"}
        handle = await bench.begin(None, is_chat=True, events_max=20, inbox=[told])
        bench.world.set_trap("after-model")
        first = bench.start_worker()
        await until(lambda: first.poll() is not None, "the kill")
        async with bench.worker():
            whole = bench.client.get_workflow_handle(handle.id)
            await until(lambda: whole.query(Agent.waiting), "the answer")
            assert (await whole.describe()).run_id != handle.first_execution_run_id
            await whole.execute_update(Agent.tell, told)
            await whole.execute_update(Agent.tell, {"id": "m2", "role": "user", "content": "thanks"})
            await until(lambda: _is_in(bench, handle.id, "m2"), "the second message")
            await until(lambda: whole.query(Agent.waiting), "the second answer")
            await whole.signal(Agent.finish)
            await whole.result()
            messages, _ = await bench.thread(handle.id)
            assert [message["id"] for message in messages if message["role"] == "user"] == ["m1", "m2"]

    run(scenario)


async def _is_in(bench: Bench, name: str, message_id: str) -> bool:
    messages, _ = await bench.thread(name)
    return any(message["id"] == message_id for message in messages)


def test_a_cancelled_workflow_ends_without_waiting_for_the_model(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker():
            # Never freed: whoever waited for it would wait for ever.
            held = bench.world.hold("in-model-1")
            handle = await bench.begin("work 1 1")
            await until(held.reached.is_set, "the model call")
            await handle.cancel()
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert isinstance(failed.value.cause, CancelledError)
            await until(held.over.is_set, "the cancellation of the call")
        async with everthread.open_async(bench.url) as opened:
            thread = await opened.thread(handle.id)
            assert len(await thread.messages.read()) == 2
            recorded = [each async for each in thread.steps(limit=1)]
            assert (recorded[0].key[-1], recorded[0].result) == ("end", "cancelled")

    run(scenario)


def test_a_history_grows_by_turns_and_not_by_what_is_said(bench: Bench) -> None:
    async def scenario() -> None:
        sizes: dict[int, list[int]] = {10: [], 50_000: []}
        async with bench.worker():
            for size, found in sizes.items():
                for turns in (1, 4):
                    handle = await bench.begin(f"work {turns} 1 {size}")
                    await handle.result()
                    history = await handle.fetch_history()
                    found.append(sum(event.ByteSize() for event in history.events))
        per_turn = [(found[1] - found[0]) / 3 for found in sizes.values()]
        # Numbers that are drawn differ by some bytes; what is said would count by the thousands.
        assert abs(per_turn[0] - per_turn[1]) <= 0.03 * per_turn[0], per_turn

    run(scenario)


# ── errors say what to do ────────────────────────────────────────────────────────────────────


def test_what_is_refused_says_what_to_do(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker(workflows=[Careless, Wrong], activities=[echo, tell_wrong]):

            async def ask(workflow_run: Any, what: str) -> Any:
                name = f"{bench.queue}-{what}"
                return await bench.client.execute_workflow(
                    workflow_run, what, id=name, task_queue=bench.queue
                )

            for what in ("store", "step", "accessor"):
                assert re.search("use (it|them) in an activity", await ask(Careless.run, what))
            with pytest.raises(WorkflowFailureError) as failed:
                await ask(Careless.run, "large")
            assert isinstance(failed.value.cause, ApplicationError)
            assert failed.value.cause.type == "PayloadTooLarge"
            assert "ThreadRef" in str(failed.value.cause)
            for what in ("fenced", "usage"):
                with pytest.raises(WorkflowFailureError) as failed:
                    await ask(Wrong.run, what)
                assert isinstance(failed.value.cause, ActivityError)
                assert isinstance(failed.value.cause.cause, ApplicationError)
                assert failed.value.cause.cause.non_retryable
            # Another worker may have its store open.
            await ask(Wrong.run, "closed")

    run(scenario)


def test_local_activities_take_steps_too(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.worker(workflows=[Local], activities=[note_locally]):
            for name in (f"{bench.queue}-1", f"{bench.queue}-2"):
                await bench.client.execute_workflow(Local.run, id=name, task_queue=bench.queue)
                messages, _ = await bench.thread(name)
                assert [message["content"] for message in messages] == ["noted"]

    run(scenario)


def test_a_store_in_an_activity_without_the_plugin_says_so(temporal_address: str, bench: Bench) -> None:
    async def scenario() -> None:
        client = await Client.connect(temporal_address)
        async with Worker(client, task_queue=bench.queue, workflows=[Wrong], activities=[tell_wrong]):
            with pytest.raises(WorkflowFailureError) as failed:
                await client.execute_workflow(Wrong.run, "usage", id=bench.queue, task_queue=bench.queue)
        assert isinstance(failed.value.cause, ActivityError)
        assert "EverthreadPlugin" in str(failed.value.cause.cause)

    run(scenario)


def test_plugins_that_cannot_work_say_so(tmp_path: Path) -> None:
    with everthread.open("memory:") as blocking, pytest.raises(everthread.UsageError, match="blocking"):
        EverthreadPlugin(blocking)  # type: ignore[arg-type]
    with pytest.raises(everthread.UsageError, match="not int"):
        EverthreadPlugin(7)  # type: ignore[arg-type]
    with pytest.raises(everthread.UsageError, match="payloads_over"):
        EverthreadPlugin("memory:", subject="u1")


# ── beside other plugins, and over time ──────────────────────────────────────────────────────


@pytest.mark.parametrize("order", [1, -1])
def test_it_works_before_and_after_another_plugin(bench: Bench, order: int) -> None:
    async def scenario() -> None:
        seen: list[str] = []

        @activity.defn
        async def beside() -> None:
            """Of the other plugin."""

        def runner(found: Any) -> Any:
            seen.append(type(found).__name__)
            return found

        other = SimplePlugin("other", activities=[beside], workflow_runner=runner)
        ours = EverthreadPlugin({"url": bench.url, "durability": "process"})
        client = await Client.connect(bench.address, plugins=[ours, other][::order])
        async with bench.worker():
            pass
        mine = Agency(bench.world)
        listed = [mine.ask_model, mine.use_tool]
        async with Worker(client, task_queue=bench.queue, workflows=[Agent], activities=listed):
            handle = await client.start_workflow(
                Agent.run, Task("work 1 1"), id=f"{bench.queue}-x", task_queue=bench.queue
            )
            await handle.result()
            await bench.check(handle)
        assert seen == ["SandboxedWorkflowRunner"]

    run(scenario)


def test_saved_histories_replay() -> None:
    """A gate: who adds a step to workflow code breaks the runs that are under way. To write them anew, after
    a change that is meant: python -m tests.engines.histories"""

    async def scenario() -> None:
        replayer = Replayer(workflows=[Agent], plugins=[EverthreadPlugin("memory:")])
        paths = sorted(SAVED.glob("*.json"))
        assert len(paths) == 3
        for path in paths:
            await replayer.replay_workflow(WorkflowHistory.from_json(path.stem, path.read_text()))

    run(scenario)
