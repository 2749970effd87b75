"""What a caller sees of a version and of a thread, and how a version is named in text."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NO_METADATA: Mapping[str, Any] = MappingProxyType({})

Kind = Literal["commit", "rewind", "merge", "fork", "fence"]
#: What a step is called by: text, or a tuple such as (turn, step).
StepKey = str | tuple[str | int, ...]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One committed moment of a thread. Immutable, safe to share and to keep.

    ``seq`` never repeats within a thread; ``id`` is derived from the content and its whole past and
    survives copy and export. ``parent`` is the id of the version before it on the line; ``source`` is
    set on a rewind (the version gone back to) and on a merge (the version merged in). ``key`` is the key
    that it was committed, or forked, with. ``step`` and ``slot`` are those of the step that made it, or whose
    newer attempt a fence let in. ``ttl_us`` is how long the name lives after this version, if no other
    follows; ``None`` for ever.
    """

    seq: int
    id: str
    parent: str | None
    at_us: int
    label: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA
    key: str | None = None
    kind: Kind = "commit"
    source: str | None = None
    ttl_us: int | None = None
    step: StepKey | None = None
    slot: int | None = None

    @property
    def expires_at(self) -> datetime.datetime | None:
        """When the name expires if no other version follows; ``None`` for never."""
        return None if self.ttl_us is None else self.at + datetime.timedelta(microseconds=self.ttl_us)

    @property
    def at(self) -> datetime.datetime:
        """When it was committed, by the writer's clock (UTC). Order never depends on it."""
        return _EPOCH + datetime.timedelta(microseconds=self.at_us)

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"version {self.seq}{label} ({self.id})"


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is done, as ``thread.steps()`` lists it: what it was called by, which attempt recorded it,
    what it came to, and the version that it made."""

    key: StepKey
    version: Version
    slot: int | None = None
    attempt: int = 1
    result: Any = None


class RunToken(msgspec.Struct, frozen=True):
    """A run that its caller names: every process that presents the same ``id`` is part of one run.

    ``since`` orders runs that want the same thread: when an engine handed the work out, by its clock, as a
    ``datetime`` or in seconds since 1970. A newer run takes over from an older one, never the other way
    round. Without it a run counts from when its id first appears. ``workflow`` is the id of the workflow that
    the run belongs to, ``execution`` the id of the workflow's execution: an effect that another execution
    made is skipped with a warning. ``guest_of`` is the id of a run that lends its thread to this one: it may
    write again afterwards, which a run that another one took over from may not.
    """

    id: str
    since: datetime.datetime | float | None = None
    workflow: str = ""
    execution: str = ""
    guest_of: str = ""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A version that stays, whatever retention says, until its time is over; ``until`` ``None`` for ever."""

    thread: str
    seq: int
    version_id: str
    until_us: int | None = None

    @property
    def until(self) -> datetime.datetime | None:
        if self.until_us is None:
            return None
        return _EPOCH + datetime.timedelta(microseconds=self.until_us)

    def __str__(self) -> str:
        until = f", until {self.until:%Y-%m-%d %H:%M} UTC" if self.until is not None else ""
        return f"version {self.seq} of {self.thread!r} ({self.version_id}{until})"


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread as ``store.threads()`` lists it."""

    name: str
    seq: int
    version_id: str
    updated_at_us: int
    metadata: Mapping[str, Any] = NO_METADATA
    label: str | None = None
    #: Its newest version is damaged: all this is said of the last good one, or of none.
    damaged: bool = False

    @property
    def updated_at(self) -> datetime.datetime:
        """When its newest version was committed, by that writer's clock (UTC)."""
        return _EPOCH + datetime.timedelta(microseconds=self.updated_at_us)


# Versions by name: by number, id, label, or their distance from the head.

#: Said wherever a text names no version.
HOW_TO_NAME = (
    "A version is named by its number (7 or v7), its id, its label, head, or head~2 for two before it"
)
_NUMBER = re.compile(r"v?([0-9]{1,10})", re.ASCII)
_BACK = re.compile(r"head(?:~([0-9]{0,9}))?", re.ASCII)
_ID = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{24}", re.ASCII)
_LABEL = "label:"


class VersionName(NamedTuple):
    """What a text says of a version: its number, also that in its ``id``; how many versions it is ``back``
    from the head; or else its ``label``."""

    seq: int | None = None
    id: str | None = None
    back: int | None = None
    label: str | None = None


def parse_version_name(text: str) -> VersionName:
    """What a text names. A number, an id and ``head`` come before a label that looks like one; ``label:7`` is
    always the label. Whether there is such a version is for the thread to say."""
    if not text.startswith(_LABEL):
        if number := _NUMBER.fullmatch(text):
            return VersionName(seq=int(number[1]))
        if back := _BACK.fullmatch(text):
            return VersionName(back=0 if back[1] is None else int(back[1] or 1))
        if found := _ID.fullmatch(text):
            return VersionName(seq=int(found[1]), id=text)
    return VersionName(label=text.removeprefix(_LABEL))
