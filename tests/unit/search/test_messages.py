"""Messages are found by what they say, whichever framework wrote them, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import everthread
from everthread.values import Personal
from tests.unit.cli.calling import Program

#: Shape → a message that says "The ledger balances" in it, with ids and times beside it.
WRITTEN: dict[str, Any] = {
    "langchain": {"type": "human", "data": {"content": "The ledger balances", "id": "zeppelin-1"}},
    "openai.responses": {
        "type": "message",
        "role": "assistant",
        "id": "msg_zeppelin",
        "content": [{"type": "output_text", "text": "The ledger balances", "annotations": []}],
    },
    "pydantic_ai": {
        "kind": "request",
        "run_id": "zeppelin",
        "timestamp": "2026-01-02T03:04:05Z",
        "parts": [
            {
                "part_kind": "user-prompt",
                "content": "The ledger balances",
                "timestamp": "2026-01-02T03:04:05Z",
            }
        ],
    },
    "adk": {
        "author": "zeppelin",
        "invocation_id": "e-zeppelin",
        "content": {"role": "model", "parts": [{"text": "The ledger balances"}]},
    },
    "claude": {
        "type": "user",
        "sessionId": "zeppelin",
        "timestamp": "2026-01-02T03:04:05Z",
        "message": {"role": "user", "content": "The ledger balances"},
    },
}


@pytest.mark.parametrize("shape", WRITTEN)
def test_what_a_message_says_is_found_and_its_ids_and_times_are_not(shape: str) -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.messages.append({"shape": shape, "message": WRITTEN[shape]})
        thread.commit()
        (hit,) = store.search("ledger")
        assert hit.thread == "t"
        assert "The ledger balances" in hit.excerpt
        for absent in ("zeppelin", "2026", "annotations"):
            assert not list(store.search(absent))


def test_calls_and_results_are_found_by_their_words() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hailstones"}
        thread.messages.append({"shape": "anthropic", "message": {"role": "assistant", "content": [call]}})
        thread.messages.append({"shape": "anthropic", "message": {"role": "user", "content": [result]}})
        thread.messages.append({"role": "user", "content": Personal("u1", "secretive")})
        thread.commit()
        assert [hit.index for word in ("weather", "Oslo", "hailstones") for hit in store.search(word)] == [
            0,
            0,
            1,
        ]
        for absent in ("secretive", "withheld", "toolu_1"):
            assert not list(store.search(absent))


@pytest.mark.parametrize("shape", WRITTEN)
def test_show_reads_a_message_as_what_it_says(shape: str, tmp_path: Any) -> None:
    program = Program(f"sqlite:///{tmp_path}/agent.db", tmp_path)
    with everthread.open(program.url) as store:
        thread = store.thread("t")
        thread.messages.append({"shape": shape, "message": WRITTEN[shape]})
        thread.commit()
    told = program("show", "t").out
    assert "The ledger balances" in told
    assert "zeppelin" not in told
