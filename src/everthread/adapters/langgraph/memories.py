"""Items of ``EverthreadStore`` as they are stored, filtered and ranked. No I/O."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from operator import mul
from typing import Any, Final

import msgspec
from langgraph.store.base import Item, MatchCondition, SearchItem

from everthread.adapters.langgraph.values import Values
from everthread.arguments import check_name
from everthread.codec import records
from everthread.codec.values import decode_plain, encode, lower
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.limits import Limits
from everthread.values import Personal, Tagged

_ESCAPED: Final = (("%", "%25"), ("/", "%2F"), ("#", "%23"))
_HASHED: Final = "%~"
_NAME_BYTES_MAX: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_US: Final = 60_000_000


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """An item with all that is known of it. Times in microseconds, ``ttl`` in minutes."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_us: int
    updated_us: int
    ttl: float | None = None
    expires_us: int | None = None
    vectors: tuple[bytes, ...] = ()

    def is_over(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us

    def refreshed(self, now_us: int) -> Memory:
        return msgspec.structs.replace(self, expires_us=expiry(self.ttl, now_us))

    def item(self) -> Item:
        return Item(
            value=self.value,
            key=self.key,
            namespace=self.namespace,
            created_at=_time(self.created_us),
            updated_at=_time(self.updated_us),
        )

    def found(self, score: float | None) -> SearchItem:
        return SearchItem(
            self.namespace, self.key, self.value, _time(self.created_us), _time(self.updated_us), score
        )


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


def expiry(ttl: float | None, now_us: int) -> int | None:
    """When an item with this lifetime, in minutes, is over."""
    return None if ttl is None else now_us + int(ttl * _MINUTE_US)


# ── names of cells ───────────────────────────────────────────────────────────────────────────────


def cell_prefix(prefix: str, namespace: Sequence[str]) -> str:
    """How the cells of all items in a namespace and below it begin."""
    return prefix + "".join(f"{_escape(part)}/" for part in namespace)


def cell_name(prefix: str, namespace: Sequence[str], key: str) -> str:
    """The cell of an item. A key that is too long is a digest: the item itself says what it is."""
    name = f"{cell_prefix(prefix, namespace)}#{_escape(key)}"
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        digest = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{cell_prefix(prefix, namespace)}#{_HASHED}{digest}"
    return check_name(name, "namespace and key")


def _escape(part: object) -> str:
    text = str(part)
    for plain, escaped in _ESCAPED:
        text = text.replace(plain, escaped)
    return text


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────


def write_memory(memory: Memory, values: Values, limits: Limits) -> bytes:
    """The bytes of an item. Raises :class:`InvalidValueError` or :class:`LimitError`, naming the place."""
    if not isinstance(memory.value, Mapping):
        raise InvalidValueError("the value of an item is a dictionary", path="value")
    lowered = lower(
        {
            "namespace": list(memory.namespace),
            "key": memory.key,
            "value": values.pack(dict(memory.value)),
            "times": [memory.created_us, memory.updated_us, memory.ttl, memory.expires_us],
            "vectors": list(memory.vectors),
        },
        limits=limits,
        seal=_not_here,
        root="item",
    )
    return records.compress(encode(lowered, limits))


def _not_here(personal: Personal) -> Tagged:
    raise InvalidValueError(
        "items can't hold personal values: keep them in store.users, or in the state of a thread",
        path="value",
    )


def read_memory(data: bytes, values: Values) -> Memory:
    """The inverse. Raises :class:`StateCorruptedError` if it isn't what was written."""
    stored = decode_plain(records.expand(data, "an item"))
    try:
        created, updated, ttl, expires = stored["times"]
        return Memory(
            namespace=tuple(stored["namespace"]),
            key=stored["key"],
            value=values.unpack(stored["value"]),
            created_us=created,
            updated_us=updated,
            ttl=ttl,
            expires_us=expires,
            vectors=tuple(stored["vectors"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateCorruptedError("an item can't be decoded", where="an item") from error


# ── vectors ──────────────────────────────────────────────────────────────────────────────────────


def pack_vector(numbers: Sequence[float], dims: int | None) -> bytes:
    """A vector of length one, four bytes a number. Raises :class:`InvalidValueError` for another size."""
    if dims is not None and len(numbers) != dims:
        raise InvalidValueError(
            f"the embedding has {len(numbers)} numbers, the index is for {dims}", path="index.dims"
        )
    length = math.sqrt(sum(map(mul, numbers, numbers))) or 1.0
    return array("f", [number / length for number in numbers]).tobytes()


def similarity(vectors: Iterable[bytes], wanted: Sequence[float]) -> float | None:
    """The best cosine of several vectors with one of length one; ``None`` without any of its size."""
    best: float | None = None
    for packed in vectors:
        numbers = array("f")
        numbers.frombytes(packed)
        if len(numbers) == len(wanted):
            score = float(sum(map(mul, numbers, wanted)))
            best = score if best is None or score > best else best
    return best


# ── searching ────────────────────────────────────────────────────────────────────────────────────


class Finder:
    """Keeps the best items of those it is shown: the nearest, or else the newest."""

    def __init__(self, filter: Mapping[str, Any] | None, count: int, vector: bytes | None) -> None:
        self._filter = filter or {}
        self._count = count
        self._wanted: array[float] | None = None
        if vector is not None:
            self._wanted = array("f")
            self._wanted.frombytes(vector)
        #: (rank, order of arrival, item); the worst first.
        self._best: list[tuple[Any, int, Memory, float | None]] = []
        self._seen = 0

    def show(self, memory: Memory) -> None:
        if not all(matches(memory.value.get(key), wanted) for key, wanted in self._filter.items()):
            return
        score = similarity(memory.vectors, self._wanted) if self._wanted is not None else None
        if self._wanted is not None and score is None:
            # Found after all that have one.
            rank: tuple[float, int] = (-2.0, memory.updated_us)
        else:
            rank = (score or 0.0, memory.updated_us)
        self._seen += 1
        entry = (rank, -self._seen, memory, score)
        if len(self._best) < self._count:
            heapq.heappush(self._best, entry)
        elif self._best and entry[:2] > self._best[0][:2]:
            heapq.heapreplace(self._best, entry)

    def found(self, offset: int) -> list[tuple[Memory, float | None]]:
        ranked = sorted(self._best, key=lambda entry: entry[:2], reverse=True)
        return [(memory, score) for _, _, memory, score in ranked[offset:]]


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value is what a filter asks for: equal, or as its operators say, part by part."""
    if isinstance(wanted, Mapping):
        if any(str(key).startswith("$") for key in wanted):
            return all(_holds(value, str(operator), than) for operator, than in wanted.items())
        return isinstance(value, Mapping) and all(
            matches(value.get(key), part) for key, part in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple) and len(value) == len(wanted) and all(map(matches, value, wanted))
        )
    return bool(value == wanted)


def _holds(value: Any, operator: str, than: Any) -> bool:
    if operator == "$eq":
        return bool(value == than)
    if operator == "$ne":
        return bool(value != than)
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise InvalidValueError(
            f"there is no operator {operator!r}; there are $eq, $ne, $gt, $gte, $lt and $lte", path="filter"
        )
    try:
        left, right = float(value), float(than)
    except (TypeError, ValueError):
        return False
    if operator == "$gt":
        return left > right
    if operator == "$gte":
        return left >= right
    return left < right if operator == "$lt" else left <= right


def is_under(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a namespace begins, or ends, as a condition says; ``"*"`` stands for any part."""
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    if condition.match_type not in ("prefix", "suffix"):
        raise InvalidValueError(f"{condition.match_type!r} is neither prefix nor suffix", path="match_type")
    part = (
        namespace[: len(path)]
        if condition.match_type == "prefix"
        else namespace[len(namespace) - len(path) :]
    )
    return all(wanted in ("*", each) for each, wanted in zip(part, path, strict=True))
