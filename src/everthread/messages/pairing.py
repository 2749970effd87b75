"""Tool calls and their results: every call is answered right behind it, and no result stands alone.

A run that dies between a call and its result leaves a call without one. Providers refuse such a conversation
from then on, so it is repaired wherever messages are read for a model; the log stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

from everthread.errors import InvalidValueError
from everthread.messages.model import Message, Notes, Reasoning, Text, ToolCall, ToolResult

Orphans = Literal["complete", "cut", "keep", "refuse"]
POLICIES: Final[tuple[Orphans, ...]] = ("complete", "cut", "keep", "refuse")

#: The result that is shown for a call without one.
NO_RESULT: Final = "no result was recorded; it may have happened"

#: Places in a log of items that must not be changed.
Places = frozenset[int]
_NONE: Final[Places] = frozenset()


class _Open:
    """A call, the position of its message, and its result with the position of that, once found."""

    def __init__(self, message: int, call: ToolCall) -> None:
        self.message = message
        self.call = call
        self.result: ToolResult | None = None
        self.result_message = -1

    def answers(self, result: ToolResult) -> bool:
        if self.call.call_id is None or result.call_id is None:
            # Google needs no ids: then the name says it, in the order of the calls.
            return self.call.call_id == result.call_id and result.name in (None, self.call.name)
        return self.call.call_id == result.call_id


def pair(
    messages: Iterable[Message],
    orphans: Orphans,
    notes: Notes,
    *,
    own: Places = _NONE,
    resumable: bool = True,
) -> list[Message]:
    """Return the messages with each call's result in the message behind it.

    ``orphans`` says what becomes of a call without a result: ``"complete"`` adds one that says so, ``"cut"``
    removes the call, ``"refuse"`` raises :class:`InvalidValueError`; ``"keep"`` changes nothing at all.

    Messages of the places ``own`` are the reader's own and stay as they are. A call in them is completed in
    front of the next message that another framework wrote; or, unless the reader can still resume it
    (``resumable``), behind its item.
    """
    if orphans not in POLICIES:
        raise InvalidValueError(f"orphans is one of {', '.join(POLICIES)}, not {orphans!r}", path="orphans")
    messages = list(messages)
    if orphans == "keep":
        return messages
    calls, loose = _match(messages, own)
    if orphans == "refuse":
        _refuse(messages, calls, loose)
    return _Pairing(messages, calls, loose, own, notes, cut=orphans == "cut", resumable=resumable).run()


def join_calls(messages: Iterable[Message], own: Places = _NONE) -> list[Message]:
    """Return the messages with what the assistant said in a row, calls among it, in one message: parallel
    calls that were stored one by one are parallel calls. It takes the place of the last one."""
    return _joined(messages, _is_one_turn, own)


def join_results(messages: Iterable[Message], own: Places = _NONE) -> list[Message]:
    """Return the messages with results that follow each other in one message, in the place of the last."""
    return _joined(messages, lambda first, second: _only_results(first) and _only_results(second), own)


def _joined(
    messages: Iterable[Message], belong_together: Callable[[Message, Message], bool], own: Places
) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None or {last.index, message.index} & own or not belong_together(last, message):
            joined.append(message)
            continue
        same = last.provider == message.provider
        joined[-1] = replace(
            last,
            blocks=(*last.blocks, *message.blocks),
            id=message.id or last.id,
            provider=last.provider if same else "",
            extra=last.extra if same else {},
            origin=None,
            index=message.index,
        )
    return joined


def _is_one_turn(first: Message, second: Message) -> bool:
    calls = any(isinstance(block, ToolCall) for block in (*first.blocks, *second.blocks))
    return first.role == second.role == "assistant" and calls


def _only_results(message: Message) -> bool:
    return bool(message.blocks) and all(isinstance(block, ToolResult) for block in message.blocks)


def _match(messages: list[Message], own: Places) -> tuple[list[_Open], set[int]]:
    """Return every call with its result, and the results (by identity) that answer no call.

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
                    if message.index not in own:
                        loose.add(id(block))
                    continue
                found = fitting[0] if block.call_id is None else fitting[-1]
                found.result, found.result_message = block, at
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


class _Pairing:
    """One pass over the messages, which puts results behind their calls."""

    def __init__(
        self,
        messages: list[Message],
        calls: list[_Open],
        loose: set[int],
        own: Places,
        notes: Notes,
        *,
        cut: bool,
        resumable: bool,
    ) -> None:
        self._messages = messages
        self._calls: dict[int, list[_Open]] = {}
        for each in calls:
            self._calls.setdefault(each.message, []).append(each)
        self._loose = loose
        #: Blocks, by identity, that don't stay where they are.
        self._gone = set(loose)
        self._own = own
        self._notes = notes
        self._cut = cut
        self._resumable = resumable
        #: Results that belong in front of the message at a position.
        self._before: dict[int, list[Message]] = {}

    def run(self) -> list[Message]:
        messages = self._messages
        built: list[Message] = []
        start = 0
        while start < len(messages):
            stop = start
            while stop < len(messages) and self._continues(start, stop):
                stop += 1
            built += self._before.pop(start, ())
            if stop == start:
                built += self._left_of(messages[start])
                stop += 1
            elif self._is_own(start):
                built += messages[start:stop]
                self._answer_own(start, stop)
            else:
                built += self._answered(start, stop)
            start = stop
        return built + self._before.pop(start, [])

    def _is_own(self, at: int) -> bool:
        return self._messages[at].index in self._own

    def _continues(self, start: int, at: int) -> bool:
        """Return True if the message is part of what the assistant said in a row from ``start`` on."""
        return self._messages[at].role == "assistant" and self._is_own(at) == self._is_own(start)

    def _answered(self, start: int, stop: int) -> list[Message]:
        """Return what the assistant said in a row, and the results that have to be put behind it."""
        opened = [each for at in range(start, stop) for each in self._calls.get(at, [])]
        answers = self._answers(opened, self._results_from(start, stop), self._messages[stop - 1].index)
        said = [kept for at in range(start, stop) for kept in self._left_of(self._messages[at])]
        if any(id(each.call) in self._gone for each in opened):
            said = _without_idle_thoughts(said, self._notes)
        return said + answers

    def _answer_own(self, start: int, stop: int) -> None:
        """Put results that the reader's own calls lack in front of what follows them."""
        end = stop
        while end < len(self._messages) and self._is_own(end) and _only_results(self._messages[end]):
            end += 1
        if end < len(self._messages) and not self._is_own(end):
            holder = self._messages[end].index
        elif not self._resumable:
            holder = self._messages[end - 1].index
        else:
            return
        opened = [each for at in range(start, stop) for each in self._calls.get(at, [])]
        if answers := self._answers(opened, self._results_from(start, stop), holder):
            self._before[end] = answers

    def _results_from(self, start: int, stop: int) -> set[int]:
        """Return the results (by identity) in a run of the assistant and right behind it."""
        found: set[int] = set()
        for at in range(start, len(self._messages)):
            results = [id(block) for block in self._messages[at].blocks if isinstance(block, ToolResult)]
            if at >= stop and not results:
                break
            found.update(results)
        return found

    def _answers(self, opened: list[_Open], in_place: set[int], holder: int | None) -> list[Message]:
        """Return the results to be put right behind their calls, and note what goes away elsewhere."""
        answers = []
        notes = self._notes
        for each in opened:
            calling = self._messages[each.message]
            notes.index = calling.index
            if each.result is None and self._cut:
                self._gone.add(id(each.call))
                notes.dropped("tool call", f"{each.call.name!r} was never answered")
            elif each.result is None:
                notes.added("tool result", f"the call of {each.call.name!r} was never answered")
                answers.append(_completion(each.call, calling, holder))
            elif id(each.result) not in in_place and not self._is_own(each.result_message):
                self._gone.add(id(each.result))
                notes.changed("tool result", f"moved next to the call of {each.call.name!r}")
                moved = Message(role="tool", blocks=(each.result,), provider=calling.provider, index=holder)
                answers.append(moved)
        return answers

    def _left_of(self, message: Message) -> list[Message]:
        """Return the message without the blocks that are gone; nothing if no block is left."""
        kept = tuple(block for block in message.blocks if id(block) not in self._gone)
        if len(kept) == len(message.blocks):
            return [message]
        self._notes.index = message.index
        for block in message.blocks:
            if id(block) in self._loose:
                self._notes.dropped("tool result", "it answers no call")
        return [message.with_blocks(kept)] if kept else []


def _completion(call: ToolCall, calling: Message, index: int | None) -> Message:
    result = ToolResult(
        call_id=call.call_id,
        name=call.name,
        content=(Text(text=NO_RESULT, provider=calling.provider),),
        is_error=True,
        custom=call.custom,
        provider=calling.provider,
    )
    return Message(role="tool", blocks=(result,), provider=calling.provider, index=index)


def _without_idle_thoughts(said: list[Message], notes: Notes) -> list[Message]:
    """Drop reasoning of which a cut has left nothing else: providers refuse it by itself."""
    if any(not isinstance(block, Reasoning) for message in said for block in message.blocks):
        return said
    for message in said:
        notes.index = message.index
        notes.dropped("reasoning", "nothing is left of what it led to")
    return []
