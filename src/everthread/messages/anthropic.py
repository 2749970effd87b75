"""Anthropic Messages: a role and blocks; tool results stand in the user's message."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from everthread.messages.model import (
    Block,
    Media,
    Message,
    Notes,
    Origin,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_data,
    decoded,
    encoded,
    is_text,
    json_text,
    kind_of,
    note_extra,
    own_raw,
    rest,
)

ID: Final = "anthropic"

_ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
#: Documents of plain text are not sent as base64.
_PLAIN: Final = "text/plain"


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one message."""
    content = raw.get("content")
    if isinstance(content, str):
        blocks: tuple[Block, ...] = (Text(text=content, provider=ID),)
    elif isinstance(content, list):
        blocks = tuple(map(parse_block, content))
    else:
        blocks = () if content is None else (Unknown(raw=content, provider=ID),)
    return Message(
        role=_ROLES.get(str(raw.get("role")), "user"),
        blocks=blocks,
        id=raw.get("id"),
        provider=ID,
        extra=rest(raw, "role", "content", "id"),
        origin=Origin(ID, raw),
        index=index,
    )


def parse_block(raw: Any) -> Block:
    """The canonical form of one content block; what isn't understood in full is kept raw."""
    block = _parsed(raw)
    return Unknown(raw=raw, provider=ID, origin=Origin(ID, raw)) if block is None else block


def _parsed(raw: Any) -> Block | None:
    made: dict[str, Any] = {"provider": ID, "origin": Origin(ID, raw)}
    match raw:
        case str():
            return Text(text=raw, **made)
        case {"type": "text", "text": str(text)}:
            return Text(text=text, extra=rest(raw, "type", "text"), **made)
        case {"type": "image" | "document" as kind, "source": dict(source)}:
            return _media(kind, raw, source, made)
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
            extra = rest(raw, "type", "id", "name", "input")
            return ToolCall(call_id=call_id, name=name, arguments=arguments, extra=extra, **made)
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            return _result(call_id, raw, made)
        case {"type": "thinking", "thinking": str(text)}:
            extra = rest(raw, "type", "thinking", "signature")
            return Reasoning(text=text, signature=raw.get("signature"), extra=extra, **made)
        case {"type": "redacted_thinking", "data": data}:
            return Reasoning(signature=data, redacted=True, extra=rest(raw, "type", "data"), **made)
    return None


def _media(
    kind: str, raw: Mapping[str, Any], source: Mapping[str, Any], made: dict[str, Any]
) -> Block | None:
    name = raw.get("title")
    fields: dict[str, Any] = {
        "kind": "image" if kind == "image" else "file",
        "name": name if is_text(name) else None,
        "extra": rest(raw, "type", "source", *(["title"] if is_text(name) else [])),
        **made,
    }
    match dict(source):
        case {"type": "base64", "media_type": str(mime), "data": str(data), **others} if not others:
            return Media(mime=mime, data=data, **fields)
        case {"type": "text", "media_type": "text/plain", "data": str(text), **others} if not others:
            return Media(mime=_PLAIN, data=encoded(text.encode("utf-8", "surrogatepass")), **fields)
        case {"type": "url", "url": str(url), **others} if not others:
            return Media(url=url, **fields)
        case {"type": "file", "file_id": str(file_id), **others} if not others:
            return Media(file_id=file_id, **fields)
    return None


def _result(call_id: str, raw: Mapping[str, Any], made: dict[str, Any]) -> Block | None:
    match raw.get("content"):
        case None:
            content: tuple[Block, ...] = ()
        case str(text):
            content = (Text(text=text, provider=ID),)
        case list(parts):
            content = tuple(map(parse_block, parts))
        case _:
            return None
    return ToolResult(
        call_id=call_id,
        content=content,
        is_error=raw.get("is_error") is True,
        extra=rest(raw, "type", "tool_use_id", "content", "is_error"),
        **made,
    )


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The messages that say this; usually one."""
    role = "user" if message.role == "tool" else message.role
    blocks = [made for block in message.blocks if (made := build_block(block, notes)) is not None]
    if message.blocks and not blocks:
        return []
    built: dict[str, Any] = {"role": role, "content": _simplest(blocks)}
    if message.provider == ID:
        if message.id is not None:
            built["id"] = message.id
        built.update(message.extra)
    return [built]


def _simplest(blocks: list[dict[str, Any]]) -> Any:
    match blocks:
        case [{"type": "text", "text": text, **others}] if not others:
            return text
    return blocks


def build_block(block: Block, notes: Notes) -> dict[str, Any] | None:
    """The block as Anthropic writes it; ``None`` if it has no way to say it, which is noted."""
    if isinstance(raw := own_raw(block, ID), dict) and parse_block(raw) == block:
        return deepcopy(raw)
    match block:
        case Text():
            return {"type": "text", "text": block.text, **note_extra(block, ID, notes)}
        case Media():
            return _built_media(block, notes)
        case ToolCall(call_id=call_id, name=name):
            arguments = arguments_data(block, notes)
            extra = note_extra(block, ID, notes)
            return {"type": "tool_use", "id": call_id or "", "name": name, "input": arguments, **extra}
        case ToolResult():
            return _built_result(block, notes)
        case Reasoning(provider="anthropic", redacted=True):
            return {"type": "redacted_thinking", "data": block.signature, **block.extra}
        case Reasoning(provider="anthropic"):
            signed = {} if block.signature is None else {"signature": block.signature}
            return {"type": "thinking", "thinking": block.text, **signed, **block.extra}
        case Reasoning():
            notes.dropped("reasoning", f"Anthropic takes none that {block.provider or 'another'} produced")
            return None
        case Unknown(provider="anthropic", raw=dict(raw)):
            return deepcopy(raw)
    notes.dropped(kind_of(block), f"Anthropic has no way to say what {block.provider or 'another'} means")
    return None


def _built_media(media: Media, notes: Notes) -> dict[str, Any] | None:
    if media.kind not in ("image", "file"):
        notes.dropped(media.kind, "Anthropic takes images and documents only")
        return None
    if media.kind == "file" and media.mime == _PLAIN and (text := _plain_text(media.data)) is not None:
        source = {"type": "text", "media_type": _PLAIN, "data": text}
    elif media.data is not None:
        default = "image/png" if media.kind == "image" else "application/pdf"
        source = {"type": "base64", "media_type": media.mime or default, "data": media.data}
    elif media.url is not None:
        source = {"type": "url", "url": media.url}
    elif media.file_id is not None and media.provider == ID:
        source = {"type": "file", "file_id": media.file_id}
    else:
        notes.dropped(media.kind, f"its bytes are kept by {media.provider or 'another provider'}")
        return None
    built: dict[str, Any] = {"type": "image" if media.kind == "image" else "document", "source": source}
    if media.name is not None and media.kind == "file":
        built["title"] = media.name
    return {**built, **note_extra(media, ID, notes)}


def _plain_text(data: str | None) -> str | None:
    body = None if data is None else decoded(data)
    try:
        return None if body is None else body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def _built_result(result: ToolResult, notes: Notes) -> dict[str, Any]:
    if not result.content and result.value is not None:
        content: Any = result.value if isinstance(result.value, str) else json_text(result.value)
    else:
        content = _simplest([made for each in result.content if (made := build_block(each, notes))])
    built: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id or ""}
    if content != []:
        built["content"] = content
    if result.is_error:
        built["is_error"] = True
    return {**built, **note_extra(result, ID, notes)}
