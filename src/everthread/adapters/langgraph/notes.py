"""What the versions of a thread say about the checkpoints that they are.

A checkpoint is a version whose commit key is the checkpoint's id and whose metadata hold a note: its parent,
LangGraph's metadata, and, where ids weren't stored in their order, which checkpoint is the latest. A rewind
that only prepares a branch holds a note as well, so that a crash right after it changes nothing for a reader.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from everthread.versions import Version

NOTE: Final = "langgraph"


class Place(NamedTuple):
    """Where a thread stands: on which checkpoint exactly (``None``: on none), which one is the latest, and
    whether ids came in another order than they sort."""

    standing: str | None
    latest: str | None
    mixed: bool = False


NOWHERE: Final = Place(None, None)


def note_of(version: Version) -> dict[str, Any] | None:
    """The note of a version, if it has one."""
    note = version.metadata.get(NOTE)
    return note if type(note) is dict else None


def checkpoint_note(
    checkpoint_id: str, parent: str | None, metadata: Any, place: Place
) -> dict[str, dict[str, Any]]:
    """The metadata of the version that a checkpoint becomes."""
    note: dict[str, Any] = {"metadata": metadata}
    if parent is not None:
        note["parent"] = parent
    latest = place.latest
    if latest is not None and latest > checkpoint_id:
        note["latest"] = latest
    if place.mixed or "latest" in note:
        note["mixed"] = True
    return {NOTE: note}


def branch_note(to: str, place: Place) -> dict[str, dict[str, Any]]:
    """The metadata of a rewind that prepares a branch."""
    note: dict[str, Any] = {"to": to, "latest": place.latest}
    if place.mixed:
        note["mixed"] = True
    return {NOTE: note}


def place_at(version: Version) -> Place | None:
    """Where a thread stands whose head this is, as far as the version itself says it."""
    note = note_of(version)
    if note is None:
        return None
    mixed = bool(note.get("mixed"))
    if version.key is None:
        return Place(note.get("to"), note.get("latest"), mixed)
    return Place(version.key, note.get("latest", version.key), mixed)
