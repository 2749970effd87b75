"""Malformed and hostile messages: each gets an answer or none is due, nothing crashes, nothing is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest

import everthread
from everthread.agents.mcp import MESSAGE_BYTES_MAX, Server, serve
from everthread.agents.tools import Toolbox
from tests.unit.agents.client import Client
from tests.unit.agents.conftest import THREAD

METHODS = [
    "initialize", "server/discover", "ping", "tools/list", "tools/call", "resources/list", "resources/read",
    "resources/templates/list", "prompts/list", "prompts/get", "notifications/cancelled", "tools/erase", "",
]  # fmt: skip
WORDS = [
    "resume", "note", "update", "checkpoint", "find", "show", "history", "fork", "name", "arguments", "uri",
    "thread", "kind", "text", "id", "status", "outcome", "key", "label", "version", "cursor", "log", "_meta",
    "todo", "task", "loop", "decision", "goal", "completed", "failed", "everthread://thread/%ff%00?cursor=1",
    "everthread://briefing", "io.modelcontextprotocol/protocolVersion", "2026-07-28", "head~9999999999",
    "\ud800", "\x00", "../../x", "'; drop table x", "", " ", "9" * 400, "0:0:0", "1:999999:999999", "漢",
    THREAD,
]  # fmt: skip


def junk(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 3:
        return chance.choice(WORDS)
    if kind < 6:
        return chance.choice([None, True, -1, 0, 10**30, 1.5, [], {}])
    if kind == 6:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(WORDS): junk(chance, depth + 1) for _ in range(chance.randrange(5))}


def message(chance: random.Random) -> bytes:
    """One line: mostly a request with wrong parts, sometimes not JSON or not text at all."""
    arguments = {chance.choice(WORDS[11:23]): chance.choice(WORDS) for _ in range(chance.randrange(4))}
    params = {"name": chance.choice(WORDS[:8]), "uri": chance.choice(WORDS), "arguments": arguments}
    request: dict[str, Any] = {
        "jsonrpc": "2.0", "id": chance.randrange(100), "method": chance.choice(METHODS), "params": params,
    }  # fmt: skip
    if chance.random() < 0.3:
        request["method"] = "tools/call"
    for part in list(request):
        if chance.random() < 0.08:
            request[part] = junk(chance)
        elif chance.random() < 0.03:
            del request[part]
    line = json.dumps(junk(chance) if chance.random() < 0.1 else request).encode()
    if chance.random() < 0.1:
        at = chance.randrange(len(line))
        line = line[:at] + chance.randbytes(chance.randrange(4)) + line[at + chance.randrange(3) :]
    return line.replace(b"\n", b" ").replace(b"\r", b" ")


@pytest.fixture
def server() -> Iterator[tuple[Server, everthread.Store]]:
    with everthread.open("memory:") as store:
        yield Server(Toolbox(lambda create: store), "0"), store


def test_ten_thousand_malformed_messages_crash_nothing_and_lose_nothing(
    server: tuple[Server, everthread.Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTHREAD_THREAD", THREAD)
    answering, store = server
    with everthread.WorkingState(store=store, thread="kept") as state:
        state.add_todo("kept")
    chance = random.Random(seed)
    lines = [message(chance) for _ in range(10_000)]
    sink = BytesIO()
    serve(answering, BytesIO(b"\n".join(lines) + b"\n"), sink)
    answers = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert len(answers) > 5_000
    each = [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
    assert all(one["jsonrpc"] == "2.0" and ("result" in one) != ("error" in one) for one in each)
    internal = {one["error"]["message"] for one in each if "error" in one and one["error"]["code"] == -32603}
    assert not {words for words in internal if words.startswith("internal error")}
    assert json.loads(answering.answer(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') or b"")["result"] == {}
    assert store.verify().ok
    with everthread.WorkingState(store=store, thread="kept") as state:
        assert [todo.content for todo in state.todos] == ["kept"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700),
        (b"9" * 10_000, -32700),
        (b"7", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/erase"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"note"}}', -32602),
    ],
)
def test_bad_input_gets_an_error_that_says_what_kind(
    server: tuple[Server, everthread.Store], line: bytes, code: int
) -> None:
    answer = json.loads(server[0].answer(line) or b"")
    assert answer["error"]["code"] == code


def test_a_batch_is_answered_as_one_and_notifications_are_not_answered(
    server: tuple[Server, everthread.Store],
) -> None:
    batch = [{"jsonrpc": "2.0", "id": id_, "method": "ping"} for id_ in (1, "two")]
    quiet = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answers = json.loads(server[0].answer(json.dumps([*batch, quiet]).encode()) or b"")
    assert [answer["id"] for answer in answers] == [1, "two"]
    assert server[0].answer(json.dumps(quiet).encode()) is None
    assert server[0].answer(b'{"jsonrpc":"2.0","id":1,"result":{}}') is None


def test_an_unsupported_version_of_a_request_is_answered_with_the_supported_ones(
    server: tuple[Server, everthread.Store],
) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    error = json.loads(server[0].answer(json.dumps(request).encode()) or b"")["error"]
    assert error["code"] == -32022
    assert "2026-07-28" in error["data"]["supported"]


def test_a_message_that_is_too_long_is_refused_and_the_next_one_answered(
    start: Callable[..., Client],
) -> None:
    client = start()
    client.write(b'"' + b"x" * (2 * MESSAGE_BYTES_MAX) + b'"')
    assert client.read()["error"]["code"] == -32600
    assert client.result("ping") == {}
