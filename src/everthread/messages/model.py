"""A message as Everthread understands it, whichever provider it came from. Frozen; no I/O.

Every block and message remembers its ``origin``, the provider's own value. It takes no part in comparison:
who renders a message for the provider it came from gets that value back, bit for bit, unless the message was
changed since. ``extra`` holds what only that provider has a name for.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from everthread.errors import InvalidValueError
from everthread.values import Corrupt, Erased, Opaque, Personal

Role = Literal["system", "user", "assistant", "tool"]
MediaKind = Literal["image", "audio", "video", "file"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a provider wrote, and in which shape."""

    shape: str
    raw: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of a message. ``provider`` is the shape whose names ``extra`` uses."""

    provider: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Block):
    text: str
    #: A model that declines says so in a field of its own.
    refusal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Media(Block):
    """An image, a sound, a film or a file: its bytes as base64 text, or where they are."""

    kind: MediaKind
    mime: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(Block):
    """``call_id`` is what its result names, ``item_id`` what the provider calls the item itself. ``raw`` are
    the arguments as the model wrote them, if it wrote text; ``arguments`` the same as data, ``None`` if that
    text isn't a JSON object."""

    call_id: str | None
    name: str
    item_id: str | None = None
    raw: str | None = None
    arguments: Mapping[str, Any] | None = None
    #: Its input is free text, not JSON.
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult(Block):
    """What a tool answered: as blocks, and as data where the provider keeps data."""

    call_id: str | None
    content: tuple[Block, ...] = ()
    value: Any = None
    name: str | None = None
    item_id: str | None = None
    is_error: bool = False
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(Block):
    """What a model thought. ``signature`` is opaque and of worth only to ``provider``, which wants it back
    unchanged."""

    text: str = ""
    signature: Any = None
    #: The provider shows no text, only the signature.
    redacted: bool = False
    item_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Block):
    """A block of a kind that has no canonical form; kept as it is."""

    raw: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Role
    blocks: tuple[Block, ...] = ()
    id: str | None = None
    name: str | None = None
    provider: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = field(default=None, compare=False, repr=False)
    #: Where in the log it stood; what reports point to.
    index: int | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """All its text, without reasoning and tool calls."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, Text))

    def with_blocks(self, blocks: tuple[Block, ...]) -> Message:
        """The same with other blocks."""
        return replace(self, blocks=blocks)


# What a conversion dropped, changed or added: nothing goes missing without a word.


Kind = Literal["dropped", "changed", "added"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was stored. ``index`` is the message's place in the log, if it has one."""

    kind: Kind
    what: str
    why: str
    index: int | None = None

    def __str__(self) -> str:
        where = "" if self.index is None else f"message {self.index}: "
        return f"{where}{self.what} {self.kind}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """All changes of a conversion, in the order of the messages. True if there are any."""

    changes: tuple[Change, ...] = ()

    @property
    def dropped(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "dropped")

    @property
    def changed(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "changed")

    @property
    def added(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "added")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def summary(self) -> str:
        """One line: ``2 dropped, 1 changed``."""
        counts = Counter(each.kind for each in self.changes)
        return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing lost"

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "nothing lost"


class Notes:
    """Collects changes while a conversion goes on."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        #: The message that is being converted.
        self.index: int | None = None

    def dropped(self, what: str, why: str) -> None:
        self._changes.append(Change("dropped", what, why, self.index))

    def changed(self, what: str, why: str) -> None:
        self._changes.append(Change("changed", what, why, self.index))

    def added(self, what: str, why: str) -> None:
        self._changes.append(Change("added", what, why, self.index))

    def report(self) -> Report:
        return Report(tuple(sorted(self._changes, key=lambda each: -1 if each.index is None else each.index)))


# What the shapes have in common: looking into a provider's values without trusting them, and JSON.


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


def written_arguments(value: Any) -> dict[str, Any]:
    """Return the fields ``raw`` and ``arguments`` of a call whose arguments a framework keeps as data or as
    text. What is neither an object nor text, such as a list, is kept as JSON text."""
    if value is None or isinstance(value, Mapping):
        return {"raw": None, "arguments": dict(value or {})}
    text = value if isinstance(value, str) else json_text(value)
    return {"raw": text, "arguments": parsed_arguments(text)}


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


# Personal values on their way out: shown only by choice, and erased ones as what they are.


WITHHELD = "[personal data withheld]"
ERASED = "[personal data erased]"
DAMAGED = "[damaged and not readable]"


def laid_open(value: Any, reveal: bool, notes: Notes) -> Any:
    """The same value with text in place of what isn't shown. Copies only what holds such a thing."""
    match value:
        case Personal() if reveal:
            # What was sealed as a whole may hold further ones.
            shown = value.value
            return laid_open(ERASED if shown is None else shown, reveal, notes)
        case Personal():
            notes.changed("personal value", "withheld; reveal=True shows it")
            return WITHHELD
        case Erased():
            notes.changed("personal value", "it was erased")
            return ERASED
        case Corrupt() | Opaque():
            notes.changed("value", "it is damaged, or of a type that this process doesn't know")
            return DAMAGED
        case Mapping():
            made = {name: laid_open(each, reveal, notes) for name, each in value.items()}
            return made if any(made[name] is not value[name] for name in made) else value
        case list():
            items = [laid_open(each, reveal, notes) for each in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
