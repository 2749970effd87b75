"""The byte layouts of single values beyond MessagePack's own: dates and times, decimals, UUIDs and such."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import os
import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from everthread.codec.types import Code
from everthread.limits import Limits
from everthread.values import Tagged

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_YEAR_ONE = dt.datetime(1, 1, 1)
# No dots, so that a key can't lead out of the time zone database.
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")


class Unknown(Exception):  # noqa: N818 (never leaves the codec)
    """The data are sound, but this machine can't make a value of them."""


class Refused(Exception):  # noqa: N818 (never leaves the codec)
    """Why a value can't be stored; ``path`` grows, innermost key first, while the calls unwind."""

    def __init__(self, reason: str, *, limit: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limit = limit
        self.path: list[object] = []


@functools.lru_cache(maxsize=8)
def integer_bound(digits_max: int) -> int:
    """The smallest positive integer that has more than ``digits_max`` digits."""
    return int(10**digits_max)


def dump_int(value: int, limits: Limits) -> Any:
    """An integer, tagged if MessagePack has no room for it."""
    # Compared, never printed: printing takes time quadratic in the length.
    bound = integer_bound(limits.integer_digits_max)
    if not -bound < value < bound:
        raise Refused(
            f"the integer has more than {limits.integer_digits_max:,} digits; store it as text or bytes, "
            "or raise integer_digits_max",
            limit=True,
        )
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    return Tagged(Code.BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def dump_text(value: str, limits: Limits) -> Any:
    """Text as it is, and text that isn't valid Unicode by the policy for it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        if limits.surrogates == "refuse":
            raise Refused(
                f"the text has a lone surrogate at character {error.start:,}, so it isn't valid Unicode; "
                'repair it, or allow such text with surrogates="keep"'
            ) from None
        return Tagged(Code.SURROGATE_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def dump_float(value: float, limits: Limits) -> float:
    """A float, unless it is one that the policy for NaN and the infinities refuses."""
    # Only NaN and the infinities aren't zero away from themselves.
    if limits.nan == "refuse" and value - value != 0:
        raise Refused(f'{value} can\'t be stored under nan="refuse"; use None or text instead')
    return value


def _dump_datetime(value: dt.datetime, limits: Limits) -> Tagged:
    clock_us = (value.replace(tzinfo=None) - _YEAR_ONE) // _MICROSECOND
    return Tagged(Code.DATETIME, _pack([clock_us, value.fold, *_dump_zone(value)]))


def _dump_time(value: dt.time, limits: Limits) -> Tagged:
    clock_us = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return Tagged(Code.TIME, _pack([clock_us, value.fold, *_dump_zone(value)]))


def _dump_zone(value: dt.datetime | dt.time) -> list[Any]:
    zone = value.tzinfo
    if zone is None:
        return []
    offset = value.utcoffset()
    offset_us = None if offset is None else offset // _MICROSECOND
    key = getattr(zone, "key", None) if type(zone).__module__.startswith("zoneinfo") else None
    if type(key) is str and _ZONE_KEY.fullmatch(key):
        return [offset_us, key, True]
    if offset is None:
        raise Refused(
            f"the time zone of this {type(value).__name__} ({type(zone).__name__}) has no offset; "
            "use a datetime.timezone or a zoneinfo.ZoneInfo"
        )
    name = value.tzname()
    if name is None or name == dt.timezone(offset).tzname(None):
        return [offset_us]
    # A name that isn't valid Unicode is no more than a label: it is shown, never looked up.
    return [offset_us, name.encode("utf-8", "replace").decode()]


def _dump_decimal(value: decimal.Decimal, limits: Limits) -> Tagged:
    if limits.nan == "refuse" and not value.is_finite():
        raise Refused(f'Decimal {value} can\'t be stored under nan="refuse"; use None or text instead')
    # Whether the exponent is written with e or E depends on the thread's decimal context.
    return Tagged(Code.DECIMAL, str(value).replace("e", "E").encode("ascii"))


def _load_bigint(data: bytes) -> int:
    value = int.from_bytes(data, "big", signed=True)
    if INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError("an integer of ordinary size is stored as a big one")
    return value


def _load_datetime(data: bytes) -> dt.datetime:
    clock_us, fold, *zone = _unpack(data)
    naive = _YEAR_ONE + dt.timedelta(microseconds=_integer(clock_us))
    return naive.replace(fold=_integer(fold), tzinfo=_load_zone(zone))


def _load_time(data: bytes) -> dt.time:
    clock_us, fold, *zone = _unpack(data)
    if not 0 <= _integer(clock_us) < _DAY_US:
        raise ValueError("the time isn't within a day")
    naive = (_YEAR_ONE + dt.timedelta(microseconds=clock_us)).time()
    return naive.replace(fold=_integer(fold), tzinfo=_load_zone(zone))


def _load_zone(zone: list[Any]) -> dt.tzinfo | None:
    if not zone:
        return None
    offset_us, *names = zone
    if len(names) == 2 and names.pop() is True:
        known = _zone_from_database(*names)
        if known is not None:
            return known
        if offset_us is None:
            raise Unknown
    # A zone this machine doesn't have still gives the right moment, by the offset it had then.
    offset = dt.timedelta(microseconds=_integer(offset_us))
    return dt.timezone(offset, *names) if offset or names else dt.UTC


def _zone_from_database(key: str) -> dt.tzinfo | None:
    """The zone if this machine's time zone database has it; never one from an importable package."""
    if not _ZONE_KEY.fullmatch(key):
        raise ValueError("the key of the time zone isn't one")
    import zoneinfo

    if any(os.path.isfile(os.path.join(place, key)) for place in zoneinfo.TZPATH):
        return zoneinfo.ZoneInfo(key)
    return None


def _load_timedelta(data: bytes) -> dt.timedelta:
    days, seconds, microseconds = _unpack(data)
    return dt.timedelta(_integer(days), _integer(seconds), _integer(microseconds))


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{type(value).__name__} stands where an integer should")
    return value


DUMPERS: dict[type, Callable[[Any, Limits], Any]] = {
    dt.datetime: _dump_datetime,
    dt.date: lambda value, limits: Tagged(Code.DATE, _pack(value.toordinal())),
    dt.time: _dump_time,
    dt.timedelta: lambda value, limits: Tagged(
        Code.TIMEDELTA, _pack([value.days, value.seconds, value.microseconds])
    ),
    decimal.Decimal: _dump_decimal,
    uuid.UUID: lambda value, limits: Tagged(Code.UUID, value.bytes),
}

#: Each raises :class:`Unknown` for what this machine doesn't know, another exception for damaged data.
LOADERS: dict[int, Callable[[bytes], Any]] = {
    Code.BIGINT: _load_bigint,
    Code.DATETIME: _load_datetime,
    Code.DATE: lambda data: dt.date.fromordinal(_integer(_unpack(data))),
    Code.TIME: _load_time,
    Code.TIMEDELTA: _load_timedelta,
    Code.DECIMAL: lambda data: decimal.Decimal(data.decode("ascii")),
    Code.UUID: lambda data: uuid.UUID(bytes=data),
    Code.SURROGATE_TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
}
