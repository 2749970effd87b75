"""What a verifier answers."""

from __future__ import annotations

import enum

import msgspec

REASON_CHARACTERS_MAX = 300


class Status(enum.StrEnum):
    """How far a recorded fact may be trusted now.

    ``fresh``: checked, and reality agrees. ``contradicted``: checked, and it doesn't. ``stale``: too old to
    be relied on. ``unverifiable``: nobody could check it; why stands in the reason.
    """

    FRESH = "fresh"
    STALE = "stale"
    CONTRADICTED = "contradicted"
    UNVERIFIABLE = "unverifiable"


_STATUSES = frozenset(Status)


class Verdict(msgspec.Struct, frozen=True):
    """A status and, in plain words, why."""

    status: Status
    reason: str = ""


def fresh(reason: str = "") -> Verdict:
    return Verdict(Status.FRESH, one_line(reason))


def contradicted(reason: str) -> Verdict:
    return Verdict(Status.CONTRADICTED, one_line(reason))


def unverifiable(reason: str) -> Verdict:
    return Verdict(Status.UNVERIFIABLE, one_line(reason))


def one_line(text: str) -> str:
    """``text`` on one line and short enough for a report, whatever a verifier made of it."""
    text = " ".join(text[: 4 * REASON_CHARACTERS_MAX].split())
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 1] + "…"


def verdict_of(answer: object) -> Verdict:
    """A verifier's answer as a verdict.

    ``True`` means fresh, ``False`` contradicted, ``None`` unverifiable; a status, its text, or a whole
    verdict are taken as they are. Anything else is unverifiable and says so: a guess would pass for a check.
    """
    match answer:
        case Verdict(status=status, reason=reason):
            return Verdict(Status(status), one_line(str(reason)))
        case True:
            return fresh()
        case False:
            return contradicted("the verifier says that it no longer holds")
        case None:
            return unverifiable("the verifier could not tell")
        case str() if answer in _STATUSES:
            return Verdict(Status(answer))
    return unverifiable(f"the verifier answered with a {type(answer).__name__}; expected True, False or None")
