"""What goes in comes out: every type, every key, exactly."""
# ruff: noqa: DTZ001, DTZ901 (a datetime without a zone is a value like any other)

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import struct
import uuid
import zoneinfo
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everthread.codec import Code, decode, decode_plain, encode, lift, lower, register, revive, same
from everthread.errors import InvalidValueError, LimitError, SealError
from everthread.limits import Limits
from everthread.values import Erased, Opaque, Personal, Tagged


@register(tag="tests.values.Shade")
class Shade(enum.Enum):
    LIGHT = "l"
    DARK = "d"


@register(tag="tests.values.Spot")
@dataclasses.dataclass(frozen=True)
class Spot:
    x: Any
    y: Any = None


def exactly(a: Any, b: Any) -> bool:
    """Equality that sees types, bits, offsets and the order of keys; independent of the code under test."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            exactly(k, j) and exactly(v, w) for (k, v), (j, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(exactly, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(exactly(x, y) for y in b) for x in a)
    if isinstance(a, Spot):
        return exactly([a.x, a.y], [b.x, b.y])
    if isinstance(a, (dt.datetime, dt.time)):
        return (repr(a), a.tzinfo, a.fold) == (repr(b), b.tzinfo, b.fold)
    if isinstance(a, decimal.Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    return bool(a == b)


def check(value: Any) -> None:
    """Every way there and back agrees."""
    node = lower(value)
    data = encode(node)
    assert same(decode(data), node)
    assert encode(decode(data)) == data
    assert same(lower(node), node)
    for result in (decode_plain(data), lift(node), lift(decode(data)), decode_plain(data, lambda t: 1 / 0)):
        assert exactly(result, value), (result, value)


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
EXAMPLES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**4_299, -(10**4_299),
    0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, "", "ascii", "ä€😀\0", b"", b"\xff\x00",
    [], {}, (), set(), frozenset(), [[]], [()], ([],), {"a": [1, (2, {3})]}, {1, "a", b"a", None, 2.5},
    frozenset({frozenset({1}), (1, 2)}),
    dt.datetime.min, dt.datetime.max, dt.datetime(2024, 2, 29, 1, 2, 3, 4),
    dt.datetime(2024, 10, 27, 2, 30, fold=1), dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), dt.datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-14))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30, microseconds=1))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
    dt.date.min, dt.date.max, dt.time.min, dt.time.max, dt.time(1, 2, 3, 4, fold=1, tzinfo=dt.UTC),
    dt.time(1, 2, tzinfo=BERLIN), dt.timedelta.min, dt.timedelta.max, dt.timedelta(-1, 5, 7),
    decimal.Decimal("1.10"), decimal.Decimal("-0"), decimal.Decimal("1E+999999"), decimal.Decimal("Infinity"),
    decimal.Decimal("NaN123"), decimal.Decimal("sNaN"), uuid.UUID(int=0), uuid.UUID(int=2**128 - 1),
    Shade.DARK, Spot(1, (2,)), Spot(Spot([])),
]  # fmt: skip


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: f"{type(value).__name__}")
def test_examples(value: Any) -> None:
    check(value)
    check([value, {"a": value}])
    check((value,))
    check(Spot(value))


KEYS = [
    "", "a", "ä", 0, -1, 2**64, 1.5, None, True, b"", (1, (2,)), dt.datetime(2024, 1, 1, tzinfo=BERLIN),
    dt.date(2024, 1, 1), dt.timedelta(1), decimal.Decimal("1.10"), uuid.UUID(int=7), frozenset({1}),
    Shade.LIGHT, Spot(1), math.inf,
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_keys(key: Any) -> None:
    check({key: [key]})
    check({"a": {key: {key: 1}}})


def test_all_keys_together() -> None:
    check({key: n for n, key in enumerate(KEYS)})


@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "tuple", "items": [1]},
        {"$type": "datetime", "value": "2024-01-01"},
        {"code": 2, "data": b"\x91\x01"},
        {"tag": "tests.values.Spot", "x": 1},
        ["tests.values.Spot", {"x": 1}],
        {"Tagged": [2, b""]},
        {"__everthread_extra__": {}},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
        {"py/object": "os.system"},
        b"\xc7\x03\x02\x92\x01\x02",
    ],
    ids=repr,
)
def test_what_looks_like_a_tag_is_data(value: Any) -> None:
    check(value)


hashable: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(-(2**200), 2**200)
        | st.floats(allow_nan=False)
        | st.text(max_size=8)
        | st.binary(max_size=8)
        | st.datetimes(timezones=st.none() | st.timezones() | st.just(dt.UTC))
        | st.datetimes(
            timezones=st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
        )
        | st.dates()
        | st.times(timezones=st.none() | st.just(dt.UTC))
        | st.timedeltas()
        | st.decimals(allow_nan=False)
        | st.uuids()
        | st.sampled_from(Shade)
        | st.tuples(hashable, hashable)
        | st.frozensets(hashable, max_size=3)
        | st.builds(Spot, hashable, hashable)
    )
)
values = st.recursive(
    hashable | st.floats() | st.decimals() | st.sets(hashable, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | hashable, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Spot, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_comes_back_exactly(value: Any) -> None:
    check(value)


@given(st.sets(hashable, max_size=8))
def test_equal_sets_become_equal_bytes(value: set[Any]) -> None:
    items = list(value)[::-1]
    assert encode(lower(value)) == encode(lower(set(items)))
    assert encode(lower(frozenset(value))) == encode(lower(frozenset(items)))


def test_the_codes_on_disk() -> None:
    assert {code.name: code.value for code in Code} == {
        "BIGINT": 1, "TUPLE": 2, "SET": 3, "FROZENSET": 4, "DATETIME": 5, "DATE": 6, "TIME": 7,
        "TIMEDELTA": 8, "DECIMAL": 9, "UUID": 10, "SURROGATE_TEXT": 11, "OBJECT": 20, "SEALED": 30,
        "ERASED": 31, "CORRUPT": 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": [1, None, True, 1.5, b"b"]}, "81a161 95 01 c0 c3 cb3ff8000000000000 c40162"),
        (2**64, "c70901 010000000000000000"),
        (-(2**63) - 1, "c70901 ff7fffffffffffffff"),
        ((1, "a"), "d602 92 01 a161"),
        ({2, 1}, "c70303 92 01 02"),
        (frozenset({2, 1}), "c70304 92 01 02"),
        (dt.datetime(1, 1, 1, 0, 0, 0, 5, fold=1), "c70305 92 05 01"),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), "d605 93 00 00 00"),
        (dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "Z")), "c70605 94 00 00 00 a15a"),
        (dt.time(0, 0, tzinfo=BERLIN), "c71307 95 00 00 c0 ad4575726f70652f4265726c696e c3"),
        (dt.date(1, 1, 2), "d406 02"),
        (dt.timedelta(1, 2, 3), "d608 93 01 02 03"),
        (decimal.Decimal("1.0E+9"), "c70609 312e30452b39"),
        (uuid.UUID(int=1), "d80a 00000000000000000000000000000001"),
        (Shade.DARK, "c71914 92 b27465737473 2e76616c7565732e5368616465 a44441524b"),
        (Erased(), "c7001f"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_the_layouts_on_disk(value: Any, data: str) -> None:
    """These bytes exist in stores. A change here means that they can't be read any more."""
    assert encode(lower(value)).hex() == data.replace(" ", "")
    assert decode_plain(bytes.fromhex(data)) == value


def test_decimals_do_not_depend_on_the_context() -> None:
    value = decimal.Decimal("1.10E+20")
    plain = encode(lower(value))
    with decimal.localcontext() as context:
        context.prec, context.capitals = 2, 0
        assert encode(lower(value)) == plain
        assert decode_plain(plain).as_tuple() == value.as_tuple()


def test_zones_that_this_machine_does_not_have() -> None:
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=BERLIN)
    data = encode(lower([moment, dt.time(12, tzinfo=BERLIN)]))
    zoneinfo.reset_tzpath(to=[])
    try:
        there, clock = decode_plain(data)
    finally:
        zoneinfo.reset_tzpath()
    assert there == moment
    assert there.tzinfo == dt.timezone(dt.timedelta(hours=2))
    assert there.tzname() == "Europe/Berlin"
    # The offset of a time of day is unknown without its zone: it is kept for a machine that knows.
    assert type(clock) is Opaque
    assert lift(lower(clock)) == dt.time(12, tzinfo=BERLIN)


class _Shifted(dt.tzinfo):
    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta | None:
        return dt.timedelta(hours=3) if moment else None

    def dst(self, moment: dt.datetime | None) -> None: ...

    def tzname(self, moment: dt.datetime | None) -> str:
        return "shifted \ud800"


def test_zones_of_other_libraries_become_fixed_offsets() -> None:
    value = dt.datetime(2024, 7, 1, tzinfo=_Shifted())
    result = lift(lower(value))
    assert result == value
    assert result.tzinfo == dt.timezone(dt.timedelta(hours=3))
    assert result.tzname() == "shifted ?"
    with pytest.raises(InvalidValueError, match="has no offset") as caught:
        lower({"a": dt.time(1, tzinfo=_Shifted())})
    assert caught.value.path == "state.a"


def test_lower_and_lift_copy_everything() -> None:
    value: dict[str, Any] = {"a": [{"b": [1]}], "c": {"d": []}}
    node = lower(value)
    lifted = lift(node)
    for copy in (node, lifted):
        assert copy == value
        assert copy is not value
        assert copy["a"] is not value["a"]
        assert copy["a"][0]["b"] is not value["a"][0]["b"]
        assert copy["c"]["d"] is not value["c"]["d"]
    assert lifted["c"]["d"] is not node["c"]["d"]


def test_payload_bytes() -> None:
    node = lower("x" * 100)
    assert len(encode(node, Limits(payload_bytes_max=102))) == 102
    with pytest.raises(LimitError, match="payload_bytes_max"):
        encode(node, Limits(payload_bytes_max=101))


@pytest.mark.parametrize(
    "node",
    [object(), [dt.datetime.now], {"a": 1j}, 2**64, "\ud800", Tagged(200, b"")],
    ids=["object", "method", "complex", "large", "surrogate", "code"],
)
def test_encode_takes_lowered_trees_only(node: Any) -> None:
    with pytest.raises(InvalidValueError, match="lowered tree"):
        encode(node)


def test_personal_values_are_sealed_and_opened() -> None:
    sealed: list[Any] = []

    def seal(value: Personal) -> Tagged:
        sealed.append(value.value)
        return Tagged(Code.SEALED, str(len(sealed) - 1).encode())

    def open_(tagged: Tagged) -> Any:
        return Personal.from_sealed(tagged, lambda: sealed[int(tagged.data)])

    value = {"a": Personal("u1", "secret"), "b": (Personal("u2", [1]),), "c": Spot(Personal("u1", 2))}
    data = encode(lower(value, seal=seal))
    assert sealed == ["secret", [1], 2]
    assert b"secret" not in data
    for result in (decode_plain(data, open_), lift(decode(data), open_)):
        assert result["a"].value == "secret"
        assert result["b"][0].value == [1]
        assert result["c"].x.value == 2
    unread = decode_plain(data)
    assert type(unread["a"]) is type(unread["b"][0]) is type(unread["c"].x) is Opaque
    assert encode(lower(unread)) == data


def test_personal_values_need_a_keyring() -> None:
    with pytest.raises(InvalidValueError, match="keyring") as caught:
        lower({"a": [Personal("u1", "secret")]})
    assert caught.value.path == "state.a[0]"
    assert "secret" not in str(caught.value)


def test_errors_of_seal_and_open_come_through() -> None:
    def fail(value: Any) -> Any:
        raise SealError("destroyed")

    with pytest.raises(SealError, match="destroyed"):
        lower([Personal("u1", 1)], seal=fail)
    for node in ([Tagged(Code.SEALED, b"")], lower((Tagged(Code.SEALED, b""),))):
        with pytest.raises(SealError):
            decode_plain(encode(node), fail)
        with pytest.raises(SealError):
            lift(node, fail)


def test_erased_values() -> None:
    reference = Tagged(Code.SEALED, b"r")
    assert lower([Erased(), Erased(reference)]) == [Tagged(Code.ERASED, b""), reference]
    result = decode_plain(encode(lower(Erased())))
    assert type(result) is Erased
    assert result.sealed is None


@pytest.mark.parametrize("code", [0, 12, 19, 21, 29, 33, 127, -2, -128])
def test_unknown_codes_stay_opaque_and_round_trip(code: int) -> None:
    tagged = Tagged(code, b"\x01\x02")
    data = encode([tagged, {tagged: 1}])
    result = decode_plain(data)
    assert result == [Opaque(tagged), {Opaque(tagged): 1}] == lift(decode(data))
    assert encode(lower(result)) == data
    assert revive(tagged) == Opaque(tagged)


@pytest.mark.parametrize("code", [-1, 128, -129, 1_000])
def test_codes_that_can_not_be_stored(code: int) -> None:
    with pytest.raises(InvalidValueError, match="no type code"):
        lower({"a": Opaque(Tagged(code, b""))})


def test_decode_takes_any_buffer() -> None:
    data = encode(lower({"a": (1,)}))
    for buffer in (data, bytearray(data), memoryview(data)):
        assert decode_plain(buffer) == {"a": (1,)}
        assert lift(decode(buffer)) == {"a": (1,)}


DIFFERENT: list[Any] = [
    None, False, True, 0, 1, 0.0, -0.0, 1.0, math.nan, -math.nan, math.inf, "", "1", b"", b"1", [], [0],
    [False], [0.0], {}, {1: 0}, {True: 0}, {1.0: 0}, {"1": 0}, {b"1": 0}, {"1": 0.0}, {None: 0},
    {"1": 0, 1: 0},
    {"1": 0, 1.0: 0}, {0.0: 1}, {-0.0: 1}, [[0]], [{}], [{"a": [1]}], [{"a": [True]}], [{"a": [1.0]}],
    Tagged(2, b"\x90"), Tagged(3, b"\x90"), Tagged(2, b"\x91\x01"), {Tagged(2, b"\x90"): 0},
]  # fmt: skip


def test_same_tells_everything_apart() -> None:
    for n, a in enumerate(DIFFERENT):
        for m, b in enumerate(DIFFERENT):
            assert same(a, b) is (n == m), (a, b)
            assert same([{"k": a}], [{"k": b}]) is (n == m), (a, b)


def test_same_ignores_the_order_of_keys_and_identity() -> None:
    a = {"x": 1, 2: [math.nan], None: {"y": b"", Tagged(2, b"\x90"): 1.5}}
    b = {None: {Tagged(2, b"\x90"): 1.5, "y": b""}, 2: [float("nan")], "x": 1}
    assert same(a, b)
    assert not same(a, {**b, "x": 2})


def test_same_has_no_limit_on_depth() -> None:
    a: list[Any] = []
    b: list[Any] = []
    for _ in range(100_000):
        a, b = [a], [b]
    assert same(a, b)
    assert not same(a, [b])


@given(values, values)
@example({"a": 1}, {"a": True})
def test_same_agrees_with_the_bytes(a: Any, b: Any) -> None:
    x, y = lower(a), lower(b)
    assert same(x, y) is (encode(ordered(x)) == encode(ordered(y)))
    assert same(x, ordered(x))


def ordered(node: Any) -> Any:
    """The same tree with the keys of every dict in the order of their bytes."""
    if type(node) is dict:
        return {key: ordered(node[key]) for key in sorted(node, key=encode)}
    if type(node) is list:
        return [ordered(item) for item in node]
    return node
