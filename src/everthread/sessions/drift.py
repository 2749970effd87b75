"""Recorded facts beside reality: which still hold, which are contradicted, too old, or can't be checked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everthread.verifiers.checking import check_all
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.verdicts import Status, Verdict
from everthread.working.items import ContextItem

#: A fact that nothing verifies counts as stale after a day, unless its metadata or the caller say otherwise.
MAX_AGE_S = 86_400.0
#: In the metadata of a context item: after how many seconds it is stale.
AGE_FIELD = "max_age_s"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class FactCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One fact and what became of it. ``verifier`` is None where it has none and only its age counts."""

    key: str
    value: Any
    status: Status
    reason: str
    verifier: str | None = None
    recorded_us: int | None = None

    @property
    def text(self) -> str:
        return f"{self.key} is {self.status.value}: {self.reason}"


def check_context(
    items: Iterable[ContextItem], *, now_us: int, max_age_s: float | None, allowed: Permissions
) -> tuple[FactCheck, ...]:
    """Verify every item that says how, and judge the others by their age. Never raises for what is stored."""
    items = list(items)
    verifiable = [item for item in items if item.verify is not None]
    verdicts = dict(
        zip(
            (item.key for item in verifiable),
            check_all([(item.verify, item.value) for item in verifiable], allowed),
            strict=True,
        )
    )
    return tuple(
        FactCheck(
            key=item.key,
            value=item.value,
            status=verdict.status,
            reason=verdict.reason,
            verifier=_verifier_name(item),
            recorded_us=microseconds(item.updated_at),
        )
        for item in items
        for verdict in (verdicts.get(item.key) or _by_age(item, now_us, max_age_s),)
    )


def microseconds(moment: dt.datetime | None) -> int | None:
    """A moment in µs since 1970."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def _verifier_name(item: ContextItem) -> str | None:
    """What the stored verifier calls itself. The state may come from anywhere and hold anything there."""
    if item.verify is None:
        return None
    name = item.verify.get("name") if isinstance(item.verify, Mapping) else None
    return name if isinstance(name, str) else "unknown verifier"


def _by_age(item: ContextItem, now_us: int, max_age_s: float | None) -> Verdict:
    """Old facts are stale. A young one isn't fresh: nobody has looked."""
    own = item.metadata.get(AGE_FIELD) if isinstance(item.metadata, Mapping) else None
    limit_s = own if isinstance(own, int | float) and not isinstance(own, bool) else max_age_s
    recorded_us = microseconds(item.updated_at)
    if limit_s is None or recorded_us is None:
        return Verdict(Status.UNVERIFIABLE, "it has no verifier")
    age_s = (now_us - recorded_us) / 1_000_000
    if age_s > limit_s:
        return Verdict(Status.STALE, f"it has no verifier and is older than {_duration(limit_s)}")
    return Verdict(Status.UNVERIFIABLE, f"it has no verifier; stale after {_duration(limit_s)}")


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
