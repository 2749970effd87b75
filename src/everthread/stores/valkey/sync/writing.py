# Generated from stores/valkey/aio/writing.py by tools/twin.py: change that, then run: make twin
"""Writing lines: making, appending, folding, sealing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import EverthreadError, LimitError, StoreUnavailableError
from everthread.history.packs import Chunk
from everthread.stores.contract import (
    NO_TAGS,
    PACK,
    Fold,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
    split_keys,
)
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.failing import in_doubt
from everthread.stores.valkey.keys import MEMBER_MAX, digest, line_id, name_digest, name_tag, split_id
from everthread.stores.valkey.resp import Argument
from everthread.stores.valkey.sync.base import token
from everthread.stores.valkey.sync.calls import Ask
from everthread.stores.valkey.sync.lines import Lines, refs

#: How often a name is tried for that others keep coming and going with.
_NAME_TRIES = 20


class Writing(Lines):
    """The verbs that write lines."""

    # ── appending ────────────────────────────────────────────────────────────────────────────

    def _append_one(self, line: int, row: NewRow) -> Any:
        return self._calls.ask(self._append(line, row))

    def append(self, line: int, row: NewRow) -> None:
        if row.sealed and not self._whole:
            self._seal(row.sealed)
        answer = self._append_one(line, row)
        if answer != 1:
            raise self._refusal(line, row, answer)
        self.signals.ring(line)

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(rows)
        if not self._whole:
            for number, (_, row) in enumerate(rows):
                try:
                    self._seal(row.sealed)
                except KeyErased as error:
                    outcomes[number] = error
        sent = [number for number, outcome in enumerate(outcomes) if outcome is None]
        answers = self._calls.batch([self._append(*rows[number]) for number in sent])
        for number, answer in zip(sent, answers, strict=True):
            if isinstance(answer, EverthreadError):
                outcomes[number] = answer
            elif answer != 1:
                outcomes[number] = self._refusal(*rows[number], answer)
        self.signals.ring(*(line for line, _ in rows))
        return outcomes

    def _append(self, line: int, row: NewRow) -> Ask:
        tag, member = split_id(line)
        value = packing.new_row_value(tag, row)
        expected = packing.expected_head(row.previous)
        head = packing.line_head(row.hash, row.previous, row.seq)
        keys = (self._keys.rows(line),)
        plain = not (row.chunks or row.sealed or row.guard) and row.source is None
        if plain:
            publish = self._publish

            def arguments(again: bool) -> Sequence[Argument]:
                return expected, head, row.seq, value, publish, b"1" if again else b"0"

            return Ask(scripts.APPEND, keys, arguments)
        fields: dict[str, Any] = {
            "tag": tag,
            "m": member,
            "expected": expected,
            "head": head,
            "seq": row.seq,
            "value": value,
            "guard": split_id(row.guard)[1] if row.guard and row.key is not None else False,
            "key": row.key or b"",
            "source": [split_id(row.source[0])[1], row.source[1]] if row.source is not None else False,
            "chunks": chunk_fields(tag, row.chunks),
            "sealed": sealed_fields(row.sealed) if self._whole else [],
            "publish": self._publish,
        }
        return Ask(scripts.APPEND_FULL, keys, self._packed(fields))

    def _packed(self, fields: dict[str, Any]) -> Callable[[bool], Sequence[Argument]]:
        """The arguments of a script that is told whether an earlier try may have landed."""

        def arguments(again: bool) -> Sequence[Argument]:
            return self._prefix, packing.pack({**fields, "retry": again})

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
        alive, hash_, _, seq = packing.read_head(answer[0])
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
            packed = packing.pack({"check": check, "sealed": [f for f in fields if f[0] == first]})
            keys = (self._keys.shard("v", first),)
            answer = self._calls.script(scripts.TAKE, keys, (self._prefix, packed))
            if answer != 1:
                raise KeyErased(frozenset(answer[1:]))

    # ── making ───────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        fields = self._create_fields(line, row, source, tags)
        if self._whole:
            answer = self._calls.ask(self._create(fields))
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
            head = packing.line_head(line.start_hash, None, line.parent_seq)
        else:
            head = packing.line_head(row.hash, None, row.seq)
        space = self._keys.space(line.space)
        return {
            "tag": tag,
            "name_tag": own,
            "digest": name_digest(line.space, line.name),
            "name": line.name,
            "space": space[len(self._prefix) + 2 : space.index(b"}")],
            "space_name": line.space,
            "uid": line.uid,
            "value": packing.line_value(line),
            "root": split_id(line.root)[1] if line.root else False,
            "parent": split_id(line.parent)[1] if line.parent else False,
            "parent_seq": line.parent_seq,
            "source": split_id(source)[1] if source else False,
            "head": head,
            "seq": row.seq if row is not None else False,
            "row": packing.new_row_value(tag, row) if row is not None else b"",
            "chunks": chunk_fields(tag, row.chunks) if row is not None else [],
            "sealed": sealed_fields(row.sealed) if row is not None and self._whole else [],
            "tags": packing.tag_values(tags),
            "places": [digest("tag", name, value).hex() for name, value in tags.items()],
            "whole": self._whole,
            "waits": False,
            "stale": False,
            "token": False,
        }

    def _create(self, fields: dict[str, Any]) -> Ask:
        keys = (self._keys.family(fields["tag"]),)
        return Ask(scripts.CREATE, keys, self._packed(fields))

    def _prepare(self, line: Line, row: NewRow | None, tag: str) -> bytes:
        """In a cluster, before a line is made: its name is listed, and its uid leads to its family.

        Lists may have too many, never too few: who reads one looks at each line.
        """
        self._know_space(line.space)
        if row is not None and row.sealed:
            self._seal(row.sealed)
        made = token()
        uids, tags = self._keys.shard("u", line.uid.hex()[:1]), self._keys.shard("t", tag[:1])
        self._calls.all(
            [
                self._list(line.space, line.name, made),
                Ask(None, (uids,), (b"HSET", uids, line.uid, tag)),
                Ask(None, (tags,), (b"ZADD", tags, 0, tag)),
            ]
        )
        return made

    def _list(self, space: str, name: str, made: bytes) -> Ask:
        return Ask(scripts.LIST, self._name_lists(space), (b"", name, name_digest(space, name), made))

    def _name_lists(self, space: str) -> tuple[bytes, bytes]:
        names = self._keys.space(space)
        return names, names[:-1] + b"C"

    def _create_listed(self, line: Line, row: NewRow | None, fields: dict[str, Any]) -> list[Any]:
        """In a cluster, a line that isn't a fork: it is in the slot of its name."""
        for _ in range(_NAME_TRIES):
            fields["token"] = self._prepare(line, row, fields["tag"])
            answer: list[Any] = self._calls.ask(self._create(fields))
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
        another slot, leads to it. Whoever dies in between leaves a line that nobody ever sees."""
        self._prepare(line, row, fields["tag"])
        fields["waits"] = True
        answer: list[Any] = self._calls.ask(self._create(fields))
        if answer[0] not in (b"made", b"known"):
            return answer
        born = line_id(fields["tag"], int(answer[1]))
        self._index(line.space, born, 0, tags)
        claim = {name: fields[name] for name in ("digest", "name_tag")} | {"ref": refs(born), "stale": False}
        for _ in range(_NAME_TRIES):
            # Listed again: somebody may have taken a dead entry off the list.
            claim["token"] = made = token()
            self._calls.ask(self._list(line.space, line.name, made))
            keys = (self._keys.family(fields["name_tag"]),)
            claimed = self._calls.script(scripts.CLAIM, keys, (self._prefix, packing.pack(claim)))
            if claimed[0] == b"made":
                self._settle(fields["tag"], int(answer[1]), keep=True)
                return answer
            if claimed[0] == b"taken":
                if not self._is_stale(claimed[1]):
                    self._settle(fields["tag"], int(answer[1]), keep=False)
                    return claimed  # type: ignore[no-any-return]
                claim["stale"] = claimed[1]
        raise _contended(line)

    def _is_stale(self, ref: bytes) -> bool:
        """Whether a name leads to a line that was deleted, by somebody who died before freeing the name."""
        tag, _, member = ref.decode().partition(":")
        line = self.line(line_id(tag, int(member)))
        return line is None or line.deleted

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
            "value": packing.row_value(tag, pack.last, pack.first, PACK, fold.hash, None),
            "body": pack.body,
            "net": pack.net,
            "keyframe": False if fold.keyframe is None else fold.keyframe,
            "chunks": chunk_fields(tag, pack.chunks),
            "keys": [[key, seq] for key, seq in fold.keys],
            "tags": packing.tag_values(fold.tags),
            "beside": fold.beside,
        }
        keys = (self._keys.rows(line.id),)
        answer = self._calls.script(scripts.FOLD, keys, (self._prefix, packing.pack(fields)))
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
        fields = {"tag": tag, "m": member, "seq": seq, "tags": packing.tag_values(tags)}
        keys = (self._keys.rows(line),)
        old = self._calls.script(scripts.TAG, keys, (self._prefix, packing.pack(fields)))
        self._unindex(found.space, line, seq, old)

    def _tag_index(self, space: str, name: str, value: bytes) -> bytes:
        """The lines of a space that may have this value of a tag; who reads it looks at each line."""
        return self._keys.space(space)[:-1] + b"g:" + digest("tag", name, value).hex().encode()

    def _index(self, space: str, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        places = [self._tag_index(space, name, value) for name, value in tags.items()]
        self._calls.all([Ask(None, (place,), (b"ZADD", place, b"GT", seq, refs(line))) for place in places])

    def _unindex(self, space: str, line: int, seq: int, old: Sequence[bytes]) -> None:
        places = [self._tag_index(space, name, value) for name, value in packing.read_tags(old).items()]
        self._calls.all([Ask(scripts.UNINDEX, (place,), (b"", refs(line), seq)) for place in places])

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        keys = (self._keys.rows(line),)
        self._calls.script(scripts.KEYFRAME, keys, (self._prefix, seq, digest, keyframe))

    # ── sealing ──────────────────────────────────────────────────────────────────────────────

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        tag, member = split_id(line.id)
        space = self._keys.space(line.space)
        fields = {
            "tag": tag,
            "m": member,
            "newest": False if newest is None else newest,
            "token": token(),
            "whole": self._whole,
            "space": space[len(self._prefix) + 2 : space.index(b"}")],
            "name": line.name,
            "publish": self._publish,
        }
        keys = (self._keys.rows(line.id),)
        answer = self._calls.script(scripts.DELETE, keys, self._packed(fields))
        sealed = bool(answer[0])
        if sealed and not self._whole:
            self._free(line)
        self.signals.ring(line.id)
        return sealed

    def _free(self, line: Line) -> None:
        """In a cluster, after a line was sealed: its name is free, and off the list."""
        names, claims = self._name_lists(line.space)
        named = name_digest(line.space, line.name)
        listed = self._calls.command(claims, "HGET", claims, named)
        own = name_tag(line.space, line.name)
        fields = {"digest": named, "name_tag": own, "ref": refs(line.id), "token": listed or False}
        keys = (self._keys.family(own),)
        if self._calls.script(scripts.FREE, keys, (self._prefix, packing.pack(fields))):
            given = b"", line.name, named, listed or b""
            self._calls.script(scripts.UNLIST, (names, claims), given)


def chunk_fields(tag: str, chunks: Iterable[Chunk]) -> list[list[Any]]:
    """Chunks as scripts write them: digest of the log, log, position, entry of the index, data."""
    return [[digest("log", c.log), c.log, c.position, packing.chunk_entry(tag, c), c.data] for c in chunks]


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
