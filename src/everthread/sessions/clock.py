"""Moments as callers see them."""

from __future__ import annotations

import datetime

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(at_us: int) -> datetime.datetime:
    """Microseconds since 1970 as an aware datetime."""
    return _EPOCH + datetime.timedelta(microseconds=at_us)


def moment_or_none(at_us: int | None) -> datetime.datetime | None:
    return None if at_us is None else moment(at_us)
