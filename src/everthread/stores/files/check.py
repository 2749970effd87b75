"""The check of everything in a content folder: every record, the chain of hashes, folds and views."""

from __future__ import annotations

import os
from collections.abc import Iterator

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.chain import link, record_digest
from everthread.history.retention import read_tombstone
from everthread.stores.contract import Line
from everthread.stores.files.content import Content
from everthread.stores.files.journal import items_name, segment_name, segments_in
from everthread.stores.files.json_form import Part, read_body, read_pruned, read_record
from everthread.stores.files.line_files import LineFiles
from everthread.stores.files.record_file import RecordFile, Replaced, fields_of
from everthread.stores.files.views import edited_views


def check_content(content: Content, *, views: bool = True) -> list[str]:
    """What isn't as it was written, in words; with or without ``views``. Changes nothing."""
    catalog = content.catalog
    catalog.refresh()
    problems = catalog.unreadable()
    for line in list(catalog.lines.values()):
        if line.id not in catalog.purged:
            # Check twice: a write at this very moment may look like damage.
            found = _check_line(content, line) and _check_line(content, line)
            if found:
                # It may have been deleted meanwhile.
                catalog.refresh()
                found = [] if line.id in catalog.purged else found
            problems.extend(found)
            if views:
                problems.extend(_check_views(content, line))
    for part in (content.sealed, content.ledger, content.cells, content.streams):
        problems.extend(part.check())
    return problems


def _check_line(content: Content, line: Line) -> list[str]:
    folder = content.path(line.id)
    try:
        return list(_JournalCheck(line, folder, content).problems())
    except FileNotFoundError as error:
        return [f"{error.filename or folder} is missing"]
    except (StateCorruptedError, Replaced) as error:
        return [str(error)]


def _check_views(content: Content, line: Line) -> list[str]:
    try:
        return edited_views(content.path(line.id))
    except FileNotFoundError:
        return []


class _JournalCheck:
    """Checks a journal from its first record: checksums, order, and the chain of hashes."""

    def __init__(self, line: Line, folder: str, content: Content) -> None:
        self._line = line
        self._folder = folder
        self._content = content
        self._before = line.start_hash
        self._seq = line.parent_seq
        self._where = ""
        self._hashes: dict[int, bytes] = {}

    def problems(self) -> Iterator[str]:
        segments = segments_in(os.listdir(self._folder))
        if not segments:
            yield f"the journal in {self._folder} is missing"
            return
        following = segment_name(segments[0])
        while following:
            path = os.path.join(self._folder, following)
            following = ""
            file = RecordFile(path, self._content._disk)
            number = 0
            try:
                while records_ := file.grow():
                    for _, text, good in records_:
                        number += 1
                        self._where = f"{path}:{number}"
                        fields = fields_of(text) if good else None
                        if fields is None:
                            yield f"{self._where} doesn't fit its checksum"
                            self._before = b""
                        elif fields.get("kind") == "pruned":
                            yield from self._pruned(text)
                        elif "seq" in fields:
                            yield from self._version(text)
                        elif "everthread" in fields and fields.get("uid") != self._line.uid.hex():
                            yield f"{self._where} says that this journal belongs to another thread"
                        following = fields.get("continues", "") if fields else self._after(path, segments)
            finally:
                file.close()
        yield from self._folds()

    def _after(self, path: str, segments: list[int]) -> str:
        """The next segment after one whose last record, which would name it, can't be read."""
        names = [segment_name(segment) for segment in segments]
        later = names[names.index(os.path.basename(path)) + 1 :]
        return later[0] if later else ""

    def _version(self, text: bytes) -> Iterator[str]:
        try:
            record = read_record(text, self._where)
            digest = bytes.fromhex(record.hash)
            body = self._whole(read_body(text, self._where), record.apart, record.seq, digest)
        except (StateCorruptedError, ValueError) as error:
            yield str(error)
            self._before = b""
            return
        if record.seq != self._seq + 1 and self._before:
            yield f"{self._where} holds version {record.seq} where {self._seq + 1} was expected"
        elif self._before and link(self._before, record_digest(body)) != digest:
            yield f"{self._where}: the chain of hashes is broken here"
        self._before, self._seq = digest, record.seq
        self._hashes[record.seq] = digest

    def _pruned(self, text: bytes) -> Iterator[str]:
        """Versions that are gone: the chain goes on over their digests."""
        try:
            pruned = read_pruned(text, self._where)
            row = pruned.row()
            files = LineFiles(self._line, self._folder, {}, self._content._disk)
            for part in pruned.apart:
                files.items(pruned.items, part.start, part.length)
        except StateCorruptedError as error:
            yield str(error)
            self._before = b""
            return
        before = self._before
        if row.first != self._seq + 1 and before:
            yield f"{self._where} begins with version {row.first} where {self._seq + 1} was expected"
        elif before:
            for digest in read_tombstone(row.body).digests:
                before = link(before, digest)
            if before != row.hash:
                yield f"{self._where}: the chain of hashes is broken here"
        self._before, self._seq = row.hash, row.seq
        self._hashes[row.seq] = row.hash

    def _whole(self, body: bytes, parts: list[Part], seq: int, digest: bytes) -> bytes:
        """The record with its items from a file of their own."""
        if not parts:
            return body
        files = LineFiles(self._line, self._folder, {}, self._content._disk)
        items: dict[str, dict[int, bytes]] = {}
        for part in parts:
            block, _ = files.items(items_name(seq, digest), part.start, part.length)
            items.setdefault(part.log, {}).update(enumerate(records.split(block), part.position))
        head, encoded, _ = records.read_record(body)
        try:
            found = [
                [items[log][position] for position in range(start, stop)]
                for log, start, stop in packs.inserted_ranges(encoded)
            ]
        except KeyError as error:
            raise StateCorruptedError(f"{self._where}: an item that stands apart is missing") from error
        return packs.whole(head, encoded, found)

    def _folds(self) -> Iterator[str]:
        """The folds must be those of this journal."""
        files = self._content.files(self._line.id)
        if files is None:
            return
        for pack, _ in files.folds.down(self._seq):
            if self._hashes.get(pack.last, pack.hash) != pack.hash:
                yield f"{self._folder}: what was folded up to version {pack.last} isn't what the journal says"
