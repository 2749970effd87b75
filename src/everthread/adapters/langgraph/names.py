"""Which Everthread thread stands behind a LangGraph thread and namespace, and the other way round.

``langgraph/<thread_id>`` for the graph itself, ``langgraph/<thread_id>/<namespace>`` for a subgraph. What
would be ambiguous is escaped as in a URL; a name that would be too long is a digest, and a cell holds what it
stands for.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, NamedTuple

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.versions import Version

PREFIX: Final = "langgraph/"

#: Room for what streams of pending writes add to a name.
_NAME_BYTES_MAX: Final = 960
#: Marks a digest; no escaped id begins with it.
_HASHED: Final = "%~"
_ESCAPED: Final = {"%": "%25", "/": "%2F", "#": "%23"}
_PLAIN: Final = {escaped: plain for plain, escaped in _ESCAPED.items()}


def thread_name(thread_id: str, namespace: str, prefix: str = PREFIX) -> str:
    """The name of the Everthread thread. Raises :class:`InvalidNameError` for an id that can't be one."""
    name = f"{prefix}{_escape(thread_id)}"
    if namespace:
        name += f"/{_escape(namespace, slash=False)}"
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        pair = f"{_escape(thread_id)}/{_escape(namespace)}".encode("utf-8", "surrogatepass")
        return f"{prefix}{_HASHED}{sha256(pair).hexdigest()}"
    return check_name(name, "thread_id and checkpoint_ns")


def family_prefix(thread_id: str, prefix: str = PREFIX) -> str | None:
    """How the names of all subgraphs of a thread begin; ``None`` if all of them are digests."""
    beginning = f"{prefix}{_escape(thread_id)}/"
    return beginning if len(beginning.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX else None


def is_hashed(name: str, prefix: str = PREFIX) -> bool:
    return name.startswith(prefix + _HASHED)


def parse_name(name: str, prefix: str = PREFIX) -> tuple[str, str] | None:
    """(thread_id, namespace) behind a name that isn't a digest; ``None`` if it is none of ours."""
    if not name.startswith(prefix) or is_hashed(name, prefix):
        return None
    thread_id, _, namespace = name.removeprefix(prefix).partition("/")
    return _unescape(thread_id), _unescape(namespace)


def thread_id_of(configurable: dict[str, object]) -> str:
    """The id of the thread that a config names. Raises :class:`InvalidValueError` without one."""
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidValueError(
            'a checkpointer needs a thread: pass {"configurable": {"thread_id": …}}',
            path="configurable.thread_id",
        )
    return str(thread_id)


def _escape(text: str, *, slash: bool = True) -> str:
    for plain, escaped in _ESCAPED.items():
        if slash or plain != "/":
            text = text.replace(plain, escaped)
    return text


def _unescape(text: str) -> str:
    for escaped in ("%2F", "%23", "%25"):
        text = text.replace(escaped, _PLAIN[escaped])
    return text


# What the versions of a thread say about the checkpoints that they are.
#
# A checkpoint is a version whose commit key is the checkpoint's id and whose metadata hold a note: its
# parent, LangGraph's metadata, and, where ids weren't stored in their order, which checkpoint is the
# latest. A rewind that only prepares a branch holds a note as well, so that a crash right after it changes
# nothing for a reader.


NOTE: Final = "langgraph"


class Place(NamedTuple):
    """Where a thread stands: on which checkpoint exactly (``None``: on none), which one is the latest, and
    whether ids came in another order than they sort. ``beneath``: the checkpoint that others have written on
    top of since; what they wrote belongs to it."""

    standing: str | None
    latest: str | None
    mixed: bool = False
    beneath: str | None = None


NOWHERE: Final = Place(None, None)


def note_of(version: Version) -> dict[str, Any] | None:
    """The note of a version, if it has one."""
    note = version.metadata.get(NOTE)
    return note if type(note) is dict else None


# A thread that another framework began has no checkpoint to go on from. What it wrote is one all the same:
# its id tells when that was, so that later ones sort after it, and which version it is.

_EPOCH_100NS: Final = 0x01B21DD213814000
_MARK: Final = 0x3E7E


def origin_id(version: Version) -> str:
    """The id of the checkpoint that a version of another framework is taken for."""
    ticks = version.at_us * 10 + _EPOCH_100NS
    high, low = ticks >> 12, ticks & 0xFFF
    return (
        f"{high >> 16:08x}-{high & 0xFFFF:04x}-{0x6000 | low:04x}-{0x8000 | _MARK:04x}-"
        f"{version.seq & 0xFFFFFFFFFFFF:012x}"
    )


def origin_seq(checkpoint_id: str) -> int | None:
    """Which version such an id is of; ``None`` for any other id."""
    parts = checkpoint_id.split("-")
    if len(parts) != 5 or parts[3] != f"{0x8000 | _MARK:04x}" or len(parts[4]) != 12:
        return None
    try:
        return int(parts[4], 16)
    except ValueError:
        return None


def id_of(version: Version) -> str:
    """The id of the checkpoint that a version is."""
    return version.key if version.key is not None and note_of(version) is not None else origin_id(version)


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
