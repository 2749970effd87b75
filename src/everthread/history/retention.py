"""Which versions pruning may take, and what stays in their place so that the chain still verifies."""

from __future__ import annotations

import datetime
import math
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Protocol

import msgspec

from everthread.codec.records import frame, unframe
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.history.chain import HASH_BYTES, SEQ_MAX

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode
_MICROSECOND = datetime.timedelta(microseconds=1)


class VersionLike(Protocol):
    """What the rules look at; :class:`everthread.model.versions.Version` fits."""

    @property
    def seq(self) -> int: ...
    @property
    def at_us(self) -> int: ...
    @property
    def label(self) -> str | None: ...


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the past to keep. A version stays as soon as one of the rules keeps it.

    ``keep_last``: the newest so many versions. ``keep_within``: versions not older than this, a
    ``timedelta`` or seconds, by the clocks of their writers. ``keep_labelled``: versions with a label.
    With neither ``keep_last`` nor ``keep_within`` everything stays. Raises
    :class:`InvalidValueError` on values that make no sense.
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
        if type(seconds) not in (int, float) or not (math.isfinite(seconds) and seconds >= 0):
            raise InvalidValueError(
                f"keep_within must be a timedelta or seconds, not negative and finite, not {within!r}",
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


def select(
    versions: Iterable[VersionLike],
    rule: Retention,
    *,
    now_us: int,
    pinned: Container[int] | Iterable[int] = (),
) -> list[int]:
    """The sequence numbers that pruning may take, ascending.

    The newest version never is among them, nor one in ``pinned`` (fork points, heads of forks, targets
    of rewinds). ``versions`` is one line in any order; a sequence number given twice raises
    :class:`InvalidValueError`, for it would make ``keep_last`` keep too little.
    """
    if rule.keep_last is None and rule.keep_within is None:
        return []
    newest_first = sorted(versions, key=lambda version: version.seq, reverse=True)
    for later, earlier in pairwise(newest_first):
        if later.seq == earlier.seq:
            raise InvalidValueError(f"version {later.seq} was given twice")
    kept = _membership(pinned)
    within_us = rule.keep_within_us
    oldest_us = None if within_us is None else now_us - within_us
    prunable = [
        version.seq
        for version in newest_first[max(rule.keep_last or 0, 1) :]
        if not (oldest_us is not None and version.at_us >= oldest_us)
        and not (rule.keep_labelled and version.label is not None)
        and version.seq not in kept
    ]
    prunable.reverse()
    return prunable


def _membership(pinned: Container[int] | Iterable[int]) -> Container[int]:
    """``pinned`` as something that can be asked any number of times, quickly."""
    if isinstance(pinned, AbstractSet | range) or not isinstance(pinned, Iterable):
        return pinned
    return frozenset(pinned)


def tombstone(first_seq: int, digests: Sequence[bytes]) -> bytes:
    """What stays of consecutive pruned versions: the record digests of ``first_seq`` and those after it.

    With them the chain verifies across the gap. Raises :class:`InvalidValueError` on digests that are
    none.
    """
    if type(first_seq) is not int or not 0 <= first_seq <= SEQ_MAX:
        raise InvalidValueError(f"{first_seq!r} isn't a sequence number")
    kept = list(digests)
    if not kept or not _are_digests(kept):
        raise InvalidValueError(f"a tombstone needs digests of {HASH_BYTES} bytes each, and at least one")
    return frame(_encode((first_seq, kept)))


def read_tombstone(data: bytes) -> tuple[int, list[bytes]]:
    """The first sequence number and the digests of a tombstone.

    Raises :class:`StateCorruptedError` if it is damaged and
    :class:`~everthread.errors.SchemaVersionError` if its format is newer.
    """
    payload = unframe(data, "a tombstone")
    try:
        first_seq, digests = _decode(payload)
    except msgspec.DecodeError as error:
        raise StateCorruptedError("a tombstone can't be decoded", where="a tombstone") from error
    if not 0 <= first_seq <= SEQ_MAX or not digests or not _are_digests(digests):
        raise StateCorruptedError("a tombstone holds something other than digests", where="a tombstone")
    return first_seq, digests


def _are_digests(digests: list[bytes]) -> bool:
    return all(isinstance(digest, bytes) and len(digest) == HASH_BYTES for digest in digests)
