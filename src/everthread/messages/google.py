"""Google GenAI: a Content with parts, named as the SDK names them (``function_call``) or as JSON does."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from everthread.errors import InvalidValueError
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
    is_optional_text,
    json_text,
    kind_for,
    kind_of,
    note_extra,
    own_raw,
    rest,
    result_text,
)

ID: Final = "google"

_ROLES: Final[Mapping[str, Role]] = {
    "user": "user",
    "model": "assistant",
    "system": "system",
    "function": "tool",
}
_NAMES: Final = {"system": "system", "user": "user", "assistant": "model", "tool": "user"}
#: What JSON calls the parts that have a canonical form.
_JSON_NAMES: Final = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "thoughtSignature": "thought_signature",
    "mimeType": "mime_type",
    "fileUri": "file_uri",
    "displayName": "display_name",
}
#: Of these exactly one makes a part what it is.
_KINDS: Final = frozenset({"text", "function_call", "function_response", "inline_data", "file_data"})


def parse(raw: Mapping[str, Any], index: int | None = None) -> Message:
    """The canonical form of one Content."""
    parts = raw.get("parts")
    if isinstance(parts, list):
        blocks: tuple[Block, ...] = tuple(map(parse_part, parts))
    elif isinstance(parts, str):
        blocks = (Text(text=parts, provider=ID),)
    else:
        blocks = () if parts is None else (Unknown(raw=parts, provider=ID),)
    return Message(
        role=_ROLES.get(str(raw.get("role")), "user"),
        blocks=blocks,
        provider=ID,
        extra=rest(raw, "role", "parts"),
        origin=Origin(ID, raw),
        index=index,
    )


def parse_part(raw: Any) -> Block:
    """The canonical form of one part; what isn't understood in full is kept raw."""
    block = _parsed(raw)
    return Unknown(raw=raw, provider=ID, origin=Origin(ID, raw)) if block is None else block


def _snake(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the SDK, without fields that say nothing."""
    return {_JSON_NAMES.get(name, name): value for name, value in raw.items() if value is not None}


def _parsed(raw: Any) -> Block | None:
    if isinstance(raw, str):
        return Text(text=raw, provider=ID, origin=Origin(ID, raw))
    if not isinstance(raw, dict) or not all(isinstance(name, str) for name in raw):
        return None
    part = _snake(raw)
    kinds = _KINDS & set(part)
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    made: dict[str, Any] = {"provider": ID, "origin": Origin(ID, raw)}
    match kind, part[kind]:
        case "text", str(text) if part.get("thought") is True:
            extra = rest(part, "text", "thought", "thought_signature")
            return Reasoning(text=text, signature=part.get("thought_signature"), extra=extra, **made)
        case "text", str(text):
            return Text(text=text, extra=rest(part, "text"), **made)
        case "inline_data" | "file_data", dict(data):
            return _media(kind, part, _snake(data), made)
        case "function_call", dict(call):
            return _call(part, _snake(call), made)
        case "function_response", dict(answer):
            return _response(part, _snake(answer), made)
    return None


def _media(kind: str, part: dict[str, Any], data: dict[str, Any], made: dict[str, Any]) -> Block | None:
    mime, name = data.get("mime_type"), data.get("display_name")
    body = data.get("data" if kind == "inline_data" else "file_uri")
    others = rest(data, "mime_type", "display_name", "data" if kind == "inline_data" else "file_uri")
    if others or not (is_optional_text(mime) and is_optional_text(name)):
        return None
    fields: dict[str, Any] = {"kind": kind_for(mime), "mime": mime, "name": name, "extra": rest(part, kind)}
    match kind, body:
        case "inline_data", bytes(body):
            return Media(data=encoded(body), **fields, **made)
        case "inline_data", str(body):
            # JSON has it in the alphabet for URLs, which nobody else takes.
            return Media(data=body.replace("-", "+").replace("_", "/"), **fields, **made)
        case "file_data", str(body):
            return Media(url=body, **fields, **made)
    return None


def _call(part: dict[str, Any], call: dict[str, Any], made: dict[str, Any]) -> Block | None:
    match call:
        case {"name": str(name), **others}:
            call_id, arguments = others.pop("id", None), others.pop("args", {})
            if others or not is_optional_text(call_id) or not isinstance(arguments, dict):
                return None
            extra = rest(part, "function_call")
            return ToolCall(call_id=call_id, name=name, arguments=arguments, extra=extra, **made)
    return None


def _response(part: dict[str, Any], answer: dict[str, Any], made: dict[str, Any]) -> Block | None:
    match answer:
        case {"name": str(name), **others}:
            call_id, value = others.pop("id", None), others.pop("response", {})
            if others or not is_optional_text(call_id) or not isinstance(value, dict):
                return None
            try:
                told = _told(value)
            except InvalidValueError:
                return None
            return ToolResult(
                call_id=call_id,
                name=name,
                value=value,
                content=(Text(text=told, provider=ID),),
                is_error=set(value) == {"error"},
                extra=rest(part, "function_response"),
                **made,
            )
    return None


def _told(value: dict[str, Any]) -> str:
    """What a response says, in one text."""
    match value:
        case (
            {"result": str(text), **others} | {"output": str(text), **others} | {"error": str(text), **others}
        ):
            if not others:
                return text
    return json_text(value)


# ── the way back ─────────────────────────────────────────────────────────────────────────────────


def build(message: Message, notes: Notes) -> list[dict[str, Any]]:
    """The Content that says this."""
    parts = [made for block in message.blocks if (made := build_part(block, notes)) is not None]
    if message.blocks and not parts:
        return []
    built: dict[str, Any] = {"role": _NAMES[message.role], "parts": parts}
    if message.provider == ID:
        built.update(message.extra)
    return [built]


def build_part(block: Block, notes: Notes) -> dict[str, Any] | None:
    """The part as the SDK takes it; ``None`` if there is no way to say it, which is noted."""
    if isinstance(raw := own_raw(block, ID), dict) and parse_part(raw) == block:
        return deepcopy(raw)
    match block:
        case Text():
            return {"text": block.text, **note_extra(block, ID, notes)}
        case Media():
            return _built_media(block, notes)
        case ToolCall(call_id=call_id, name=name):
            call = {"name": name, "args": arguments_data(block, notes)}
            if call_id is not None:
                call["id"] = call_id
            return {"function_call": call, **note_extra(block, ID, notes)}
        case ToolResult():
            return _built_response(block, notes)
        case Reasoning(provider="google"):
            signed = {} if block.signature is None else {"thought_signature": block.signature}
            return {"text": block.text, "thought": True, **signed, **block.extra}
        case Reasoning():
            notes.dropped("reasoning", f"Google takes none that {block.provider or 'another'} produced")
            return None
        case Unknown(provider="google", raw=dict(raw)):
            return deepcopy(raw)
    notes.dropped(kind_of(block), f"Google has no way to say what {block.provider or 'another'} means")
    return None


def _built_media(media: Media, notes: Notes) -> dict[str, Any] | None:
    extra = note_extra(media, ID, notes)
    named = {} if media.name is None else {"display_name": media.name}
    if media.data is not None:
        data = decoded(media.data)
        if data is None:
            notes.dropped(media.kind, "its data is not base64")
            return None
        mime = media.mime or "application/octet-stream"
        return {"inline_data": {"mime_type": mime, "data": data, **named}, **extra}
    if media.url is not None:
        typed = {} if media.mime is None else {"mime_type": media.mime}
        return {"file_data": {"file_uri": media.url, **typed, **named}, **extra}
    notes.dropped(media.kind, f"its bytes are kept by {media.provider or 'another provider'}")
    return None


def _built_response(result: ToolResult, notes: Notes) -> dict[str, Any]:
    value = result.value
    if not (result.provider == ID and isinstance(value, dict)):
        if isinstance(value, dict) and not result.content:
            value = dict(value)
        else:
            text = result_text(result, notes, "a function response")
            value = {"error" if result.is_error else "result": text}
    answer: dict[str, Any] = {"name": result.name or "", "response": value}
    if result.call_id is not None:
        answer["id"] = result.call_id
    return {"function_response": answer, **note_extra(result, ID, notes)}
