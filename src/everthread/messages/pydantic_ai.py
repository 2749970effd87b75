"""Pydantic AI: requests and responses with parts, as ``ModelMessagesTypeAdapter`` writes them. Only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everthread.messages.model import (
    Block,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    is_optional_text,
    json_text,
    kind_for,
    parsed_arguments,
)

ID: Final = "pydantic_ai"

_URLS: Final[Mapping[str, MediaKind]] = {
    "image-url": "image",
    "audio-url": "audio",
    "video-url": "video",
    "document-url": "file",
}


def parse(raw: Mapping[str, Any], index: int | None = None) -> list[Message]:
    """The canonical messages: a request may hold those of several roles, one after another."""
    parts = raw.get("parts")
    found: list[tuple[Role, Block]] = []
    if isinstance(raw.get("instructions"), str):
        found.append(("system", Text(text=raw["instructions"], provider=ID)))
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
            return [("user", _content(each)) for each in listed]
        case {"part_kind": "tool-return" | "retry-prompt", "tool_name": str(name)}:
            return [("tool", _result(part, name))]
        case {"part_kind": "retry-prompt", "content": content}:
            return [("user", Text(text=_told(content), provider=ID))]
    return [("user", Unknown(raw=part, provider=ID))]


def _said(part: Any) -> list[tuple[Role, Block]]:
    match part:
        case {"part_kind": "text", "content": str(text)}:
            block: Block = Text(text=text, provider=ID)
        case {"part_kind": "thinking", "content": str(text)}:
            # Whoever signed it gets it back: the provider is named where there is a signature.
            signed = part.get("provider_name") == "anthropic" and isinstance(part.get("signature"), str)
            block = Reasoning(
                text=text, signature=part.get("signature"), provider="anthropic" if signed else ID
            )
        case {"part_kind": "tool-call", "tool_name": str(name)}:
            block = _call(part, name)
        case _:
            block = Unknown(raw=part, provider=ID)
    return [("assistant", block)]


def _call(part: Mapping[str, Any], name: str) -> Block:
    arguments, call_id = part.get("args"), part.get("tool_call_id")
    text = arguments if isinstance(arguments, str) else None
    return ToolCall(
        call_id=call_id if is_optional_text(call_id) else None,
        name=name,
        raw=text,
        arguments=parsed_arguments(text) if text is not None else arguments or {},
        provider=ID,
    )


def _result(part: Mapping[str, Any], name: str) -> Block:
    call_id = part.get("tool_call_id")
    wrong = part["part_kind"] == "retry-prompt" or part.get("outcome") in ("failed", "denied")
    return ToolResult(
        call_id=call_id if is_optional_text(call_id) else None,
        name=name,
        content=(Text(text=_told(part.get("content")), provider=ID),),
        is_error=wrong,
        provider=ID,
    )


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
