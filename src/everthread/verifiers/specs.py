"""A verifier as it is stored: a name, arguments, and what was true when the fact was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.verifiers.verdicts import one_line

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
