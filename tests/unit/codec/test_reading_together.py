"""Records that are read together are read, and refused, as they would be one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everthread.codec import records
from everthread.codec.values import encode_stored
from everthread.errors import EverthreadError, SchemaVersionError, StateCorruptedError
from everthread.history.ops import ADD, DELETE, SET, SPLICE
from everthread.threads.head_cache import NO_RECENT

_SPLICE = ["messages", 4, 0, 2, 4, b"12345678"]
_encode = msgspec.msgpack.encode


def _record(change: Any) -> bytes:
    return records.write_record(_encode([0, 1]), encode_stored(change), [records.array([b"\x01", b"\x02"])])


def test_records_are_read_together_as_one_by_one() -> None:
    bodies = [_record([[[SET, ["a"], n]], [_SPLICE]]) for n in range(20)]
    assert records.read_records(bodies) == [records.read_record(body) for body in bodies]
    assert records.read_records([]) == []


@pytest.mark.parametrize("at", [0, 1, 3, 5, 6, 12, -1])
def test_a_wrong_byte_in_one_of_many_records_is_told(at: int) -> None:
    bodies = [_record([[[SET, ["a"], n]]]) for n in range(5)]
    wrong = bytearray(bodies[3])
    wrong[at] ^= 1
    with pytest.raises(StateCorruptedError) as alone:
        records.read_record(bytes(wrong))
    with pytest.raises(StateCorruptedError) as together:
        records.read_records([*bodies[:3], bytes(wrong), bodies[4]])
    assert str(together.value) == str(alone.value)


def test_other_ways_in_which_one_of_many_records_is_wrong() -> None:
    sound = _record([[[SET, ["a"], 1]]])
    with pytest.raises(StateCorruptedError, match="cut short"):
        records.read_records([sound, sound[:4]])
    with pytest.raises(StateCorruptedError, match="can't be decoded"):
        records.read_records([sound, records.frame(sound[5:] + b"\0")])
    with pytest.raises(StateCorruptedError, match="can't be decoded"):
        records.read_records([sound, records.frame(_encode([b"", b""]))])
    payload = sound[5:]
    future = b"\2" + records.zlib.crc32(payload, records.zlib.crc32(b"\2")).to_bytes(4, "little") + payload
    with pytest.raises(SchemaVersionError):
        records.read_records([sound, future])


@pytest.mark.parametrize(
    "change",
    [
        [[[SET, ["a"], 1], [ADD, ["n"], 2]], [_SPLICE]],
        [[[SET, ["a", 0, b"k"], {"b": [1, None]}]]],
        [[], [_SPLICE, _SPLICE]],
        [[[SET, ["a"], 1]], [_SPLICE], {}, {}],
    ],
)
def test_plain_changes_are_read_as_others(change: Any) -> None:
    encoded = [encode_stored(change), encode_stored([[[SET, ["z"], 0]]])]
    found = records.read_plain(encoded)
    each = records.read_each(encoded)
    assert [[list(op) for op in one.ops] for one in found] == [one.ops for one in each]
    assert [[list(splice) for splice in one.logs] for one in found] == [one.logs for one in each]


_LEFT = [
    [[[DELETE, ["a"]]]],
    [[[SPLICE, ["a"], 0, 0, [1]]]],
    [[]],
    [[], []],
    [[], [_SPLICE], {b"uid": [1, 2]}],
    [[], [_SPLICE], {}, {"messages": 3}],
    [[], [_SPLICE[:5]]],
]
_WRONG: list[Any] = [
    [],
    5,
    {"a": 1},
    None,
    [None],
    [[[SET, ["a"]]]],
    [[[SET, "a", 1]]],
    [[[4, ["a"], 1]]],
    [[[True, ["a"], 1]]],
    [[[0.0, ["a"], 1]]],
    [[[SPLICE, ["a"], 1]]],
    [[], None],
    [[], [["m", True, 0, 0, 0, b""]]],
    [[], [["m", 1.0, 0, 0, 0, b""]]],
    [[], [["m", -1, 0, 0, 0, b""]]],
    [[], [[b"m", 0, 0, 0, 0, b""]]],
    [[], [["m", 0, 0, 0, 0, "text"]]],
    [[], [["m", 0, 0, 0]]],
    [[], [_SPLICE], {"uid": [1, 2]}],
    [[], [_SPLICE], {b"uid": [1, True]}],
    [[], [_SPLICE], {}, {"m": -1}],
    [[], [_SPLICE], None],
]


@pytest.mark.parametrize("change", [*_LEFT, *_WRONG])
def test_what_isnt_plain_is_left_to_who_looks_at_each(change: Any) -> None:
    encoded = [encode_stored([[[SET, ["z"], 0]]]), encode_stored(change)]
    assert records.read_plain(encoded) == []
    if change in _WRONG:
        with pytest.raises(EverthreadError):
            records.read_each(encoded)


def test_what_might_be_a_timestamp_is_left_too() -> None:
    stamp = b"\xd6\xff\0\0\0\1"
    assert records.read_plain([b"\x91\x91\x93\x00\x91\xa1a" + stamp]) == []


@pytest.mark.parametrize("sizes", [[1], [2, 2, 2], [1, 16, 15, 300, 1], [3, 70_000]])
def test_remembered_items_are_joined_wherever_they_are_cut(sizes: list[int]) -> None:
    recent, at = NO_RECENT, 10
    for size in sizes:
        items = [_encode(n) for n in range(at, at + size)]
        recent, at = recent.added((at, size, records.array(items))), at + size
    for start, stop in [(10, at), (10, 11), (at - 1, at), (10 + sizes[0] - 1, at), (min(11, at - 1), at)]:
        held = recent.between(start, stop)
        assert held is not None
        block, before = held
        assert msgspec.msgpack.decode(block)[before : before + stop - start] == list(range(start, stop))
    assert recent.between(9, at) is None
    assert recent.between(10, at + 1) is None
    assert recent.between(9, 10) is None
