"""A log as a request to a provider: system extracted, roles merged, calls paired, ready to send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal

from everthread.errors import InvalidValueError
from everthread.messages import anthropic, google, shapes
from everthread.messages.model import (
    Block,
    Message,
    Notes,
    Reasoning,
    Report,
    Text,
    ToolCall,
    ToolResult,
    laid_open,
    texts_of,
)

# Tool calls and their results: every call answered right after it, no answer without a call.
#
# A run that dies between the two leaves a call without a result, and every provider refuses such a
# conversation from then on.


Orphans = Literal["complete", "cut", "keep", "refuse"]
POLICIES: tuple[Orphans, ...] = ("complete", "cut", "keep", "refuse")

NO_RESULT = "No result: the run ended before this call was answered. It may or may not have taken effect."


class _Open:
    """A call, where it stands, and its result once that was found."""

    def __init__(self, message: int, call: ToolCall) -> None:
        self.message = message
        self.call = call
        self.result: ToolResult | None = None

    def answers(self, result: ToolResult) -> bool:
        if self.call.call_id is None or result.call_id is None:
            # Google needs no ids: then the name says it, in the order of the calls.
            return self.call.call_id == result.call_id and result.name in (None, self.call.name)
        return self.call.call_id == result.call_id


def pair(messages: Iterable[Message], orphans: Orphans, notes: Notes) -> list[Message]:
    """The messages with each call's result in the message after it.

    ``orphans`` says what becomes of a call without a result: ``"complete"`` adds one that says so, ``"cut"``
    removes the call, ``"refuse"`` raises :class:`InvalidValueError`; ``"keep"`` changes nothing at all.
    """
    if orphans not in POLICIES:
        raise InvalidValueError(f"orphans is one of {', '.join(POLICIES)}, not {orphans!r}", path="orphans")
    messages = list(messages)
    if orphans == "keep":
        return messages
    calls, loose = _match(messages)
    if orphans == "refuse":
        _refuse(messages, calls, loose)
    return _rebuilt(messages, calls, loose, orphans == "cut", notes)


def _match(messages: list[Message]) -> tuple[list[_Open], set[int]]:
    """Every call with its result, and the results (by identity) that answer no call.

    A result answers the newest call before it that is still open: providers use ids again.
    """
    calls: list[_Open] = []
    waiting: list[_Open] = []
    loose: set[int] = set()
    for at, message in enumerate(messages):
        for block in message.blocks:
            if isinstance(block, ToolCall):
                calls.append(_Open(at, block))
                waiting.append(calls[-1])
            elif isinstance(block, ToolResult):
                fitting = [each for each in waiting if each.answers(block)]
                if not fitting:
                    loose.add(id(block))
                    continue
                found = fitting[0] if block.call_id is None else fitting[-1]
                found.result = block
                waiting.remove(found)
    return calls, loose


def _refuse(messages: list[Message], calls: list[_Open], loose: set[int]) -> None:
    for each in calls:
        if each.result is None:
            index = messages[each.message].index
            raise InvalidValueError(
                f"the call of {each.call.name!r} in message {index} has no result", path=f"messages[{index}]"
            )
    for message in messages:
        if any(id(block) in loose for block in message.blocks):
            raise InvalidValueError(
                f"message {message.index} holds a result without a call", path=f"messages[{message.index}]"
            )


def _rebuilt(
    messages: list[Message], calls: list[_Open], loose: set[int], cut: bool, notes: Notes
) -> list[Message]:
    by_message: dict[int, list[_Open]] = {}
    for each in calls:
        by_message.setdefault(each.message, []).append(each)
    gone = set(loose)
    built: list[Message] = []
    start = 0
    while start < len(messages):
        stop = start
        while stop < len(messages) and messages[stop].role == "assistant":
            stop += 1
        if stop == start:
            built += _without(messages[start], gone, loose, notes)
            start += 1
            continue
        # What the assistant said in a row, and the calls in it.
        opened = [each for at in range(start, stop) for each in by_message.get(at, [])]
        in_place = _results_from(messages, start, stop)
        answers = _answers(messages, opened, in_place, gone, cut, notes)
        said = [kept for at in range(start, stop) for kept in _without(messages[at], gone, loose, notes)]
        if any(id(each.call) in gone for each in opened):
            said = _without_idle_thoughts(said, notes)
        built += said + answers
        start = stop
    return built


def _results_from(messages: list[Message], start: int, stop: int) -> set[int]:
    """The results (by identity) in a run of the assistant and right after it."""
    found: set[int] = set()
    for at in range(start, len(messages)):
        results = [id(block) for block in messages[at].blocks if isinstance(block, ToolResult)]
        if at >= stop and not results:
            break
        found.update(results)
    return found


def _answers(
    messages: list[Message], opened: list[_Open], in_place: set[int], gone: set[int], cut: bool, notes: Notes
) -> list[Message]:
    """Results to be put right after their calls; what goes away elsewhere is added to ``gone``."""
    answers = []
    for each in opened:
        calling = messages[each.message]
        notes.index = calling.index
        if each.result is None and cut:
            gone.add(id(each.call))
            notes.dropped("tool call", f"{each.call.name!r} was never answered")
        elif each.result is None:
            notes.added("tool result", f"the call of {each.call.name!r} was never answered")
            answers.append(_completion(each.call, calling))
        elif id(each.result) not in in_place:
            gone.add(id(each.result))
            notes.changed("tool result", f"moved next to the call of {each.call.name!r}")
            answers.append(Message(role="tool", blocks=(each.result,), provider=calling.provider))
    return answers


def _completion(call: ToolCall, calling: Message) -> Message:
    result = ToolResult(
        call_id=call.call_id,
        name=call.name,
        content=(Text(text=NO_RESULT, provider=calling.provider),),
        is_error=True,
        custom=call.custom,
        provider=calling.provider,
    )
    return Message(role="tool", blocks=(result,), provider=calling.provider, index=calling.index)


def _without(message: Message, gone: set[int], loose: set[int], notes: Notes) -> list[Message]:
    """The message without the blocks that are gone; none if nothing is left of it."""
    kept = tuple(block for block in message.blocks if id(block) not in gone)
    if len(kept) == len(message.blocks):
        return [message]
    notes.index = message.index
    for block in message.blocks:
        if id(block) in loose:
            notes.dropped("tool result", "it answers no call")
    return [message.with_blocks(kept)] if kept else []


def _without_idle_thoughts(said: list[Message], notes: Notes) -> list[Message]:
    """After a cut: what was thought on the way to nothing is refused by those who signed it."""
    if any(not isinstance(block, Reasoning) for message in said for block in message.blocks):
        return said
    for message in said:
        notes.index = message.index
        notes.dropped("reasoning", "nothing is left of what it led to")
    return []


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
    rendered = _rendered([*first, *with_ids(messages, notes)], shapes.OPENAI_CHAT, notes)
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
    rendered = _rendered([*first, *with_ids(messages, notes)], shapes.LANGCHAIN, notes)
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
