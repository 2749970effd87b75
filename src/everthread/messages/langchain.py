"""LangChain: messages as ``message_to_dict`` stores them: a type, and data with content and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from everthread.messages import anthropic
from everthread.messages.model import (
    Block,
    Media,
    MediaKind,
    Message,
    Notes,
    Origin,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    from_url,
    is_optional_text,
    kind_of,
    note_extra,
    rest,
    result_text,
)

ID: Final = "langchain"

_ROLES: Final[Mapping[str, Role]] = {
    "human": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessageChunk": "system",
    "tool": "tool",
    "ToolMessageChunk": "tool",
}
_TYPES: Final = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}
_MEDIA: Final[tuple[MediaKind, ...]] = ("image", "audio", "video", "file")


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one stored message."""
    data, kind = raw.get("data"), raw.get("type")
    origin = Origin(ID, raw)
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _ROLES:
        unknown = Unknown(raw=dict(raw), provider=ID)
        return Message(role="user", blocks=(unknown,), provider=ID, origin=origin, index=index)
    role = _ROLES[kind]
    item_id, name = data.get("id"), data.get("name")
    known = ["content", "type", "id", "name"]
    if role == "tool" and isinstance(data.get("tool_call_id"), str):
        known += ["tool_call_id", "status", "artifact"]
        blocks: list[Block] = [_parsed_tool(data)]
    else:
        calls = _parsed_calls(data, known)
        blocks = _with_calls(_content(data.get("content")), calls)
    return Message(
        role=role,
        blocks=tuple(blocks),
        id=item_id if is_optional_text(item_id) else None,
        name=name if is_optional_text(name) and role != "tool" else None,
        provider=ID,
        extra=rest(data, *known),
        origin=origin,
        index=index,
    )


def _content(content: Any) -> list[Block]:
    match content:
        case None | "":
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
        case {"type": "reasoning", "reasoning": str(text)}:
            return Reasoning(text=text, extra=rest(raw, "type", "reasoning"), **made)
        case {"type": "thinking" | "redacted_thinking"}:
            # As ChatAnthropic leaves it: signed by Anthropic, and worth keeping for it.
            block = anthropic.parse_block(raw)
            return block if isinstance(block, Reasoning) else Unknown(raw=raw, **made)
        case {"type": "image_url", "image_url": {"url": str(url)}} if len(raw["image_url"]) == 1:
            return from_url("image", url, extra=rest(raw, "type", "image_url"), **made)
        case {"type": "image" | "document", "source": dict()}:
            return anthropic.parse_block(raw)
        case {"type": "image" | "audio" | "video" | "file" as kind}:
            if (media := _parsed_media(kind, raw, made)) is not None:
                return media
    return Unknown(raw=raw, **made)


def _parsed_media(kind: MediaKind, raw: Mapping[str, Any], made: dict[str, Any]) -> Block | None:
    mime = raw.get("mime_type")
    places = {name: raw[name] for name in ("base64", "url", "file_id") if raw.get(name) is not None}
    if len(places) != 1 or not is_optional_text(mime):
        return None
    ((place, value),) = places.items()
    if not isinstance(value, str):
        return None
    held: dict[str, Any] = {"data" if place == "base64" else place: value}
    return Media(kind=kind, mime=mime, extra=rest(raw, "type", "mime_type", place), **held, **made)


def _parsed_calls(data: Mapping[str, Any], known: list[str]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for field in ("tool_calls", "invalid_tool_calls"):
        listed = data.get(field)
        if not isinstance(listed, list) or not all(map(_is_call, listed)):
            continue
        known.append(field)
        for each in listed:
            arguments = each.get("args")
            calls.append(
                ToolCall(
                    call_id=each.get("id"),
                    name=each["name"],
                    raw=arguments if isinstance(arguments, str) else None,
                    arguments=arguments if isinstance(arguments, dict) else None,
                    extra=rest(each, "id", "name", "args", "type"),
                    provider=ID,
                )
            )
    return calls


def _is_call(raw: Any) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("name"), str) and is_optional_text(raw.get("id"))


def _with_calls(blocks: list[Block], calls: list[ToolCall]) -> list[Block]:
    """The calls where the content marks them, and after it those that it doesn't."""
    left = list(calls)
    placed: list[Block] = []
    for block in blocks:
        raw = block.raw if isinstance(block, Unknown) else None
        if isinstance(raw, dict) and raw.get("type") in ("tool_use", "tool_call", "function_call"):
            marks = (raw.get("call_id"), raw.get("id"))
            call = next((each for each in left if each.call_id is not None and each.call_id in marks), None)
            if call is not None:
                left.remove(call)
                placed.append(call)
                continue
        placed.append(block)
    return placed + left


def _parsed_tool(data: Mapping[str, Any]) -> ToolResult:
    name = data.get("name")
    return ToolResult(
        call_id=data["tool_call_id"],
        name=name if is_optional_text(name) else None,
        content=tuple(_content(data.get("content"))),
        is_error=data.get("status") == "error",
        # Not for the model: what the program keeps of the tool's answer.
        extra={"artifact": data.get("artifact")},
        provider=ID,
    )


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The messages that say this: first one for each tool result, then what else there is."""
    ours = message.provider == ID
    match message.blocks:
        case (Unknown(provider="langchain", raw={"type": _, "data": _} as raw),):
            return [deepcopy(raw)]
    built = [_built_tool(message, block, notes) for block in message.blocks if isinstance(block, ToolResult)]
    others = [block for block in message.blocks if not isinstance(block, ToolResult)]
    if others or not message.blocks:
        kind = _TYPES["user" if message.role == "tool" else message.role]
        data: dict[str, Any] = {"content": _built_content(others, notes)}
        data |= {"additional_kwargs": {}, "response_metadata": {}, "type": kind}
        data |= {"name": message.name, "id": message.id}
        if kind == "ai":
            data |= _built_calls(others, notes)
        data |= dict(message.extra) if ours else {}
        built.append({"type": kind, "data": data})
    return built


def _built_content(blocks: list[Block], notes: Notes) -> Any:
    parts = [
        made
        for block in blocks
        if not isinstance(block, ToolCall) and (made := _built_part(block, notes)) is not None
    ]
    match parts:
        case []:
            return ""
        case [{"type": "text", "text": text, **others}] if text and not others:
            return text
    return parts


def _built_part(block: Block, notes: Notes) -> dict[str, Any] | None:
    match block:
        case Text():
            return {"type": "text", "text": block.text, **note_extra(block, ID, notes)}
        case Media():
            typed = {} if block.mime is None else {"mime_type": block.mime}
            place = {"base64": block.data, "url": block.url, "file_id": block.file_id}
            held = {name: value for name, value in place.items() if value is not None}
            return {"type": block.kind, **held, **typed, **note_extra(block, ID, notes)}
        case Reasoning(provider="anthropic"):
            return anthropic.build_block(block, notes)
        case Reasoning(provider="langchain"):
            return {"type": "reasoning", "reasoning": block.text, **block.extra}
        case Unknown(provider="langchain", raw=dict(raw)):
            return deepcopy(raw)
    notes.dropped(kind_of(block), f"LangChain has no way to say what {block.provider or 'another'} means")
    return None


def _built_calls(blocks: list[Block], notes: Notes) -> dict[str, Any]:
    valid: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    for call in blocks:
        if not isinstance(call, ToolCall):
            continue
        extra = note_extra(call, ID, notes)
        if call.arguments is None and call.raw is not None and not call.custom:
            wrong = {"name": call.name, "args": call.raw, "id": call.call_id, "error": None}
            invalid.append({**wrong, "type": "invalid_tool_call", **extra})
        else:
            arguments = {"input": call.raw} if call.custom else dict(call.arguments or {})
            made = {"name": call.name, "args": arguments, "id": call.call_id, "type": "tool_call"}
            valid.append({**made, **extra})
    return {"tool_calls": valid, "invalid_tool_calls": invalid}


def _built_tool(message: Message, result: ToolResult, notes: Notes) -> dict[str, Any]:
    parts = _built_content(list(result.content), notes)
    content = parts or result_text(result, notes, "a tool message") if not result.content else parts
    data: dict[str, Any] = {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "tool",
        "name": result.name,
        "id": message.id,
        "tool_call_id": result.call_id or "",
        "artifact": note_extra(result, ID, notes).get("artifact"),
        "status": "error" if result.is_error else "success",
    }
    if message.provider == ID:
        data |= dict(message.extra)
    return {"type": "tool", "data": data}
