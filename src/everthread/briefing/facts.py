"""What goes into a briefing: facts, each with its id, age, origin and how far it may be trusted."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Kind(enum.StrEnum):
    """What a fact is about. The order is the order in a briefing."""

    RUN = "run"
    GOAL = "goal"
    NEXT = "next"
    CONSTRAINT = "constraint"
    DRIFT = "drift"
    CALL = "call"
    SETTLED = "settled"
    TODO = "todo"
    DECISION = "decision"
    LOOP = "loop"
    CONTEXT = "context"
    FAILURE = "failure"
    EXCHANGE = "exchange"


class Trust(enum.StrEnum):
    """``verified``: checked against reality for this briefing. ``stale``: contradicted, or too old to rely
    on. ``unverified``: as it was recorded; nothing checked it."""

    VERIFIED = "verified"
    STALE = "stale"
    UNVERIFIED = "unverified"


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``text`` may hold anything: it is made harmless when it is written.

    ``at_us``: when it was recorded, None if nobody knows. ``source``: where it comes from.
    """

    kind: Kind
    id: str
    text: str
    source: str
    at_us: int | None = None
    trust: Trust = Trust.UNVERIFIED


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a briefing is made of; the same background gives the same text.

    ``facts``: within a kind the most important first (exchanges: the newest first). ``more``: how many of a
    kind exist beside these. ``now_us``: the moment that ages refer to.
    """

    thread: str
    version: int | None
    now_us: int
    facts: tuple[Fact, ...]
    more: Mapping[Kind, int] = MappingProxyType({})
