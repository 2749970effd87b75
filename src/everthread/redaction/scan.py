"""Looking for a text in everything that a namespace holds, also in what is folded or compressed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from everthread.arguments import check_progress, format_path
from everthread.codec import records
from everthread.codec.values import decode
from everthread.errors import EverthreadError, InvalidValueError, StateCorruptedError
from everthread.history import packs
from everthread.history.redaction import (
    ITEM,
    JOURNAL_PROSE,
    REDACTIONS_PROSE,
    Hit,
    Needle,
    Path,
    RecordNeedle,
    excerpt,
    logs_of_pruned,
)
from everthread.history.retention import read_tombstone
from everthread.maintenance.examine import Gap, rows_of
from everthread.maintenance.redaction_record import NAME as REDACTIONS
from everthread.redaction.report import Place, What
from everthread.stores.contract import DAMAGED, PACK, PRUNED, SEAL_SEQ, Line, Row
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.threads.sync.fallback import newest_seq
from everthread.threads.sync.journals import JOURNAL, told_as

_PAGE = 200
STEPS = "\0steps"
#: Where others than threads keep cells.
_LEASES = "\0lease"
_LABEL, _METADATA = 2, 3


def check_text(text: str, replacement: str = "", reason: str = "") -> Needle:
    """What to look for. Raises :class:`InvalidValueError` for what can't be looked for."""
    for said, name in ((reason, "reason"), (replacement, "replacement")):
        # They are kept, as text that can be encoded.
        if not isinstance(said, str) or said.encode("utf-8", "replace").decode() != said:
            raise InvalidValueError(f"{name} must be text without lone surrogates", path=name)
    if not isinstance(text, str) or not text:
        raise InvalidValueError("text must be some text to look for", path="text")
    if text in replacement:
        raise InvalidValueError(
            "replacement must be text that doesn't hold the text itself", path="replacement"
        )
    return Needle(text, replacement)


def needle_for(needle: Needle, beside: str) -> Needle:
    """The needle for lines of this kind (see ``told_as``): what of them is data differs."""
    if beside == JOURNAL:
        return RecordNeedle(needle, JOURNAL_PROSE)
    return RecordNeedle(needle, REDACTIONS_PROSE) if beside == REDACTIONS else needle


def needle_of(needle: Needle, line: Line) -> Needle:
    """The needle for a line."""
    return needle_for(needle, line.space.partition("\0")[2])


def _not_looked_through(line: Line, error: StateCorruptedError) -> StateCorruptedError:
    return StateCorruptedError(
        f"{line.name!r} is damaged and was looked through in part only ({error}); see store.verify()",
        where=line.name,
    )


class Scanner:
    """Reads everything once and tells where the text is. Changes nothing; memory stays bounded."""

    def __init__(self, core: Core, needle: Needle, progress: Progress | None = None) -> None:
        check_progress(progress)
        self._core = core
        self._backend = core.backend
        self._needle = needle
        self._progress = progress
        self._done = self._total = 0

    def run(self) -> Iterator[Place]:
        """Every place. Raises :class:`StateCorruptedError` in the end, after all that can be told, if
        something is damaged: then this may not be all."""
        damaged: StateCorruptedError | None = None
        spaces: dict[str, None] = {self._core.space: None, self._core.space + _LEASES: None}
        for line in self._backend.every_line():
            if self._wanted(line):
                spaces[line.space] = None
                if self._progress is not None:
                    self._total += max(newest_seq(self._backend, line) - line.parent_seq, 0)
        for line in self._backend.every_line():
            if self._wanted(line):
                try:
                    for place in self.line(line):
                        yield place
                except StateCorruptedError as error:
                    damaged = damaged or _not_looked_through(line, error)
        for space in spaces:
            for place in self._events(space):
                yield place
            for place in self._cells(space):
                yield place
        if damaged is not None:
            raise damaged
        if unreadable := self._backend.unreadable_lines():
            raise StateCorruptedError(
                "threads are missing from the list of all threads and weren't looked through: "
                f"{unreadable[0]}; see store.verify()",
                where=self._backend.url,
            )
        if self._progress is not None:
            self._progress(self._done, self._done)

    def _wanted(self, line: Line) -> bool:
        return line.space.partition("\0")[0] == self._core.space

    def _tell(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._total = max(self._total, self._done)
            self._progress(self._done, self._total)

    def _places(self, what: What, node: Any, root: str, **where: Any) -> Iterable[Place]:
        return self._look(what, node, None, root, **where)

    def _look(self, what: What, node: Any, at: Path | None, root: str, **where: Any) -> Iterable[Place]:
        """Where the text is in what stands at a place of a document, or is an item of a log (``ITEM``), or in
        anything else (``None``)."""
        if at is None:
            return self._told(what, self._needle.hits(node), root, **where)
        return self._told(what, needle_for(self._needle, where["beside"]).found(node, at), root, **where)

    def _told(
        self, what: What, hits: Iterable[Hit], root: str, *, redactable: bool = True, **where: Any
    ) -> Iterable[Place]:
        needle = self._needle
        for path, text, stays in hits:
            shown = format_path(needle.masked(path), root)
            told = excerpt(text, needle.text)
            yield Place(what=what, path=shown, excerpt=told, redactable=redactable and not stays, **where)

    # ── a line ───────────────────────────────────────────────────────────────────────────────

    def line(self, line: Line) -> Iterator[Place]:
        """Where the text is in one line, its own versions only."""
        name, beside = told_as(self._backend, line)
        where: dict[str, Any] = {"thread": name, "beside": beside}
        for place in self._places("name", line.name, "name", **where, redactable=False):
            yield place
        if line.deleted and not self._backend.scan(line.id, SEAL_SEQ - 1, 1):
            return
        logs: dict[str, None] = dict.fromkeys(line.counts)
        for row in rows_of(self._core.reader, line):
            if isinstance(row, Gap) or row.kind == DAMAGED:
                raise StateCorruptedError("a row fails its checksum", where=line.name)
            for place in self._row(row, logs, where):
                yield place
            self._tell(row.seq - row.first + 1)
        for log in logs:
            for place in self._places("name", log, "log", **where, redactable=False):
                yield place
            for place in self._items(line, log, where):
                yield place

    def _row(self, row: Row, logs: dict[str, None], where: dict[str, Any]) -> Iterable[Place]:
        if row.kind == PRUNED:
            for index, head in read_tombstone(row.body).heads.items():
                yield from self._head(head, {**where, "first": row.first + index, "last": row.first + index})
            span = {**where, "first": row.first, "last": row.seq}
            for data in (row.net, row.keyframe):
                if data is not None and self._needle.within(content := records.expand(data, "a row")):
                    yield from self._state(decode(content)[0], data is row.net, span)
            # Items that only pruned versions inserted are in logs that no other version may speak of.
            logs.update(dict.fromkeys(sorted(logs_of_pruned(row.net, row.keyframe))))
            return
        if row.kind == PACK:
            body = packs.read_pack(row.body)
            parts = list(zip(body.heads, body.changes, strict=True))
        else:
            head, change, blocks = records.read_record(row.body)
            parts = [(head, change)]
            yield from self._blocks(change, blocks, {**where, "first": row.seq, "last": row.seq})
        for seq, (head, change) in enumerate(parts, row.first):
            at = {**where, "first": seq, "last": seq}
            yield from self._head(head, at)
            told = records.read_change(change)
            logs.update(dict.fromkeys((*(log for log, *_ in told.logs), *told.counts)))
            if self._needle.within(change):
                for op in told.ops:
                    yield from self._op(op, at)

    def _state(self, node: Any, edits: bool, at: dict[str, Any]) -> Iterable[Place]:
        """What pruned versions left: edits, or a document."""
        if edits:
            for op in node:
                yield from self._op(op, at, "state")
        else:
            yield from self._look("state", node, (), "state", **at)

    def _op(self, op: list[Any], at: dict[str, Any], what: What = "document") -> Iterable[Place]:
        needle = needle_for(self._needle, at["beside"])
        root = format_path(needle.masked(tuple(op[1])), "state")
        yield from self._told(what, needle.found_in_path(op[1]), "path", **at)
        for value in op[2:]:
            yield from self._look(what, value, tuple(op[1]), root, **at)

    def _head(self, data: bytes, at: dict[str, Any]) -> Iterable[Place]:
        if not self._needle.within(data):
            return
        head = records.read_head(data)
        # Of what the store writes of its own accord nothing here is data.
        own = isinstance(needle_for(self._needle, at["beside"]), RecordNeedle)
        yield from self._places("label", head.label, "label", **at, redactable=not own)
        for name, value in (decode(head.metadata) if head.metadata is not None else {}).items():
            yield from self._places("metadata", name, "name", **at, redactable=False)
            root = format_path(self._needle.masked((name,)), "metadata")
            yield from self._places("metadata", value, root, **at, redactable=not own)
        yield from self._places("key", head.key, "key", **at, redactable=False)
        yield from self._places("key", head.step[0] if head.step else None, "step", **at, redactable=False)

    def _blocks(self, change: bytes, blocks: list[bytes], at: dict[str, Any]) -> Iterable[Place]:
        """Items that still stand in the record of their version."""
        for (log, start, _), block in zip(packs.inserted_ranges(change), blocks, strict=False):
            if self._needle.within(block):
                yield from self._raws(log, start, records.split(block), at)

    def _raws(self, log: str, start: int, raws: list[bytes], at: dict[str, Any]) -> Iterable[Place]:
        what: What = "step" if log == STEPS else "item"
        for position, raw in enumerate(raws, start):
            if self._needle.within(raw):
                yield from self._look(what, decode(raw), ITEM, "", **at, log=log, position=position)

    def _items(self, line: Line, log: str, where: dict[str, Any]) -> Iterator[Place]:
        """Items in chunks, those of this line only. Which versions they belong to isn't looked up."""
        start = line.counts.get(log, 0) if line.parent else 0
        while chunks := self._backend.chunks(line.id, log, start, start + 1):
            chunk = max(chunks, key=lambda each: each.end)
            if not chunk.pruned and self._needle.within(block := chunk.block()):
                yield from self._raws(log, chunk.position, records.split(block), where)
            start = chunk.end

    # ── events and cells ─────────────────────────────────────────────────────────────────────

    def _events(self, space: str) -> Iterator[Place]:
        after: str | None = None
        while page := self._backend.streams(space, "", after, _PAGE):
            for stream, _ in page:
                for place in self._places("name", stream, "name", stream=stream, redactable=False):
                    yield place
                for place in self._stream(space, stream):
                    yield place
            after = page[-1][0]

    def _stream(self, space: str, stream: str) -> Iterator[Place]:
        seq = 0
        while events := self._backend.events(space, stream, seq, _PAGE):
            for event in events:
                at: dict[str, Any] = {"stream": stream, "first": event.seq, "last": event.seq}
                for place in self._places(
                    "event", [event.type, event.agent], "event", **at, redactable=False
                ):
                    yield place
                if self._needle.within(event.body):
                    body = decode(records.unframe(event.body, "an event"))
                    for place in self._places("event", body[0], "data", **at):
                        yield place
            seq = events[-1].seq

    def _cells(self, space: str) -> Iterator[Place]:
        after: str | None = None
        while page := self._backend.cells(space, "", after, _PAGE):
            for name, cell in page:
                value = cell.value
                # Not all of them are compressed frames.
                with suppress(EverthreadError):
                    value = records.expand(cell.value, "a cell")
                yield from self._places("cell", [name, value], "cell", redactable=False)
            after = page[-1][0]
