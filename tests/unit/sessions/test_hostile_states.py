"""A state that came from anywhere: resuming and briefing survive whatever it holds, and run none of it."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

import everthread

texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("<>&]\n\u202e\u200b·"), max_size=40
)
data = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | texts | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=8,
)
times = (
    st.sampled_from(["2026-01-01T00:00:00+00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00"]) | data
)
verify = st.fixed_dictionaries(
    {"name": st.sampled_from(["command", "file_hash", "git_commit", "process_alive", "x"]) | data},
    optional={
        "args": data | st.just({"argv": ["touch", "/tmp/everthread-was-here"]}),
        "expected": data | st.just({"cwd": "/", "path": "/dev/zero", "repo": "/", "pid": 1, "size": 0}),
    },
)


def items(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A collection whose items are sound, unsound, or something else."""
    optional = {"created_at": times, "updated_at": times, "metadata": data, **fields}
    return data | st.dictionaries(texts | st.integers(), data | st.fixed_dictionaries({}, optional=optional))


documents = st.fixed_dictionaries(
    {},
    optional={
        "schema_version": st.just(1),
        "todos": items(content=data, status=st.sampled_from(["pending", "in_progress", "completed"]) | data),
        "context": items(value=data, verify=verify | data),
        "open_loops": items(description=data, context=data, resolved_at=times),
        "intentions": items(text=data),
        "constraints": items(text=data),
        "tasks": items(subject=data, status=data, blocked_by=data | st.lists(texts)),
        "session": data | st.fixed_dictionaries({}, optional={"decisions": items(decision=data)}),
    },
)


@settings(max_examples=60)
@given(documents, st.lists(data | st.fixed_dictionaries({"role": data, "content": data}), max_size=3))
def test_any_document_can_be_resumed(document: dict[Any, Any], messages: list[Any]) -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("bot")
        thread.state.update(document)
        for message in messages:
            thread.messages.append(message)
        thread.commit()
        report = store.resume("bot", allow_network=False)
        assert report.plain()
        assert str(report)
        assert not report.fresh
        for budget in (150, 1_000):
            text = store.briefing("bot", max_tokens=budget, allow_network=False)
            assert text.tokens <= budget
            assert list(ElementTree.fromstring(text)) == []
            assert not re.search(r"^(\[[^\]\n]* · |\()verified\b", text, re.MULTILINE)
