"""Names of threads made from several keys of a framework: readable, and no two pairs of keys share one."""

from __future__ import annotations

from everthread.arguments import check_name
from everthread.errors import InvalidNameError


def joined(*parts: str) -> str:
    """One name for all of these. A part may hold anything; ``/`` and ``%`` in it are escaped."""
    return check_name("/".join(map(_escaped, parts)), "name of a thread")


def below(*parts: str) -> str:
    """What all names begin with that have these parts first, and no other name does."""
    return joined(*parts) + "/"


def split(name: str) -> tuple[str, ...]:
    """The parts of a name that :func:`joined` made."""
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in name.split("/"))


def _escaped(part: str) -> str:
    if not isinstance(part, str):
        raise InvalidNameError(f"a key is text, not {type(part).__name__}")
    return part.replace("%", "%25").replace("/", "%2F")
