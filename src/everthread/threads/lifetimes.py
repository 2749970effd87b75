"""How long a name lives after it was last written to.

The time to live is part of every version, so that the newest one says all there is to know: nothing else has
to be read, kept up to date or believed. What has expired counts as deleted, from that moment on and for
everybody; its bytes go when the name is used again or at the next ``gc()``.
"""

from __future__ import annotations

import datetime
import math

from everthread.codec import records
from everthread.errors import InvalidValueError, StateCorruptedError, ThreadDeletedError
from everthread.stores.contract import DELTA, REWIND, Found, Line
from everthread.versions import Version

_MICROSECOND = datetime.timedelta(microseconds=1)
#: A hundred years: more is as good as for ever, and every calendar has room for it.
_TTL_MAX_US = 100 * 365 * 86_400 * 1_000_000

Lifetime = datetime.timedelta | float | None


def ttl_us(after: Lifetime) -> int:
    """A time to live in microseconds; 0 for ever. Raises :class:`InvalidValueError`."""
    if after is None:
        return 0
    seconds = after.total_seconds() if isinstance(after, datetime.timedelta) else after
    # Not isfinite(): an integer may be beyond all floats.
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise InvalidValueError(
            f"a time to live is a timedelta or seconds, more than none, not {after!r}; None is for ever",
            path="ttl",
        )
    if isinstance(after, datetime.timedelta):
        return min(after // _MICROSECOND, _TTL_MAX_US)
    return math.ceil(min(seconds, _TTL_MAX_US / 1_000_000) * 1_000_000)


def has_expired(line: Line, version: Version | None, now_us: int) -> bool:
    """Whether the thread whose newest version this is has expired.

    A fork that has no version of its own doesn't inherit the lifetime of another name.
    """
    if version is None or version.ttl_us is None or version.seq <= line.parent_seq:
        return False
    return now_us >= version.at_us + version.ttl_us


def left_s(found: Found, now_us: int) -> float:
    """How long a thread lives yet, as a store found it: not above 0 if it has expired.

    What can't be read doesn't expire.
    """
    row = found.newest
    if row is None or row.kind not in (DELTA, REWIND):
        return math.inf
    try:
        head = records.read_head(records.read_record(row.body)[0])
    except StateCorruptedError:
        return math.inf
    return math.inf if head.ttl is None else (head.at_us + head.ttl - now_us) / 1_000_000


def carried(line: Line | None, version: Version | None, chosen_us: int | None, now_us: int) -> int | None:
    """The time to live of a version that follows ``version``: what its writer chose, else as before.

    Raises :class:`ThreadDeletedError` if there is nothing to follow any more.
    """
    own = version is not None and line is not None and version.seq > line.parent_seq
    if version is not None and line is not None and has_expired(line, version, now_us):
        raise expired(line.name)
    if chosen_us is not None:
        return chosen_us or None
    return version.ttl_us if version is not None and own else None


def expired(name: str) -> ThreadDeletedError:
    return ThreadDeletedError(
        f"the thread {name!r} has expired, which is final; store.thread({name!r}) starts a new one"
    )
