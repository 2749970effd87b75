"""What may go into a document, in which form, and how everything else is refused by its place."""
# ruff: noqa: DTZ001 (a datetime without a zone is a value like any other)

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import math
import struct
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from typing import Any

import pytest

from everthread.codec import decode, decode_plain, encode, lift, lower, register, same
from everthread.codec.values import is_plain
from everthread.errors import InvalidValueError, LimitError, StateCorruptedError
from everthread.limits import DEFAULT_LIMITS, Limits


@register(tag="tests.lowering.Spot")
@dataclasses.dataclass(frozen=True)
class Spot:
    x: Any


class _Map(Mapping[Any, Any]):
    def __init__(self, content: dict[Any, Any]) -> None:
        self.content = content

    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


class _Row(MutableSequence[Any]):
    def __init__(self, content: list[Any]) -> None:
        self.content = content

    def __getitem__(self, index: Any) -> Any:
        return self.content[index]

    def __setitem__(self, index: Any, value: Any) -> None: ...

    def __delitem__(self, index: Any) -> None: ...

    def __len__(self) -> int:
        return len(self.content)

    def insert(self, index: int, value: Any) -> None: ...


class _Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class _Int(int):
    def __int__(self) -> int:
        return 99


class _Float(float):
    pass


class _Bytes(bytes):
    pass


class _List(list[Any]):
    pass


class _Moment(dt.datetime):
    pass


class _FineMoment(dt.datetime):
    nanosecond = 5

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = dt.datetime.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (_Map({"a": _Row([1, _Map({})])}), {"a": [1, {}]}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.deque([1, 2]), [1, 2]),
        (_List([_List()]), [[]]),
        (_Text("a"), "a"),
        (_Int(3), 3),
        (_Float(1.5), 1.5),
        (_Bytes(b"a"), b"a"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"abc")[::2], b"ac"),
        ({_Text("k"): _Int(2**65)}, {"k": 2**65}),
        (_Moment(2024, 1, 1), dt.datetime(2024, 1, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_relatives_of_plain_types_become_plain(value: Any, plain: Any) -> None:
    # The representation shows the class of every value within.
    assert repr(lift(lower(value))) == repr(plain)


@pytest.mark.parametrize(
    "value",
    [object(), 1j, range(3), iter([]), len, int, Ellipsis, sys, _FineMoment(2024, 1, 1), NotImplemented],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_with_place_and_advice(value: Any) -> None:
    for whole, path in (
        ({"todos": [{}, {"due": value}]}, "state.todos[1].due"),
        ([(0, value)], "state[0][1]"),
        ({"a": Spot([value])}, "state.a.x[0]"),
        (value, "state"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            lower(whole)
        assert caught.value.path == path
        assert str(caught.value).startswith(f"{path}: ")
        assert type(value).__name__ in str(caught.value)
        at_work = isinstance(value, Iterator | type(len) | type | type(sys))
        assert ("everthread.register" in str(caught.value)) != at_work
        assert ("store its result" in str(caught.value)) == at_work


def test_root_names_the_beginning_of_the_path() -> None:
    for root, path in (("messages[3]", "messages[3].a"), ("", "a")):
        with pytest.raises(InvalidValueError) as caught:
            lower({"a": object()}, root=root)
        assert caught.value.path == path


def test_elements_of_sets_are_placed_at_their_set() -> None:
    with pytest.raises(InvalidValueError) as caught:
        lower({"a": {object()}})
    assert caught.value.path == "state.a"
    with pytest.raises(LimitError) as limited:
        lower({"a": [{1, 2}]}, limits=Limits(nodes_max=3))
    assert limited.value.path == "state.a[0]"


def test_a_bad_key_is_named() -> None:
    with pytest.raises(InvalidValueError) as caught:
        lower({"a": {("x", 1j): 1}})
    assert caught.value.path == "state.a[('x', 1j)][1]"
    with pytest.raises(InvalidValueError, match="can't be stored as a key"):
        lower({_HashableMap(): 1})
    with pytest.raises(InvalidValueError, match="NaN can't be a key"):
        lower({"a": {math.nan: 1}})


class _HashableMap(_Map):
    def __init__(self) -> None:
        super().__init__({})

    def __hash__(self) -> int:
        return 1


class _Own(str):
    """Unlike its text, so that both can stand in one dict."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 1


def test_keys_that_would_become_one_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="two keys") as caught:
        lower({"a": {"k": 1, _Own("k"): 2}})
    assert caught.value.path == "state.a"


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: [v],
    "dict": lambda v: {"a": v},
    "tuple": lambda v: (v,),
    "frozenset": lambda v: frozenset([v]),
    "object": Spot,
    "mapping": lambda v: _Map({"a": v}),
    "sequence": lambda v: _Row([v]),
}


@pytest.mark.parametrize("wrap", [WRAPS[name] for name in ("list", "dict", "tuple", "frozenset", "mapping")])
def test_depth(wrap: Callable[[Any], Any]) -> None:
    limits = Limits(depth_max=7)
    lower(nested(7, wrap), limits=limits)
    with pytest.raises(LimitError, match="7 levels") as caught:
        lower(nested(8, wrap), limits=limits)
    assert caught.value.path.startswith("state")
    lower(nested(100, wrap))
    with pytest.raises(LimitError):
        lower(nested(101, wrap))


def test_an_object_is_a_level_around_its_data() -> None:
    class Plain:
        pass

    register(Plain, tag="tests.lowering.Plain", to_data=lambda plain: 1, from_data=lambda data: Plain())
    lower([Plain(), {"a": 1}, Spot(1)], limits=Limits(depth_max=3))
    for value in ([[Plain()]], [Spot(1)]):
        with pytest.raises(LimitError, match="2 levels"):
            lower(value, limits=Limits(depth_max=2))


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_absurd_depth(wrap: Callable[[Any], Any]) -> None:
    # A frozenset hashes what it holds, and only lists, dicts and tuples can be torn down at any depth.
    depth = 200_000 if wrap in (WRAPS["list"], WRAPS["dict"]) else 900
    value = nested(depth, wrap) if wrap is not WRAPS["frozenset"] else nested(300, wrap)
    with pytest.raises(LimitError, match="100 levels"):
        lower(value)
    with pytest.raises(LimitError):
        lower(value, limits=Limits(depth_max=250))


def test_the_highest_depth() -> None:
    value = nested(500, WRAPS["list"])
    limits = Limits(depth_max=500)
    node = lower(value, limits=limits)
    assert same(decode(encode(node)), node)
    assert lift(node) == value == decode_plain(encode(node))
    with pytest.raises(LimitError):
        lower([value], limits=limits)
    with pytest.raises(InvalidValueError, match="at most 500"):
        lower(1, limits=Limits(depth_max=501))


def test_cycles_end_at_the_depth_limit() -> None:
    loop: list[Any] = [0]
    loop.append(loop)
    ring: dict[str, Any] = {"a": {}}
    ring["a"]["b"] = ring
    for value in (loop, ring, (loop,), Spot(loop)):
        with pytest.raises(LimitError, match="containing itself"):
            lower(value)


def with_frames_left(frames: int, act: Callable[[], Any]) -> Any:
    """Call ``act`` with room for about ``frames`` more calls."""
    depth = 0
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1

    def descend(levels: int) -> Any:
        return descend(levels - 1) if levels else act()

    return descend(sys.getrecursionlimit() - depth - frames)


def test_no_recursion_error_when_the_stack_is_nearly_full() -> None:
    node = lower(nested(90, WRAPS["list"]))
    data = encode(node)
    with pytest.raises(LimitError, match="Python's stack"):
        with_frames_left(60, lambda: lower(node))
    with pytest.raises(StateCorruptedError):
        with_frames_left(60, lambda: lift(node))
    # Whether these fail depends on how Python counts the levels of C code.
    with contextlib.suppress(LimitError):
        with_frames_left(60, lambda: encode(node))
    for read in (decode, decode_plain):
        with contextlib.suppress(StateCorruptedError):
            with_frames_left(60, lambda read=read: read(data))  # type: ignore[misc]


@pytest.mark.parametrize("value", [[0] * 11, {"a": [0] * 10}, {"a": (0,) * 10}, [[0] * 5, [0] * 5]], ids=repr)
def test_nodes(value: Any) -> None:
    with pytest.raises(LimitError, match="more than 10 values"):
        lower(value, limits=Limits(nodes_max=10))
    lower(value, limits=Limits(nodes_max=12))


def test_integer_digits() -> None:
    largest = 10**4_300 - 1
    assert decode_plain(encode(lower([largest, -largest]))) == [largest, -largest]
    for value in (10**4_300, -(10**4_300), 1 << 10_000_000):
        with pytest.raises(LimitError, match="4,300 digits") as caught:
            lower({"n": [value]})
        assert caught.value.path == "state.n[0]"
    small = Limits(integer_digits_max=3)
    assert lower([999, -999], limits=small) == [999, -999]
    for value in (1_000, -1_000, 2**70):
        with pytest.raises(LimitError):
            lower({"n": value}, limits=small)
        with pytest.raises(LimitError):
            lower({value: 1}, limits=small)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("-Inf")],
)
def test_nan_policy(value: Any) -> None:
    assert repr(decode_plain(encode(lower({"a": [value]})))) == repr({"a": [value]})
    with pytest.raises(InvalidValueError, match="refuse") as caught:
        lower({"a": [value]}, limits=Limits(nan="refuse"))
    assert caught.value.path == "state.a[0]"


def test_nan_keeps_its_bits() -> None:
    for bits in (0x7FF8000000000001, 0xFFF8000000000000, 0x7FF800000000BEEF):
        value = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
        assert struct.pack(">d", decode_plain(encode(lower(value)))) == bits.to_bytes(8, "big")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ä\udc80"])
def test_surrogate_policy(text: str) -> None:
    for value, path in (
        ({"a": [text]}, "state.a[0]"),
        ({text: 1}, None),
        (Spot(text), "state.x"),
        ({text}, "state"),
    ):
        with pytest.raises(InvalidValueError, match="surrogate") as caught:
            lower(value)
        assert path is None or caught.value.path == path
        str(caught.value).encode()
        kept = lower(value, limits=Limits(surrogates="keep"))
        assert decode_plain(encode(kept)) == value
        assert same(decode(encode(kept)), kept)


class _Word(str):
    """A subclass, which lowering turns into the plain type."""


class _Colour(enum.StrEnum):
    RED = "red"


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [1, -(2**63), 2**64 - 1, 1.5, float("nan"), None, True, b"x", "é", {"ü": []}]},
    ],
)
def test_what_is_plain_is_only_copied(value: Any) -> None:
    assert is_plain(value, DEFAULT_LIMITS)
    assert same(lower(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1,)},
        {"a": {1}},
        {("a",): 1},
        {1: "a"},
        {"a": [_Word("x")]},
        {_Word("x"): 1},
        {"a": _Colour.RED},
        {"a": bytearray(b"x")},
        {"a": 2**64},
        {"a": -(2**63) - 1},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": decimal.Decimal(1)},
        {"a": object()},
        _CYCLE,
    ],
)
def test_what_is_more_than_copied_is_not_plain(value: Any) -> None:
    assert not is_plain(value, DEFAULT_LIMITS)


def test_plain_is_within_the_limits() -> None:
    assert not is_plain([0] * 11, Limits(nodes_max=10))
    assert is_plain([0] * 10, Limits(nodes_max=10))
    assert is_plain([[[]]], Limits(depth_max=3))
    assert not is_plain([[[]]], Limits(depth_max=2))
    assert not is_plain([0.5], Limits(nan="refuse"))
    assert not is_plain([1], Limits(integer_digits_max=3))
    assert not is_plain([], Limits(depth_max=501))
    many: list[Any] = []
    for _ in range(60):
        # Each level twice: walking through all of it would take for ever.
        many = [many, many]
    assert not is_plain(many, DEFAULT_LIMITS)
