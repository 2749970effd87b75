"""Cache points for Anthropic: where a request says that all before is worth keeping."""

from __future__ import annotations

from typing import Any, Final

from everthread.errors import InvalidValueError
from everthread.messages.reports import Notes

#: More than this many are refused.
POINTS_MAX: Final = 4
TTLS: Final = ("5m", "1h")

_FIELD: Final = "cache_control"
#: These can't carry a point.
_NEVER: Final = ("thinking", "redacted_thinking")


def place(
    system: list[dict[str, Any]], messages: list[dict[str, Any]], ttl: str | None, notes: Notes
) -> None:
    """Put one point after the system prompt and one on the last block that can carry it, in place.

    Points that messages brought along stay, the newest first, as far as the limit allows.
    """
    if ttl is not None and ttl not in TTLS:
        raise InvalidValueError(f"cache is one of {', '.join(TTLS)}, or None, not {ttl!r}", path="cache")
    blocks = [*system, *(block for message in messages for block in message["content"])]
    marked = [block for block in blocks if block.get(_FIELD) is not None]
    wanted: list[dict[str, Any]] = []
    if ttl is not None:
        for group in (system, blocks[len(system) :]):
            last = next((block for block in reversed(group) if _cacheable(block)), None)
            if last is not None:
                wanted.append(last)
    for block in wanted:
        block.setdefault(_FIELD, _point(ttl))
    room = POINTS_MAX - len(wanted)
    others = [block for block in marked if not any(block is each for each in wanted)]
    surplus = others[: max(0, len(others) - room)]
    for block in surplus:
        del block[_FIELD]
    if surplus:
        notes.index = None
        notes.dropped("cache points", f"{len(surplus)} of the oldest; {POINTS_MAX} are allowed in all")


def _cacheable(block: dict[str, Any]) -> bool:
    return block.get("type") not in _NEVER and block.get("text") != ""


def _point(ttl: str | None) -> dict[str, Any]:
    # Five minutes is what the API takes for granted.
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
