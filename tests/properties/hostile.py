"""Bytes that nobody here wrote, into every decoder, in a process in which an audit hook watches.

Run as a program (seed, count) it is that process. Half of the payloads get valid checksums, so that they come
through to the code behind these.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import zlib
import zoneinfo
from collections.abc import Callable
from typing import Any

import msgspec
import zstandard

from everthread.codec import records, schema, seal
from everthread.codec.types import Code
from everthread.codec.values import decode, decode_plain, encode, lift, same
from everthread.errors import EverthreadError
from everthread.history import chain, packs
from everthread.history.logs import LogState
from everthread.history.snapshots import Snapshot, read_keyframe, write_keyframe
from everthread.keyring import format as keyring_format
from everthread.stores.files import disk, json_form
from everthread.values import Tagged

Reader = Callable[[bytes], Any]

MEMORY_GROWTH_BYTES_MAX = 700 << 20
ADDRESS_SPACE_BYTES_MAX = 4 << 30


def framed(payload: bytes) -> bytes:
    return records.frame(payload)


def _change(data: bytes) -> None:
    """A change, and what is done with one."""
    change = records.read_change(data)
    snapshot = Snapshot({"n": 1, "list": [1, 2]}, {"messages": LogState(5, ((0, 5),), 5)})
    snapshot.advance(change)


def _net(data: bytes) -> None:
    snapshot = Snapshot.empty()
    snapshot.advance(packs.read_net(data))


def _pack(data: bytes) -> None:
    body = packs.read_pack(data)
    for head in body.heads:
        records.read_head(head)
    for head, change in zip(body.heads, body.changes, strict=True):
        ranges = packs.inserted_ranges(change)
        packs.whole(head, change, [[b"\xc0"] for _ in ranges])


def _fold(data: bytes) -> None:
    packs.fold(1, [data], [b"h" * 32])


def _keyframe(data: bytes) -> None:
    snapshot = read_keyframe(data)
    snapshot.advance(records.Change([[0, ["x"], 1]], [["messages", 0, 0, 1, 0, b""]]))
    write_keyframe(snapshot)


def _keys(data: bytes) -> None:
    keyring_format.decode_record(data)
    keyring_format.KeyTable("a keyring").read(data)


def _migrate(data: bytes) -> None:
    schema.migrate(decode_plain(data))


def _compare(data: bytes) -> None:
    node = decode(data)
    if not same(node, decode(data)):
        raise AssertionError("decoding the same bytes twice gives two values")


READERS: dict[str, Reader] = {
    "decode": decode,
    "plain": decode_plain,
    "lift": lambda data: lift(decode(data)),
    "same": _compare,
    "head": records.read_head,
    "change": _change,
    "split": records.split,
    "record": records.read_record,
    "record, framed": lambda data: records.read_record(framed(data)),
    "fold": lambda data: _fold(framed(data)),
    "pack": lambda data: _pack(framed(b"\0" + data)),
    "pack, zstd": lambda data: _pack(framed(b"\1" + data)),
    "net": lambda data: _net(framed(b"\0" + data)),
    "keyframe": lambda data: _keyframe(framed(b"\0" + data)),
    "keyframe, raw": read_keyframe,
    "reference": lambda data: seal.read_reference(Tagged(Code.SEALED, data)),
    "key lines": _keys,
    "signed head": chain.SignedHead.from_json,
    "version id": lambda data: chain.parse_version_id(data.decode("latin-1")),
    "migrate": _migrate,
    "json line": lambda data: disk.fields_of(disk.with_sum(data)),
    "json record": lambda data: json_form.read_record(data, "a line"),
    "json body": lambda data: json_form.read_body(data, "a line"),
    "json items": lambda data: json_form.read_items(data, "a line"),
}


def corpus() -> dict[str, list[bytes]]:
    """Valid payloads for the readers, by reader; those of ``decode`` go to whoever has none of his own."""
    values = [
        encode(
            {
                "role": "user",
                "content": "hello",
                "id": "m1",
                "n": [1, -1, 2**63, 1.5, None, True, b"\xd6\xff"],
            }
        ),
        encode([Tagged(Code.TUPLE, encode([1, 2])), Tagged(Code.BIGINT, b"\x01" * 20), Tagged(99, b"x")]),
        encode({"a": {"b": {"c": [{"d": "é" * 20}] * 3}}, 1: 2, None: 3, b"k": 4}),
        encode(Tagged(Code.DECIMAL, b"1.5E+7")),
        encode(Tagged(Code.OBJECT, msgspec.msgpack.encode(["os.system", {"command": "true"}]))),
        encode({"schema_version": 0, "todos": ["a"], "context": {"k": 1}}),
    ]
    head = records.write_head(records.Head(0, 1_750_000_000_000_000, "label", encode({"run": 1}), "key"))
    change = records.write_change(
        records.Change([[0, ["n"], 5], [2, ["list"], 0, 1, [7]]], [["messages", 5, 0, 1, 5, b"abcd"]])
    )
    body = records.write_record(head, change, [records.array([encode({"id": "m"})])])
    pack = packs.fold(1, [body] * 3, [b"h" * 32] * 3)
    keyframe = write_keyframe(
        Snapshot({"a": 1}, {"messages": LogState(3, ((0, 3),), 3)}, 0, {b"u" * 16: [1, 0]})
    )
    key_id = "00" * 16
    wrapped = "00" * keyring_format.WRAPPED_BYTES
    header = keyring_format.Header(1, key_id, 1, "file", wrapped, wrapped)
    key_line = keyring_format.KeyRecord("11" * 16, "22" * 32, "33" * keyring_format.WRAPPED_BYTES)
    lines = keyring_format.encode_record(header) + keyring_format.encode_record(key_line)
    signed = chain.SignedHead("a", 5, b"h" * 32, b"s" * 64, b"p" * 32).to_json().encode()
    text = json.dumps(
        {
            "seq": 5,
            "at": "2026-01-01T00:00:00Z",
            "label": "x",
            "document": [{"set": ["n"], "to": 5}],
            "logs": [{"log": "messages", "at": 0, "items": [{"id": "m"}]}],
            "hash": "00" * 32,
        }
    ).encode()
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(8 << 20))
    return {
        "decode": values,
        "head": [head],
        "change": [change],
        "record": [body],
        "record, framed": [body[5:]],
        "fold": [body[5:]],
        "split": [records.array([encode(1), encode("x")])],
        "pack": [records.expand(pack.body, "a pack")],
        "pack, zstd": [zstandard.compress(records.expand(pack.body, "a pack")), bomb],
        "net": [records.expand(pack.net, "a net")],
        "keyframe": [records.expand(keyframe or b"", "a keyframe")],
        "keyframe, raw": [keyframe or b""],
        "reference": [seal.make_reference([b"k" * 16], b"v" * 16, b"sealed").data],
        "key lines": [lines],
        "signed head": [signed],
        "version id": [b"17-" + b"0123456789ab" * 2],
        "json line": [text],
        "json record": [disk.with_sum(text)],
        "json body": [disk.with_sum(text)],
        "json items": [disk.with_sum(b'{"items":[1,{"a":null}]}')],
    }


def extremes() -> list[bytes]:
    """What is too deep, too large, or not what it says; each in time that doesn't depend on its claims."""
    deep = 200_000
    nested = b"\x91" * deep + b"\xc0"
    return [
        nested,
        b"\x81\xa1a" * deep + b"\xc0",
        b"[" * deep + b"]" * deep,
        b'{"a":' * deep + b"1" + b"}" * deep,
        b"".join(b"\xc9" + (deep - at).to_bytes(4, "big") + b"\x02\x91" for at in range(5000)),
        *(
            bytes.fromhex(text)
            for text in ("ddffffffff", "dfffffffff", "c6ffffffff", "c9ffffffff01", "dbffffffff")
        ),
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xa3\xed\xa0\x80",
        b'"\\ud800"',
        b"9" * 1_000_000,
        b'{"seq":' + b"9" * 100_000 + b"}",
        b"1e999999999",
        encode(Tagged(Code.BIGINT, b"\x7f" * 1_000_000)),
        encode(Tagged(Code.DECIMAL, b"1E+999999999")),
        encode(Tagged(Code.DECIMAL, b"9" * 100_000)),
        *map(_bomb, (True, False)),
    ]


def _bomb(declared: bool) -> bytes:
    """A gigabyte of zeros, in few bytes."""
    if declared:
        compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    else:
        compressor = zstandard.ZstdCompressor(level=1).compressobj()
    zeros = bytes(1 << 22)
    parts = [compressor.compress(zeros) for _ in range(256)]
    return b"".join(parts) + compressor.flush()


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                changed[at:at] = rng.randbytes(rng.randrange(1, 4))
            case 2:
                del changed[at : at + rng.randrange(1, 8)]
            case 3:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                changed[at:at] = other[start : start + rng.randrange(1, 40)]
            case 4:
                changed[at : at + 1] = bytes(
                    [rng.choice((0xC7, 0xC9, 0xD4, 0xD6, 0xD8, 0xFF, 0x81, 0x91, 0xDD, 0xCF))]
                )
            case _:
                if changed:
                    place = rng.randrange(len(changed))
                    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def read(name: str, data: bytes) -> None:
    """Let a reader have the bytes; anything but a value or an error of ours goes up."""
    try:
        READERS[name](data)
    except EverthreadError:
        return


#: Opening a file for reading is only ever that of a time zone.
FORBIDDEN = (
    "import", "open", "exec", "compile", "code.", "marshal.", "pickle.", "ctypes.", "socket.", "subprocess.",
    "os.", "shutil.", "tempfile.", "urllib.", "sqlite3.", "mmap.", "sys.settrace", "sys.setprofile", "fcntl.",
)  # fmt: skip


class Watch:
    """Notes everything by which code reaches outside."""

    def __init__(self) -> None:
        self.touched: list[str] = []
        self.on = False
        self._zones = tuple(f"{place}{os.sep}" for place in zoneinfo.TZPATH)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event.startswith(FORBIDDEN):
            path = arguments[0] if event == "open" and arguments else None
            if not (isinstance(path, str) and ".." not in path and path.startswith(self._zones)):
                self.touched.append(f"{event} {arguments!r:.200}")


def run(seed: int, count: int) -> None:
    """Raises :class:`SystemExit` with the payload if something is not as it should be."""
    rng = random.Random(seed)
    valid = corpus()
    every = [data for group in valid.values() for data in group]
    names = list(READERS)
    large = extremes()
    for name in names:
        # Once, unwatched: what is imported when it is first used is imported here.
        for data in valid.get(name, valid["decode"]):
            read(name, data)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, ADDRESS_SPACE_BYTES_MAX))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Watch()
    watch.on = True
    for index in range(count):
        name = names[index % len(names)]
        own = valid.get(name, valid["decode"])
        chance = rng.random()
        if chance < 0.75:
            data = mutated(rng, rng.choice(own), every)
        elif chance < 0.9:
            data = mutated(rng, rng.choice(every), every)
        else:
            data = rng.randbytes(rng.randrange(80))
        _try(watch, name, data)
    for data in large:
        for name in names:
            _try(watch, name, data)
            _try(watch, name, zlib.compress(data)[:1000])
    watch.on = False
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MEMORY_GROWTH_BYTES_MAX:
        raise SystemExit(f"the process grew by {grown >> 20} MiB")
    # The watch itself must be able to see something.
    watch.on = True
    open(os.devnull, "rb").close()
    __import__("wave")
    watch.on = False
    if len(watch.touched) < 2:
        raise SystemExit("the watch is blind")
    print(f"{count + 2 * len(large) * len(names):,} payloads, nothing touched, and the watch works")


def _try(watch: Watch, name: str, data: bytes) -> None:
    try:
        read(name, data)
    except BaseException as error:
        watch.on = False
        shown = data[:300].hex()
        raise SystemExit(f"{name}: {shown} ({len(data)} bytes) raised {error!r:.500}") from error
    if watch.touched:
        watch.on = False
        raise SystemExit(f"{name}: {data[:300].hex()} touched {watch.touched[:3]}")


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
