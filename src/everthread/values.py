"""Values that mean something to Everthread itself, wherever they stand in a document or log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from everthread.arguments import NAME_BYTES_MAX, check_function, check_name
from everthread.errors import ErasedError, InvalidNameError, InvalidValueError


class Tagged:
    """A typed value in its encoded form: a type code of the closed table and its bytes.

    The tree inside a handle holds these for everything MessagePack has no type for. Immutable and
    hashable, so that it can also stand as a dictionary key.
    """

    __slots__ = ("code", "data")
    code: Final[int]  # type: ignore[misc]
    data: Final[bytes]  # type: ignore[misc]

    def __init__(self, code: int, data: bytes | bytearray | memoryview) -> None:
        _set_code(self, code)
        _set_data(self, data if type(data) is bytes else bytes(data))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Tagged is immutable")

    def __eq__(self, other: object) -> bool:
        return type(other) is Tagged and self.code == other.code and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.code, self.data))

    def __repr__(self) -> str:
        return f"Tagged({self.code}, {len(self.data)} bytes)"

    def __reduce__(self) -> tuple[type[Tagged], tuple[int, bytes]]:
        return (Tagged, (self.code, self.data))


# The only way to set them, once. Found here and not by name each time: every read makes many of these.
_set_code = Tagged.__dict__["code"].__set__
_set_data = Tagged.__dict__["data"].__set__


class Opaque:
    """A value whose type this process doesn't know. It can be kept, copied and stored again unchanged."""

    __slots__ = ("tagged",)

    def __init__(self, tagged: Tagged) -> None:
        self.tagged = tagged

    def __eq__(self, other: object) -> bool:
        return type(other) is Opaque and self.tagged == other.tagged

    def __hash__(self) -> int:
        return hash(self.tagged)

    def __repr__(self) -> str:
        return f"Opaque(code={self.tagged.code}, {len(self.tagged.data)} bytes)"


class Personal:
    """A value that belongs to one person, or to several.

    It is encrypted under the keys of its subjects before it is hashed, compared, indexed or logged.
    ``repr`` shows a mask; ``.value`` reveals.
    """

    __slots__ = ("_open", "_origin", "_sources", "_value", "sealed", "subjects")

    def __init__(self, subject: str | Iterable[str], value: Any) -> None:
        self.subjects: tuple[str, ...]
        if (
            type(subject) is str
            and subject.isascii()
            and 0 < len(subject) <= NAME_BYTES_MAX
            and "\0" not in subject
        ):
            # What check_name() would say of nearly all, without asking it: a save waits for this.
            self.subjects = (subject,)
        elif isinstance(subject, str):
            self.subjects = (check_name(subject, "subject"),)
        else:
            if not isinstance(subject, Iterable):
                raise InvalidNameError(
                    f"the subject of a personal value is a name, or several, not {type(subject).__name__}: "
                    'Personal("ann", value)'
                )
            self.subjects = tuple(dict.fromkeys([check_name(name, "subject") for name in subject]))
            if not self.subjects:
                raise InvalidNameError("a personal value needs at least one subject: whose is it?")
        self._value = value
        self._open: Any = None
        #: The sealed reference this was read from, so that a copy keeps its seal.
        self.sealed: Tagged | None = None
        #: Where it was read: what a store needs to keep it on elsewhere.
        self._origin: Any = None
        #: What it was made of: it is sealed under their keys as well.
        self._sources: tuple[Personal, ...] = ()

    @classmethod
    def from_sealed(cls, sealed: Tagged, opener: Any, origin: Any = None) -> Personal:
        """A value read back: ``opener()`` decrypts, when ``.value`` is first asked for.

        Its subjects are unknown by name: the store holds key ids only.
        """
        self = cls.__new__(cls)
        self.subjects = ()
        self._value = None
        self._open = opener
        self.sealed = sealed
        self._origin = origin
        self._sources = ()
        return self

    @classmethod
    def from_sources(cls, sources: Iterable[Personal], value: Any) -> Personal:
        """A value that was made of others: it belongs to everybody whom these belong to."""
        self = cls.__new__(cls)
        self._sources = tuple(sources)
        self.subjects = tuple(dict.fromkeys(name for each in self._sources for name in each.subjects))
        self._value = value
        self._open = self.sealed = self._origin = None
        return self

    @property
    def value(self) -> Any:
        if self._open is not None:
            self._value = self._open()
            self._open = None
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Personal):
            return NotImplemented
        if self.sealed is not None and self.sealed == other.sealed:
            return True
        return bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Personal:
        """Itself: it never changes, and a copy keeps its seal."""
        return self

    def __deepcopy__(self, memo: Any) -> Personal:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Personal is not pickled: that would carry its value in clear")

    def __repr__(self) -> str:
        return "Personal(•••)"


class Erased:
    """Where a personal value stood whose key has been destroyed. Falsy; ``.value`` is ``None``."""

    __slots__ = ("sealed",)

    def __init__(self, sealed: Tagged | None = None) -> None:
        self.sealed = sealed

    @property
    def value(self) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Erased) and (
            self.sealed == other.sealed or self.sealed is None or other.sealed is None
        )

    def __hash__(self) -> int:
        return hash(Erased)

    def __repr__(self) -> str:
        return "Erased()"


class Corrupt:
    """Where something stood that is damaged and can't be read. Falsy; ``reason`` says what is wrong."""

    __slots__ = ("reason",)
    reason: Final[str]  # type: ignore[misc]

    def __init__(self, reason: str) -> None:
        object.__setattr__(self, "reason", reason)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Corrupt is immutable")

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Corrupt) and self.reason == other.reason

    def __hash__(self) -> int:
        return hash((Corrupt, self.reason))

    def __repr__(self) -> str:
        return f"Corrupt({self.reason!r})"

    def __reduce__(self) -> tuple[type[Corrupt], tuple[str]]:
        return (Corrupt, (self.reason,))


# Opening personal values on purpose, and making new ones of them that belong to the same people.


def reveal(value: Any) -> Any:
    """A copy of ``value`` in which personal values stand in clear, however deep; ``None`` for erased ones.

    For what is handed to a model or shown to somebody: say it where that happens. Mappings become dicts,
    sequences lists. Raises :class:`SealError` if a key isn't at hand.
    """
    return _opened(value, [], [])


def derive(fn: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
    """What ``fn`` makes of the inputs in clear, as a :class:`Personal` of everybody whose values went in.

    A summary, a translation or an embedding says something about the people that it was made of: this way it
    is sealed under all of their keys, and erasing any of them takes it along. Personal values are found
    however deep they are inside of the inputs. If one was erased, so is what would come of it: ``fn``
    isn't called and an :class:`Erased` comes back. Without any personal value it is what ``fn`` gave.
    """
    check_function(fn, "fn")
    sources: list[Personal] = []
    erased: list[Erased] = []
    opened = [_opened(each, sources, erased) for each in inputs]
    options = {name: _opened(each, sources, erased) for name, each in named.items()}
    if erased:
        return Erased()
    result = fn(*opened, **options)
    # What it returns may be personal itself, of other people.
    plain = _opened(result, sources, erased)
    return Personal.from_sources(sources, plain) if sources else result


def _opened(value: Any, found: list[Personal], erased: list[Erased]) -> Any:
    """A copy in clear; what was personal in it is noted."""
    match value:
        case Personal():
            try:
                plain = value.value
            except ErasedError:
                # Since it was read.
                erased.append(Erased(value.sealed))
                return None
            found.append(value)
            return _opened(plain, found, erased)
        case Erased():
            erased.append(value)
            return None
        case str() | bytes() | bytearray() | memoryview():
            return value
        case Mapping():
            return {key: _opened(each, found, erased) for key, each in value.items()}
        case tuple() if type(value) is tuple:
            return tuple(_opened(each, found, erased) for each in value)
        case tuple() | range():
            return value
        case Sequence():
            return [_opened(each, found, erased) for each in value]
    return value


def check_text(value: Any, what: str, path: str = "") -> Any:
    """Text that says something, or a personal value, which stays as it is. Raises :class:`InvalidValueError`.

    What is in a personal value that is sealed already isn't looked at."""
    if isinstance(value, Erased):
        return value
    inner = value.value if isinstance(value, Personal) and value.sealed is None else value
    if not isinstance(value, str | Personal):
        raise InvalidValueError(f"{what} must be text, not {type(value).__name__}", path=path)
    if isinstance(inner, str) and not inner.strip():
        raise InvalidValueError(f"{what} must not be empty: write what it is", path=path)
    return value if isinstance(value, Personal) else str.__str__(value)
