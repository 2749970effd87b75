"""EverthreadSessionService: what the Google ADK asks for, and what a thread has beyond it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from pydantic import BaseModel, Field

import everthread
from everthread import InvalidValueError, Store, StoreClosedError, ThreadExistsError
from everthread.adapters.adk import EverthreadSessionService, register
from everthread.messages import for_anthropic
from tests.adapters.conftest import stored_bytes

KEY: dict[str, Any] = {"app_name": "app", "user_id": "u1"}
SESSION: dict[str, Any] = {**KEY, "session_id": "s1"}


@pytest.fixture(params=["blocking", "async"])
def on_service(request: pytest.FixtureRequest, url: str) -> Callable[..., Any]:
    """Runs an async function on a service, on a store of each colour."""

    def run(work: Callable[[EverthreadSessionService], Any]) -> Any:
        async def main() -> Any:
            if request.param == "async":
                async with everthread.open_async(url) as store:
                    result = await work(EverthreadSessionService(store))
                    assert (await store.verify()).ok
                    return result
            with everthread.open(url) as store:
                result = await work(EverthreadSessionService(store))
                assert store.verify().ok
                return result

        return asyncio.run(main())

    return run


def event(text: str = "x", *, author: str = "agent", invocation: str = "i1", **delta: Any) -> Event:
    state = {key.replace("__", ":"): value for key, value in delta.items()}
    return Event(
        author=author,
        invocation_id=invocation,
        content=types.Content(role="model", parts=[types.Part(text=text)]),
        actions=EventActions(state_delta=state),
    )


class Scripted(BaseLlm):
    """Answers with one step after another."""

    model: str = "scripted"
    steps: list[Any]
    asked: list[Any] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append(list(llm_request.contents))
        step = self.steps.pop(0)
        part = step if isinstance(step, types.Part) else types.Part(text=step)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def run(service: EverthreadSessionService, model: Scripted, text: str, **options: Any) -> list[Event]:
    agent = LlmAgent(name="agent", model=model, **options)
    runner = Runner(app_name="app", agent=agent, session_service=service)
    asked = types.Content(role="user", parts=[types.Part(text=text)])
    return [each async for each in runner.run_async(user_id="u1", session_id="s1", new_message=asked)]


def texts(session: Any) -> list[str | None]:
    return [each.content.parts[0].text for each in session.events]


def test_sessions_are_made_read_listed_and_deleted(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        assert await service.get_session(**SESSION) is None
        made = await service.create_session(**SESSION, state={"a": 1, "app:b": 2, "user:c": 3, "temp:d": 4})
        assert made.state == {"a": 1, "app:b": 2, "user:c": 3}
        found = await service.get_session(**SESSION)
        assert found == made
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**{**SESSION, "session_id": " s1 "})
        other = await service.create_session(**KEY)
        assert other.id
        assert other.state == {"app:b": 2, "user:c": 3}
        stranger = await service.create_session(app_name="app", user_id="u2", session_id="s1")
        assert stranger.state == {"app:b": 2}
        await service.create_session(app_name="other", user_id="u1", session_id="s1")
        # Oldest first: what was written to last comes last.
        session = await service.get_session(**SESSION)
        assert session is not None
        await service.append_event(session, event())
        listed = (await service.list_sessions(**KEY)).sessions
        assert [each.id for each in listed] == [other.id, "s1"]
        assert listed[1].state == {"a": 1, "app:b": 2, "user:c": 3}
        assert all(not each.events for each in listed)
        assert len((await service.list_sessions(app_name="app")).sessions) == 3
        assert (await service.list_sessions(app_name="nobody")).sessions == []
        assert await service.get_user_state(**KEY) == {"c": 3}
        assert await service.get_user_state(app_name="app", user_id="u9") == {}
        await service.delete_session(**SESSION)
        await service.delete_session(**SESSION)
        assert await service.get_session(**SESSION) is None
        again = await service.create_session(**SESSION)
        assert again.state == {"app:b": 2, "user:c": 3}, "shared state stays"
        assert again.events == []

    on_service(work)


def test_events_come_back_as_they_were(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION)
        parts = [
            types.Part(text="hm", thought=True, thought_signature=b"\xff\xfe"),
            types.Part(inline_data=types.Blob(data=b"\x00\xfb\xff", mime_type="image/png")),
            types.Part(function_call=types.FunctionCall(id="c1", name="f", args={"a": None, "b": [1.5]})),
        ]
        said = Event(
            author="agent",
            invocation_id="i1",
            content=types.Content(role="model", parts=parts),
            long_running_tool_ids={"c1"},
            custom_metadata={"k": {"n": None}},
        )
        await service.append_event(session, said)
        await service.append_event(session, event(gone=None))
        found = await service.get_session(**SESSION)
        assert found is not None
        assert found.events == session.events
        assert found.state == session.state == {"gone": None}
        assert found.last_update_time == session.last_update_time == session.events[-1].timestamp

    on_service(work)


def test_scopes_partial_and_temporary(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION)
        partial = event(a=1)
        partial.partial = True
        await service.append_event(session, partial)
        assert session.events == []
        await service.append_event(session, event(own=1, app__b=2, user__c=3, temp__d=4))
        assert session.state == {"own": 1, "app:b": 2, "user:c": 3, "temp:d": 4}, "for this invocation"
        assert session.events[0].actions.state_delta == {"own": 1, "app:b": 2, "user:c": 3}
        found = await service.get_session(**SESSION)
        assert found is not None
        assert found.state == {"own": 1, "app:b": 2, "user:c": 3}
        assert len(found.events) == 1
        mate = await service.create_session(app_name="app", user_id="u2", session_id="s2")
        assert mate.state == {"app:b": 2}

    on_service(work)


def test_only_the_latest_events_are_asked_for(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION)
        for at in range(5):
            said = event(str(at))
            said.timestamp = 1000.0 + at
            await service.append_event(session, said)

        async def asked(**options: Any) -> list[str | None]:
            return texts(await service.get_session(**SESSION, config=GetSessionConfig(**options)))

        assert await asked(num_recent_events=2) == ["3", "4"]
        assert await asked(num_recent_events=0) == []
        assert await asked(num_recent_events=9) == list("01234")
        assert await asked(after_timestamp=1003.0) == ["3", "4"]
        assert await asked(after_timestamp=1.0) == list("01234")
        assert await asked(num_recent_events=1, after_timestamp=2000.0) == []

    on_service(work)


def test_a_stale_session_is_refused_and_nothing_is_written(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        await service.create_session(**SESSION)
        mine = await service.get_session(**SESSION)
        theirs = await service.get_session(**SESSION)
        assert mine is not None
        assert theirs is not None
        await service.append_event(theirs, event("theirs", app__x=1))
        with pytest.raises(StaleSessionError):
            await service.append_event(mine, event("mine", app__x=2, temp__t=1, own=1))
        assert mine.events == []
        assert mine.state == {}
        found = await service.get_session(**SESSION)
        assert found is not None
        assert texts(found) == ["theirs"]
        assert found.state == {"app:x": 1}
        # One that was made by hand goes by the time.
        by_hand = type(found)(**{**found.model_dump(exclude={"events"}), "last_update_time": 1.0})
        with pytest.raises(StaleSessionError):
            await service.append_event(by_hand, event("mine"))
        await service.append_event(found, event("mine"))
        await service.delete_session(**SESSION)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(found, event("late"))
        assert await service.get_session(**SESSION) is None

    on_service(work)


def test_of_many_at_once_one_wins(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        await service.create_session(**SESSION)
        copies = [await service.get_session(**SESSION) for _ in range(8)]
        outcomes = await asyncio.gather(
            *(service.append_event(copy, event(str(at), user__n=at)) for at, copy in enumerate(copies)),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        assert sum(isinstance(each, StaleSessionError) for each in outcomes) == 7
        (winner,) = [at for at, each in enumerate(outcomes) if isinstance(each, Event)]
        found = await service.get_session(**SESSION)
        assert texts(found) == [str(winner)]
        assert found is not None
        assert found.state == {"user:n": winner}

    on_service(work)


def test_sessions_share_state_without_losing_each_others_keys(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        sessions = [await service.create_session(**KEY, session_id=f"s{at}") for at in range(6)]
        await asyncio.gather(
            *(
                service.append_event(session, event(**{f"app__k{at}": at, f"user__k{at}": at}))
                for at, session in enumerate(sessions)
            )
        )
        state = (await service.create_session(**KEY)).state
        assert state == {f"{scope}:k{at}": at for scope in ("app", "user") for at in range(6)}

    on_service(work)


def test_an_event_that_is_delivered_again_is_added_once(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION)
        said = event("once", app__n=1)
        await service.append_event(session, said)
        await service.append_event(session, said.model_copy(deep=True))
        assert len(session.events) == 1
        found = await service.get_session(**SESSION)
        assert found is not None
        assert len(found.events) == 1
        other = said.model_copy(deep=True, update={"author": "another"})
        with pytest.raises(InvalidValueError, match="already holds"):
            await service.append_event(session, other)

    on_service(work)


class Basket(BaseModel):
    items: list[str]
    at: datetime


def test_state_of_any_type_that_can_be_kept(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        session = await service.create_session(**SESSION, state={"when": moment, "raw": b"\x00"})
        await service.append_event(session, event(basket=Basket(items=["a"], at=moment)))
        found = await service.get_session(**SESSION)
        assert found is not None
        assert found.state["when"] == moment
        assert found.state["raw"] == b"\x00"
        assert found.state["basket"]["items"] == ["a"]
        with pytest.raises(InvalidValueError, match="state"):
            await service.create_session(**KEY, session_id="bad", state={"f": print})
        assert await service.get_session(**KEY, session_id="bad") is None

    on_service(work)


def test_what_a_crash_left_undone_in_shared_state_is_done_by_the_next(url: str) -> None:
    """Killed right after the event was committed, before shared state was."""
    program = """
import asyncio, os, signal, sys
from everthread.adapters.adk import EverthreadSessionService
from everthread.adapters.adk import Scopes
from tests.adapters.test_adk import SESSION, event

async def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    service = EverthreadSessionService(sys.argv[1])
    session = await service.create_session(**SESSION)
    await service.append_event(session, event(user__n=1))
    Scopes.settle = die
    await service.append_event(session, event(user__n=2, app__m=5))

asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(Path(everthread.__file__).parents[1]), str(root)])
    ran = subprocess.run(
        [sys.executable, "-c", program, url],
        cwd=root,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr

    async def after() -> None:
        service = EverthreadSessionService(url)
        assert await service.get_user_state(**KEY) == {"n": 1}
        found = await service.get_session(**SESSION)
        assert found is not None
        assert found.state == {"user:n": 2, "app:m": 5}
        await service.append_event(found, event(user__n=3))
        service.close()
        # Done before: not again, whoever looks.
        again = EverthreadSessionService(url)
        found = await again.get_session(**SESSION)
        assert found is not None
        assert found.state == {"user:n": 3, "app:m": 5}
        again.close()

    asyncio.run(after())


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


def weather(city: str, tool_context: Any) -> dict[str, str]:
    """The weather."""
    tool_context.state["user:city"] = city
    tool_context.state["temp:seen"] = True
    return {"sky": "rain"}


WEATHER = types.Part(function_call=types.FunctionCall(name="weather", args={"city": "Oslo"}))


def test_a_runner_with_tools_remembers_over_restarts(url: str) -> None:
    async def begin() -> None:
        service = EverthreadSessionService(url)
        await service.create_session(**SESSION)
        events = await run(
            service, Scripted(steps=[WEATHER, "Rain."]), "Oslo?", tools=[weather], output_key="last"
        )
        assert events[-1].content.parts[0].text == "Rain."  # type: ignore[union-attr, index]
        service.close()

    async def go_on() -> None:
        service = EverthreadSessionService(url)
        session = await service.get_session(**SESSION)
        assert session is not None
        assert session.state == {"user:city": "Oslo", "last": "Rain."}
        model = Scripted(steps=["Yes."])
        await run(service, model, "Sure?")
        roles = [content.role for content in model.asked[0]]
        assert roles == ["user", "model", "user", "model", "user"]
        service.close()

    asyncio.run(begin())
    asyncio.run(go_on())
    with everthread.open(url) as store:
        request = for_anthropic(store.thread("adk/session/app/u1/s1").messages, cache=None)
        kinds = [[block["type"] for block in message["content"]] for message in request.messages]
        assert kinds == [["text"], ["tool_use"], ["tool_result"], ["text"], ["text"], ["text"]]


def test_the_adks_own_rewind_runs_on_it(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        await service.create_session(**SESSION)
        await run(service, Scripted(steps=["one"]), "1?", output_key="last")
        second = await run(service, Scripted(steps=["two"]), "2?", output_key="last")
        runner = Runner(
            app_name="app", agent=LlmAgent(name="agent", model=Scripted(steps=[])), session_service=service
        )
        await runner.rewind_async(
            user_id="u1", session_id="s1", rewind_before_invocation_id=second[0].invocation_id
        )
        found = await service.get_session(**SESSION)
        assert found is not None
        assert found.state["last"] == "one"

    on_service(work)


# ── beyond ───────────────────────────────────────────────────────────────────────────────────────


def test_a_rewind_restores_events_and_state_of_every_scope(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION, state={"app:n": 0})
        await service.append_event(session, event("a", invocation="i1", own=1, app__n=1, user__k="a"))
        await service.append_event(session, event("b", invocation="i2", own=2, app__n=2, user__k="b"))
        await service.append_event(session, event("c", invocation="i2", own=3, app__new=True, user__k="c"))
        back = await service.rewind(**SESSION, before_invocation_id="i2")
        assert texts(back) == ["a"]
        assert back.state == {"own": 1, "app:n": 1, "user:k": "a"}
        # And forth again: a rewind is a version as well.
        again = await service.rewind(**SESSION, to=4)
        assert texts(again) == ["a", "b", "c"]
        assert again.state == {"own": 3, "app:n": 2, "app:new": True, "user:k": "c"}
        first = await service.rewind(**SESSION, before_invocation_id="i1")
        assert texts(first) == []
        assert first.state == {"app:n": 0}
        # It goes on from there.
        await service.append_event(first, event("d", invocation="i3", app__n=7))
        found = await service.get_session(**SESSION)
        assert texts(found) == ["d"]
        with pytest.raises(StaleSessionError):
            await service.append_event(session, event("late"))
        for wrong in ({}, {"to": 1, "before_invocation_id": "i1"}, {"before_invocation_id": "i9"}):
            with pytest.raises(InvalidValueError):
                await service.rewind(**SESSION, **wrong)
        with pytest.raises(SessionNotFoundError):
            await service.rewind(**KEY, session_id="none", to=1)

    on_service(work)


def test_a_rewind_leaves_what_others_changed_since(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        mine = await service.create_session(**SESSION, state={"app:n": 0, "app:m": 0})
        theirs = await service.create_session(**KEY, session_id="s2")
        await service.append_event(mine, event("a", invocation="i1", app__n=1, app__m=1))
        await service.append_event(theirs, event("b", app__n=99))
        back = await service.rewind(**SESSION, before_invocation_id="i1")
        assert back.state == {"app:n": 99, "app:m": 0}

    on_service(work)


def test_a_fork_goes_its_own_way(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        session = await service.create_session(**SESSION)
        await service.append_event(session, event("a", own=1, app__n=1))
        await service.append_event(session, event("b", own=2, app__n=2))
        early = await service.fork(**SESSION, new_session_id="early", at=2)
        assert texts(early) == ["a"]
        assert early.state == {"own": 1, "app:n": 2}, "shared state is as it is now"
        await service.append_event(early, event("c", own=9))
        fork = await service.fork(**SESSION, new_session_id="fork")
        assert texts(fork) == ["a", "b"]
        assert texts(await service.get_session(**SESSION)) == ["a", "b"]
        assert len((await service.list_sessions(**KEY)).sessions) == 3
        with pytest.raises(ThreadExistsError):
            await service.fork(**SESSION, new_session_id="fork")

    on_service(work)


@pytest.mark.parametrize("strange", ["../../x", "a/b", "%2F", "'; drop table x; --", "é"])
def test_ids_of_any_kind_are_kept_apart(on_service: Callable[..., Any], strange: str) -> None:
    async def work(service: EverthreadSessionService) -> None:
        keys = [(strange, "b", "c"), ("a", strange, "c"), ("a", "b", strange), (f"{strange}/b", "c", "d")]
        for app_name, user_id, session_id in keys:
            key = {"app_name": app_name, "user_id": user_id}
            await service.create_session(**key, session_id=session_id, state={"k": [app_name, user_id]})
            (listed,) = (await service.list_sessions(**key)).sessions
            assert listed.id == session_id
            assert listed.state == {"k": [app_name, user_id]}

    on_service(work)


def test_the_registry_opens_stores(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.adk.cli.service_registry import ServiceRegistry

    registry = ServiceRegistry()
    monkeypatch.setattr("google.adk.cli.service_registry.get_service_registry", lambda: registry)
    register()
    service = registry.create_session_service(f"everthread+{url}")
    assert isinstance(service, EverthreadSessionService)

    async def main() -> None:
        await service.create_session(**SESSION)
        service.close()
        with pytest.raises(StoreClosedError):
            await service.get_session(**SESSION)

    asyncio.run(main())
    with everthread.open(url) as store:
        assert store.thread("adk/session/app/u1/s1").head is not None
    default = registry.create_session_service("everthread://")
    assert isinstance(default, EverthreadSessionService)
    default.close()


def test_a_session_is_a_thread(store: Store) -> None:
    async def main() -> None:
        service = EverthreadSessionService(store)
        session = await service.create_session(**SESSION)
        await service.append_event(session, event("a", own=1))

    asyncio.run(main())
    thread = store.thread("adk/session/app/u1/s1")
    assert thread.state["adk"]["state"].plain() == {"own": 1}
    assert "own" in thread.diff(1, 2).summary() or thread.diff(1, 2).added


# ── people ───────────────────────────────────────────────────────────────────────────────────────


def whose(app_name: str, user_id: str) -> str:
    return user_id


def test_the_sessions_of_a_person_are_sealed_and_can_be_erased(url: str) -> None:
    async def main() -> None:
        with everthread.open(url) as store:
            service = EverthreadSessionService(store, subject=whose)
            state = {"name": "Ada Lovelace", "user:home": "Lovelace Hall", "app:motto": "Be kind"}
            session = await service.create_session(**SESSION, state=state)
            said = event("I am Lovelace", user__mail="ada@lovelace.example", nick="Lovelace", mood=None)
            await service.append_event(session, said)
            other = await service.create_session(app_name="app", user_id="u2", session_id="s1")
            await service.append_event(other, event("I am Grace", name="Grace"))

            found = await service.get_session(**SESSION)
            assert found is not None
            assert texts(found) == ["I am Lovelace"]
            mail = {"user:mail": "ada@lovelace.example"}
            assert found.state == {**state, **mail, "nick": "Lovelace", "mood": None}
            assert await service.get_user_state(**KEY) == {"home": "Lovelace Hall", "mail": mail["user:mail"]}
            # Another who reads it: what the store shows without a word is masked.
            assert "Lovelace" not in str(store.thread(service.thread_name(**SESSION)).state.plain())
            assert b"Be kind" in stored_bytes(url)
            for text in (b"Lovelace", b"lovelace", b"Grace"):
                assert text not in stored_bytes(url)

            store.erase("u1")
            await nothing_is_left(service)
            grace = await service.get_session(app_name="app", user_id="u2", session_id="s1")
            assert grace is not None
            assert texts(grace) == ["I am Grace"]
            assert grace.state == {"name": "Grace", "app:motto": "Be kind"}
        with everthread.open(url) as store:
            await nothing_is_left(EverthreadSessionService(store, subject=whose))
            await nothing_is_left(EverthreadSessionService(store))
            assert store.verify().ok

    asyncio.run(main())


async def nothing_is_left(service: EverthreadSessionService) -> None:
    session = await service.get_session(**SESSION)
    assert session is not None
    assert session.events == []
    assert {key: value for key, value in session.state.items() if value} == {"app:motto": "Be kind"}
    listed = await service.list_sessions(**KEY)
    assert "Lovelace" not in str(listed)
    assert not any((await service.get_user_state(**KEY)).values())


def test_a_person_who_was_erased_goes_on_and_goes_back(on_service: Callable[..., Any]) -> None:
    async def work(service: EverthreadSessionService) -> None:
        store = service._in_use.given
        service = EverthreadSessionService(store, subject=whose)
        session = await service.create_session(**SESSION, state={"user:total": 1})
        gone = event("first", invocation="i1", user__total=2, own=1)
        await service.append_event(session, gone)
        erased = store.erase("u1")
        if not isinstance(erased, everthread.ErasureReport):
            await erased

        again = await service.get_session(**SESSION)
        assert again is not None
        assert again.state == {}
        # Delivered again: what was erased isn't brought back.
        await service.append_event(again, gone.model_copy(deep=True))
        again = await service.get_session(**SESSION)
        assert again is not None
        assert again.events == []
        await service.append_event(again, event("second", invocation="i2", user__total=3, own=2))
        await service.append_event(again, event("third", invocation="i3", user__total=4))
        back = await service.rewind(**SESSION, before_invocation_id="i3")
        assert texts(back) == ["second"]
        assert back.state == {"user:total": 3, "own": 2}
        back = await service.rewind(**SESSION, before_invocation_id="i2")
        assert back.events == []
        assert back.state == {}
        fork = await service.fork(**SESSION, new_session_id="fork")
        assert fork.state == {}

    on_service(work)
