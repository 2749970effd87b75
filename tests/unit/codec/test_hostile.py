"""Bytes that nobody wrote: whatever they are, reading them gives a value or one kind of error, nothing else.

Run as a script (seed, rounds), this file is the process in which the audit hook watches the decoding.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import os
import random
import subprocess
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from everthread.codec import Code, decode, decode_plain, encode, lift, lower, register, revive
from everthread.errors import StateCorruptedError
from everthread.limits import Limits
from everthread.values import Opaque, Tagged


@register(tag="tests.hostile.Box")
@dataclasses.dataclass
class Box:
    content: Any


READERS: dict[str, Callable[[bytes], Any]] = {
    "decode": decode,
    "decode_plain": decode_plain,
    "lift": lambda data: lift(decode(data)),
    "opened": lambda data: decode_plain(data, Opaque),
}

RICH: list[Any] = [
    {"role": "user", "content": "hello", "id": "m1", "n": [1, -1, 2**63, 1.5, None, True, b"\xd6\xff"]},
    {(1, "a"): {1, 2, 3}, frozenset({b"x"}): (1, (2, (3,))), 2**80: -(2**80)},
    [dt.datetime(2024, 1, 1, 2, 3, tzinfo=dt.UTC), dt.date(2024, 1, 1), dt.time(3, 4), dt.timedelta(1, 2, 3)],
    [dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), decimal.Decimal("1.5E+7")],
    [
        uuid.UUID(int=5),
        Box({"a": Box((1,))}),
        "\ud800",
        Opaque(Tagged(99, b"\x00")),
        Opaque(Tagged(30, b"r")),
    ],
]


def read_all(data: bytes) -> None:
    """Read ``data`` in every way; anything but a value or a StateCorruptedError goes up."""
    for read in READERS.values():
        try:
            read(data)
        except StateCorruptedError:
            continue


def packed(value: Any) -> bytes:
    """MessagePack as any other program writes it."""
    return msgspec.msgpack.encode(value)


def extension(code: int, data: bytes) -> bytes:
    return packed(msgspec.msgpack.Ext(int(code), data))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "data",
    [
        *map(bytes.fromhex, ["", "c1", "c0c0", "a1ff", "d9", "9201", "8101", "818001", "a3eda080"]),
        *map(bytes.fromhex, ["ddffffffff", "dfffffffff", "c6ffffffff", "c9ffffffff01"]),
    ],
    ids=bytes.hex,
)
def test_malformed(reader: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        reader(data)


DAMAGED: dict[Code, list[bytes]] = {
    Code.BIGINT: [b"", b"\x01", b"\xff" * 8],
    Code.TUPLE: [b"", b"\x80", b"\x01", b"\x91", b"\x90\x90"],
    Code.SET: [b"", b"\xc0", b"\x91\x90", b"\x91\x80"],
    Code.FROZENSET: [b"", b"\xc0", b"\x91\x90", b"\x91\x80"],
    Code.DATETIME: [
        b"",
        packed(dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        *map(packed, ([], [0], [2**63, 0], [-1, 0], [0, 2], [0.5, 0], [True, 0], [0, None])),
        *map(
            packed, ([0, 0, 10**12], [0, 0, None], [0, 0, 0, 5], [0, 0, 0, 7, True], [0, 0, 0, "a", True, 1])
        ),
        *(
            packed([0, 0, 0, key, True])
            for key in ("../../etc/passwd", "/etc/passwd", "a/../b", "", ".", "a\0")
        ),
    ],
    Code.DATE: [b"", packed(0), packed(10**9), packed("x")],
    Code.TIME: [b"", *map(packed, ([86_400_000_000, 0], [-1, 0], [0]))],
    Code.TIMEDELTA: [b"", *map(packed, ([10**10, 0, 0], [1], [1.5, 0, 0]))],
    Code.DECIMAL: [b"", b"x", b"\xff", b"1E+9999999999999999999999"],
    Code.UUID: [b"", b"\x00" * 15, b"\x00" * 17],
    Code.SURROGATE_TEXT: [b"\xff"],
    Code.ERASED: [b"\x00"],
    Code.OBJECT: [
        b"",
        *map(packed, ([], ["tests.hostile.Box"], [1, 2], ["a", 1, 2], {"a": 1})),
        packed(["a", 1]) + b"\x00",
        b"\x92" + packed("tests.hostile.Box") + extension(Code.TUPLE, b"\xc1"),
    ],
}


@pytest.mark.parametrize("code", DAMAGED, ids=lambda code: code.name)
def test_damaged_data_of_a_known_type(code: Code) -> None:
    for data in DAMAGED[code]:
        tagged = Tagged(code, data)
        for node in (tagged, [tagged], {"a": tagged}, {tagged: 1}, Tagged(Code.TUPLE, encode([tagged]))):
            whole = encode(node)
            for name in ("decode_plain", "lift"):
                with pytest.raises(StateCorruptedError):
                    READERS[name](whole)
        with pytest.raises(StateCorruptedError):
            revive(tagged)


@pytest.mark.parametrize(
    "tag", ["os.system", "builtins.eval", "Box", "test_hostile.Box", "dataclasses.dataclass", ""]
)
def test_a_tag_never_leads_to_a_class_that_nobody_registered(tag: str) -> None:
    data = encode(Tagged(Code.OBJECT, packed([tag, {"content": 1}])))
    assert type(decode_plain(data)) is type(lift(decode(data))) is Opaque


def test_an_array_can_not_be_a_key_of_a_lowered_tree() -> None:
    for data in (b"\x81\x90\x01", b"\x91\x81\x91\xc0\x01"):
        with pytest.raises(StateCorruptedError):
            lift(decode(data))


TIMESTAMPS = [b"\xd6\xff" + bytes(4), b"\xd7\xff" + bytes(8), b"\xc7\x0c\xff" + bytes(12)]


@pytest.mark.parametrize("stamp", TIMESTAMPS, ids=["32", "64", "96"])
def test_the_timestamps_of_messagepack_are_not_ours(stamp: bytes) -> None:
    for data in (
        stamp,
        b"\x91" + stamp,
        b"\x81\xa1a" + stamp,
        b"\x81" + stamp + b"\x01",
        b"\x81\x91" + stamp + b"\x01",
    ):
        for read in READERS.values():
            with pytest.raises(StateCorruptedError):
                read(data)
        for code, inner in (
            (Code.TUPLE, b"\x91" + data),
            (Code.SET, b"\x91" + data),
            (Code.OBJECT, b"\x92" + packed("tests.hostile.Box") + data),
            (Code.TUPLE, b"\x91" + extension(Code.TUPLE, b"\x91" + data)),
        ):
            with pytest.raises(StateCorruptedError):
                decode_plain(extension(code, inner))
            with pytest.raises(StateCorruptedError):
                lift(decode(b"\x91" + extension(code, inner)))


@pytest.mark.parametrize("stamp", TIMESTAMPS, ids=["32", "64", "96"])
def test_bytes_that_merely_look_like_a_timestamp_are_read(stamp: bytes) -> None:
    value = {"a": [stamp, (stamp, {stamp: [1.5]})], "b": Box((stamp,)), stamp: dt.date(2024, 1, 1)}
    data = encode(lower(value))
    assert decode_plain(data) == lift(decode(data)) == value


def deep(levels: int, header: Callable[[int], bytes], core: bytes = b"\xc0") -> bytes:
    """``core`` inside ``levels`` headers, each made for the length of what it holds."""
    parts = [core]
    size = len(core)
    for _ in range(levels):
        parts.append(header(size))
        size += len(parts[-1])
    return b"".join(reversed(parts))


BOX = b"\x92" + packed("tests.hostile.Box")
NESTINGS: dict[str, Callable[[int], bytes]] = {
    "list": lambda size: b"\x91",
    "dict": lambda size: b"\x81\xa1a",
    "key": lambda size: b"\x81\x91",
    "tuple": lambda size: b"\xc9" + (size + 1).to_bytes(4, "big") + bytes([Code.TUPLE]) + b"\x91",
    "frozenset": lambda size: b"\xc9" + (size + 1).to_bytes(4, "big") + bytes([Code.FROZENSET]) + b"\x91",
    "object": lambda size: b"\xc9" + (size + len(BOX)).to_bytes(4, "big") + bytes([Code.OBJECT]) + BOX,
}


@pytest.mark.parametrize("header", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("core", [b"\xc0", TIMESTAMPS[0]], ids=["plain", "timestamp"])
def test_depth_of_200_000(header: Callable[[int], bytes], core: bytes) -> None:
    data = deep(200_000, header, core)
    with pytest.raises(StateCorruptedError):
        decode_plain(data)
    with pytest.raises(StateCorruptedError):
        lift(decode(data))


def test_deep_nesting_around_a_large_value_takes_no_more_memory_than_time() -> None:
    """Each level holds the bytes of all levels within it; copying them at each would take gigabytes."""
    import tracemalloc

    blob = b"\xc6" + (8_000_000).to_bytes(4, "big") + bytes(8_000_000)
    for core in (blob, b"\x92\xc4\x02\xd6\xff" + blob):
        data = deep(100, NESTINGS["tuple"], core)
        tracemalloc.start()
        decode_plain(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 * len(data)


def test_every_truncation_and_every_flipped_bit() -> None:
    for value in RICH:
        data = encode(lower(value, limits=Limits(surrogates="keep")))
        for end in range(len(data)):
            for read in READERS.values():
                with pytest.raises(StateCorruptedError):
                    read(data[:end])
        for position in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[position // 8] ^= 1 << position % 8
            read_all(bytes(flipped))


@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(2**32)], ids=["fixed", "fresh"])
def test_decoding_touches_nothing_outside(seed: int) -> None:
    print(f"seed {seed}")
    done = subprocess.run(
        [sys.executable, __file__, str(seed), "20000"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"
    assert done.stdout.strip() == "nothing touched, and the watch works"


FORBIDDEN = (
    "import", "open", "exec", "compile", "code.", "marshal.", "pickle.", "ctypes.", "socket.", "subprocess.",
    "os.", "shutil.", "tempfile.", "urllib.", "sqlite3.", "mmap.", "sys.settrace", "sys.setprofile", "fcntl.",
)  # fmt: skip


def watched_run(seed: int, rounds: int) -> None:
    """Decode mutated and random bytes while an audit hook takes note of all that reaches outside."""
    rng = random.Random(seed)
    corpus = [encode(lower(value, limits=Limits(surrogates="keep"))) for value in RICH]
    corpus += [deep(50, header) for header in NESTINGS.values()]
    corpus += [extension(code, data) for code, cases in DAMAGED.items() for data in cases]
    corpus += [
        encode(Tagged(Code.OBJECT, packed([tag, {"content": "x"}]))) for tag in ("os.system", "builtins.eval")
    ]
    for data in corpus:
        read_all(data)
    touched: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event.startswith(FORBIDDEN) and not in_zone_database(event, arguments):
            touched.append(f"{event} {arguments!r:.200}")

    sys.addaudithook(hook)
    for _ in range(rounds):
        data = (
            mutated(rng, rng.choice(corpus), corpus)
            if rng.random() < 0.8
            else rng.randbytes(rng.randrange(60))
        )
        try:
            read_all(data)
        except BaseException as error:
            watching = False
            raise SystemExit(f"{data.hex()} raised {error!r}") from error
        if touched:
            raise SystemExit(f"{data.hex()} touched {touched}")
    # The watch itself must be able to see something.
    open(os.devnull, "rb").close()
    __import__("wave")
    if len(touched) < 2:
        raise SystemExit("the watch is blind")
    print("nothing touched, and the watch works")


def in_zone_database(event: str, arguments: tuple[Any, ...]) -> bool:
    """The one thing that reading may look up: a zone by its checked key, in the machine's own database."""
    places = tuple(f"{place}{os.sep}" for place in zoneinfo.TZPATH)
    path = arguments[0] if event == "open" and arguments else None
    return isinstance(path, str) and ".." not in path and path.startswith(places)


def mutated(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                changed[at:at] = rng.randbytes(rng.randrange(1, 4))
            case 2:
                del changed[at : at + rng.randrange(1, 8)]
            case 3:
                other = rng.choice(corpus)
                start = rng.randrange(len(other) + 1)
                changed[at:at] = other[start : start + rng.randrange(1, 40)]
            case _:
                changed[at : at + 1] = bytes(
                    [rng.choice((0xC7, 0xC8, 0xC9, 0xD4, 0xD6, 0xD8, 0xFF, 0x81, 0x91))]
                )
    return bytes(changed)


if __name__ == "__main__":
    watched_run(int(sys.argv[1]), int(sys.argv[2]))
