"""What goes into a briefing: facts, each with its id, age, origin and how far it may be trusted."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import MappingProxyType
from typing import Any

import msgspec

from everthread.arguments import counted
from everthread.messages.model import Notes, laid_open
from everthread.messages.view import readable, texts
from everthread.values import Erased, Opaque, Personal, reveal


class Kind(enum.StrEnum):
    """What a fact is about. The order is the order in a briefing: what is open before what is settled."""

    RUN = "run"
    GOAL = "goal"
    NEXT = "next"
    CONSTRAINT = "constraint"
    DRIFT = "drift"
    CALL = "call"
    #: Decisions without an outcome; those with one are ``DECIDED``.
    DECISION = "decision"
    TODO = "todo"
    LOOP = "loop"
    DECIDED = "decided"
    CONTEXT = "context"
    FAILURE = "failure"
    SETTLED = "settled"
    FINISHED = "finished"
    EXCHANGE = "exchange"


class Trust(enum.StrEnum):
    """``verified``: checked against reality for this briefing. ``stale``: contradicted, or too old to rely
    on. ``unverified``: as it was recorded; nothing checked it."""

    VERIFIED = "verified"
    STALE = "stale"
    UNVERIFIED = "unverified"


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``text`` may hold anything: it is made harmless when it is written.

    ``at_us``: when it was recorded, None if nobody knows. ``source``: where it comes from. ``state``: how it
    stands, in words that several facts share. ``named``: its id is a name that somebody gave, such as a key,
    and stays whole; other ids are shortened.
    """

    kind: Kind
    id: str
    text: str
    source: str
    at_us: int | None = None
    trust: Trust = Trust.UNVERIFIED
    state: str = ""
    named: bool = False


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a briefing is made of; the same background gives the same text.

    ``facts``: within a kind the most important first (exchanges: the newest first). ``more``: how many of a
    kind exist beside these. ``now_us``: the moment that ages refer to.
    """

    thread: str
    version: int | None
    now_us: int
    facts: tuple[Fact, ...]
    more: Mapping[Kind, int] = MappingProxyType({})


def limited(
    facts: Sequence[Fact], each_max: int, beside: Mapping[Kind, int]
) -> tuple[tuple[Fact, ...], dict[Kind, int]]:
    """The first ``each_max`` facts of each kind, constraints always all, and how many of each kind there are
    beside these; ``beside`` is how many there are that aren't among ``facts`` at all."""
    kept = [
        fact
        for kind in Kind
        for fact in islice(
            (each for each in facts if each.kind is kind), None if kind is Kind.CONSTRAINT else each_max
        )
    ]
    more = Counter(fact.kind for fact in facts)
    more.subtract(fact.kind for fact in kept)
    more.update(beside)
    return tuple(kept), {kind: count for kind, count in more.items() if count > 0}


# ── stored values as short texts; personal ones are masked ──────────────────────────────────────────


MASK = "•••"
_DEPTH_MAX = 4
_ITEMS_MAX = 12
_TEXT_MAX = 2_000
_SET_MAX = 100


_revealing: ContextVar[bool] = ContextVar("revealing", default=False)


@contextmanager
def revealing(on: bool) -> Iterator[None]:
    """Whether personal values are shown in clear within the block, because somebody asked for it."""
    before = _revealing.set(on)
    try:
        yield
    finally:
        _revealing.reset(before)


def masked(text: str) -> str:
    """A personal text as it is shown."""
    return text if _revealing.get() else MASK


def shown(value: Any) -> str:
    """``value`` as text: a text as it is, anything else much like JSON, cut where it is deep or long."""
    if _revealing.get():
        value = reveal(value)
    if isinstance(value, str):
        return value
    return _shown(value, _DEPTH_MAX)[:_TEXT_MAX]


def _shown(value: Any, depth: int) -> str:
    match value:
        case Personal():
            return MASK
        case Erased():
            return "(erased)"
        case Opaque():
            return "(of a type that isn't known here)"
        case None | bool() | int() | float():
            # A very long integer can't be turned into text, and nobody would read it.
            return str(value) if not isinstance(value, int) or value.bit_length() < 512 else "(large number)"
        case str():
            return '"' + value[:_TEXT_MAX] + '"'
        case bytes() | bytearray():
            return f"({counted(len(value), 'byte')})"
        case Mapping() | Sequence() | set() | frozenset() if depth == 0:
            return "…"
        case Mapping():
            pairs = islice(value.items(), _ITEMS_MAX)
            parts = [f"{_key(key)}: {_shown(item, depth - 1)}" for key, item in pairs]
            return "{" + _listed(parts, len(value)) + "}"
        case Sequence():
            return "[" + _listed([_shown(item, depth - 1) for item in value[:_ITEMS_MAX]], len(value)) + "]"
        case set() | frozenset() if len(value) > _SET_MAX:
            return f"({len(value):,} items)"
        case set() | frozenset():
            # Sorted by how they look: the order of a set differs from run to run.
            return "{" + _listed(sorted(_shown(item, 0) for item in value)[:_ITEMS_MAX], len(value)) + "}"
    return _described(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _shown(key, 0)


def _listed(parts: list[str], count: int) -> str:
    return ", ".join(parts) + (f", … {count - len(parts):,} more" if count > len(parts) else "")


def _described(value: Any) -> str:
    """A value of another type, such as a date. An object whose text shows where it lies in memory differs
    from run to run, so only its type is named."""
    kind = type(value)
    if all(getattr(kind, name) is getattr(object, name) for name in ("__str__", "__repr__")):
        return f"({kind.__name__})"
    if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__"):
        names = list(getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__)
        return f"{kind.__name__}{_shown({name: getattr(value, name, None) for name in names}, 2)}"
    if hasattr(kind, "model_fields"):
        return f"{kind.__name__}{_shown({name: getattr(value, name, None) for name in kind.model_fields}, 2)}"
    return str(value)


def message_text(item: Any) -> tuple[str, str]:
    """Who speaks in a message and what it says, for the shapes that frameworks give messages."""
    if not isinstance(item, Mapping):
        return "", shown(item)
    if "shape" in item and isinstance(item.get("message"), Mapping):
        # A provider's own message, kept with the name of its shape.
        messages = readable(item) if laid_open(item, False, Notes()) is item else None
        if messages:
            return messages[-1].role, " ".join(text for message in messages for text in texts(message))
        item = item["message"]
    speaker = item.get("role", item.get("type", ""))
    if isinstance(item.get("data"), Mapping):
        # LangChain's form: who speaks stands outside.
        item = item["data"]
    role = item.get("role", item.get("type", speaker))
    content = item.get("content", item.get("text", item.get("parts", item.get("output"))))
    if content is None:
        rest = {key: value for key, value in item.items() if key not in ("id", "role", "type")}
        return (role if isinstance(role, str) else ""), shown(rest)
    said = [_content(content), *_calls(item.get("tool_calls"))]
    return (role if isinstance(role, str) else ""), " ".join(part for part in said if part)


def _calls(calls: Any) -> Iterator[str]:
    """Tools that a message asks for, in the shapes that have them beside its content."""
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        return
    for call in calls[:_ITEMS_MAX]:
        if isinstance(call, Mapping):
            function = call.get("function")
            asked = function if isinstance(function, Mapping) else call
            yield f"{shown(asked.get('name', ''))}({shown(asked.get('args', asked.get('arguments', '')))})"


def _content(content: Any) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        return " ".join(_block(block) for block in content[:_ITEMS_MAX])
    return shown(content)


def _block(block: Any) -> str:
    """One part of a message: its text, or what kind of thing it is."""
    if isinstance(block, Mapping):
        text = block.get("text")
        if isinstance(text, str):
            return text
        if isinstance(text, Personal):
            return shown(text)
    return shown(block)
