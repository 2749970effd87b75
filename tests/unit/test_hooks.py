"""Hooks: who is told what, and what happens when one fails."""

from __future__ import annotations

from typing import Any

import pytest

from everthread import InvalidValueError
from everthread.hooks import EVENTS, FAILURES_MAX, SessionLifecycle


def test_order_and_removal() -> None:
    told: list[str] = []
    hooks = SessionLifecycle()

    def first(state: Any) -> None:
        told.append("first")

    hooks.register("on_save", first)
    hooks.register("on_save", lambda state: told.append("second"))
    hooks.register("on_save", first)
    hooks.fire("on_save", None)
    assert told == ["first", "second"]
    assert hooks.unregister("on_save", first)
    assert not hooks.unregister("on_save", first)
    hooks.fire("on_save", None)
    assert told == ["first", "second", "second"]
    assert len(hooks.hooks("on_save")) == 1


def test_as_a_decorator() -> None:
    hooks = SessionLifecycle()
    told: list[Any] = []

    @hooks.register("on_resume")
    def resumed(state: Any) -> None:
        told.append(state)

    hooks.fire("on_resume", 7)
    resumed(8)
    assert told == [7, 8]


@pytest.mark.parametrize("event", ["on_sav", "save", "", None, 7])
def test_an_unknown_event_is_refused(event: Any) -> None:
    with pytest.raises(InvalidValueError, match="on_save"):
        SessionLifecycle().register(event, print)


def test_a_hook_must_be_callable() -> None:
    with pytest.raises(InvalidValueError):
        SessionLifecycle().register("on_save", 7)  # type: ignore[arg-type]


def test_arguments_fit_the_hook() -> None:
    told: list[Any] = []
    hooks = SessionLifecycle()
    hooks.register("on_session_end", lambda: told.append(()))
    hooks.register("on_session_end", lambda reason: told.append(f"just {reason}"))
    hooks.register("on_session_end", lambda reason, turns, usage: told.append((reason, turns, usage)))
    hooks.register("on_session_end", lambda *args: told.append(args))
    hooks.register("on_session_end", lambda **kw: told.append(kw))
    hooks.register("on_session_end", lambda reason, *, usage: told.append((reason, usage)))
    hooks.register("on_session_end", lambda *, turns: told.append(turns))
    hooks.register("on_session_end", told.append)
    assert hooks.fire("on_session_end", "completed", 3, {"in": 1}) == ()
    assert told == [
        (),
        "just completed",
        ("completed", 3, {"in": 1}),
        ("completed", 3, {"in": 1}),
        {"reason": "completed", "turns": 3, "usage": {"in": 1}},
        ("completed", {"in": 1}),
        3,
        "completed",
    ]
    assert all(isinstance(names, tuple) for names in EVENTS.values())


def test_failures_are_bounded_and_told(caplog: pytest.LogCaptureFixture) -> None:
    hooks = SessionLifecycle()
    hooks.register("on_save", lambda state: 1 / 0)
    for _ in range(FAILURES_MAX + 5):
        (failure,) = hooks.fire("on_save", None)
    assert isinstance(failure.error, ZeroDivisionError)
    assert "ZeroDivisionError" in str(failure)
    assert len(hooks.failures) == FAILURES_MAX
    assert "division by zero" in caplog.text


def test_an_async_hook_is_reported_rather_than_forgotten() -> None:
    async def later(state: Any) -> None:
        raise AssertionError("never awaited")

    hooks = SessionLifecycle()
    hooks.register("on_save", later)
    (failure,) = hooks.fire("on_save", None)
    assert "async" in str(failure.error)


def test_hooks_registered_meanwhile_are_told_next_time() -> None:
    told: list[str] = []
    hooks = SessionLifecycle()
    hooks.register("on_save", lambda state: hooks.register("on_save", lambda s: told.append("late")))
    hooks.fire("on_save", None)
    assert told == []
    hooks.fire("on_save", None)
    assert told == ["late"]
