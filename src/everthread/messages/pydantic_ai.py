"""Pydantic AI: requests and responses with parts, as ``ModelMessagesTypeAdapter`` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everthread.messages.model import (
    Block,
    Media,
    MediaKind,
    Message,
    Notes,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_text,
    is_optional_text,
    json_text,
    kind_for,
    kind_of,
    note_extra,
    result_text,
    written_arguments,
)

ID: Final = "pydantic_ai"

_URLS: Final[Mapping[str, MediaKind]] = {
    "image-url": "image",
    "audio-url": "audio",
    "video-url": "video",
    "document-url": "file",
}
_URL_KINDS: Final = {kind: name for name, kind in _URLS.items()}
#: Messages that come from elsewhere have no time of their own, and Pydantic AI asks for one.
_NO_TIME: Final = "1970-01-01T00:00:00Z"


def parse(raw: Mapping[str, Any], index: int | None = None) -> list[Message]:
    """Return the canonical messages: a request may hold those of several roles, one after another.

    ``instructions`` are none: each agent sends its own with every request, and another framework's agent has
    others.
    """
    parts = raw.get("parts")
    found: list[tuple[Role, Block]] = []
    for part in parts if isinstance(parts, list) else []:
        found += _said(part) if raw.get("kind") == "response" else _asked(part)
    messages: list[Message] = []
    for role, block in found:
        if messages and messages[-1].role == role:
            messages[-1] = messages[-1].with_blocks((*messages[-1].blocks, block))
        else:
            messages.append(Message(role=role, blocks=(block,), provider=ID, index=index))
    return messages


def _asked(part: Any) -> list[tuple[Role, Block]]:
    match part:
        case {"part_kind": "system-prompt", "content": str(text)}:
            return [("system", Text(text=text, provider=ID))]
        case {"part_kind": "user-prompt", "content": content}:
            listed = content if isinstance(content, list) else [content]
            return [("user", _content(each)) for each in listed if not _is_cache_point(each)]
        case {"part_kind": "tool-return" | "retry-prompt", "tool_name": str(name)}:
            return [("tool", _result(part, name))]
        case {"part_kind": "retry-prompt" | "retry-feedback", "content": content}:
            return [("user", Text(text=_told(content), provider=ID))]
        case {"part_kind": str(kind)} if kind.startswith("instruction") or kind.endswith("-delta"):
            # What Pydantic AI notes of its own instructions, tools and settings.
            return []
    return [("user", Unknown(raw=part, provider=ID))]


def _said(part: Any) -> list[tuple[Role, Block]]:
    match part:
        case {"part_kind": "text", "content": str(text)}:
            block: Block = Text(text=text, provider=ID)
        case {"part_kind": "thinking", "content": str(text)}:
            # The provider is named where there is a signature, which is of worth to that one only.
            signed = part.get("provider_name") == "anthropic" and isinstance(part.get("signature"), str)
            block = Reasoning(
                text=text, signature=part.get("signature"), provider="anthropic" if signed else ID
            )
        case {"part_kind": "tool-call", "tool_name": str(name)}:
            block = _call(part, name)
        case {"part_kind": "file", "content": content}:
            block = _content(content)
        case _:
            block = Unknown(raw=part, provider=ID)
    return [("assistant", block)]


def _call(part: Mapping[str, Any], name: str) -> Block:
    call_id = part.get("tool_call_id")
    return ToolCall(
        call_id=call_id if is_optional_text(call_id) else None,
        name=name,
        provider=ID,
        **written_arguments(part.get("args")),
    )


def _result(part: Mapping[str, Any], name: str) -> Block:
    call_id = part.get("tool_call_id")
    wrong = part["part_kind"] == "retry-prompt" or part.get("outcome") not in (None, "success")
    return ToolResult(
        call_id=call_id if is_optional_text(call_id) else None,
        name=name,
        content=_returned(part.get("content")),
        is_error=wrong,
        provider=ID,
    )


def _returned(content: Any) -> tuple[Block, ...]:
    """Return what a tool answered: one text, or files and the text around them."""
    listed = content if isinstance(content, list) else [content]
    blocks = tuple(_content(each) for each in listed)
    if not any(isinstance(block, Media) for block in blocks):
        return (Text(text=_told(content), provider=ID),)
    return tuple(
        Text(text=_told(each), provider=ID) if isinstance(block, Unknown) else block
        for each, block in zip(listed, blocks, strict=True)
    )


def _is_cache_point(content: Any) -> bool:
    return isinstance(content, Mapping) and content.get("kind") == "cache-point"


def _told(content: Any) -> str:
    return content if isinstance(content, str) else json_text(content)


def _content(content: Any) -> Block:
    match content:
        case str():
            return Text(text=content, provider=ID)
        case {"kind": "binary", "data": str(data), "media_type": str(mime)}:
            standard = data.replace("-", "+").replace("_", "/")
            return Media(kind=kind_for(mime), mime=mime, data=standard, provider=ID)
        case {"kind": str(kind), "url": str(url)} if kind in _URLS:
            return Media(kind=_URLS[kind], url=url, provider=ID)
        case {"kind": "text", "content": str(text)}:
            return Text(text=text, provider=ID)
    return Unknown(raw=content, provider=ID)


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The request or response that says this; several where what was asked and what was said are mixed."""
    built: list[dict[str, Any]] = []
    for block in message.blocks:
        kind = "response" if message.role == "assistant" and not isinstance(block, ToolResult) else "request"
        part = _built_reply(block, notes) if kind == "response" else _built_part(block, message.role, notes)
        if part is None:
            continue
        if not built or built[-1]["kind"] != kind:
            timed = {"timestamp": _NO_TIME} if kind == "response" else {}
            built.append({"kind": kind, "parts": [], **timed})
        built[-1]["parts"].append(part)
    return built


def _built_reply(block: Block, notes: Notes) -> dict[str, Any] | None:
    note_extra(block, ID, notes)
    match block:
        case Text():
            return {"part_kind": "text", "content": block.text}
        case ToolCall():
            arguments: Any = dict(block.arguments) if block.arguments is not None else arguments_text(block)
            call = {"part_kind": "tool-call", "tool_name": block.name, "args": arguments}
            return {**call, "tool_call_id": block.call_id or ""}
    notes.dropped(kind_of(block), "Pydantic AI has no way to say it in a response")
    return None


def _built_part(block: Block, role: Role, notes: Notes) -> dict[str, Any] | None:
    note_extra(block, ID, notes)
    match block:
        case Text() if role == "system":
            return {"part_kind": "system-prompt", "content": block.text, "timestamp": _NO_TIME}
        case Text():
            return {"part_kind": "user-prompt", "content": block.text, "timestamp": _NO_TIME}
        case Media() if (content := _built_media(block)) is not None:
            return {"part_kind": "user-prompt", "content": [content], "timestamp": _NO_TIME}
        case ToolResult():
            answer = {"tool_name": block.name or "", "content": result_text(block, notes, "a tool return")}
            failed = {"outcome": "failed"} if block.is_error else {}
            named = {"tool_call_id": block.call_id or "", "timestamp": _NO_TIME}
            return {"part_kind": "tool-return", **answer, **named, **failed}
    notes.dropped(kind_of(block), "Pydantic AI has no way to say it in a request")
    return None


def _built_media(media: Media) -> dict[str, Any] | None:
    if media.data is not None:
        mime = media.mime or "application/octet-stream"
        return {"kind": "binary", "data": media.data, "media_type": mime}
    if media.url is not None:
        return {"kind": _URL_KINDS[media.kind], "url": media.url}
    return None
