"""Tool calls and their results: every call answered right after it, no answer without a call.

A run that dies between the two leaves a call without a result, and every provider refuses such a
conversation from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from everthread.errors import InvalidValueError
from everthread.messages.model import Message, Reasoning, Text, ToolCall, ToolResult
from everthread.messages.reports import Notes

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
