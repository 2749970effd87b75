"""Records as JSON lines: readable, and back to the very same bytes whatever they hold."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.codec import records
from everthread.codec.lowering import lower
from everthread.codec.records import Change, Head
from everthread.codec.values import encode, encode_stored, same
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.limits import Limits
from everthread.stores.contract import DELTA, REWIND, NewRow
from everthread.stores.files import disk, json_form
from everthread.stores.files.content import prepare
from everthread.stores.files.json_form import MARK, base64_bytes, escape, read_value, unescape, write_value
from everthread.values import Tagged

texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["$", "$bytes", "$$x", "id", "sum"]
)
tagged = st.builds(
    Tagged, st.integers(-128, 127).filter(lambda code: code != -1), st.binary(max_size=12)
) | st.sampled_from([Tagged(code, encode([1, "x"])) for code in range(1, 32)])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | texts
    | st.binary(max_size=8)
    | tagged
)
keys = texts | st.integers(-5, 5) | st.binary(max_size=3) | st.none() | st.booleans() | tagged
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
paths = st.lists(texts | st.integers(0, 9) | st.binary(max_size=2), max_size=3)
edits = st.one_of(
    st.tuples(st.just(0), paths, trees),
    st.tuples(st.just(1), paths),
    st.tuples(st.just(2), paths, st.integers(0, 9), st.integers(0, 9), st.lists(trees, max_size=2)),
    st.tuples(st.just(3), paths, st.integers().filter(lambda n: abs(n) < 2**63) | st.floats(allow_nan=False)),
).map(list)
heads = st.builds(
    Head,
    st.integers(0, 4),
    st.integers(-(2**62), 2**62) | st.integers(0, 2_000_000_000_000_000),
    st.none() | texts,
    st.none() | st.dictionaries(texts, trees, max_size=3).map(encode_stored),
    st.none() | texts,
    st.none() | st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99), st.integers(0, 99), texts),
    st.none() | st.tuples(texts, st.integers(0, 9), st.integers(-1, 9)),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    logs: list[list[Any]] = []
    blocks: list[bytes] = []
    for _ in range(draw(st.integers(0, 2))):
        items = draw(st.lists(trees, max_size=3))
        prints = draw(st.binary(min_size=4 * len(items), max_size=4 * len(items)))
        at = draw(st.integers(0, 9))
        position = draw(st.sampled_from([at, at + 5]))
        logs.append([draw(texts), at, draw(st.integers(0, 3)), len(items), position, prints])
        if items:
            blocks.append(encode_stored(items))
    merged = draw(st.dictionaries(st.binary(min_size=16, max_size=16), st.just([3, 1]), max_size=1))
    counts = draw(st.dictionaries(texts, st.integers(0, 9), max_size=2))
    change = Change(draw(st.lists(edits, max_size=3)), logs, merged, counts)
    return records.write_record(records.write_head(draw(heads)), records.write_change(change), blocks)


def line_of(body: bytes, kind: int = DELTA, **options: Any) -> bytes:
    row = NewRow(7, kind, b"p" * 32, b"h" * 32, body, **options)
    return json_form.render(row, durable=True)


@settings(max_examples=300)
@given(bodies())
def test_any_record_comes_back_byte_for_byte(body: bytes) -> None:
    for kind in (DELTA, REWIND):
        line = line_of(body, kind)
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert disk.intact(line)
        json.loads(line)
        assert json_form.read_body(line, "here") == body
        assert json_form.row_kind(json_form.read_record(line, "here")) == kind


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_what_is_no_record_at_all_comes_back_too(body: bytes) -> None:
    assert json_form.read_body(line_of(body or b"\0"), "here") == (body or b"\0")


@settings(max_examples=300)
@given(trees)
def test_any_value_is_escaped_and_comes_back(tree: Any) -> None:
    text = disk.encode_json(escape(tree))
    assert same(unescape(disk.decode_json(text)), tree)
    data = encode_stored(tree)
    assert read_value(write_value(data)) == data


def test_records_read_well() -> None:
    item = {"role": "user", "content": "Reconcile März.", "id": "m1", "$price": 3.5}
    change = Change(
        [[0, ["phase"], "report"], [1, ["draft"]], [2, ["todos"], 0, 1, ["x"]], [3, ["n"], 2]],
        [["messages", 4, 0, 1, 4, records.fingerprint("m1")]],
    )
    head = Head(records.COMMIT, 1_700_000_000_123_456, "asked", encode({"run": "r1"}), "k")
    body = records.write_record(
        records.write_head(head), records.write_change(change), [encode_stored([item])]
    )
    fields = json.loads(line_of(body, key=b"k" * 16))
    fields.pop("sum")
    assert list(fields) == [
        "seq",
        "at",
        "kind",
        "label",
        "metadata",
        "key",
        "document",
        "logs",
        "keyed",
        "hash",
    ]
    assert (fields["at"], fields["kind"]) == ("2023-11-14T22:13:20.123456Z", "commit")
    assert fields["document"] == [
        ["set", ["phase"], "report"],
        ["delete", ["draft"]],
        ["splice", ["todos"], 0, 1, ["x"]],
        ["add", ["n"], 2],
    ]
    (splice,) = fields["logs"]
    assert splice["items"] == [{"role": "user", "content": "Reconcile März.", "id": "m1", "$$price": 3.5}]


def test_typed_values_read_well() -> None:
    value = {
        "bytes": b"hi",
        "nan": math.nan,
        "tuple": (1, "x"),
        "set": {1},
        "big": 10**30,
        "when": dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
        "day": dt.date(2024, 2, 29),
        "money": Decimal("1.50"),
        "id": uuid.UUID(int=17),
        "for": dt.timedelta(days=1),
        "keys": {1: "a"},
        "$bytes": "a caller's own",
    }
    found = json.loads(disk.encode_json(escape(lower(value))))
    assert found == {
        "bytes": {"$bytes": "aGk="},
        "nan": {"$float": "nan"},
        "tuple": {"$tuple": [1, "x"]},
        "set": {"$set": [1]},
        "big": {"$integer": "1" + "0" * 30},
        "when": {"$datetime": "2024-02-29T12:30:00+00:00"},
        "day": {"$date": "2024-02-29"},
        "money": {"$decimal": "1.50"},
        "id": {"$uuid": "00000000-0000-0000-0000-000000000011"},
        "for": {"$timedelta": [1, 0, 0]},
        "keys": {"$map": [[1, "a"]]},
        "$$bytes": "a caller's own",
    }


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("UTC"), fold=1),
        dt.datetime(2024, 7, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3), "three back")),
        dt.time(1, 2, fold=1),
        10**5000,
        "\ud800 lone",
        struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0],
    ],
    ids=["fold", "named zone", "time", "huge", "surrogate", "odd NaN"],
)
def test_values_with_no_plain_form_are_kept_all_the_same(value: Any) -> None:
    lowered = lower([value], limits=Limits(surrogates="keep", integer_digits_max=6000))
    assert same(unescape(disk.decode_json(disk.encode_json(escape(lowered)))), lowered)


@pytest.mark.parametrize(
    "text",
    [
        '{"$bytes": "not base64!"}',
        '{"$bytes": 7}',
        '{"$nothing": 1}',
        '{"$bytes": "aGk=", "more": 1}',
        '{"$float": "x"}',
        '{"$map": [[1]]}',
        '{"$map": [[1, 2], [1, 3]]}',
        '{"$ext": [-1, ""]}',
        '{"$ext": [300, ""]}',
        '{"$uuid": "zz"}',
        '{"$packed": [5]}',
        '{"$erased": false}',
        '{"$tuple": {"a": 1}}',
        '{"$map": [[{"$map": []}, 1]]}',
    ],
)
def test_escapes_that_make_no_sense_are_damage(text: str) -> None:
    with pytest.raises(StateCorruptedError):
        unescape(json.loads(text))


@pytest.mark.parametrize(
    "change",
    [
        b"{}",
        b'{"seq":"x","hash":""}',
        b'{"seq":1,"at":"never","kind":"commit","hash":""}',
        b'{"seq":1,"at":0,"kind":"party","hash":""}',
        b'{"seq":1,"at":0,"kind":"commit","document":[["burn",[]]],"hash":""}',
        b'{"seq":1,"at":0,"kind":"commit","document":[[]],"hash":""}',
        b'{"seq":1,"at":0,"kind":"commit","logs":[{"log":"m","at":0,"fingerprints":"zz"}],"hash":""}',
        b'{"seq":1,"body":"???","hash":""}',
        b'{"seq":1,"at":0,"kind":"commit","document":[["set",["a"],' + b"[" * 100_000,
    ],
)
def test_lines_that_make_no_sense_are_damage(change: bytes) -> None:
    line = disk.with_sum(change) if change != b"{}" else b"{}"
    with pytest.raises(StateCorruptedError) as caught:
        json_form.read_body(line, "journal-1:7")
    assert "journal-1:7" in str(caught.value)


def test_a_line_fits_its_sum_or_not() -> None:
    line = disk.record_of({"seq": 1, "text": "é"})
    assert disk.intact(line)
    assert disk.was_synced(line)
    assert not disk.was_synced(disk.record_of({"seq": 1}, durable=False))
    # Not even where somebody's own data end like that.
    assert disk.was_synced(disk.record_of({"a": {"b": 1, "durable": False}}))
    for at in range(len(line)):
        assert not disk.intact(line[:at]), "cut short"
        assert not disk.intact(line[at + 1 :]), "without its beginning"
        for bit in (1, 0x20, 0x80):
            assert not disk.intact(line[:at] + bytes([line[at] ^ bit]) + line[at + 1 :]), at
    assert disk.fields_of(line) == {"seq": 1, "text": "é", "sum": line[-11:-3].decode()}
    assert disk.fields_of(line[:-1]) is None


@settings(max_examples=100)
@given(st.lists(trees, min_size=1, max_size=5))
def test_items_that_stand_apart_come_back(items: list[Any]) -> None:
    block = encode_stored(items)
    prints = b"\0\0\0\0" * len(items)
    chunks = [packs.Chunk(log, 5, len(items), prints, records.compress(block)) for log in ("a", "$b")]
    text, parts = json_form.render_items(chunks)
    assert [part.log for part in parts] == ["a", "$b"]
    for part in parts:
        line = text[part.start : part.start + part.length]
        assert disk.intact(line)
        # Nothing but zeros needs no fingerprints.
        assert json_form.read_items(line, "here") == (block, b"")


def test_deep_trees_are_kept() -> None:
    tree: Any = b"deep"
    for _ in range(400):
        tree = [tree]
    change = Change([[0, ["a"], tree]])
    body = records.write_record(
        records.write_head(Head(0, 0)), records.write_change(change, Limits(depth_max=500)), []
    )
    line = line_of(body)
    assert json_form.read_body(line, "here") == body


def test_base64_is_strict() -> None:
    for text in ("a", "YQ", "YQ===", " YQ==", "YQ==\n", "é"):
        with pytest.raises(ValueError):  # noqa: PT011 - it says no more
            base64_bytes(text)
    assert MARK == b'"$'


# ── bodies that JSON wouldn't give back ──────────────────────────────────────────────────────────


def row_of(body: bytes) -> NewRow:
    return NewRow(7, DELTA, b"p" * 32, b"h" * 32, body)


ONE, PATH = b"\x01", b"\x91\xa1a"


@pytest.mark.parametrize(
    ("change", "blocks"),
    [
        (b"\x91\x91\x93\xc3" + PATH + ONE, []),  # the code of an edit is true
        (b"\x91\x91\x93\xff" + PATH + ONE, []),  # … or -1
        (b"\x91\x91\x90", []),  # no code at all
        (b"\x91\x91\x93\x00" + PATH + b"\xcc\x01", []),  # an integer that takes more bytes than it needs
        (b"\x91\x91\x93\x00" + PATH + b"\xca\x3f\x80\x00\x00", []),  # a float of 32 bits
        (b"\x91\x91\x93\x00" + PATH + b"\xcb\x7f\xf0" + bytes(6), []),  # infinite
        (b"\x91\x91\x93\x00" + PATH + b"\x82\xa1a\x01\xa1a\x02", []),  # a key twice
        (b"\x91\x91\x93\x00" + PATH + b"\x81\x01\x02", []),  # a key that is no text
        (b"\x91\x91\x93\x00" + PATH + b"\xc4\x01x", []),  # bytes
        (b"\x91\x91\x93\x00" + PATH + b"\xa2$a", []),  # text that looks like an escape
        (b"\x93\x90\x90\x80", []),  # more than edits and splices
        (b"\x92\x90\x91\x96\xa1m\x00\x00\x02\x00\xc4\x00", [b"\x91\x01"]),  # fewer items than it says
        (b"\x92\x90\x91\x96\xa1m\x00\x00\x01\x00\xc4\x00", []),  # no block for an insert
        (b"\x92\x90\x91\x96\xa1m\x00\x00\x00\x00\xc4\x00", [b"\x91\x01"]),  # a block that nobody inserts
        (b"\x92\x90\x91\x96\xa1m\x00\x00\x01\x00\xc4\x00", [b"\xdc\x00\x01\x01"]),  # a long array
        (b"\x92\x90\x91\x97\xa1m\x00\x00\x01\x00\xc4\x00\x01", [b"\x91\x01"]),  # one member more
    ],
)  # fmt: skip
def test_unusual_changes_come_back(change: bytes, blocks: list[bytes]) -> None:
    body = records.write_record(records.write_head(Head(0, 5)), change, blocks)
    assert json_form.read_body(prepare(row_of(body), durable=True).text, "here") == body


@pytest.mark.parametrize(
    "head",
    [
        Head(records.REWIND, 5),
        Head(7, 5),
        Head(-1, 5),
        Head(0, 5, metadata=b"\xcc\x01"),
        Head(0, 5, source=(b"u" * 16, 1, 0, "v1")),
        Head(0, 5, redacted=b"d" * 32),
    ],
)
def test_unusual_heads_come_back(head: Head) -> None:
    body = records.write_record(records.write_head(head), b"\x91\x90", [])
    assert json_form.read_body(prepare(row_of(body), durable=True).text, "here") == body
    # One that leaves out its end was written by nobody, and is kept as well.
    short = records.write_record(encode_stored([0, 5]), b"\x91\x90", [])
    assert json_form.read_body(prepare(row_of(short), durable=True).text, "here") == short
