"""OpenAI Responses: a flat list of items, of which messages are one kind."""

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

ID: Final = "openai.responses"

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
#: Items that the model wrote, whatever is in them, all end like this.
_BY_THE_MODEL: Final = ("_call", "reasoning")


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one item: a message of one block, unless the item is a message itself."""
    origin = Origin(ID, raw)
    match raw.get("type", "message"):
        case "message" if isinstance(raw.get("role"), str) and raw["role"] in _ROLES:
            return _parsed_message(raw, origin, index)
        case "function_call" | "custom_tool_call" as kind:
            role: Role = "assistant"
            block = _parsed_call(raw, kind == "custom_tool_call")
        case "function_call_output" | "custom_tool_call_output" as kind:
            role, block = "tool", _parsed_output(raw, kind == "custom_tool_call_output")
        case "reasoning":
            role, block = "assistant", _parsed_reasoning(raw)
        case kind:
            ours = isinstance(kind, str) and kind.endswith(_BY_THE_MODEL)
            role, block = "assistant" if ours else "user", None
    blocks = (block or Unknown(raw=dict(raw), provider=ID),)
    return Message(role=role, blocks=blocks, provider=ID, origin=origin, index=index)


def _parsed_message(raw: Mapping[str, Any], origin: Origin, index: int | None) -> Message:
    content = raw.get("content")
    item_id = raw.get("id")
    if isinstance(content, str):
        blocks: tuple[Block, ...] = (Text(text=content, provider=ID),)
    elif isinstance(content, list):
        blocks = tuple(map(_parsed_part, content))
    else:
        blocks = () if content is None else (Unknown(raw=content, provider=ID),)
    extra = rest(raw, "role", "content", "id" if is_optional_text(item_id) else "role")
    if raw["role"] == "developer":
        extra["role"] = "developer"
    return Message(
        role=_ROLES[raw["role"]],
        blocks=blocks,
        id=item_id if is_optional_text(item_id) else None,
        provider=ID,
        extra=extra,
        origin=origin,
        index=index,
    )


def _parsed_part(raw: Any) -> Block:
    made: dict[str, Any] = {"provider": ID, "origin": Origin(ID, raw)}
    match raw:
        case str():
            return Text(text=raw, **made)
        case {"type": "input_text" | "output_text", "text": str(text)}:
            return Text(text=text, extra=rest(raw, "type", "text"), **made)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text=text, refusal=True, extra=rest(raw, "type", "refusal"), **made)
        case {"type": "input_image", "image_url": str(url)} if raw.get("file_id") is None:
            return from_url("image", url, extra=rest(raw, "type", "image_url", "file_id"), **made)
        case {"type": "input_image", "file_id": str(file_id)} if raw.get("image_url") is None:
            extra = rest(raw, "type", "image_url", "file_id")
            return Media(kind="image", file_id=file_id, extra=extra, **made)
        case {"type": "input_file"}:
            if (block := _parsed_file(raw, made)) is not None:
                return block
    return Unknown(raw=raw, **made)


def _parsed_file(raw: Mapping[str, Any], made: dict[str, Any]) -> Block | None:
    given = {name: raw.get(name) for name in ("file_data", "file_url", "file_id")}
    name = raw.get("filename")
    extra = rest(raw, "type", "filename", *given)
    if not is_optional_text(name):
        return None
    match {key: value for key, value in given.items() if value is not None}:
        case {"file_data": str(url), **others} if not others and url.startswith("data:"):
            media = from_url("file", url, name=name, extra=extra, **made)
            return media if media.data is not None else None
        case {"file_url": str(url), **others} if not others and not url.startswith("data:"):
            return Media(kind="file", url=url, name=name, extra=extra, **made)
        case {"file_id": str(file_id), **others} if not others:
            return Media(kind="file", file_id=file_id, name=name, extra=extra, **made)
    return None


def _parsed_call(raw: Mapping[str, Any], custom: bool) -> Block | None:
    field = "input" if custom else "arguments"
    call_id, name, text, item_id = raw.get("call_id"), raw.get("name"), raw.get(field), raw.get("id")
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(text, str)):
        return None
    return ToolCall(
        call_id=call_id,
        item_id=item_id if is_optional_text(item_id) else None,
        name=name,
        raw=text,
        arguments=None if custom else parsed_arguments(text),
        custom=custom,
        provider=ID,
        extra=rest(raw, "type", "call_id", "name", field, *(["id"] if is_optional_text(item_id) else [])),
    )


def _parsed_output(raw: Mapping[str, Any], custom: bool) -> Block | None:
    call_id, output, item_id = raw.get("call_id"), raw.get("output"), raw.get("id")
    if not (isinstance(call_id, str) and isinstance(output, str | list)):
        return None
    parts = [output] if isinstance(output, str) else output
    return ToolResult(
        call_id=call_id,
        item_id=item_id if is_optional_text(item_id) else None,
        content=tuple(map(_parsed_part, parts)),
        custom=custom,
        provider=ID,
        extra=rest(raw, "type", "call_id", "output", *(["id"] if is_optional_text(item_id) else [])),
    )


def _parsed_reasoning(raw: Mapping[str, Any]) -> Block:
    """Its text is the summary; the list it came as is kept, because it goes back unchanged."""
    summary, item_id = raw.get("summary"), raw.get("id")
    texts = [each["text"] for each in summary if _has_text(each)] if isinstance(summary, list) else []
    return Reasoning(
        text="\n\n".join(texts),
        signature=raw.get("encrypted_content"),
        item_id=item_id if is_optional_text(item_id) else None,
        provider=ID,
        extra=rest(raw, "type", "encrypted_content", *(["id"] if is_optional_text(item_id) else [])),
    )


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The items that say this, in the order of the blocks."""
    built: list[dict[str, Any]] = []
    parts: list[Block] = []
    for block in message.blocks:
        item = _built_item(block, notes)
        if item is None:
            parts.append(block)
            continue
        built += _built_message(message, parts, notes)
        parts = []
        if item:
            built.append(item)
    if parts or not message.blocks:
        built += _built_message(message, parts, notes)
    return built


def _built_item(block: Block, notes: Notes) -> dict[str, Any] | None:
    """An item of its own; ``{}`` for what can't be said; ``None`` for what belongs into a message."""
    match block:
        case ToolCall():
            return _built_call(block, notes)
        case ToolResult():
            return _built_output(block, notes)
        case Reasoning(provider="openai.responses"):
            signed = {} if block.signature is None else {"encrypted_content": block.signature}
            return {"type": "reasoning", **_named(block.item_id), **signed, **block.extra}
        case Reasoning():
            notes.dropped("reasoning", f"OpenAI takes none that {block.provider or 'another'} produced")
            return {}
        case Unknown(provider="openai.responses", raw=dict(raw)) if not _is_part(raw):
            return deepcopy(raw)
    return None


def _is_part(raw: Mapping[str, Any]) -> bool:
    """Whether this stands within a message rather than beside it."""
    kind = raw.get("type")
    return not isinstance(kind, str) or kind.startswith("input_") or kind in ("output_text", "refusal")


def _named(item_id: str | None) -> dict[str, str]:
    return {} if item_id is None else {"id": item_id}


def _built_message(message: Message, blocks: list[Block], notes: Notes) -> list[dict[str, Any]]:
    role = "user" if message.role == "tool" else message.role
    parts = [made for block in blocks if (made := _built_part(block, role, notes)) is not None]
    if not parts and (blocks or message.blocks):
        return []
    content: Any = parts
    match parts:
        case [{"type": "input_text" | "output_text", "text": text, **others}] if not others:
            content = text
    item: dict[str, Any] = {"role": role, "content": content}
    if message.provider == ID:
        item.update(_named(message.id))
        item.update(message.extra)
    else:
        item["type"] = "message"
    return [item]


def _built_part(block: Block, role: str, notes: Notes) -> dict[str, Any] | None:
    match block:
        case Text(refusal=True) if role == "assistant":
            return {"type": "refusal", "refusal": block.text, **note_extra(block, ID, notes)}
        case Text():
            kind = "output_text" if role == "assistant" else "input_text"
            return {"type": kind, "text": block.text, **note_extra(block, ID, notes)}
        case Media() if role == "assistant":
            notes.dropped(block.kind, "Responses takes none from the assistant")
            return None
        case Media():
            return _built_media(block, notes)
        case Unknown(provider="openai.responses", raw=dict(raw)):
            return deepcopy(raw)
    notes.dropped(kind_of(block), f"Responses has no way to say what {block.provider or 'another'} means")
    return None


def _built_media(media: Media, notes: Notes) -> dict[str, Any] | None:
    url = data_url(media)
    extra = note_extra(media, ID, notes)
    ours = media.file_id is not None and media.provider.startswith("openai")
    if media.kind == "image" and url is not None:
        return {"type": "input_image", "image_url": url, **extra}
    if media.kind == "image" and ours:
        return {"type": "input_image", "file_id": media.file_id, **extra}
    default = {"filename": "file"}
    named = {} if media.name is None else {"filename": media.name}
    if media.kind == "file" and media.data is not None:
        return {
            "type": "input_file",
            "file_data": url,
            **({} if media.provider == ID else default),
            **named,
            **extra,
        }
    if media.kind == "file" and media.url is not None:
        return {"type": "input_file", "file_url": media.url, **named, **extra}
    if media.kind == "file" and ours:
        return {"type": "input_file", "file_id": media.file_id, **named, **extra}
    notes.dropped(media.kind, "Responses can't take it in this form")
    return None


def _built_call(call: ToolCall, notes: Notes) -> dict[str, Any]:
    own = {"call_id": call.call_id or "", "name": call.name}
    extra = {**_named(call.item_id if call.provider == ID else None), **note_extra(call, ID, notes)}
    if call.custom:
        return {"type": "custom_tool_call", **own, "input": call.raw or "", **extra}
    return {"type": "function_call", **own, "arguments": arguments_text(call), **extra}


def _built_output(result: ToolResult, notes: Notes) -> dict[str, Any]:
    kind = "custom_tool_call_output" if result.custom else "function_call_output"
    simple = all(isinstance(each, Text) and not each.extra for each in result.content)
    if not simple or len(result.content) > 1 or (result.provider == ID and not result.content):
        parts = [made for each in result.content if (made := _built_part(each, "user", notes)) is not None]
        output: Any = parts
    else:
        output = result_text(result, notes, "a tool output")
    if result.is_error:
        notes.changed("tool result", "Responses doesn't mark errors; the text says so")
        output = f"Error: {output}" if isinstance(output, str) else output
    extra = {**_named(result.item_id if result.provider == ID else None), **note_extra(result, ID, notes)}
    return {"type": kind, "call_id": result.call_id or "", "output": output, **extra}
