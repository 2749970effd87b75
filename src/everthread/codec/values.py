"""Values to lowered trees to bytes, and back.

A *lowered tree* is made of ``None``, bool, int (-2**63..2**64-1), float, str, bytes, list, dict and
:class:`Tagged`, which carries every other type in its encoded form. Keys of its dicts are None, bool, int,
float, str, bytes or Tagged. On disk it is MessagePack, a Tagged being an extension of its code, so that no
dict of a caller can ever be taken for a typed value.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from everthread.codec.lowering import KEY_TYPES, is_plain, lower, pack
from everthread.codec.scalars import LOADERS, Unknown
from everthread.codec.types import Code, shape_for_tag
from everthread.errors import EverthreadError, InvalidValueError, LimitError, StateCorruptedError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.values import Corrupt, Erased, Opaque, Tagged

__all__ = [
    "LEAVES",
    "decode",
    "decode_plain",
    "encode",
    "encode_stored",
    "is_plain",
    "lift",
    "lower",
    "revive",
    "same",
]

Open = Callable[[Tagged], Any]

_unpack = msgspec.msgpack.Decoder(ext_hook=Tagged).decode
_decode_with = msgspec.msgpack.decode
_unpack_outline = msgspec.msgpack.Decoder(ext_hook=lambda code, data: None).decode
_unpack_object = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode
#: The types that stand for themselves in a lowered tree.
LEAVES = frozenset({str, int, float, bool, type(None), bytes})
_bits = struct.Struct("<d").pack
_SHORT_TIMESTAMPS = (b"\xd6", b"\xd7")
_FEW = 100


def encode(node: Any, limits: Limits = DEFAULT_LIMITS, where: str = "") -> bytes:
    """The bytes of a lowered tree. Raises :class:`LimitError` above ``payload_bytes_max``, of ``where``."""
    try:
        data = pack(node)
    except RecursionError:
        raise LimitError("the tree is nested deeper than the rest of Python's stack allows") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"this isn't a lowered tree: {error}") from error
    if len(data) > limits.payload_bytes_max:
        raise LimitError(
            f"{where or 'the value'} takes {len(data):,} bytes, more than the {limits.payload_bytes_max:,} "
            "of payload_bytes_max; split it, keep long lists in a log, or raise the limit",
            path=where,
        )
    return data


def encode_stored(node: Any) -> bytes:
    """As :func:`encode`, for what has been accepted before: limits are for what comes in."""
    return pack(node)


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The lowered tree that :func:`encode` made ``data`` from, else :class:`StateCorruptedError`."""
    if type(data) is not bytes:
        data = bytes(data)
    try:
        node = _unpack(data)
        if 0xFF in data and _may_hold_timestamp(data):
            _refuse_timestamps(node)
    except Exception as error:
        raise _damaged("the encoded data") from error
    return node


def decode_as(unpack: Callable[[bytes], Any], data: bytes) -> Any:
    """As :func:`decode`, into what ``unpack`` makes of it; raises also where there could be a timestamp."""
    try:
        if 0xFF in data and _may_hold_timestamp(data):
            raise ValueError("perhaps a MessagePack timestamp")
        return unpack(data)
    except Exception as error:
        raise _damaged("the encoded data") from error


def decode_plain(data: bytes | bytearray | memoryview, open_: Open | None = None) -> Any:
    """The caller's value straight from bytes: what ``lift(decode(data), open_)`` gives, only faster.

    One difference on bytes that nobody here wrote: an array as a key, which :func:`lift` refuses, comes back
    as a tuple.
    """
    if type(data) is not bytes:
        data = bytes(data)
    # As _reviver(data, open_).decode(data), with less ado: every read of a document or log runs this.
    if 0xFF in data and _may_hold_timestamp(data):
        return _Reviver(open_, careful=True).decode(data)
    reviver = _quick if open_ is None else _Reviver(open_, careful=False)
    try:
        return _decode_with(data, ext_hook=reviver.revive)
    except EverthreadError:
        raise
    except Exception as error:
        raise _damaged("the encoded data") from error


def lift(node: Any, open_: Open | None = None) -> Any:
    """Copy a lowered tree, whole, into the caller's values; ``open_`` reads sealed references.

    Without ``open_`` these stay :class:`Opaque`. Raises :class:`StateCorruptedError` for damaged data.
    """
    try:
        return _lift(node, open_)
    except RecursionError as error:
        raise _damaged("the tree") from error


def _lift(node: Any, open_: Open | None) -> Any:
    kind = type(node)
    # Loops: before Python 3.12 a comprehension takes a frame of its own, and depth is counted in frames.
    if kind is dict:
        mapping: dict[Any, Any] = {}
        for key, item in node.items():
            at = key if type(key) is str else _lift_key(key, open_)
            mapping[at] = item if type(item) in LEAVES else _lift(item, open_)
        return mapping
    if kind is list:
        sequence: list[Any] = []
        for item in node:
            sequence.append(item if type(item) in LEAVES else _lift(item, open_))  # noqa: PERF401
        return sequence
    if kind is Tagged:
        return revive(node, open_)
    return node


def _lift_key(key: Any, open_: Open | None) -> Any:
    if type(key) not in KEY_TYPES:
        raise _damaged("the key of a mapping")
    if type(key) is not Tagged:
        return key
    value = revive(key, open_)
    try:
        hash(value)
    except Exception as error:
        raise _damaged("the key of a mapping") from error
    return value


def revive(tagged: Tagged, open_: Open | None = None) -> Any:
    """The value that ``tagged`` stands for; an :class:`Opaque` if this process doesn't know its type.

    Raises :class:`StateCorruptedError` if the data of a known type are damaged, and what ``open_`` raises.
    """
    return _reviver(tagged.data, open_).revive(tagged.code, tagged.data)


class _Reviver:
    """Reads extensions while MessagePack is being decoded, at any depth, without copying nested bytes."""

    __slots__ = ("_careful", "_open")

    def __init__(self, open_: Open | None, careful: bool) -> None:
        self._open = open_
        self._careful = careful

    def decode(self, data: bytes | memoryview) -> Any:
        try:
            if self._careful:
                _refuse_timestamps(_unpack_outline(data))
            return msgspec.msgpack.decode(data, ext_hook=self.revive)
        except EverthreadError:
            raise
        except Exception as error:
            raise _damaged("the encoded data") from error

    def revive(self, code: int, data: bytes | memoryview) -> Any:
        load = LOADERS.get(code)
        if load is not None:
            try:
                return load(bytes(data))
            except Unknown:
                return Opaque(Tagged(code, data))
            except Exception as error:
                raise _damaged(f"a {Code(code).name}") from error
        if code == Code.TUPLE:
            return tuple(self._items(code, data))
        if code == Code.SET or code == Code.FROZENSET:
            items = self._items(code, data)
            try:
                return set(items) if code == Code.SET else frozenset(items)
            except Exception as error:
                raise _damaged(f"a {Code(code).name}") from error
        if code == Code.OBJECT:
            return self._object(data)
        if code == Code.SEALED and self._open is not None:
            return self._open(Tagged(code, data))
        if code == Code.ERASED:
            if data:
                raise _damaged("an ERASED")
            return Erased()
        if code == Code.CORRUPT:
            return Corrupt(bytes(data).decode("utf-8", "replace"))
        return Opaque(Tagged(code, data))

    def _items(self, code: int, data: bytes | memoryview) -> list[Any]:
        items = self.decode(data)
        if type(items) is not list:
            raise _damaged(f"a {Code(code).name}")
        return items

    def _object(self, data: bytes | memoryview) -> Any:
        try:
            tag, content = _unpack_object(data)
        except Exception as error:
            raise _damaged("an OBJECT") from error
        shape = shape_for_tag(tag)
        if shape is None:
            return Opaque(Tagged(Code.OBJECT, data))
        fields = self.decode(memoryview(content))
        try:
            return shape.from_data(fields)
        except Exception:
            # The class has changed since. The value stays what it is, for a version of the class that fits.
            return Opaque(Tagged(Code.OBJECT, data))


_quick = _Reviver(None, careful=False)


def _reviver(data: bytes, open_: Open | None) -> _Reviver:
    careful = _may_hold_timestamp(data)
    return _quick if open_ is None and not careful else _Reviver(open_, careful)


def _may_hold_timestamp(data: bytes) -> bool:
    """Whether MessagePack's own timestamp could be in there, which msgspec turns into a datetime unasked.

    Nothing written here holds one. Its few possible beginnings have a byte that text never holds, and looking
    for that one costs next to nothing; only where one is found, perhaps by chance, has the tree to be looked
    through.
    """
    at = data.find(0xFF)
    for _ in range(_FEW):
        if at < 0:
            return False
        # The code of the type, -1, after "four bytes", "eight bytes" or "so many bytes: twelve".
        if data[at - 1 : at] in _SHORT_TIMESTAMPS or data[max(at - 2, 0) : at] == b"\xc7\x0c":
            return True
        at = data.find(0xFF, at + 1)
    # Binary data: there are too many to go from one to the next.
    return at >= 0 and (b"\xd6\xff" in data or b"\xd7\xff" in data or b"\xc7\x0c\xff" in data)


def _refuse_timestamps(node: Any) -> None:
    pending: list[Collection[Any]] = [[node]]
    while pending:
        items = pending.pop()
        kinds = set(map(type, items))
        if dt.datetime in kinds:
            raise ValueError("a MessagePack timestamp")
        if dict in kinds:
            for item in items:
                if type(item) is dict:
                    pending += (list(item), list(item.values()))
        if list in kinds or tuple in kinds:
            pending += (item for item in items if type(item) is list or type(item) is tuple)


def _damaged(what: str) -> StateCorruptedError:
    return StateCorruptedError(f"{what} can't be read: the bytes are not what was written")


def same(a: Any, b: Any) -> bool:
    """Whether two lowered trees are equal in every bit that counts.

    Types count (1, True and 1.0 differ), so do the bits of floats (NaN equals itself, 0.0 and -0.0 differ);
    the order of keys doesn't. Safe on trees of any depth.
    """
    kind = type(a)
    if kind is type(b) and (kind is dict or kind is list) and len(a) == len(b):
        # Encoding both takes a fraction of the time of walking through them. Unequal bytes prove nothing: the
        # keys may stand in another order.
        try:
            if pack(a) == pack(b):
                return True
        except RecursionError:
            pass
    pending = [(a, b)]
    while pending:
        x, y = pending.pop()
        if x is y:
            continue
        kind = type(x)
        if kind is not type(y):
            return False
        if kind is dict:
            if len(x) != len(y) or not _pair_values(x, y, pending):
                return False
        elif kind is list:
            if len(x) != len(y):
                return False
            pending += zip(x, y, strict=True)
        elif kind is float:
            if _bits(x) != _bits(y):
                return False
        elif x != y:
            return False
    return True


def _pair_values(x: dict[Any, Any], y: dict[Any, Any], pending: list[tuple[Any, Any]]) -> bool:
    """Add the pairs of values under the same key to ``pending``; False if a key is missing from ``y``."""
    odd: dict[Any, Any] | None = None
    for key, item in x.items():
        if type(key) is str:
            if key not in y:
                return False
            pending.append((item, y[key]))
        else:
            if odd is None:
                odd = {_strict(other): value for other, value in y.items() if type(other) is not str}
            strict = _strict(key)
            if strict not in odd:
                return False
            pending.append((item, odd[strict]))
    return True


def _strict(key: Any) -> tuple[type, Any]:
    return (float, _bits(key)) if type(key) is float else (type(key), key)
