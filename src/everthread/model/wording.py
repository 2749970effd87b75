"""Numbers in sentences, and what several sentences say alike."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 thread``, ``2 threads``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def with_extra(extra: str) -> str:
    """What to do about a package that is missing, wherever Everthread came from."""
    return f"install Everthread with its extra {extra!r}, such as pip install '.[{extra}]' in its clone"


#: For those who may read a store and not write to it. Opening one takes both: locks and logs stand beside it.
LOOK_ONLY = "to look at it only, copy it, with the files beside it, to a place that you may write to"
