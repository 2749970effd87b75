"""Texts that say nothing: refused by every verb that keeps one, in the same way, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import AgentSession, InvalidValueError, Personal

VERBS: dict[str, Callable[[AgentSession, Any], Any]] = {
    "decide": lambda session, text: session.decide(text),
    "decide, rejected": lambda session, text: session.decide("FIFO", rejected=["LIFO", text]),
    "tasks.add": lambda session, text: session.tasks.add(text),
    "tasks.update": lambda session, text: session.tasks.update(session.tasks.all()[0].id, subject=text),
    "add_todo": lambda session, text: session.work.add_todo(text),
    "update_todo": lambda session, text: session.work.update_todo(session.work.todos[0], content=text),
    "add_open_loop": lambda session, text: session.work.add_open_loop(text),
    "set_intention": lambda session, text: session.work.set_intention(text),
    "add_constraint": lambda session, text: session.work.add_constraint(text),
    "record_handling": lambda session, text: session.record_handling(session.errors[0].id, text),
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[AgentSession]:
    store = everthread.open("memory:", keyring="memory:", durability="process")
    with store, store.session("bot") as session:
        session.tasks.add("count")
        session.work.add_todo("count")
        session.record_error("it broke")
        yield session


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("text", ["", "  \t\n", Personal("u1", ""), Personal("u1", " \n")])
def test_blank(session: AgentSession, verb: str, text: Any) -> None:
    before = (session.thread.head, session.errors)
    with pytest.raises(InvalidValueError, match="must not be empty"):
        VERBS[verb](session, text)
    assert (session.thread.head, session.errors) == before
    assert session.incomplete_decisions() == []


@pytest.mark.parametrize("verb", VERBS)
def test_what_says_something_is_kept(session: AgentSession, verb: str) -> None:
    VERBS[verb](session, "count again")
    with pytest.raises(InvalidValueError, match="must be text, not int"):
        VERBS[verb](session, 5)


def test_what_may_be_left_out_may_be_empty(session: AgentSession) -> None:
    session.decide("FIFO", rationale="", planned_action="")
    session.tasks.add("count", description="", active_form="")
    # What went wrong is kept even if it has no words, as many exceptions have none.
    assert session.record_error(str(TimeoutError())).message == ""
    session.fail("")
    assert session.status == "failed"
