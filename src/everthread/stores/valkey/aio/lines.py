"""Reading lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from everthread.history.packs import Chunk
from everthread.stores.contract import Found, Line, Row
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.aio.base import Base, flag
from everthread.stores.valkey.aio.calls import Ask
from everthread.stores.valkey.keys import SHARDS, digest, line_id, name_digest, name_tag, split_id

#: Lines asked for at a time.
_PAGE = 200
_TAGS = 500
#: In a cluster: a fork that waits for its name for so long never gets it.
_GIVEN_UP_S = 3600


class Lines(Base):
    """The verbs that read lines."""

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    async def find(self, space: str, name: str) -> Found | None:
        answer = await self._calls.ask(self._find(space, name))
        if answer is None:
            return None
        if answer[1] is None:
            return await self._elsewhere(answer[0])
        return packing.to_found(_place(answer[0])[0], answer[1])

    def _find(self, space: str, name: str) -> Ask:
        tag = name_tag(space, name)
        given = self._prefix, flag(self._whole), tag, name_digest(space, name)
        return Ask(scripts.FIND, (self._keys.family(tag),), given)

    async def _elsewhere(self, ref: bytes) -> Found | None:
        """In a cluster: a fork is in the slot of its family, not in that of its name."""
        tag, member = _place(ref)
        found, _ = await self._calls.ask(self._found(line_id(tag, member)))
        if found is None or found[3]:
            return None
        if found[7] is not None:
            # Whoever made it has died before telling it that it has its name.
            await self._settle(tag, member, keep=True)
        return packing.to_found(tag, found)

    def _found(self, line: int, *, tags: bool = False) -> Ask:
        tag, member = split_id(line)
        given = self._prefix, tag, member, flag(tags)
        return Ask(scripts.FOUND, (self._keys.rows(line),), given)

    async def _settle(self, tag: str, member: int, *, keep: bool) -> bool:
        packed = packing.pack({"tag": tag, "m": member, "keep": keep})
        keys = (self._keys.rows(line_id(tag, member)),)
        return bool(await self._calls.script(scripts.SETTLE, keys, (self._prefix, packed)))

    async def line(self, line: int) -> Line | None:
        tag, member = split_id(line)
        answer = await self._calls.script(scripts.LINE, (self._keys.rows(line),), (self._prefix, tag, member))
        return None if answer is None or line <= 0 else packing.to_line(tag, answer)

    async def line_by_uid(self, uid: bytes) -> Line | None:
        register = self._keys.shard("u", uid.hex()[:1] or "0")
        if self._whole:
            answer = await self._calls.script(scripts.BY_UID, (register,), (self._prefix, uid, b""))
        else:
            tag = await self._calls.command(register, "HGET", register, uid)
            if tag is None:
                return None
            family = (self._keys.family(tag.decode()),)
            answer = await self._calls.script(scripts.BY_UID, family, (self._prefix, uid, tag))
        return None if answer is None else packing.to_line(answer[0].decode(), answer[1])

    async def every_line(self) -> AsyncIterator[Line]:
        for first in SHARDS:
            register, after = self._keys.shard("t", first), b"-"
            while True:
                tags = await self._calls.command(
                    register, "ZRANGEBYLEX", register, after, "+", "LIMIT", 0, _TAGS
                )
                for tag in tags:
                    async for line in self._members(tag.decode()):
                        yield line
                if len(tags) < _TAGS:
                    break
                after = b"(" + tags[-1]

    async def unreadable_lines(self) -> list[str]:
        """Nothing: where an entry is damaged, :meth:`every_line` raises."""
        return []

    async def _members(self, tag: str) -> AsyncIterator[Line]:
        at, last = 0, 1
        while at < last:
            given = self._prefix, tag, at, _PAGE
            at, last, found = await self._calls.script(scripts.MEMBERS, (self._keys.family(tag),), given)
            for *parts, waits in found:
                line = packing.to_line(tag, parts)
                if waits is None or await self._named(line):
                    yield line
                elif waits > _GIVEN_UP_S:
                    # Whoever made it died before it had its name, or is about to fail.
                    await self._settle(tag, int(parts[0]), keep=False)

    async def _named(self, line: Line) -> bool:
        """Whether a line that waits for its name has got it."""
        found = await self.find(line.space, line.name)
        return found is not None and found.line.id == line.id

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        tag, member = split_id(line)
        flat = await self._calls.script(
            scripts.REPLAY, self._row_keys(tag, member), (self._prefix, seq, floor)
        )
        return [row for row, _ in packing.read_rows(tag, flat)]

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        tag, member = split_id(line)
        flat = await self._calls.script(scripts.SCAN, self._row_keys(tag, member), (self._prefix, seq, limit))
        return [row for row, _ in packing.read_rows(tag, flat)]

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        tag, member = split_id(line)
        flat = await self._calls.script(scripts.TAIL, self._row_keys(tag, member), (self._prefix,))
        return packing.read_rows(tag, flat)[::-1]

    def _row_keys(self, tag: str, member: int) -> tuple[bytes, bytes]:
        return self._key(tag, f"r:{member}"), self._key(tag, f"z:{member}")

    def _key(self, tag: str, kind: str) -> bytes:
        return b"%b:{%b}:%b" % (self._prefix, tag.encode(), kind.encode())

    # ── items ────────────────────────────────────────────────────────────────────────────────

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        if stop <= start:
            return []
        found = []
        tag, _ = split_id(line)
        for entry, data in await self._chunks(line, log, start, b"%d" % stop, data=True):
            read = packing.read_chunk(tag, log, entry)
            if read is not None and read[0] + read[1] > start and (data is not None or not read[2]):
                position, count, _, prints, _ = read
                found.append(Chunk(log, position, count, prints, data or b""))
        return found

    async def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        found = []
        tag, _ = split_id(line)
        for entry, _ in await self._chunks(line, log, start, b"", data=False):
            read = packing.read_chunk(tag, log, entry)
            if read is not None and read[4] and read[0] + read[1] > start:
                found.append((read[0], read[3] or bytes(4 * read[1])))
        return found

    async def _chunks(
        self, line: int, log: str, start: int, stop: bytes, *, data: bool
    ) -> list[tuple[bytes, bytes | None]]:
        tag, member = split_id(line)
        named = digest("log", log)
        keys = self._key(tag, f"x:{member}:{named.hex()}"), self._key(tag, f"d:{member}")
        given = self._prefix, start, stop, named, flag(data)
        flat = await self._calls.script(scripts.CHUNKS, keys, given)
        return list(zip(flat[::2], flat[1::2], strict=True))

    async def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        tag, member = split_id(root)
        place = self._key(tag, f"k:{member}")
        answer = await self._calls.command(place, "HGET", place, key)
        entries = answer.decode().split(",") if answer else []
        pairs = [entry.split(":") for entry in entries]
        return [(line_id(tag, int(found)), int(seq)) for found, seq in pairs]

    async def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        wanted: dict[bytes, list[bytes]] = {}
        for value_id in value_ids:
            wanted.setdefault(self._keys.shard("v", value_id.hex()[:1] or "0"), []).append(value_id)
        asks = [Ask(None, (place,), (b"HMGET", place, *ids)) for place, ids in wanted.items()]
        found = {}
        for ids, values in zip(wanted.values(), await self._calls.all(asks), strict=True):
            for value_id, value in zip(ids, values, strict=True):
                if value is not None:
                    found[value_id] = value[2 + int.from_bytes(value[:2], "big") :]
        return found

    async def newer(self, line: int, seq: int) -> bool:
        if line <= 0:
            return False
        keys = (self._keys.rows(line),)
        return bool(await self._calls.script(scripts.NEWER, keys, (self._prefix, seq)))


def _place(ref: bytes) -> tuple[str, int]:
    """Where a name leads to."""
    tag, _, member = ref.decode().partition(":")
    return tag, int(member)


def refs(line: int) -> bytes:
    """How a name, or an index, refers to a line."""
    tag, member = split_id(line)
    return b"%b:%d" % (tag.encode(), member)
