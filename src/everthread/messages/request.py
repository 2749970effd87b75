"""A log as a request to a provider: system extracted, roles merged, calls paired, ready to send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from everthread.errors import InvalidValueError
from everthread.messages import anthropic, google, shapes
from everthread.messages.model import (
    Block,
    Message,
    Notes,
    Report,
    Text,
    ToolCall,
    ToolResult,
    laid_open,
    texts_of,
)
from everthread.messages.pairing import Orphans, join_calls, pair

# Cache points for Anthropic: where a request says that all before is worth keeping.


#: More than this many are refused.
POINTS_MAX: Final = 4
TTLS: Final = ("5m", "1h")

_FIELD: Final = "cache_control"
#: These can't carry a point.
_NEVER: Final = ("thinking", "redacted_thinking")


def place(
    system: list[dict[str, Any]], messages: list[dict[str, Any]], ttl: str | None, notes: Notes
) -> None:
    """Put one point after the system prompt and one on the last block that can carry it, in place.

    Points that messages brought along stay, the newest first, as far as the limit allows.
    """
    if ttl is not None and ttl not in TTLS:
        raise InvalidValueError(f"cache is one of {', '.join(TTLS)}, or None, not {ttl!r}", path="cache")
    blocks = [*system, *(block for message in messages for block in message["content"])]
    marked = [block for block in blocks if block.get(_FIELD) is not None]
    wanted: list[dict[str, Any]] = []
    if ttl is not None:
        for group in (system, blocks[len(system) :]):
            last = next((block for block in reversed(group) if _cacheable(block)), None)
            if last is not None:
                wanted.append(last)
    for block in wanted:
        block.setdefault(_FIELD, _point(ttl))
    room = POINTS_MAX - len(wanted)
    others = [block for block in marked if not any(block is each for each in wanted)]
    surplus = others[: max(0, len(others) - room)]
    for block in surplus:
        del block[_FIELD]
    if surplus:
        notes.index = None
        notes.dropped("cache points", f"{len(surplus)} of the oldest; {POINTS_MAX} are allowed in all")


def _cacheable(block: dict[str, Any]) -> bool:
    return block.get("type") not in _NEVER and block.get("text") != ""


def _point(ttl: str | None) -> dict[str, Any]:
    # Five minutes is what the API takes for granted.
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


_ANY_ID: Final = re.compile(r".+", re.DOTALL)
_ANTHROPIC_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True, eq=False)
class Request(Mapping[str, Any]):
    """The arguments that a provider's SDK takes: ``client.messages.create(model=…, **request)``.

    ``messages`` and ``system`` are the same by name, and ``report`` says what was dropped, changed or added.
    """

    arguments: Mapping[str, Any]
    messages: list[Any]
    system: Any = None
    report: Report = field(default_factory=Report)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)


def canonical(
    items: Iterable[Any], *, shape: str | None = None, reveal: bool = False, notes: Notes | None = None
) -> list[Message]:
    """The items of a log as canonical messages. ``shape`` is that of items which don't say theirs.

    Personal values are shown only with ``reveal``. Raises :class:`InvalidValueError` for an item whose shape
    is unknown or can't be told.
    """
    notes = notes or Notes()
    if shape is not None:
        shapes.check_shape(shape)
    messages: list[Message] = []
    for index, item in enumerate(items):
        messages += canonical_item(item, index, notes, shape=shape, reveal=reveal)
    return messages


def canonical_item(
    item: Any, index: int, notes: Notes, *, shape: str | None = None, reveal: bool = False
) -> list[Message]:
    """The canonical messages that one item of a log is: none, one or several. Raises as :func:`canonical`."""
    notes.index = index
    opened = laid_open(item, reveal, notes)
    if isinstance(opened, str) and not isinstance(item, str):
        return [Message(role="user", blocks=(Text(text=opened),), index=index)]
    found, raw = shapes.disclose(opened, index, shape)
    return shapes.parse_all(found, raw, index)


def convert(
    items: Iterable[Any],
    to: str,
    *,
    shape: str | None = None,
    orphans: Orphans = "keep",
    reveal: bool = False,
) -> tuple[list[dict[str, Any]], Report]:
    """The items of a log in another shape, one after another, and what that cost.

    Messages of the same shape come back as they were stored, bit for bit. See :func:`for_anthropic` and its
    like for what can be sent at once.
    """
    shapes.check_shape(to)
    notes = Notes()
    messages = pair(canonical(items, shape=shape, reveal=reveal, notes=notes), orphans, notes)
    return _rendered(messages, to, notes), notes.report()


def for_anthropic(
    items: Iterable[Any],
    *,
    shape: str | None = None,
    orphans: Orphans = "complete",
    reveal: bool = False,
    cache: str | None = "5m",
) -> Request:
    """For ``client.messages.create``: ``messages`` and, if there is one, ``system``.

    The last system message wins. ``cache`` places cache points that live this long (``"5m"``, ``"1h"``), on
    the last block of the system prompt and of the conversation; ``None`` places none.
    """
    notes = Notes()
    system, messages = _taken(items, shape, orphans, reveal, notes)
    named = with_ids(messages, notes, _ANTHROPIC_ID)
    merged = _merged(_rendered(_without_empty(named, notes), shapes.ANTHROPIC, notes), "content", _blocks)
    for message in merged:
        if message["role"] == "user":
            # A result stands before what the person says.
            message["content"].sort(key=lambda block: block.get("type") != "tool_result")
    if merged and merged[0]["role"] != "user":
        notes.index = None
        notes.added("message", "Anthropic wants the user to begin")
        merged.insert(0, {"role": "user", "content": [{"type": "text", "text": "(continued)"}]})
    prompt = _system_blocks(system, notes)
    place(prompt, merged, cache, notes)
    arguments: dict[str, Any] = {"messages": merged}
    if prompt:
        arguments["system"] = prompt
    return Request(arguments, merged, prompt or None, notes.report())


def for_openai_chat(
    items: Iterable[Any], *, shape: str | None = None, orphans: Orphans = "complete", reveal: bool = False
) -> Request:
    """For ``client.chat.completions.create``: ``messages``, the last system message first."""
    notes = Notes()
    system, messages = _taken(items, shape, orphans, reveal, notes)
    first = [] if system is None else [system]
    rendered = _rendered_turns([*first, *with_ids(messages, notes)], shapes.OPENAI_CHAT, orphans, notes)
    prompt = rendered[0] if first and rendered else None
    return Request({"messages": rendered}, rendered, prompt, notes.report())


def for_openai_responses(
    items: Iterable[Any], *, shape: str | None = None, orphans: Orphans = "complete", reveal: bool = False
) -> Request:
    """For ``client.responses.create``: ``input`` and, if there is one, ``instructions``."""
    notes = Notes()
    system, messages = _taken(items, shape, orphans, reveal, notes)
    rendered = _rendered(with_ids(messages, notes), shapes.OPENAI_RESPONSES, notes)
    arguments: dict[str, Any] = {"input": rendered}
    prompt = _system_text(system, notes)
    if prompt is not None:
        arguments["instructions"] = prompt
    return Request(arguments, rendered, prompt, notes.report())


def for_google(
    items: Iterable[Any], *, shape: str | None = None, orphans: Orphans = "complete", reveal: bool = False
) -> Request:
    """For ``client.models.generate_content``: ``contents`` and, if there is a system prompt, ``config``."""
    notes = Notes()
    system, messages = _taken(items, shape, orphans, reveal, notes)
    named = with_ids(with_names(_without_empty(messages, notes)), notes)
    rendered = _merged(_rendered(named, shapes.GOOGLE, notes), "parts", _parts)
    arguments: dict[str, Any] = {"contents": rendered}
    instruction = None
    if system is not None:
        notes.index = system.index
        parts = [made for block in system.blocks if (made := google.build_part(block, notes)) is not None]
        instruction = {"parts": parts}
        arguments["config"] = {"system_instruction": instruction}
    return Request(arguments, rendered, instruction, notes.report())


def for_langchain(
    items: Iterable[Any], *, shape: str | None = None, orphans: Orphans = "complete", reveal: bool = False
) -> Request:
    """Stored messages, the last system message first: ``messages_from_dict(request.messages)``."""
    notes = Notes()
    system, messages = _taken(items, shape, orphans, reveal, notes)
    first = [] if system is None else [system]
    rendered = _rendered_turns([*first, *with_ids(messages, notes)], shapes.LANGCHAIN, orphans, notes)
    prompt = rendered[0] if first and rendered else None
    return Request({"messages": rendered}, rendered, prompt, notes.report())


# ── steps on the way ─────────────────────────────────────────────────────────────────────────────


def _taken(
    items: Iterable[Any], shape: str | None, orphans: Orphans, reveal: bool, notes: Notes
) -> tuple[Message | None, list[Message]]:
    """The system message that counts, and the others with their calls paired."""
    messages = canonical(items, shape=shape, reveal=reveal, notes=notes)
    systems = [message for message in messages if message.role == "system"]
    for earlier in systems[:-1]:
        notes.index = earlier.index
        notes.dropped("system message", "a later one takes its place")
    others = [message for message in messages if message.role != "system"]
    return (systems[-1] if systems else None), pair(others, orphans, notes)


def _rendered(messages: Iterable[Message], shape: str, notes: Notes) -> list[dict[str, Any]]:
    return [item for message in messages for item in shapes.render(message, shape, notes)]


def _rendered_turns(
    messages: list[Message], shape: str, orphans: Orphans, notes: Notes
) -> list[dict[str, Any]]:
    """Render messages for a provider that takes parallel calls in one message only."""
    if orphans == "keep":
        return _rendered(messages, shape, notes)
    joined = join_calls(messages)
    whole, parts = set(map(id, joined)), set(map(id, messages))
    # What the parts of a joined message lose is reported by the places of the parts.
    _rendered((part for part in messages if id(part) not in whole), shape, notes)
    return [
        item
        for message in joined
        for item in shapes.render(message, shape, notes if id(message) in parts else Notes())
    ]


def _merged(messages: list[dict[str, Any]], field_name: str, listed: Any) -> list[dict[str, Any]]:
    """One message for each run of the same role, and nothing in it but what a request may hold."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        content = listed(message.get(field_name))
        role = message.get("role")
        if role not in ("assistant", "model"):
            role = "user"
        if merged and merged[-1]["role"] == role:
            merged[-1][field_name] += content
        elif content:
            merged.append({"role": role, field_name: content})
    return merged


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    listed = content if isinstance(content, list) else [content]
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in listed]
    return [block for block in blocks if isinstance(block, dict)]


def _parts(parts: Any) -> list[dict[str, Any]]:
    listed = parts if isinstance(parts, list) else [parts]
    made = [{"text": each} if isinstance(each, str) else each for each in listed]
    return [part for part in made if isinstance(part, dict)]


def _without_empty(messages: Iterable[Message], notes: Notes) -> list[Message]:
    """Anthropic and Google refuse text that is empty, and messages without content."""
    kept = []
    for message in messages:
        blocks = tuple(block for block in message.blocks if not (isinstance(block, Text) and not block.text))
        if blocks and len(blocks) == len(message.blocks):
            kept.append(message)
            continue
        notes.index = message.index
        notes.dropped("text", "it is empty")
        if blocks:
            kept.append(message.with_blocks(blocks))
    return kept


def with_ids(messages: Iterable[Message], notes: Notes, allowed: re.Pattern[str] = _ANY_ID) -> list[Message]:
    """Calls without an id get one, and their results the same: Google needs none, everybody else does.
    Ids that a provider would refuse are replaced in both."""
    waiting: list[tuple[str, str]] = []
    count = 0
    made = []
    for message in messages:
        notes.index = message.index
        blocks: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolCall | ToolResult):
                call_id = block.call_id
                if call_id is None and isinstance(block, ToolCall):
                    count += 1
                    call_id = f"call_of_log_{count}"
                    waiting.append((call_id, block.name))
                    notes.added("call id", f"the call of {block.name!r} had none")
                elif call_id is None:
                    call_id = _claimed(waiting, block.name)
                elif not allowed.fullmatch(call_id):
                    notes.changed("call id", "it has characters that this provider refuses")
                    call_id = f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
                if call_id != block.call_id:
                    block = replace(block, call_id=call_id)
            blocks.append(block)
        made.append(_updated(message, blocks))
    return made


def _claimed(waiting: list[tuple[str, str]], name: str | None) -> str | None:
    """The id that the first call of this name was given, else the first of all."""
    found = next((each for each in waiting if each[1] == name), waiting[0] if waiting else None)
    if found is None:
        return None
    waiting.remove(found)
    return found[0]


def _updated(message: Message, blocks: list[Block]) -> Message:
    changed = any(new is not old for new, old in zip(blocks, message.blocks, strict=True))
    return message.with_blocks(tuple(blocks)) if changed else message


def with_names(messages: list[Message]) -> list[Message]:
    """Results that don't say which tool they are from get its name, which Google needs."""
    names: dict[str | None, str] = {}
    made = []
    for message in messages:
        blocks: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolCall):
                names[block.call_id] = block.name
            if isinstance(block, ToolResult) and not block.name and block.call_id in names:
                block = replace(block, name=names[block.call_id])
            blocks.append(block)
        made.append(_updated(message, blocks))
    return made


def _system_blocks(system: Message | None, notes: Notes) -> list[dict[str, Any]]:
    if system is None:
        return []
    notes.index = system.index
    made = [anthropic.build_block(block, notes) for block in system.blocks]
    return [block for block in made if block is not None and block.get("text") != ""]


def _system_text(system: Message | None, notes: Notes) -> str | None:
    if system is None:
        return None
    notes.index = system.index
    return texts_of(system.blocks, notes, "a system prompt")
