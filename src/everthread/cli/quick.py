"""``everthread status`` as it is mostly typed, without click, whose import takes longer than the command.

Only what needs no explaining is understood here. Whatever else stands on the line (an unknown option, a value
that may be wrong, ``--help``) is left to click, which knows all options and has the words for mistakes.
"""

from __future__ import annotations

import gc
import os
import sys

from everthread.cli.telling import FORMATS

#: Options with a value that stand before or after the command, and the field of ``Asked`` that they set.
_SHARED = {"--store": "url", "--namespace": "namespace", "--cold": "cold", "--format": "format"}
#: More digits than any limit needs.
_DIGITS_MAX = 9


def quickly(given: list[str]) -> int | None:
    """Run the command, if it is one of these; its exit code. ``None``: click shall read the arguments."""
    # Most other commands are told from status at a glance.
    if "status" not in given or "_EVERTHREAD_COMPLETE" in os.environ:
        return None
    read = _Line()
    if not read.understood(given):
        return None
    # Nothing of what is loaded is garbage: looking for it takes a tenth of the time.
    gc.disable()
    _load_msgspec()
    from everthread.cli.asked import Asked
    from everthread.cli.overview import LIMIT, overview

    gc.enable()
    asked = Asked()
    for field, value in read.shared.items():
        setattr(asked, field, value)
    prefix = read.words[1] if len(read.words) == 2 else ""
    return overview(asked, prefix, read.limit or LIMIT, read.everything)


def _load_msgspec() -> None:
    """Load it without ``typing_extensions``, which it prefers to ``typing`` where that is installed.

    That would load ``inspect`` and much else, for names that ``typing`` has as well since Python 3.11.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401 - so that it is there
    finally:
        del sys.modules["typing_extensions"]


class _Line:
    """The arguments of ``status``, read from left to right."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.shared: dict[str, str] = {}
        self.limit = 0
        self.everything = False

    def understood(self, given: list[str]) -> bool:
        """Read all of them; whether they are plain."""
        rest = iter(given)
        for argument in rest:
            if argument[:1] != "-":
                self.words.append(argument)
            elif argument == "--json":
                if not self._share("--format", "json"):
                    return False
            elif argument == "--all" and self.words:
                self.everything = True
            else:
                name, equals, value = argument.partition("=")
                if not self._set(name, value if equals else next(rest, "")):
                    return False
        return 1 <= len(self.words) <= 2 and self.words[0] == "status"

    def _set(self, name: str, value: str) -> bool:
        if value[:1] in ("", "-"):
            return False
        if name == "--limit" and self.words:
            plain = value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
            self.limit = int(value) if plain else 0
            return self.limit > 0
        return name in _SHARED and self._share(name, value)

    def _share(self, name: str, value: str) -> bool:
        field = _SHARED[name]
        if field == "format" and (value not in FORMATS or self.shared.get(field, value) != value):
            return False
        self.shared[field] = value
        return True
