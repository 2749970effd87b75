"""A message as Everthread understands it, whichever provider it came from. Frozen; no I/O.

Every block and message remembers its ``origin``, the provider's own value. It takes no part in comparison:
who renders a message for the provider it came from gets that value back, bit for bit, unless the message was
changed since. ``extra`` holds what only that provider has a name for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
