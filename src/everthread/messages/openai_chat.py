"""OpenAI Chat Completions: a role, text or parts, tool calls beside them; each tool result is a message."""

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
    arguments_text,
    data_url,
    from_url,
    is_optional_text,
    kind_of,
    note_extra,
    parsed_arguments,
    rest,
    result_text,
)

ID: Final = "openai.chat"

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
#: What the API calls the formats of sound it takes.
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one message."""
    role = _ROLES.get(str(raw.get("role")), "user")
    if role == "tool" and is_optional_text(raw.get("tool_call_id")):
        return _parsed_tool(raw, index)
    known = ["role", "content"]
    blocks = list(_content(raw.get("content")))
    refusal = raw.get("refusal")
    if isinstance(refusal, str):
        known.append("refusal")
        blocks.append(Text(text=refusal, refusal=True, provider=ID))
    calls = raw.get("tool_calls")
    if isinstance(calls, list):
        known.append("tool_calls")
        blocks += map(_parsed_call, calls)
    name = raw.get("name")
    if isinstance(name, str):
        known.append("name")
    extra = rest(raw, *known)
    if raw.get("role") == "developer":
        extra["role"] = "developer"
    return Message(
        role=role,
        blocks=tuple(blocks),
        name=name if isinstance(name, str) else None,
        provider=ID,
        extra=extra,
        origin=Origin(ID, raw),
        index=index,
    )


def _parsed_tool(raw: Mapping[str, Any], index: int | None) -> Message:
    result = ToolResult(
        call_id=raw.get("tool_call_id"),
        content=tuple(_content(raw.get("content"))),
        provider=ID,
        extra=rest(raw, "role", "content", "tool_call_id"),
    )
    return Message(role="tool", blocks=(result,), provider=ID, origin=Origin(ID, raw), index=index)


def _content(content: Any) -> list[Block]:
    match content:
        case None:
            return []
        case str():
            return [Text(text=content, provider=ID)]
        case list():
            return [_parsed_part(each) for each in content]
    return [Unknown(raw=content, provider=ID)]


def _parsed_part(raw: Any) -> Block:
    made: dict[str, Any] = {"provider": ID, "origin": Origin(ID, raw)}
    match raw:
        case str():
            return Text(text=raw, **made)
        case {"type": "text", "text": str(text)}:
            return Text(text=text, extra=rest(raw, "type", "text"), **made)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text=text, refusal=True, extra=rest(raw, "type", "refusal"), **made)
        case {"type": "image_url", "image_url": {"url": str(url), **others}}:
            beside = rest(raw, "type", "image_url")
            if not beside.keys() & others.keys():
                return from_url("image", url, extra={**beside, **others}, **made)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(sound), **others}}:
            if sound in _SOUNDS and not others:
                extra = rest(raw, "type", "input_audio")
                return Media(kind="audio", mime=_SOUNDS[sound], data=data, extra=extra, **made)
        case {"type": "file", "file": dict(file)}:
            if (block := _parsed_file(raw, file, made)) is not None:
                return block
    return Unknown(raw=raw, **made)


def _parsed_file(raw: Mapping[str, Any], file: Mapping[str, Any], made: dict[str, Any]) -> Block | None:
    extra = rest(raw, "type", "file")
    match dict(file):
        case {"file_id": str(file_id), **others} if not others:
            return Media(kind="file", file_id=file_id, extra=extra, **made)
        case {"file_data": str(url), "filename": str(name), **others} if not others:
            media = from_url("file", url, name=name, extra=extra, **made)
            return media if media.data is not None else None
    return None


def _parsed_call(raw: Any) -> Block:
    made: dict[str, Any] = {"provider": ID, "origin": Origin(ID, raw)}
    match raw:
        case {
            "id": str(call_id),
            "type": "function",
            "function": {"name": str(name), "arguments": str(text), **others},
        }:
            if not others:
                return ToolCall(
                    call_id=call_id,
                    name=name,
                    raw=text,
                    arguments=parsed_arguments(text),
                    extra=rest(raw, "id", "type", "function"),
                    **made,
                )
        case {"id": str(call_id), "type": "custom", "custom": {"name": str(name), "input": str(text)}}:
            if len(raw["custom"]) == 2:
                extra = rest(raw, "id", "type", "custom")
                return ToolCall(call_id=call_id, name=name, raw=text, custom=True, extra=extra, **made)
    return Unknown(raw={"tool_call": raw}, **made)


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The messages that say this: first one for each tool result, then what else there is."""
    built = [_built_result(block, notes) for block in message.blocks if isinstance(block, ToolResult)]
    others = [block for block in message.blocks if not isinstance(block, ToolResult)]
    if others or not message.blocks:
        own: dict[str, Any] = {"role": message.role if message.role != "tool" else "user"}
        parts, calls = _built_parts(others, own["role"], notes)
        own["content"] = _simplest(parts) if parts else None
        if calls:
            own["tool_calls"] = calls
        if message.name is not None:
            own["name"] = message.name
        if message.provider == ID:
            own.update(message.extra)
        if parts or calls or not others:
            built.append(own)
    return built


def _built_parts(blocks: list[Block], role: str, notes: Notes) -> tuple[list[Any], list[Any]]:
    parts: list[Any] = []
    calls: list[Any] = []
    for block in blocks:
        if isinstance(block, ToolCall):
            calls.append(_built_call(block, notes))
        elif isinstance(block, Unknown) and block.provider == ID and _is_call(block):
            calls.append(deepcopy(block.raw["tool_call"]))
        elif (part := _built_part(block, role, notes)) is not None:
            parts.append(part)
    return parts, calls


def _is_call(block: Unknown) -> bool:
    return isinstance(block.raw, dict) and "tool_call" in block.raw


def _simplest(parts: list[dict[str, Any]]) -> Any:
    match parts:
        case [{"type": "text", "text": text, **others}] if not others:
            return text
    return parts


def _built_part(block: Block, role: str, notes: Notes) -> dict[str, Any] | None:
    match block:
        case Text(refusal=True) if role == "assistant":
            return {"type": "refusal", "refusal": block.text, **note_extra(block, ID, notes)}
        case Text():
            return {"type": "text", "text": block.text, **note_extra(block, ID, notes)}
        case Media() if role != "user":
            notes.dropped(block.kind, f"Chat Completions takes none from the {role}")
            return None
        case Media():
            return _built_media(block, notes)
        case Reasoning():
            notes.dropped("reasoning", "Chat Completions takes none")
            return None
        case Unknown(provider="openai.chat", raw=dict(raw)):
            return deepcopy(raw)
    notes.dropped(kind_of(block), f"Chat Completions has no way to say what {block.provider} means")
    return None


def _built_media(media: Media, notes: Notes) -> dict[str, Any] | None:
    url = data_url(media)
    if media.kind == "image" and url is not None:
        return {"type": "image_url", "image_url": {"url": url, **note_extra(media, ID, notes)}}
    extra = note_extra(media, ID, notes)
    sound = next((name for name, mime in _SOUNDS.items() if mime == media.mime), None)
    if media.kind == "audio" and media.data is not None and sound is not None:
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": sound}, **extra}
    if media.kind == "file" and media.data is not None:
        file = {"file_data": url, "filename": media.name or "file"}
        return {"type": "file", "file": file, **extra}
    if media.kind == "file" and media.file_id is not None and media.provider.startswith("openai"):
        return {"type": "file", "file": {"file_id": media.file_id}, **extra}
    notes.dropped(media.kind, "Chat Completions can't take it in this form")
    return None


def _built_call(call: ToolCall, notes: Notes) -> dict[str, Any]:
    extra = note_extra(call, ID, notes)
    if call.custom:
        custom = {"name": call.name, "input": call.raw or ""}
        return {"id": call.call_id or "", "type": "custom", "custom": custom, **extra}
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.call_id or "", "type": "function", "function": function, **extra}


def _built_result(result: ToolResult, notes: Notes) -> dict[str, Any]:
    if result.provider == ID:
        parts = [made for each in result.content if (made := _built_part(each, "tool", notes)) is not None]
        content: Any = _simplest(parts)
    else:
        content = result_text(result, notes, "a tool message of Chat Completions")
    if result.is_error:
        notes.changed("tool result", "Chat Completions doesn't mark errors; the text says so")
        content = f"Error: {content}" if isinstance(content, str) else content
    extra = note_extra(result, ID, notes)
    return {"role": "tool", "tool_call_id": result.call_id or "", "content": content, **extra}
