# Generated from src/everthread/stores/valkey/aio/lines.py by tools/twin.py: change that, then run: make twin
"""Reading lines, and listing them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everthread.history.packs import Chunk
from everthread.stores.contract import Found, Line, Row
from everthread.stores.signals import Signals
from everthread.stores.valkey import layout, scripts
from everthread.stores.valkey.layout import SHARDS, Keys, digest, line_id, name_digest, name_tag, split_id
from everthread.stores.valkey.listener import Listener
from everthread.stores.valkey.sync.client import Client, Request

#: Lines asked for at a time.
_PAGE = 200
_TAGS = 500
#: In a cluster: a fork that waits for its name for so long never gets it.
_GIVEN_UP_S = 3600


class Lines:
    """The verbs that read lines. A list only says whom to ask for: each line says whether it is there."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._settings = client.settings
        self._keys = Keys(client.settings.prefix)
        self._prefix = self._keys.prefix
        #: Spaces that the store's list of them is known to have.
        self._spaces: set[str] = set()
        #: Streams that the list of their space is known to have.
        self._streams: set[tuple[str, str]] = set()
        self.signals = Signals(lambda: Listener(client.settings, cluster=not client.single))

    @property
    def _single(self) -> bool:
        """One server: a script may reach every key. In a cluster it reaches those of one slot."""
        return self._client.single

    @property
    def _publish(self) -> str:
        # In a cluster a plain message would travel to every node.
        return "PUBLISH" if self._single else "SPUBLISH"

    @property
    def round_trips(self) -> int:
        """How often this driver has asked a server and waited for the answer."""
        return self._client.round_trips

    def _list_space(self, space: str) -> None:
        """Before anything is put into a space: the list of spaces may have too many, never too few."""
        if space not in self._spaces:
            self._client.command(self._keys.spaces, "ZADD", self._keys.spaces, 0, space)
            self._spaces.add(space)

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    def find(self, space: str, name: str) -> Found | None:
        answer = self._client.request(self._find_request(space, name))
        if answer is None:
            return None
        if answer[1] is None:
            return self._find_fork(answer[0])
        return layout.to_found(_tag(answer[0]), answer[1])

    def _find_request(self, space: str, name: str) -> Request:
        tag = name_tag(space, name)
        given = self._prefix, flag(self._single), tag, name_digest(space, name)
        return Request(scripts.FIND, (self._keys.family(tag),), given)

    def _find_fork(self, ref: bytes) -> Found | None:
        """In a cluster: a fork is in the slot of its family, not in that of its name."""
        line = _id(ref)
        tag, member = split_id(line)
        found, _ = self._client.request(self._line_request(line))
        if found is None or found[3]:
            return None
        if found[7] is not None:
            # The process that made it died before marking it as named.
            self._settle(tag, member, keep=True)
        return layout.to_found(tag, found)

    def _line_request(self, line: int, *, tags: bool = False) -> Request:
        tag, member = split_id(line)
        given = self._prefix, tag, member, flag(tags)
        return Request(scripts.FOUND, (self._keys.rows(line),), given)

    def _settle(self, tag: str, member: int, *, keep: bool) -> bool:
        packed = layout.pack({"tag": tag, "m": member, "keep": keep})
        keys = (self._keys.rows(line_id(tag, member)),)
        return bool(self._client.script(scripts.SETTLE, keys, (self._prefix, packed)))

    def line(self, line: int) -> Line | None:
        tag, member = split_id(line)
        answer = self._client.script(scripts.LINE, (self._keys.rows(line),), (self._prefix, tag, member))
        return None if answer is None or line <= 0 else layout.to_line(tag, answer)

    def line_by_uid(self, uid: bytes) -> Line | None:
        register = self._keys.shard("u", uid.hex()[:1] or "0")
        if self._single:
            answer = self._client.script(scripts.BY_UID, (register,), (self._prefix, uid, b""))
        else:
            tag = self._client.command(register, "HGET", register, uid)
            if tag is None:
                return None
            family = (self._keys.family(tag.decode()),)
            answer = self._client.script(scripts.BY_UID, family, (self._prefix, uid, tag))
        return None if answer is None else layout.to_line(answer[0].decode(), answer[1])

    def every_line(self) -> Iterator[Line]:
        for first in SHARDS:
            register, after = self._keys.shard("t", first), b"-"
            while True:
                tags = self._client.command(register, "ZRANGEBYLEX", register, after, "+", "LIMIT", 0, _TAGS)
                for tag in tags:
                    yield from self._members(tag.decode())
                if len(tags) < _TAGS:
                    break
                after = b"(" + tags[-1]

    def unreadable_lines(self) -> list[str]:
        """Nothing: where an entry is damaged, :meth:`every_line` raises."""
        return []

    def _members(self, tag: str) -> Iterator[Line]:
        at, last = 0, 1
        while at < last:
            given = self._prefix, tag, at, _PAGE
            at, last, found = self._client.script(scripts.MEMBERS, (self._keys.family(tag),), given)
            for *parts, waits in found:
                line = layout.to_line(tag, parts)
                if waits is None or self._named(line):
                    yield line
                elif waits > _GIVEN_UP_S:
                    # The process that made it died before it had its name, or is about to fail.
                    self._settle(tag, int(parts[0]), keep=False)

    def _named(self, line: Line) -> bool:
        """Whether a line that waits for its name has got it."""
        found = self.find(line.space, line.name)
        return found is not None and found.line.id == line.id

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        tag, member = split_id(line)
        flat = self._client.script(scripts.REPLAY, self._row_keys(tag, member), (self._prefix, seq, floor))
        return [row for row, _ in layout.read_rows(tag, flat)]

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        tag, member = split_id(line)
        flat = self._client.script(scripts.SCAN, self._row_keys(tag, member), (self._prefix, seq, limit))
        return [row for row, _ in layout.read_rows(tag, flat)]

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        tag, member = split_id(line)
        flat = self._client.script(scripts.TAIL, self._row_keys(tag, member), (self._prefix,))
        return layout.read_rows(tag, flat)[::-1]

    def _row_keys(self, tag: str, member: int) -> tuple[bytes, bytes]:
        return self._key(tag, f"r:{member}"), self._key(tag, f"z:{member}")

    def _key(self, tag: str, kind: str) -> bytes:
        return b"%b:{%b}:%b" % (self._prefix, tag.encode(), kind.encode())

    # ── items ────────────────────────────────────────────────────────────────────────────────

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        if stop <= start:
            return []
        found = []
        tag, _ = split_id(line)
        for entry, data in self._chunks(line, log, start, b"%d" % stop, data=True):
            read = layout.read_chunk(tag, log, entry)
            if read is not None and read[0] + read[1] > start and (data is not None or not read[2]):
                position, count, _, prints, _ = read
                found.append(Chunk(log, position, count, prints, data or b""))
        return found

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        found = []
        tag, _ = split_id(line)
        for entry, _ in self._chunks(line, log, start, b"", data=False):
            read = layout.read_chunk(tag, log, entry)
            if read is not None and read[4] and read[0] + read[1] > start:
                found.append((read[0], read[3] or bytes(4 * read[1])))
        return found

    def _chunks(
        self, line: int, log: str, start: int, stop: bytes, *, data: bool
    ) -> list[tuple[bytes, bytes | None]]:
        tag, member = split_id(line)
        named = digest("log", log)
        keys = self._key(tag, f"x:{member}:{named.hex()}"), self._key(tag, f"d:{member}")
        given = self._prefix, start, stop, named, flag(data)
        flat = self._client.script(scripts.CHUNKS, keys, given)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        tag, member = split_id(root)
        place = self._key(tag, f"k:{member}")
        answer = self._client.command(place, "HGET", place, key)
        entries = answer.decode().split(",") if answer else []
        pairs = [entry.split(":") for entry in entries]
        return [(line_id(tag, int(found)), int(seq)) for found, seq in pairs]

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        wanted: dict[bytes, list[bytes]] = {}
        for value_id in value_ids:
            wanted.setdefault(self._keys.shard("v", value_id.hex()[:1] or "0"), []).append(value_id)
        requests = [Request(None, (place,), (b"HMGET", place, *ids)) for place, ids in wanted.items()]
        found = {}
        for ids, values in zip(wanted.values(), self._client.all(requests), strict=True):
            for value_id, value in zip(ids, values, strict=True):
                if value is not None:
                    found[value_id] = value[2 + int.from_bytes(value[:2], "big") :]
        return found

    def newer(self, line: int, seq: int) -> bool:
        if line <= 0:
            return False
        keys = (self._keys.rows(line),)
        return bool(self._client.script(scripts.NEWER, keys, (self._prefix, seq)))

    # ── lists ────────────────────────────────────────────────────────────────────────────────

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        found: list[Found] = []
        for page in self._pages(space, prefix, after, limit):
            found += [entry for entry, _ in page]
            if len(found) >= limit:
                break
        return found[:limit]

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        found = []
        if self._single:
            for page in self._pages_untagged(space):
                found += page
        else:
            # What lists them would lie in another slot than the commits: look at every line.
            for page in self._pages(space, "", None, _PAGE):
                found += page
        return [
            (entry.line, tagged)
            for entry, tagged in found
            if entry.newest is not None and entry.newest.seq > tagged
        ]

    def _pages_untagged(self, space: str) -> Iterator[list[tuple[Found, int]]]:
        """On a single server: the lines that were written to since they were tagged."""
        place = self._keys.space(space)[:-1] + b"U"
        rows = sorted(self._client.command(place, "SMEMBERS", place))
        for at in range(0, len(rows), _PAGE):
            ids = [self._keys.line_of(key) for key in rows[at : at + _PAGE]]
            answers = self._client.all([self._line_request(line) for line in ids])
            yield [
                (layout.to_found(split_id(line)[0], parts), int(parts[6]))
                for line, (parts, _) in zip(ids, answers, strict=True)
                if parts is not None and not parts[3]
            ]

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        places = [self._tag_index(space, name, value) for name, value in tags.items()]
        ids = sorted(map(_id, self._client.command(places[0], "ZINTER", len(places), *places)))
        found, deleted = [], []
        for at in range(0, len(ids), _PAGE):
            page = ids[at : at + _PAGE]
            answers = self._client.all([self._line_request(line, tags=True) for line in page])
            for line, (parts, flat) in zip(page, answers, strict=True):
                if parts is None or parts[3]:
                    deleted.append(ref(line))
                    continue
                entry = layout.to_found(split_id(line)[0], parts)
                has = layout.read_tags(flat)
                if entry.line.space == space and all(has.get(name) == value for name, value in tags.items()):
                    found.append(entry)
        # A line that was deleted never comes back.
        if deleted:
            self._client.all([Request(None, (place,), (b"ZREM", place, *deleted)) for place in places])
        return sorted(found, key=lambda entry: entry.line.name)

    def _pages(
        self, space: str, prefix: str, after: str | None, limit: int
    ) -> Iterator[list[tuple[Found, int]]]:
        """Lines by name, page by page, each with the version that its tags cover."""
        names = self._keys.space(space)
        start, stop = lexical(prefix, after)
        wanted = min(max(limit, 0), _PAGE)
        while wanted:
            page = self._client.command(names, "ZRANGEBYLEX", names, start, stop, "LIMIT", 0, wanted)
            yield self._look_up(space, [name.decode() for name in page])
            if len(page) < wanted:
                return
            start = b"(" + page[-1]

    def _look_up(self, space: str, names: Sequence[str]) -> list[tuple[Found, int]]:
        answers = self._client.all([self._find_request(space, name) for name in names])
        found = []
        for name, answer in zip(names, answers, strict=True):
            if answer is not None and answer[1] is not None:
                parts, tag = answer[1], _tag(answer[0])
                found.append((layout.to_found(tag, parts), int(parts[6])))
            elif answer is not None:
                entry = self._fork_and_tagged(answer[0])
                if entry is not None:
                    found.append(entry)
                else:
                    self._unlist(space, name)
            elif self._single:
                self._forget(space, name)
            else:
                self._unlist(space, name)
        return found

    def _forget(self, space: str, name: str) -> None:
        """On a single server: take a name off the list whose line is gone by the server's own expiry."""
        own, place = name_tag(space, name), self._keys.space(space)
        fields = {
            "digest": name_digest(space, name),
            "space": place[len(self._prefix) + 2 : place.index(b"}")],
            "name": name,
            "single": True,
        }
        keys = (self._keys.family(own),)
        self._client.script(scripts.FORGET, keys, (self._prefix, layout.pack(fields)))

    def _fork_and_tagged(self, ref: bytes) -> tuple[Found, int] | None:
        parts, _ = self._client.request(self._line_request(_id(ref)))
        if parts is None or parts[3]:
            return None
        return layout.to_found(_tag(ref), parts), int(parts[6])

    def _unlist(self, space: str, name: str) -> None:
        """In a cluster: take a name off the list that leads nowhere, unless somebody is about to use it.

        A name is listed with a token, and the line is then made with it. A void token makes none
        any more, so that no line ever exists without being listed.
        """
        names, claims = self._name_lists(space)
        named, own = name_digest(space, name), name_tag(space, name)
        family = self._keys.family(own)
        listed = self._client.command(claims, "HGET", claims, named)
        ref = self._client.command(family, "HGET", family, b"n" + named)
        if ref is not None and not self._is_stale(ref):
            return
        fields = {"digest": named, "name_tag": own, "ref": ref or b"", "token": listed or False}
        keys = (family,)
        if self._client.script(scripts.FREE, keys, (self._prefix, layout.pack(fields))):
            self._client.script(scripts.UNLIST, (names, claims), (b"", name, named, listed or b""))

    def _tag_index(self, space: str, name: str, value: bytes) -> bytes:
        """The lines of a space that may have this value of a tag; each line says whether it has."""
        return self._keys.space(space)[:-1] + b"g:" + digest("tag", name, value).hex().encode()

    def _name_lists(self, space: str) -> tuple[bytes, bytes]:
        names = self._keys.space(space)
        return names, names[:-1] + b"C"

    def _is_stale(self, ref: bytes) -> bool:
        """In a cluster: whether a name leads to a deleted line, whose process died before freeing the name,
        or to one whose time is over, of which only what forks reach has to stay."""
        line = self.line(_id(ref))
        if line is not None and line.deleted:
            tag, member = split_id(line.id)
            packed = layout.pack({"tag": tag, "m": member, "single": False})
            self._client.script(scripts.SHED, (self._keys.rows(line.id),), (self._prefix, packed))
        return line is None or line.deleted


def ref(line: int) -> bytes:
    """How a name, or an index, refers to a line."""
    tag, member = split_id(line)
    return b"%b:%d" % (tag.encode(), member)


def lexical(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """From where to where names that have the prefix lie, of which the first comes after ``after``."""
    begin = prefix.encode()
    start = b"[" + begin if begin else b"-"
    if after is not None and after.encode() >= begin:
        start = b"(" + after.encode()
    # No byte of UTF-8 is as high as this.
    return start, b"(" + begin + b"\xff" if begin else b"+"


def _tag(ref: bytes) -> str:
    return ref.decode().partition(":")[0]


def _id(ref: bytes) -> int:
    """The line that a name, or an index, refers to."""
    tag, _, member = ref.decode().partition(":")
    return line_id(tag, int(member))


def token() -> bytes:
    """What tells one write from every other."""
    return os.urandom(8).hex().encode()


def flag(value: Any) -> bytes:
    return b"1" if value else b"0"
