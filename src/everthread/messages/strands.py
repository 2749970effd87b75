"""Strands: messages as Bedrock's Converse has them, a role and a list of content blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everthread.messages.model import (
    Block,
    Message,
    Notes,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_data,
    json_text,
    kind_of,
    note_extra,
    result_text,
)

ID: Final = "strands"


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one message."""
    content = raw.get("content")
    blocks = tuple(map(_parsed, content)) if isinstance(content, list) else ()
    role = "assistant" if raw.get("role") == "assistant" else "user"
    return Message(role=role, blocks=blocks, provider=ID, index=index)  # type: ignore[arg-type]


def _parsed(raw: Any) -> Block:
    match raw:
        case {"text": str(text)}:
            return Text(text=text, provider=ID)
        case {"toolUse": {"toolUseId": str(call_id), "name": str(name), "input": arguments}}:
            given = arguments if isinstance(arguments, dict) else None
            written = None if given is not None else json_text(arguments)
            return ToolCall(call_id=call_id, name=name, arguments=given, raw=written, provider=ID)
        case {"toolResult": {"toolUseId": str(call_id), "content": list(content)} as result}:
            return ToolResult(
                call_id=call_id,
                content=tuple(map(_parsed_result, content)),
                is_error=result.get("status") == "error",
                provider=ID,
            )
        case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
            return Reasoning(text=text, provider=ID)
    return Unknown(raw=raw, provider=ID)


def _parsed_result(raw: Any) -> Block:
    match raw:
        case {"text": str(text)}:
            return Text(text=text, provider=ID)
        case {"json": value}:
            return Text(text=json_text(value), provider=ID)
    return Unknown(raw=raw, provider=ID)


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The message that says this; it knows the user and the assistant only."""
    content = [made for block in message.blocks if (made := _built(block, notes)) is not None]
    if message.role == "system":
        content.insert(0, {"text": "[system message]"})
    role = "assistant" if message.role == "assistant" else "user"
    return [{"role": role, "content": content}] if content else []


def _built(block: Block, notes: Notes) -> dict[str, Any] | None:
    note_extra(block, ID, notes)
    match block:
        case Text():
            return {"text": block.text}
        case ToolCall():
            call = {"toolUseId": block.call_id or "", "name": block.name}
            return {"toolUse": {**call, "input": arguments_data(block, notes)}}
        case ToolResult():
            text = result_text(block, notes, "a tool result")
            status = "error" if block.is_error else "success"
            answer = {"toolUseId": block.call_id or "", "status": status, "content": [{"text": text}]}
            return {"toolResult": answer}
    notes.dropped(kind_of(block), "Strands has no way to say it")
    return None
