"""What the shapes have in common: looking into a provider's values without trusting them, and JSON."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everthread.errors import InvalidValueError
from everthread.messages.model import Block, Media, MediaKind, Text, ToolCall, ToolResult, Unknown
from everthread.messages.reports import Notes

#: What says how a message or block is written, or that it is complete; not what it says.
_MERE_FORM = frozenset({"type", "role", "status", "object", "example"})
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)


def rest(raw: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """The fields that have no canonical name."""
    return {name: value for name, value in raw.items() if name not in known}


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_optional_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def parsed_arguments(text: str) -> Mapping[str, Any] | None:
    """Arguments that a model wrote, if they are a JSON object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def json_text(value: Any) -> str:
    """Data as JSON text. Raises :class:`InvalidValueError` for what JSON can't hold."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError):
        pass
    try:
        # Slower, but it writes integers of any size, and text that isn't valid Unicode.
        return json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"this can't be written as JSON for a provider: {error}") from error


def arguments_text(call: ToolCall) -> str:
    """The arguments as the model wrote them, else written now."""
    return call.raw if call.raw is not None else json_text(dict(call.arguments or {}))


def arguments_data(call: ToolCall, notes: Notes) -> dict[str, Any]:
    """The arguments as data; text that isn't a JSON object is put into one."""
    if call.arguments is not None or call.raw is None:
        return dict(call.arguments or {})
    if call.raw.strip() == "":
        return {}
    if not call.custom:
        notes.changed("tool call", f"the arguments of {call.name!r} are not a JSON object; sent as text")
    return {"input": call.raw}


def texts_of(blocks: Iterable[Block], notes: Notes, where: str) -> str:
    """The text among blocks, for a place that takes nothing else."""
    texts = []
    for block in blocks:
        if isinstance(block, Text):
            texts.append(block.text)
        else:
            notes.dropped(kind_of(block), f"{where} takes text only")
    return "\n".join(texts)


def result_text(result: ToolResult, notes: Notes, where: str) -> str:
    """A tool's answer as text."""
    if not result.content and result.value is not None:
        return result.value if isinstance(result.value, str) else json_text(result.value)
    return texts_of(result.content, notes, where)


def kind_of(block: Block) -> str:
    """What a report calls a block."""
    if isinstance(block, Media):
        return block.kind
    if isinstance(block, Unknown):
        named = block.raw.get("type") if isinstance(block.raw, Mapping) else None
        return f"block {named!r}" if isinstance(named, str) else "block"
    names = {"Text": "text", "ToolCall": "tool call", "ToolResult": "tool result", "Reasoning": "reasoning"}
    return names.get(type(block).__name__, "block")


def note_extra(block: Block, target: str, notes: Notes) -> dict[str, Any]:
    """What a block carries beyond its canonical fields, if the target has the same names for it; otherwise
    it is noted as dropped, unless it says nothing."""
    if block.provider == target:
        return dict(block.extra)
    if lost := meaningful(block.extra):
        notes.dropped(", ".join(lost), f"only {block.provider} has this in a {kind_of(block)}")
    return {}


def meaningful(extra: Mapping[str, Any]) -> list[str]:
    """The names of fields that say something beyond how a thing is written."""
    said = {name for name, value in extra.items() if value not in (None, [], {}, "", False)}
    return sorted(said - _MERE_FORM)


def own_raw(block: Block, shape: str) -> Any:
    """What the provider of this shape wrote for the block; ``None`` if it came from elsewhere."""
    return block.origin.raw if block.origin is not None and block.origin.shape == shape else None


def data_url(media: Media) -> str | None:
    """Where the bytes are, as a URL: that of the provider, or one that holds them."""
    if media.data is not None:
        return f"data:{media.mime or 'application/octet-stream'};base64,{media.data}"
    return media.url


def from_url(kind: MediaKind, url: str, **fields: Any) -> Media:
    """Media whose bytes may stand in the URL itself."""
    if found := _DATA_URL.fullmatch(url):
        return Media(kind=kind, mime=found[1] or None, data=found[2], **fields)
    return Media(kind=kind, url=url, **fields)


def decoded(data: str) -> bytes | None:
    """Bytes of base64 text, in either alphabet; ``None`` if it isn't that."""
    try:
        return base64.b64decode(data.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kind_for(mime: str | None) -> MediaKind:
    """The kind of media that a MIME type names."""
    match (mime or "").partition("/")[0]:
        case "image":
            return "image"
        case "audio":
            return "audio"
        case "video":
            return "video"
    return "file"
