"""Which versions pruning may take, and what stays in their place so that the chain still verifies."""

from __future__ import annotations

import bisect
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from everthread.codec.records import compress, expand
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.history.chain import HASH_BYTES

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, dict[int, bytes]]).decode
#: Longer than anybody keeps anything, and short enough to reckon with.
_SECONDS_MAX = 10**12
_MICROSECOND = datetime.timedelta(microseconds=1)


class VersionLike(Protocol):
    """What the rules look at; versions and the heads of records fit."""

    @property
    def at_us(self) -> int: ...
    @property
    def label(self) -> str | None: ...


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the past to keep. A version stays as soon as one of the rules keeps it.

    ``keep_last``: the newest so many versions of each thread. ``keep_within``: versions not older than this,
    a ``timedelta`` or seconds, by the clocks of their writers. ``keep_labelled``: versions with a label.
    With neither ``keep_last`` nor ``keep_within`` everything stays. Whatever the rules say, what a thread or
    a fork stands on stays. Raises :class:`InvalidValueError` on values that make no sense.
    """

    keep_last: int | None = None
    keep_labelled: bool = True
    keep_within: datetime.timedelta | float | None = None

    def __post_init__(self) -> None:
        last = self.keep_last
        if last is not None and (type(last) is not int or last < 1):
            raise InvalidValueError(
                f"keep_last must be a whole number from 1 on, not {last!r}", path="keep_last"
            )
        if type(self.keep_labelled) is not bool:
            raise InvalidValueError(
                f"keep_labelled must be True or False, not {self.keep_labelled!r}", path="keep_labelled"
            )
        within = self.keep_within
        if within is None:
            return
        seconds = within.total_seconds() if isinstance(within, datetime.timedelta) else within
        if type(seconds) not in (int, float) or not 0 <= seconds <= _SECONDS_MAX:
            raise InvalidValueError(
                f"keep_within must be a timedelta or seconds, from 0 to {_SECONDS_MAX:,}, not {within!r}",
                path="keep_within",
            )

    @property
    def keep_within_us(self) -> int | None:
        """``keep_within`` in microseconds."""
        within = self.keep_within
        if within is None:
            return None
        if isinstance(within, datetime.timedelta):
            return within // _MICROSECOND
        return math.ceil(within * 1_000_000)

    @property
    def takes(self) -> bool:
        """Whether there is anything that the rules don't keep."""
        return self.keep_last is not None or self.keep_within is not None

    def keeps(self, version: VersionLike, now_us: int) -> bool:
        """Whether a version stays for its age or its label, wherever it stands."""
        if self.keep_labelled and version.label is not None:
            return True
        within_us = self.keep_within_us
        return within_us is not None and version.at_us >= now_us - within_us


class Tombstone(msgspec.Struct, frozen=True):
    """What stays of consecutive pruned versions: their digests, and the heads that are still asked for.

    ``heads`` are those with a key, a step or a source, by their place among the digests.
    """

    digests: list[bytes]
    heads: Mapping[int, bytes]


def tombstone(digests: Sequence[bytes], heads: Mapping[int, bytes]) -> bytes:
    """The bytes of a tombstone. With them the chain verifies across the gap.

    Raises :class:`InvalidValueError` on digests that are none.
    """
    if not digests or not all(isinstance(each, bytes) and len(each) == HASH_BYTES for each in digests):
        raise InvalidValueError(f"a tombstone needs digests of {HASH_BYTES} bytes each, and at least one")
    if any(not 0 <= index < len(digests) for index in heads):
        raise InvalidValueError("a tombstone keeps heads of its own versions only")
    return compress(_encode((b"".join(digests), dict(heads))))


def read_tombstone(data: bytes) -> Tombstone:
    """The inverse of :func:`tombstone`.

    Raises :class:`StateCorruptedError` if it is damaged and
    :class:`~everthread.errors.SchemaVersionError` if its format is newer.
    """
    payload = expand(data, "a tombstone")
    try:
        joined, heads = _decode(payload)
    except msgspec.DecodeError as error:
        raise StateCorruptedError("a tombstone can't be decoded", where="a tombstone") from error
    count, rest = divmod(len(joined), HASH_BYTES)
    if not count or rest or any(not 0 <= index < count for index in heads):
        raise StateCorruptedError("a tombstone holds something other than digests", where="a tombstone")
    return Tombstone([joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)], heads)


# ── spans: sets of version numbers as ranges ──


#: Both ends belong to it.
Span = tuple[int, int]


class Spans:
    """Ranges that don't touch each other, in order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add all numbers from ``first`` to ``last``; none if that lies below."""
        if last < first:
            return
        spans = self._spans
        start = bisect.bisect_left(spans, first - 1, key=lambda span: span[1])
        stop = bisect.bisect_right(spans, last + 1, key=lambda span: span[0])
        if start < stop:
            first, last = min(first, spans[start][0]), max(last, spans[stop - 1][1])
        spans[start:stop] = [(first, last)]

    def __contains__(self, number: int) -> bool:
        at = bisect.bisect_left(self._spans, number, key=lambda span: span[1])
        return at < len(self._spans) and self._spans[at][0] <= number

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        """How many numbers there are."""
        return sum(last - first + 1 for first, last in self._spans)

    def covers(self, first: int, last: int) -> bool:
        """Whether all of these numbers are in it."""
        at = bisect.bisect_left(self._spans, first, key=lambda span: span[1])
        return at < len(self._spans) and self._spans[at][0] <= first and last <= self._spans[at][1]

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """``first`` … ``last`` cut into ranges that are wholly in it, or wholly not."""
        at = bisect.bisect_left(self._spans, first, key=lambda span: span[1])
        while first <= last:
            start, stop = self._spans[at] if at < len(self._spans) else (last + 1, last)
            if first < start:
                yield first, min(start - 1, last), False
                first = start
            if first <= last:
                yield first, min(stop, last), True
                first = stop + 1
            at += 1
