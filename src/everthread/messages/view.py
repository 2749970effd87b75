"""A log that several frameworks wrote, as one of them is shown it.

The rules are the same for all adapters, and the log stays as it was written:

- A framework gets back what it wrote itself as it is. What another one wrote is converted for it.
- A system message is shown at most once, first. Any other one is shown as marked text of the user's side.
- Reasoning is left out: it is of worth only to the model that produced it.
- Parallel calls are in one message, their results in one message behind it. A call without a result gets one
  that says so.
- What has no form becomes text that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everthread.errors import InvalidValueError
from everthread.messages import shapes
from everthread.messages.model import (
    DAMAGED,
    ERASED,
    WITHHELD,
    Block,
    Media,
    Message,
    Notes,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    arguments_text,
    kind_of,
)
from everthread.messages.pairing import Places, join_calls, join_results, pair
from everthread.messages.request import canonical_item, with_ids, with_names

#: What stands for an item that nobody can read as a message.
UNREADABLE: Final = "[an item that can't be read as a message]"

#: Shapes that take a system prompt beside the conversation only.
_WITHOUT_SYSTEM: Final = (shapes.GOOGLE, shapes.STRANDS)

#: The framework's own messages that an item holds; ``None`` for an item of another framework.
Own = Callable[[Any], "list[Any] | None"]


class Shown(NamedTuple):
    """One item of a log: as it is stored, whether the framework wrote it itself, and the messages that the
    framework is shown for it, in its own shape."""

    item: Any
    own: bool
    messages: list[Any]


def view(
    items: Iterable[Any], shape: str, own: Own, *, reveal: bool = False, resumable: bool = True
) -> list[Shown]:
    """Return all items of a log, in their order. ``shape`` is what converted messages come in.

    A framework that is ``resumable`` may still carry out the calls that its own items end with, so these are
    shown as they are; any other call without a result is completed. Personal values of others are shown only
    with ``reveal``. Raises nothing for an item that can't be read.
    """
    stored = list(items)
    mine = [own(item) for item in stored]
    if resumable and all(messages is not None for messages in mine):
        return [Shown(item, True, messages or []) for item, messages in zip(stored, mine, strict=True)]
    added = _converted(stored, mine, shape, reveal, resumable)
    return [
        Shown(item, messages is not None, [*(messages or []), *added.get(at, [])])
        for at, (item, messages) in enumerate(zip(stored, mine, strict=True))
    ]


def _converted(
    items: Sequence[Any], mine: Sequence[list[Any] | None], shape: str, reveal: bool, resumable: bool
) -> dict[int, list[Any]]:
    """Return the messages of other frameworks, and results that were added, by the places of their items. The
    whole log is read for it: a result may answer a call that the framework made itself."""
    notes = Notes()
    found: list[Message] = []
    for at, item in enumerate(items):
        try:
            found += canonical_item(item, at, notes, reveal=reveal)
        except InvalidValueError:
            found.append(Message(role="user", blocks=(Text(text=UNREADABLE),), index=at))
    own: Places = frozenset(at for at, messages in enumerate(mine) if messages is not None)
    messages = with_names(with_ids(_of_others(found, own, shape), notes))
    given = {id(message) for message in messages if message.index in own}
    messages = pair(messages, "complete", notes, own=own, resumable=resumable)
    messages = join_results(join_calls(messages, own), own)
    added: dict[int, list[Any]] = {}
    for message in messages:
        if message.index is not None and id(message) not in given:
            rendered = shapes.render(_sayable(message, shape), shape, notes)
            added.setdefault(message.index, []).extend(rendered)
    return added


def _of_others(messages: Iterable[Message], own: Places, shape: str) -> Iterator[Message]:
    """Yield the messages, those of others without reasoning, and with at most one system message, first."""
    for number, message in enumerate(messages):
        if message.index in own:
            yield message
            continue
        blocks = tuple(block for block in message.blocks if not isinstance(block, Reasoning))
        if len(blocks) < len(message.blocks):
            if not blocks:
                continue
            message = message.with_blocks(blocks)
        if message.role == "system" and (number or shape in _WITHOUT_SYSTEM):
            marked = (Text(text="[system message]"), *blocks)
            message = replace(message, role="user", blocks=marked, origin=None)
        yield message


def _sayable(message: Message, shape: str) -> Message:
    """Return the message with text in place of what its reader has no form for."""
    blocks = tuple(_said(block, message, shape) for block in message.blocks)
    if all(new is old for new, old in zip(blocks, message.blocks, strict=True)):
        return message
    return message.with_blocks(blocks)


def _said(block: Block, message: Message, shape: str) -> Block:
    if isinstance(block, Text | ToolCall):
        return block
    if isinstance(block, ToolResult):
        content = tuple(
            each
            if isinstance(each, Text) or _has_form(each, replace(block, content=(each,)), message, shape)
            else _stand_in(each)
            for each in block.content
        )
        changed = any(new is not old for new, old in zip(content, block.content, strict=True))
        return replace(block, content=content, value=None, origin=None) if changed else block
    return block if _has_form(block, block, message, shape) else _stand_in(block)


def _has_form(block: Block, whole: Block, message: Message, shape: str) -> bool:
    """Whether a reader of this shape is shown ``block``, which stands in ``whole``."""
    notes = Notes()
    built = shapes.build(message.with_blocks((whole,)), shape, notes)
    lost = {change.what for change in notes.report().dropped}
    return bool(built) and kind_of(block) not in lost


def _stand_in(block: Block) -> Text:
    whose = block.provider or "another framework"
    what = kind_of(block)
    if isinstance(block, Unknown) and what == "block":
        what = "something"
    return Text(text=f"[{what} of {whose}, which can't be shown here]")


def readable(item: Any) -> list[Message] | None:
    """The canonical messages of an item, for whoever reads a log without sending it; ``None`` if it isn't a
    message. Personal values are withheld."""
    try:
        return canonical_item(item, 0, Notes())
    except InvalidValueError:
        return None


def texts(message: Message) -> Iterator[str]:
    """What a message says, part by part: text, calls with their arguments, results, names of files. Nothing
    of what is withheld, erased or damaged."""
    for block in message.blocks:
        yield from _texts(block)


def _texts(block: Block) -> Iterator[str]:
    match block:
        case Text(text=text) | Reasoning(text=text):
            if text and text not in (WITHHELD, ERASED, DAMAGED):
                yield text
        case ToolCall():
            yield f"{block.name}({arguments_text(block)})"
        case ToolResult():
            for each in block.content:
                yield from _texts(each)
        case Media(name=str(name)):
            yield name
