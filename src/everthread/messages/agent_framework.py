"""Microsoft Agent Framework: a ``Message`` as its ``to_dict`` writes it: a role and a list of contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everthread.messages.model import (
    Block,
    Media,
    Message,
    Notes,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_text,
    data_url,
    from_url,
    is_optional_text,
    json_text,
    kind_for,
    kind_of,
    note_extra,
    result_text,
    written_arguments,
)

ID: Final = "agent_framework"

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one message."""
    contents = raw.get("contents")
    blocks = tuple(map(_parsed, contents)) if isinstance(contents, list) else ()
    role = _ROLES.get(str(raw.get("role")), "user")
    return Message(role=role, blocks=blocks, provider=ID, index=index)


def _parsed(raw: Any) -> Block:
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text=text, provider=ID)
        case {"type": "text_reasoning", "text": str(text)}:
            return Reasoning(text=text, provider=ID)
        case {"type": "function_call", "name": str(name)}:
            call_id = raw.get("call_id")
            return ToolCall(
                call_id=call_id if is_optional_text(call_id) else None,
                name=name,
                provider=ID,
                **written_arguments(raw.get("arguments")),
            )
        case {"type": "function_result"}:
            call_id, result = raw.get("call_id"), raw.get("result")
            told = result if isinstance(result, str) else json_text(result)
            return ToolResult(
                call_id=call_id if is_optional_text(call_id) else None,
                content=(Text(text=told, provider=ID),),
                is_error=raw.get("exception") is not None,
                provider=ID,
            )
        case {"type": "data" | "uri", "uri": str(uri)}:
            return from_url(kind_for(raw.get("media_type")), uri, provider=ID)
    return Unknown(raw=raw, provider=ID)


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The message that says this."""
    contents = [made for block in message.blocks if (made := _built(block, notes)) is not None]
    return [{"type": "message", "role": message.role, "contents": contents}] if contents else []


def _built(block: Block, notes: Notes) -> dict[str, Any] | None:
    note_extra(block, ID, notes)
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case ToolCall():
            call = {"type": "function_call", "call_id": block.call_id or "", "name": block.name}
            return {**call, "arguments": arguments_text(block)}
        case ToolResult():
            text = result_text(block, notes, "a function result")
            failed = {"exception": text} if block.is_error else {}
            return {"type": "function_result", "call_id": block.call_id or "", "result": text, **failed}
        case Media() if (uri := data_url(block)) is not None:
            mime = block.mime or "application/octet-stream"
            return {"type": "uri" if block.data is None else "data", "uri": uri, "media_type": mime}
    notes.dropped(kind_of(block), "Agent Framework has no way to say it")
    return None
