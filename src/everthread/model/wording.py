"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 thread``, ``2 threads``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
