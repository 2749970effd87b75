"""What verifiers are made of: how one is stored, what it answers, what a reader lets it do."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError

# ── verdicts ────────────────────────────────────────────────────────────────────────────────────────


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


SPEC_BYTES_MAX = 16 * 1024
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Spec(msgspec.Struct, frozen=True):
    """Which verifier, with which arguments. Hand one to ``set_context(…, verify=…)``."""

    name: str
    args: Mapping[str, Any] = _NOTHING


class Stored(msgspec.Struct, frozen=True):
    """A spec with what its verifier saw when the fact was recorded.

    ``expected`` is None where there was nothing to see; ``problem`` says why it could not look.
    """

    name: str
    args: Mapping[str, Any] = _NOTHING
    expected: Any = None
    problem: str = ""

    def to_data(self) -> dict[str, Any]:
        """The plain data that goes into the document."""
        data: dict[str, Any] = {"name": self.name, "args": plain(self.args), "expected": plain(self.expected)}
        if self.problem:
            data["problem"] = self.problem
        return data

    @classmethod
    def from_data(cls, data: object) -> Self | None:
        """The stored form, or None if the data are none. They may come from anywhere: nothing is believed."""
        if not isinstance(data, Mapping):
            return None
        name, args, problem = data.get("name"), data.get("args", {}), data.get("problem", "")
        if not isinstance(name, str) or not isinstance(args, Mapping) or not isinstance(problem, str):
            return None
        if not all(isinstance(key, str) for key in args):
            return None
        return cls(name, plain(args), plain(data.get("expected")), one_line(problem))


def make_spec(name: str, args: Mapping[str, Any]) -> Spec:
    """A spec whose arguments are known to be storable. Raises :class:`InvalidValueError` if they aren't."""
    check_name(name, "verifier")
    given = {key: value for key, value in args.items() if value is not None}
    checked(given, f"the arguments of verifier {name!r}")
    return Spec(name, MappingProxyType(given))


def checked(value: Any, what: str) -> Any:
    """``value`` as plain JSON-like data of bounded size, or :class:`InvalidValueError`."""
    data = plain(value)
    try:
        encoded = msgspec.json.encode(data)
        same = msgspec.json.decode(encoded) == data
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        same = False
    # Bytes and sets are let through as texts and lists, and would be compared as these later.
    if not same:
        raise InvalidValueError(f"{what} must be JSON-like data", path="verify")
    if len(encoded) > SPEC_BYTES_MAX:
        raise InvalidValueError(
            f"{what} are {len(encoded):,} bytes; at most {SPEC_BYTES_MAX:,} are allowed", path="verify"
        )
    return data


def fields(recorded: Any, *names: str) -> tuple[Any, ...]:
    """The values under these names in what was captured, None for what isn't there."""
    known = recorded if isinstance(recorded, Mapping) else _NOTHING
    return tuple(known.get(name) for name in names)


def plain(value: Any) -> Any:
    """Mappings and sequences of any kind as dicts and lists, everything else as it is."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "plain"):
        return value.plain()
    return value


# ── permissions ─────────────────────────────────────────────────────────────────────────────────────
# A state may come from elsewhere. What it holds must not be able to run a program, so running one is up to
# whoever reads it.


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
