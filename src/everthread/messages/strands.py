"""Strands: messages as Bedrock's Converse has them, a role and a list of content blocks."""

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
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_data,
    decoded,
    encoded,
    json_text,
    kind_of,
    note_extra,
    result_text,
    written_arguments,
)

ID: Final = "strands"

_KINDS: Final[Mapping[str, MediaKind]] = {"image": "image", "video": "video", "document": "file"}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
#: The MIME types of the formats that Strands names.
_MIMES: Final[Mapping[str, str]] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "mp4": "video/mp4",
    "mov": "video/quicktime",
    "webm": "video/webm",
    "mpeg": "video/mpeg",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html",
    "txt": "text/plain",
    "md": "text/markdown",
}
_FORMATS: Final = {mime: name for name, mime in _MIMES.items()}


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
            return ToolCall(call_id=call_id, name=name, provider=ID, **written_arguments(arguments))
        case {"toolResult": {"toolUseId": str(call_id), "content": list(content)} as result}:
            return ToolResult(
                call_id=call_id,
                content=tuple(map(_parsed_result, content)),
                is_error=result.get("status") == "error",
                provider=ID,
            )
        case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
            return Reasoning(text=text, provider=ID)
    return _parsed_media(raw) or Unknown(raw=raw, provider=ID)


def _parsed_result(raw: Any) -> Block:
    match raw:
        case {"text": str(text)}:
            return Text(text=text, provider=ID)
        case {"json": value}:
            return Text(text=json_text(value), provider=ID)
    return _parsed_media(raw) or Unknown(raw=raw, provider=ID)


def _parsed_media(raw: Any) -> Media | None:
    match raw:
        case {"image": dict(held)} | {"video": dict(held)} | {"document": dict(held)}:
            kind = _KINDS[next(name for name in _KINDS if name in raw)]
        case _:
            return None
    name = held.get("name")
    fields: dict[str, Any] = {
        "kind": kind,
        "mime": _MIMES.get(str(held.get("format"))),
        "name": name if isinstance(name, str) else None,
        "provider": ID,
    }
    match held.get("source"):
        case {"bytes": bytes(data)}:
            return Media(data=encoded(data), **fields)
        case {"bytes": {"__bytes_encoded__": True, "data": str(text)}}:
            # As sessions of Strands write bytes.
            return Media(data=text, **fields)
        case {"location": {"uri": str(uri)}}:
            return Media(url=uri, **fields)
    return None


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """Return the message that says this; Strands knows the user and the assistant only."""
    content = [made for block in message.blocks if (made := _built(block, notes)) is not None]
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
            status = "error" if block.is_error else "success"
            content = _built_result(block, notes)
            return {"toolResult": {"toolUseId": block.call_id or "", "status": status, "content": content}}
        case Media() if (media := _built_media(block)) is not None:
            return media
    notes.dropped(kind_of(block), "Strands has no way to say it")
    return None


def _built_result(result: ToolResult, notes: Notes) -> list[dict[str, Any]]:
    if not any(isinstance(each, Media) for each in result.content):
        return [{"text": result_text(result, notes, "a tool result")}]
    return [made for each in result.content if (made := _built(each, notes)) is not None]


def _built_media(media: Media) -> dict[str, Any] | None:
    name, form = _NAMES.get(media.kind), _FORMATS.get(media.mime or "")
    data = None if media.data is None else decoded(media.data)
    if name is None or form is None:
        return None
    if data is not None:
        source: dict[str, Any] = {"bytes": data}
    elif media.url is not None and media.url.startswith("s3://"):
        source = {"location": {"type": "s3", "uri": media.url}}
    else:
        return None
    named = {"name": media.name or "document"} if name == "document" else {}
    return {name: {"format": form, **named, "source": source}}
