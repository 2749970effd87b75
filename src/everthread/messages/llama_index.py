"""LlamaIndex: a ``ChatMessage`` as its ``model_dump`` writes it: a role, blocks, and additional arguments."""

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
    arguments_data,
    is_optional_text,
    kind_of,
    note_extra,
    result_text,
    written_arguments,
)

ID: Final = "llama_index"

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "chatbot": "assistant",
    "tool": "tool",
    "function": "tool",
}


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one message."""
    listed, more = raw.get("blocks"), raw.get("additional_kwargs")
    role = _ROLES.get(str(raw.get("role")), "user")
    blocks = tuple(map(_parsed, listed)) if isinstance(listed, list) else ()
    more = more if isinstance(more, Mapping) else {}
    if role == "tool":
        call_id, name = more.get("tool_call_id"), more.get("name")
        result = ToolResult(
            call_id=call_id if is_optional_text(call_id) else None,
            name=name if is_optional_text(name) else None,
            content=blocks,
            provider=ID,
        )
        return Message(role=role, blocks=(result,), provider=ID, index=index)
    return Message(role=role, blocks=blocks, provider=ID, index=index)


def _parsed(raw: Any) -> Block:
    match raw:
        case {"block_type": "text", "text": str(text)}:
            return Text(text=text, provider=ID)
        case {"block_type": "thinking", "content": str(text)}:
            return Reasoning(text=text, provider=ID)
        case {"block_type": "tool_call", "tool_name": str(name), "tool_kwargs": arguments}:
            call_id = raw.get("tool_call_id")
            return ToolCall(
                call_id=call_id if is_optional_text(call_id) else None,
                name=name,
                provider=ID,
                **written_arguments(arguments),
            )
        case {"block_type": "image", "url": str(url)}:
            return Media(kind="image", url=url, mime=raw.get("image_mimetype"), provider=ID)
        case {"block_type": "image", "image": str(data)}:
            return Media(kind="image", data=data, mime=raw.get("image_mimetype"), provider=ID)
    return Unknown(raw=raw, provider=ID)


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The messages that say this: one for each tool result, and one for what else there is."""
    built: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, ToolResult):
            said = result_text(block, notes, "a tool message")
            if block.is_error:
                notes.changed("tool result", "LlamaIndex doesn't mark errors; the text says so")
                said = f"Error: {said}"
            text = {"block_type": "text", "text": said}
            named = {} if block.name is None else {"name": block.name}
            more = {"tool_call_id": block.call_id or "", **named}
            built.append({"role": "tool", "blocks": [text], "additional_kwargs": more})
        elif (made := _built(block, notes)) is not None:
            blocks.append(made)
    if blocks:
        role = "user" if message.role == "tool" else message.role
        built.append({"role": role, "blocks": blocks, "additional_kwargs": {}})
    return built


def _built(block: Block, notes: Notes) -> dict[str, Any] | None:
    note_extra(block, ID, notes)
    match block:
        case Text():
            return {"block_type": "text", "text": block.text}
        case ToolCall():
            call = {"block_type": "tool_call", "tool_call_id": block.call_id, "tool_name": block.name}
            return {**call, "tool_kwargs": arguments_data(block, notes)}
        case Media(kind="image") if block.data is not None or block.url is not None:
            place = {"image": block.data} if block.data is not None else {"url": block.url}
            return {"block_type": "image", **place, "image_mimetype": block.mime}
    notes.dropped(kind_of(block), "LlamaIndex has no way to say it")
    return None
