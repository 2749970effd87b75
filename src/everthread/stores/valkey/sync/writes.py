# Generated from src/everthread/stores/valkey/aio/writes.py by tools/twin.py: change that, then run: make twin
"""Writing lines: creating, appending, folding, tagging, deleting, and replacing rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import EverthreadError, LimitError, StoreUnavailableError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import (
    COLD,
    NO_TAGS,
    PACK,
    Fold,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Prune,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
    split_keys,
)
from everthread.stores.valkey import layout, scripts
from everthread.stores.valkey.errors import in_doubt
from everthread.stores.valkey.layout import MEMBER_MAX, digest, line_id, name_digest, name_tag, split_id
from everthread.stores.valkey.sync.client import Argument, Request
from everthread.stores.valkey.sync.lines import Lines, ref, token

#: How often a name is tried for that others keep coming and going with.
_NAME_TRIES = 20


_TRIES = 5
#: Bytes of chunks that come back in one script: the server does nothing else meanwhile.
BATCH_BYTES = 4 << 20
#: How many bytes get through in a second, at the least.
_BYTES_PER_S = 1 << 20


class LineWrites(Lines):
    """The verbs that write lines."""

    # ── appending ────────────────────────────────────────────────────────────────────────────

    def _append_one(self, line: int, row: NewRow) -> Any:
        return self._client.request(self._append_request(line, row))

    def append(self, line: int, row: NewRow) -> None:
        if row.sealed and not self._single:
            self._seal(row.sealed)
        answer = self._append_one(line, row)
        if answer != 1:
            raise self._refusal(line, row, answer)
        self.signals.ring(line)

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(rows)
        if not self._single:
            for number, (_, row) in enumerate(rows):
                try:
                    self._seal(row.sealed)
                except KeyErased as error:
                    outcomes[number] = error
        sent = [number for number, outcome in enumerate(outcomes) if outcome is None]
        answers = self._client.batch([self._append_request(*rows[number]) for number in sent])
        for number, answer in zip(sent, answers, strict=True):
            if isinstance(answer, EverthreadError):
                outcomes[number] = answer
            elif answer != 1:
                outcomes[number] = self._refusal(*rows[number], answer)
        self.signals.ring(*(line for line, _ in rows))
        return outcomes

    def _append_request(self, line: int, row: NewRow) -> Request:
        tag, member = split_id(line)
        value = layout.new_row_value(tag, row)
        expected = layout.expected_head(row.previous)
        head = layout.line_head(row.hash, row.previous, row.seq)
        keys = (self._keys.rows(line),)
        plain = not (row.chunks or row.sealed or row.guard or row.ttl_us) and row.source is None
        if plain:
            publish = self._publish

            def arguments(again: bool) -> Sequence[Argument]:
                return expected, head, row.seq, value, publish, b"1" if again else b"0"

            return Request(scripts.APPEND, keys, arguments)
        fields: dict[str, Any] = {
            "tag": tag,
            "m": member,
            "expected": expected,
            "head": head,
            "seq": row.seq,
            "value": value,
            "single": self._single,
            "guard": split_id(row.guard)[1] if row.guard and row.key is not None else False,
            "key": row.key or b"",
            "source": [split_id(row.source[0])[1], row.source[1]] if row.source is not None else False,
            "chunks": chunk_fields(tag, row.chunks, row.seq),
            "sealed": sealed_fields(row.sealed) if self._single else [],
            "ttl": lifetime_ms(row),
            "publish": self._publish,
        }
        return Request(scripts.APPEND_FULL, keys, self._packed(fields))

    def _packed(self, fields: dict[str, Any]) -> Callable[[bool], Sequence[Argument]]:
        """The arguments of a script that is told whether an earlier try may have landed."""

        def arguments(again: bool) -> Sequence[Argument]:
            return self._prefix, layout.pack({**fields, "retry": again})

        return arguments

    def _refusal(self, line: int, row: NewRow, answer: Any) -> Exception:
        """Why a row wasn't taken."""
        if answer[0] == b"key":
            return KeyKnown()
        if answer[0] == b"version":
            return VersionGone()
        if answer[0] == b"erased":
            return KeyErased(frozenset(answer[1:]))
        if answer[0] == b"?":
            # The first try was cut off, and by now others have folded what would tell whether it landed.
            return in_doubt("others went on", self._settings.url)
        if answer[0] is None:
            return StaleWrite(None, sealed=True)
        alive, hash_, _, seq = layout.read_head(answer[0])
        rows = self.scan(line, seq, 1)
        newest = rows[0] if rows and rows[0].seq == seq else None
        if newest is None and seq >= row.seq:
            newest = Row(seq, seq, row.kind, hash_, b"")
        return StaleWrite(newest, sealed=not alive)

    def _seal(self, sealed: Iterable[SealedRow]) -> None:
        """In a cluster: sealed values have slots of their own, and are there before what refers to them.

        Raises :class:`KeyErased`, of which each of these slots knows.
        """
        fields = sealed_fields(sealed)
        for first in sorted({field[0] for field in fields}):
            # The register's own ledger is asked about every key, so that nothing is taken if one is refused.
            check = [[first, *field[1:]] for field in fields]
            packed = layout.pack({"check": check, "sealed": [f for f in fields if f[0] == first]})
            keys = (self._keys.shard("v", first),)
            answer = self._client.script(scripts.TAKE_SEALED, keys, (self._prefix, packed))
            if answer != 1:
                raise KeyErased(frozenset(answer[1:]))

    # ── making ───────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        fields = self._create_fields(line, row, source, tags)
        if self._single:
            answer = self._client.request(self._create_request(fields))
        elif not line.parent:
            answer = self._create_listed(line, row, fields)
        else:
            answer = self._create_fork(line, row, fields, tags)
        what, *rest = answer
        if what == b"taken":
            raise NameTaken
        if what == b"source":
            raise SourceGone
        if what == b"version":
            raise VersionGone
        if what == b"erased":
            raise KeyErased(frozenset(rest))
        member, root = int(rest[0]), int(rest[1])
        if member > MEMBER_MAX:
            raise LimitError(f"the family of {line.name!r} is full; give the thread another name")
        self.signals.ring(0)
        tag = fields["tag"]
        return msgspec.structs.replace(line, id=line_id(tag, member), root=line_id(tag, root))

    def _create_fields(
        self, line: Line, row: NewRow | None, source: int, tags: Mapping[str, bytes]
    ) -> dict[str, Any]:
        own = name_tag(line.space, line.name)
        tag = split_id(line.root)[0] if line.root else own
        if row is None:
            head = layout.line_head(line.start_hash, None, line.parent_seq)
        else:
            head = layout.line_head(row.hash, None, row.seq)
        space = self._keys.space(line.space)
        return {
            "tag": tag,
            "name_tag": own,
            "digest": name_digest(line.space, line.name),
            "name": line.name,
            "space": space[len(self._prefix) + 2 : space.index(b"}")],
            "space_name": line.space,
            "uid": line.uid,
            "value": layout.line_value(line),
            "root": split_id(line.root)[1] if line.root else False,
            "parent": split_id(line.parent)[1] if line.parent else False,
            "parent_seq": line.parent_seq,
            "source": split_id(source)[1] if source else False,
            "head": head,
            "seq": row.seq if row is not None else False,
            "row": layout.new_row_value(tag, row) if row is not None else b"",
            "chunks": chunk_fields(tag, row.chunks, row.seq) if row is not None else [],
            "sealed": sealed_fields(row.sealed) if row is not None and self._single else [],
            "ttl": False if row is None else lifetime_ms(row),
            "tags": layout.tag_values(tags),
            "places": [digest("tag", name, value).hex() for name, value in tags.items()],
            "single": self._single,
            "waits": False,
            "stale": False,
            "token": False,
        }

    def _create_request(self, fields: dict[str, Any]) -> Request:
        keys = (self._keys.family(fields["tag"]),)
        return Request(scripts.CREATE, keys, self._packed(fields))

    def _prepare(self, line: Line, row: NewRow | None, tag: str) -> bytes:
        """In a cluster, before a line is made: its name is listed, and its uid leads to its family.

        Lists may have too many, never too few: a reader looks at each line.
        """
        self._list_space(line.space)
        if row is not None and row.sealed:
            self._seal(row.sealed)
        made = token()
        uids, tags = self._keys.shard("u", line.uid.hex()[:1]), self._keys.shard("t", tag[:1])
        self._client.all(
            [
                self._list_request(line.space, line.name, made),
                Request(None, (uids,), (b"HSET", uids, line.uid, tag)),
                Request(None, (tags,), (b"ZADD", tags, 0, tag)),
            ]
        )
        return made

    def _list_request(self, space: str, name: str, made: bytes) -> Request:
        return Request(scripts.LIST, self._name_lists(space), (b"", name, name_digest(space, name), made))

    def _create_listed(self, line: Line, row: NewRow | None, fields: dict[str, Any]) -> list[Any]:
        """In a cluster, a line that isn't a fork: it is in the slot of its name."""
        for _ in range(_NAME_TRIES):
            fields["token"] = self._prepare(line, row, fields["tag"])
            answer: list[Any] = self._client.request(self._create_request(fields))
            if answer[0] == b"taken" and self._is_stale(answer[1]):
                fields["stale"] = answer[1]
                continue
            if answer[0] != b"void":
                return answer
        raise _contended(line)

    def _create_fork(
        self, line: Line, row: NewRow | None, fields: dict[str, Any], tags: Mapping[str, bytes]
    ) -> list[Any]:
        """In a cluster, a fork: it is made in the slot of its family, waits, and is there once its name, in
        another slot, leads to it. A process that dies in between leaves a line that nobody ever sees."""
        self._prepare(line, row, fields["tag"])
        fields["waits"] = True
        answer: list[Any] = self._client.request(self._create_request(fields))
        if answer[0] not in (b"made", b"known"):
            return answer
        born = line_id(fields["tag"], int(answer[1]))
        self._index(line.space, born, 0, tags)
        claim = {name: fields[name] for name in ("digest", "name_tag")} | {"ref": ref(born), "stale": False}
        for _ in range(_NAME_TRIES):
            # Listed again: somebody may have taken a dead entry off the list.
            claim["token"] = made = token()
            self._client.request(self._list_request(line.space, line.name, made))
            keys = (self._keys.family(fields["name_tag"]),)
            claimed = self._client.script(scripts.CLAIM, keys, (self._prefix, layout.pack(claim)))
            if claimed[0] == b"made":
                self._settle(fields["tag"], int(answer[1]), keep=True)
                return answer
            if claimed[0] == b"taken":
                if not self._is_stale(claimed[1]):
                    self._settle(fields["tag"], int(answer[1]), keep=False)
                    return claimed  # type: ignore[no-any-return]
                claim["stale"] = claimed[1]
        raise _contended(line)

    # ── folding and tags ─────────────────────────────────────────────────────────────────────

    def fold(self, line: Line, fold: Fold) -> bool:
        tag, member = split_id(line.id)
        pack = fold.pack
        self._index(line.space, line.id, pack.last, fold.tags)
        fields = {
            "tag": tag,
            "m": member,
            "root": split_id(line.root)[1],
            "first": pack.first,
            "last": pack.last,
            "hash": fold.hash,
            "value": layout.row_value(tag, pack.last, pack.first, PACK, fold.hash, None),
            "body": pack.body,
            "net": pack.net,
            "keyframe": False if fold.keyframe is None else fold.keyframe,
            "chunks": chunk_fields(tag, pack.chunks, pack.last),
            "keys": [[key, seq] for key, seq in fold.keys],
            "tags": layout.tag_values(fold.tags),
            "beside": fold.beside,
            "single": self._single,
        }
        keys = (self._keys.rows(line.id),)
        answer = self._client.script(scripts.FOLD, keys, (self._prefix, layout.pack(fields)))
        if not answer:
            return False
        self._unindex(line.space, line.id, pack.last, answer[1])
        return True

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        found = self.line(line)
        if found is None:
            return
        tag, member = split_id(line)
        self._index(found.space, line, seq, tags)
        tagged = {"seq": seq, "tags": layout.tag_values(tags), "single": self._single}
        fields = {"tag": tag, "m": member, **tagged}
        keys = (self._keys.rows(line),)
        old = self._client.script(scripts.TAG, keys, (self._prefix, layout.pack(fields)))
        self._unindex(found.space, line, seq, old)

    def _index(self, space: str, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        places = [self._tag_index(space, name, value) for name, value in tags.items()]
        self._client.all(
            [Request(None, (place,), (b"ZADD", place, b"GT", seq, ref(line))) for place in places]
        )

    def _unindex(self, space: str, line: int, seq: int, old: Sequence[bytes]) -> None:
        places = [self._tag_index(space, name, value) for name, value in layout.read_tags(old).items()]
        self._client.all([Request(scripts.UNINDEX, (place,), (b"", ref(line), seq)) for place in places])

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        keys = (self._keys.rows(line),)
        self._client.script(scripts.KEYFRAME, keys, (self._prefix, seq, digest, keyframe))

    # ── sealing ──────────────────────────────────────────────────────────────────────────────

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        tag, member = split_id(line.id)
        space = self._keys.space(line.space)
        fields = {
            "tag": tag,
            "m": member,
            "newest": False if newest is None else newest,
            "token": token(),
            "single": self._single,
            "space": space[len(self._prefix) + 2 : space.index(b"}")],
            "name": line.name,
            "publish": self._publish,
        }
        keys = (self._keys.rows(line.id),)
        answer = self._client.script(scripts.DELETE, keys, self._packed(fields))
        sealed = bool(answer[0])
        if sealed and not self._single:
            self._free(line)
        self.signals.ring(line.id)
        return sealed

    def _free(self, line: Line) -> None:
        """In a cluster, after a line was sealed: its name is free, and off the list."""
        names, claims = self._name_lists(line.space)
        named = name_digest(line.space, line.name)
        listed = self._client.command(claims, "HGET", claims, named)
        own = name_tag(line.space, line.name)
        fields = {"digest": named, "name_tag": own, "ref": ref(line.id), "token": listed or False}
        keys = (self._keys.family(own),)
        if self._client.script(scripts.FREE, keys, (self._prefix, layout.pack(fields))):
            given = b"", line.name, named, listed or b""
            self._client.script(scripts.UNLIST, (names, claims), given)

    # ── replacing rows ───────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        *before, last = _in_batches(prune)
        for chunks in before:
            # As long as the row stands there, what it stands for is away, however much of it is back.
            if not self._prune(line, Prune(old=prune.old, chunks=chunks), keep=True):
                return False
        rest = Prune(prune.old, prune.rows, prune.dropped, prune.seen, last)
        return self._prune(line, rest)

    def _prune(self, line: Line, prune: Prune, *, keep: bool = False) -> bool:
        """With ``keep`` the old rows have to be there, and stay."""
        tag, member = split_id(line.id)
        fields = {
            "tag": tag,
            "m": member,
            "keep": keep,
            "grows": _comes_back(prune),
            "old": [_old_fields(tag, row) for row in prune.old],
            "rows": [layout.row_fields(tag, row) for row in prune.rows],
            "seen": [[split_id(other)[1], seq] for other, seq in prune.seen],
        }
        size = sum(map(_size, prune.rows)) + sum(len(chunk.data) for chunk in prune.chunks)
        for _ in range(_TRIES):
            fields["dropped"] = list(self._replaced(line.id, prune))
            ask = Request(scripts.PRUNE, (self._keys.rows(line.id),), self._packed(dict(fields)))
            answer = self._client.request(ask, longer_s=size / _BYTES_PER_S)
            if not isinstance(answer, list):
                return bool(answer)
        return False

    def _replaced(self, line: int, prune: Prune) -> Iterator[list[Any]]:
        """What becomes of chunks, by log: its digest, the entries that go, and what takes their place."""
        tag, _ = split_id(line)
        for log in dict.fromkeys([log for log, *_ in prune.dropped] + [chunk.log for chunk in prune.chunks]):
            back = [chunk for chunk in prune.chunks if chunk.log == log]
            spans = [span for name, *span in prune.dropped if name == log]
            entries, stubs = self._giving_way(line, log, spans, back)
            yield [digest("log", log), entries, chunk_fields(tag, [*stubs, *back])]

    def _giving_way(
        self, line: int, log: str, spans: Sequence[Sequence[int]], back: Sequence[Chunk]
    ) -> tuple[list[bytes], list[Chunk]]:
        """The entries of the chunks of a log that lie in these spans, or that stand for what comes back; and
        the stubs for those of their positions to which nothing comes back."""
        edges = [*spans, *((chunk.position, chunk.end) for chunk in back)]
        start, stop = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
        tag, _ = split_id(line)
        standing = []
        for entry, _ in self._chunks(line, log, start, b"%d" % stop, data=False):
            read = layout.read_chunk(tag, log, entry)
            if read is not None:
                standing.append((entry, Chunk(log, read[0], read[1], b"", b""), read[2] > 0))
        places = Places(back)
        gone: list[bytes] = []
        stubs: list[Chunk] = []
        for begin, end in spans:
            inside = [each for each in standing if each[1].position >= begin and each[1].end <= end]
            if any(held for *_, held in inside):
                entries = {entry for entry, *_ in inside}
                standing = [each for each in standing if each[0] not in entries]
                gone += entries
                stubs += pruned_chunks(log, ((chunk.position, chunk.count) for _, chunk, _ in inside))
        for entry, chunk, held in standing:
            if not held and places.within(chunk):
                gone.append(entry)
                stubs.append(chunk)
        return gone, [piece for stub in stubs for piece in places.beside(stub)]


def chunk_fields(tag: str, chunks: Iterable[Chunk], seq: int = 0) -> list[list[Any]]:
    """Chunks as scripts write them: digest of the log, log, position, entry of the index, data. ``seq`` is
    the row that brings them; 0: they take the place of others, of several rows perhaps."""
    return [
        [digest("log", c.log), c.log, c.position, layout.chunk_entry(tag, c, seq), c.data] for c in chunks
    ]


def lifetime_ms(row: NewRow) -> int | bool:
    """After how long the server may remove a line by itself; ``False``: never."""
    return row.ttl_us // 1000 + layout.EXPIRY_GRACE_MS if row.ttl_us else False


def sealed_fields(sealed: Iterable[SealedRow]) -> list[list[Any]]:
    """Sealed values as scripts take them: which register, value id, key ids and data, key ids one by one."""
    return [
        [
            value_id.hex()[:1] or "0",
            value_id,
            len(keys).to_bytes(2, "big") + keys + data if data else b"",
            split_keys(keys),
        ]
        for value_id, keys, data in sealed
    ]


def _contended(line: Line) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"others kept taking and giving back the name {line.name!r}; nothing was written, try again"
    )


def _in_batches(prune: Prune) -> list[tuple[Chunk, ...]]:
    """The chunks that come back, as many at once as one script takes; all of them if they don't come from an
    archive: then the rows are what tells that they belong together."""
    if not _comes_back(prune):
        return [prune.chunks]
    batches: list[list[Chunk]] = [[]]
    size = 0
    for chunk in prune.chunks:
        if size + len(chunk.data) > BATCH_BYTES and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append(chunk)
        size += len(chunk.data)
    return [tuple(batch) for batch in batches]


def _comes_back(prune: Prune) -> bool:
    """Whether this is what was in an archive."""
    return bool(prune.old) and all(row.kind == COLD for row in prune.old)


def _size(row: Row) -> int:
    return len(row.body) + len(row.net or b"") + len(row.keyframe or b"")


def _old_fields(tag: str, row: Row) -> list[Any]:
    """A row as it was read, to be compared: seq, what its value begins with, whether it is folded, the sizes
    of body, net and keyframe, and the body if it says which parcel of an archive is meant."""
    value = layout.row_value(tag, row.seq, row.first, row.kind, row.hash, None)
    begins = value[: 6 + len(row.hash)]
    return [
        row.seq,
        begins,
        row.kind in layout.FOLDED,
        len(row.body),
        False if row.net is None else len(row.net),
        False if row.keyframe is None else len(row.keyframe),
        row.body if row.kind == COLD else False,
    ]
