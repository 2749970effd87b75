"""What the reader of a state lets its verifiers do.

A state may come from elsewhere. What it holds must not be able to run a program, so running one is up to
whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from everthread.errors import InvalidValueError

AllowCommands = bool | Iterable[Sequence[str]]


class Permissions(msgspec.Struct, frozen=True):
    """``commands``: all, none, or exactly these argument lists. ``network``: whether HTTP may be spoken."""

    commands: bool | frozenset[tuple[str, ...]] = False
    network: bool = True

    def permits(self, argv: Sequence[str]) -> bool:
        """Whether this command may be run."""
        return self.commands if isinstance(self.commands, bool) else tuple(argv) in self.commands


def permissions(allow_commands: AllowCommands = False, allow_network: bool = True) -> Permissions:
    """The permissions for the arguments of ``resume()``.

    ``allow_commands``: True for every stored command, or an iterable of argument lists, compared whole.
    Raises :class:`InvalidValueError` for anything else.
    """
    if isinstance(allow_commands, bool):
        return Permissions(allow_commands, allow_network)
    if isinstance(allow_commands, str | bytes) or not isinstance(allow_commands, Iterable):
        raise InvalidValueError("allow_commands is True, False or a list of argument lists")
    commands = []
    for argv in allow_commands:
        if (
            isinstance(argv, str | bytes)
            or not isinstance(argv, Iterable)
            or not all(isinstance(part, str) for part in argv)
        ):
            raise InvalidValueError("allow_commands holds argument lists such as ['make', 'check']")
        commands.append(tuple(argv))
    return Permissions(frozenset(commands), allow_network)
