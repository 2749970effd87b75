"""Which spaces of a store belong to a namespace, and where lines stand that only their forks need.

A namespace is a space, and so is what belongs to it and no public name reaches: its name, NUL, and what it
is for.
"""

from __future__ import annotations

from everthread.events.saved import cell_name

#: Where a deleted line lives in a store that it was brought to: its forks need it, nobody finds it.
_GONE = "\0gone\0"
#: Named after the keys of persons: under another name nobody would find these.
USERS = "\0users"
JOURNALS = "\0journal"
#: When persons are to be erased: each store's own, and those that came to it.
LIFETIMES = "\0lifetimes"

#: Cells that hold facts which last; leases and heartbeats speak of processes here and now, and what
#: projections keep is made again.
CONSUMERS = cell_name("consumer") + "/"


def namespace_of(space: str) -> str:
    return space.partition("\0")[0]


def gone_space(space: str, uid: bytes) -> str:
    """The space of a deleted line, in which nothing else is."""
    return space if is_gone(space) else f"{space}{_GONE}{uid.hex()}"


def is_gone(space: str) -> bool:
    """Whether a line is there for its forks only."""
    return _GONE in space


def uid_of(name: str) -> bytes:
    """The uid of the line that a journal is named after."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""


def consumed_stream(cell: str) -> str:
    """The stream that the cell of a consumer speaks of."""
    length, _, rest = cell.removeprefix(CONSUMERS).partition(":")
    return rest[: int(length)] if length.isdecimal() else ""


def renamed_consumer(cell: str, stream: str) -> str:
    """The cell of the same consumer of a stream that is called otherwise."""
    old = consumed_stream(cell)
    rest = cell.removeprefix(f"{CONSUMERS}{len(old)}:{old}")
    return f"{CONSUMERS}{len(stream)}:{stream}{rest}"


def free_name(name: str, number: int) -> str:
    """A name like this one, short enough: the ``number``-th that is tried."""
    suffix = " (imported)" if number == 1 else f" (imported {number})"
    return name.encode()[: 1024 - len(suffix)].decode(errors="ignore") + suffix
