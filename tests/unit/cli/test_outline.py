"""Parts of a document are recognised by their shape, and nothing is lost or taken for something else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import everthread
from everthread.cli.outline import item_texts, outline
from everthread.cli.output import plain

KEYS = [
    "todos",
    "tasks",
    "intentions",
    "constraints",
    "open_loops",
    "context",
    "session",
    "schema_version",
    "x",
]
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "subject", "value", "status", "a"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@pytest.fixture
def document(store: everthread.Store) -> Any:
    with store.session("bot", agent="weaver") as s:
        s.work.set_intention("first")
        s.work.set_intention("second")
        s.work.add_constraint("never")
        urgent = s.work.add_todo("urgent", priority="high")
        s.work.complete_todo(s.work.add_todo("over").id)
        s.work.start_todo(urgent.id)
        s.work.cancel_todo(s.work.add_todo("given up").id)
        s.work.resolve_open_loop(s.work.add_open_loop("answered").id)
        s.work.add_open_loop("asked")
        s.work.set_context("branch", "main", verify="git_branch")
        one = s.tasks.add("one")
        s.tasks.add("two", blocked_by=[one.id])
        s.decide("use FIFO", rationale="auditor", planned_action="recompute", rejected=["LIFO"])
        s.merge_update({"custom": {"kept": True}})
    return plain(store.thread("bot").state.plain())


def test_a_session_is_recognised(document: Any) -> None:
    parts, rest = outline(document)
    assert rest == {"custom": {"kept": True}}
    lines = {part.title: [(line.mark, line.text) for line in part.lines] for part in parts}
    assert lines == {
        "goal": [("➤", "second"), ("·", "first")],
        "constraints": [("!", "never")],
        "todos: 1 in progress, 1 completed, 1 cancelled": [("▶", "urgent"), ("✓", "over"), ("✗", "given up")],
        "tasks: 2 pending": [("○", "one"), ("○", "two")],
        "decided, no outcome": [("?", "use FIFO")],
        "open loops": [("?", "asked"), ("✓", "answered")],
        "context": [("=", "branch: main")],
    }
    hints = {line.text: line.hint for part in parts for line in part.lines}
    assert hints["two"].startswith("waits for one ")
    assert hints["use FIFO"] == "because auditor, rather than LIFO"
    assert hints["branch: main"] == "verifier git_branch"
    assert hints["urgent"].startswith("high ")


def test_texts_behind_ids(document: Any) -> None:
    texts = item_texts(document)
    assert {"urgent", "one", "asked", "never", "second"} <= set(texts.values())
    assert {key for key, _ in texts} == {"todos", "tasks", "open_loops", "intentions", "constraints"}


@pytest.mark.parametrize(
    "document",
    [
        {"todos": ["buy milk"]},
        {"todos": {"a": {"title": "not ours"}}},
        {"todos": {"a": {"content": "ours"}, "b": 1}},
        {"tasks": 5, "context": "text", "session": {"user": "ann"}, "schema_version": "x"},
        {"schema_version": 7},
        {},
    ],
)
def test_what_only_has_the_name_stays(document: Any) -> None:
    assert outline(document) == ([], document)


@example({"tasks": {"": {"status": [], "subject": None}}})
@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES | st.dictionaries(st.text(max_size=3), VALUES), max_size=9)
)
def test_any_document_is_taken(document: dict[str, Any]) -> None:
    parts, rest = outline(document)
    kept = {part.key for part in parts} | set(rest)
    assert {key for key, value in document.items() if value != {}} - kept <= {"schema_version"}
    assert all(rest[key] == document[key] for key in rest)
    item_texts(document)
