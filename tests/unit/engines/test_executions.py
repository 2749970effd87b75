"""Several executions of one workflow: which effects each of them makes, and what is recorded of them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidValueError
from everthread.engines import Execution, ThreadRef
from everthread.engines.steps import end, enter_step, open_thread
from everthread.engines.sync import steps as blocking
from tests.unit.cli.calling import Program

MONDAY = Execution("run-1", started=1000.0, scheduler="run-1", origin="run-1", owner="daily", execution="mon")
#: Monday's run, reset.
RESET = dataclasses.replace(MONDAY, run="run-2", scheduler="run-2", started=1500.0)
#: Monday's run, continued as new.
CONTINUED = dataclasses.replace(MONDAY, run="run-3", scheduler="run-3", origin="run-3", started=1700.0)
TUESDAY = dataclasses.replace(
    MONDAY, run="run-4", scheduler="run-4", origin="run-4", started=2000.0, execution="tue"
)


class Mail:
    def __init__(self) -> None:
        self.sent = 0

    def send(self) -> str:
        self.sent += 1
        return f"mail {self.sent}"


async def report(store: Any, ref: ThreadRef, where: Execution, mail: Mail, *keys: str) -> ThreadRef:
    async with enter_step(store, ref, ("send",), where) as step:
        if not step.done:
            for key in keys or ("send-report",):
                step.result = await step.call(key, mail.send)
    return step.ref


async def day(store: Any, where: Execution, mail: Mail, *keys: str, **options: Any) -> ThreadRef:
    ref = await report(store, await open_thread(store, where, name="t", **options), where, mail, *keys)
    return await end(store, ref, where)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_an_execution_that_skips_effects_of_an_earlier_one_warns_once_and_records_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, mail = f"sqlite:///{tmp_path}/s.db", Mail()

    async def scenario() -> None:
        async with everthread.open_async(url) as store:
            await day(store, MONDAY, mail, "send-report", "send-copy")
            await day(store, RESET, mail, "send-report", "send-copy")
            assert warnings(caplog) == []
            await day(store, TUESDAY, mail, "send-report", "send-copy")
            assert mail.sent == 2
            (told,) = warnings(caplog)
            assert "'send-report'" in told
            assert "execution mon " in told
            assert 'effects="execution"' in told
            records = await store.session_records("t")
            runs = await records.runs()
            assert [(run.workflow, run.execution, run.skipped) for run in runs] == [
                ("daily", "tue", "mon"),
                ("daily", "mon", None),
                ("daily", "mon", None),
            ]

    asyncio.run(scenario())
    program = Program(url, tmp_path)
    assert "skipped effects that execution mon made" in program("runs", "t").out
    assert "skipped send-report, made by execution mon" in program("log", "t").out


def test_a_blocking_step_warns_of_a_skipped_effect_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mail = Mail()
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        for where in (MONDAY, TUESDAY):
            ref = blocking.open_thread(store, where, name="t")
            with blocking.enter_step(store, ref, ("send",), where) as step:
                assert step.call("send-report", mail.send) == "mail 1"
            blocking.end(store, step.ref, where)
        version = step.version
        assert version is not None
        assert version.metadata["skipped"] == {"send-report": "mon"}
    assert len(warnings(caplog)) == 1


def test_each_execution_makes_its_effects_once_where_the_thread_was_opened_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mail = Mail()

    async def scenario() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            ref = await day(store, MONDAY, mail, effects="execution")
            await day(store, RESET, mail, effects="execution")
            # Continued as new: with the pointer, and with a thread that is opened again.
            await report(store, ref, CONTINUED, mail)
            await day(store, CONTINUED, mail, mode="continue", effects="execution")
            assert mail.sent == 1
            await day(store, TUESDAY, mail, effects="execution")
            assert mail.sent == 2
            records = await store.session_records("t")
            effects = await records.effects()
            assert {effect.key for effect in effects} == {"send-report@mon", "send-report@tue"}
            with pytest.raises(InvalidValueError, match="effects must be"):
                await open_thread(store, TUESDAY, name="t", effects="twice")  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert warnings(caplog) == []


def test_runs_and_log_of_an_engine_show_turns_usage_agent_workflow_and_steps(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    async def scenario() -> None:
        async with everthread.open_async(url) as store:
            ref = await open_thread(store, MONDAY, name="t", agent="reporter")
            assert (await store.session_records("t")).last_run.agent == "reporter"
            async with enter_step(store, ref, ("turn", 1, "model"), MONDAY) as step:
                step.messages.append({"role": "assistant", "content": "hi"})
            await end(store, step.ref, MONDAY, turns=3, usage={"input_tokens": 1812})

    asyncio.run(scenario())
    program = Program(url, tmp_path)
    said = program("runs", "t").out
    assert "3 turns, 1,812 input_tokens, reporter, workflow daily" in said
    log = program("log", "t").out
    assert "turn 1 model" in log


def test_a_thread_opened_with_a_ttl_expires_that_long_after_its_last_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            ref = await open_thread(store, MONDAY, name="t", ttl=60.0)
            head = (await store.thread("t")).head
            assert (head.expires_at - head.at).total_seconds() == 60
            await end(store, ref, MONDAY)
            head = (await store.thread("t")).head
            assert (head.expires_at - head.at).total_seconds() == 60
            with pytest.raises(InvalidValueError):
                await open_thread(store, MONDAY, name="other", ttl=-1)
            assert (await store.thread("other")).head is None

    asyncio.run(scenario())


def test_a_later_execution_begins_its_fork_anew_with_what_the_source_holds_then(tmp_path: Path) -> None:
    def mask(message: Any) -> Any:
        return {**message, "content": message["content"].upper()}

    async def scenario() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            parent, mail = await store.thread("parent"), Mail()
            for where, text in ((MONDAY, "a"), (TUESDAY, "b")):
                parent.messages.append({"role": "user", "content": text})
                parent.state[text] = 1
                await parent.commit()
                source = ThreadRef("parent", parent.head.id)
                options: Any = {"mode": "fork", "source": source, "transform": mask}
                begun = await open_thread(store, where, name="t", **options)
                # Asked again, it is the same beginning.
                assert await open_thread(store, where, name="t", **options) == begun
                await day(store, where, mail, **options)
                fork = await store.thread("t")
                wanted = [each["content"].upper() for each in await parent.messages.read()]
                assert [each["content"] for each in await fork.messages.read()] == wanted
                assert fork.state.plain() == parent.state.plain()
            assert mail.sent == 1
            stranger = dataclasses.replace(TUESDAY, owner="another", started=3000.0)
            with pytest.raises(everthread.ThreadExistsError):
                await open_thread(store, stranger, name="t", **options)

    asyncio.run(scenario())


def test_a_run_that_lent_its_thread_to_another_goes_on_afterwards(tmp_path: Path) -> None:
    child = Execution("child", started=1100.0, scheduler="child", origin="child", guest_of="run-1")

    async def scenario() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            ref = await open_thread(store, MONDAY, name="t")
            made = await open_thread(store, child, name="t", mode="continue", source=ref)
            made = await end(store, made, child)
            late = dataclasses.replace(MONDAY, started=1200.0)
            await end(store, made, late)
            # A child of a run that was superseded can't take the thread over.
            await open_thread(store, RESET, name="t")
            stale = dataclasses.replace(child, run="stale", scheduler="stale", origin="stale", started=9000.0)
            with pytest.raises(everthread.FencedError):
                await open_thread(store, stale, name="t", mode="continue", source=ref)
            with pytest.raises(InvalidValueError, match="source must point to 't'"):
                await open_thread(store, RESET, name="t", mode="continue", source=ThreadRef("other"))

    asyncio.run(scenario())
