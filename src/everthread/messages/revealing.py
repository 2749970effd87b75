"""Personal values on their way out: shown only by choice, and erased ones as what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.messages.reports import Notes
from everthread.values import Corrupt, Erased, Opaque, Personal

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
