"""The newest state of a thread as a JSON file for people: ``view.json`` in its folder.

A view is derived and may lag behind: it is written after a version is durable, without waiting for the disk,
and not again within a short while. It carries a digest of itself. One that somebody edited is noticed by it,
never believed, and put aside instead of being overwritten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal

from msgspec import json as msgjson

from everthread.codec import records
from everthread.codec.values import decode
from everthread.history.chain import version_id
from everthread.history.logs import LogState
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import DELTA, Line
from everthread.stores.files.disk import Disk, encode_json, read_file
from everthread.stores.files.json_form import KINDS, escape, time_text
from everthread.stores.files.line_files import LineFiles, Rows, state_at

VIEW = "view.json"
ABOUT = (
    "A view of the newest version, for reading. The truth is journal-*.jsonl; edits made here are ignored."
)

#: The pause before a view is written again: this long, or so many times as long as writing it took.
PAUSE_S = 0.05
_PAUSE_FACTOR = 20
#: How many items at the end of each log a view shows, and up to how many bytes.
_ITEMS = 5
_ITEMS_BYTES = 32 * 1024

_DIGEST = b',\n  "digest": "'
_BEGINNING = b'{\n  "view": "A view of'

OpenLine = Callable[[int], LineFiles]


def with_digest(text: bytes) -> bytes:
    """A JSON object, indented, that ends with a digest of all the rest."""
    body = text[: text.rindex(b"\n}")]
    return b'%b%b%b"\n}\n' % (body, _DIGEST, sha256(body).hexdigest().encode())


def state_of(text: bytes) -> Literal["whole", "torn", "edited"]:
    """Whether a view is as it was written; torn, as a power cut may leave what isn't synced; or neither."""
    at = text.rfind(_DIGEST)
    if at >= 0 and text == with_digest(text[:at] + b"\n}"):
        return "whole"
    begun = text.startswith(_BEGINNING) or _BEGINNING.startswith(text)
    ended = at >= 0 and text.endswith(b'"\n}\n')
    return "torn" if b"\0" in text or (begun and not ended) else "edited"


class _View:
    """What is remembered of a view between two writes."""

    def __init__(self, files: LineFiles) -> None:
        self.files = files
        self.snapshot: Snapshot | None = None
        self.seq = 0
        self.due = 0.0
        #: What the file looked like when it was written last.
        self.looks: tuple[int, ...] = ()


class Views:
    """The views of the lines that this process works on. Not for two threads at once."""

    def __init__(self, store: Rows, open_line: OpenLine, disk: Disk) -> None:
        self._store = store
        self._open_lines = open_line
        self._disk = disk
        self._views: dict[int, _View] = {}
        #: Those that wait to be written, and when the first of them is due.
        self.dirty: dict[int, _View] = {}
        self.due = 0.0

    def touch(self, files: LineFiles) -> None:
        """The line has a new version: write its view, now or later. Never raises."""
        self.note(files)
        if time.monotonic() >= self.due:
            self.flush()

    def note(self, files: LineFiles) -> None:
        """The view of the line will have to be written."""
        view = self._views.get(files.line.id)
        if view is None or view.files is not files:
            view = self._views[files.line.id] = _View(files)
        self._add(view)

    def _add(self, view: _View) -> None:
        if view.due < self.due or not self.dirty:
            self.due = view.due
        self.dirty[view.files.line.id] = view

    def note_stale(self, files: LineFiles) -> None:
        """Plan to write the view if the last writer didn't get to it."""
        if files.line.id not in self._views and _shown(files.folder) != files.last_seq:
            view = self._views[files.line.id] = _View(files)
            self._add(view)

    @property
    def waiting(self) -> bool:
        """Whether there are views to write by now."""
        return bool(self.dirty) and time.monotonic() >= self.due

    def flush(self, *, all_: bool = False) -> None:
        """Write those that are waiting and due, or all that are waiting."""
        now = time.monotonic()
        for view in list(self.dirty.values()):
            if all_ or now >= view.due:
                self._write(view)
        self.due = min((view.due for view in self.dirty.values()), default=0.0)

    def forget(self, line: int) -> None:
        self._views.pop(line, None)
        self.dirty.pop(line, None)

    # ── one view ─────────────────────────────────────────────────────────────────────────────

    def _write(self, view: _View) -> None:
        started = time.monotonic()
        self.dirty.pop(view.files.line.id, None)
        try:
            text = self._text(view)
            path = os.path.join(view.files.folder, VIEW)
            if _looks(path) != view.looks:
                keep_edited(path)
            self._disk.replace(path, text, durable=False)
            view.looks = _looks(path)
        except Exception:
            # A view is optional. Damage of the line shows where the line is read.
            view.snapshot = None
        view.due = time.monotonic() + max(PAUSE_S, _PAUSE_FACTOR * (time.monotonic() - started))

    def _text(self, view: _View) -> bytes:
        line, files = view.files.line, view.files
        snapshot = self._state(view)
        shown = {
            "view": ABOUT,
            "thread": line.name,
            **({"namespace": line.space} if line.space else {}),
            "version": self._version(files),
            "document": escape(snapshot.document),
            "logs": {
                name: {"length": log.length, "last": self._last(line, name, log)}
                for name, log in snapshot.logs.items()
                # Skip the library's own logs.
                if not name.startswith("\0")
            },
        }
        return with_digest(msgjson.format(encode_json(shown), indent=2))

    def _state(self, view: _View) -> Snapshot:
        """The newest state, from the one that was shown last if only plain versions came since."""
        line, newest = view.files.line, view.files.last_seq
        snapshot = view.snapshot
        if snapshot is not None and newest > view.seq:
            rows = self._store.replay(line.id, newest, view.seq)
            if (
                all(row.kind == DELTA and row.keyframe is None for row in rows)
                and rows[-1].seq == view.seq + 1
            ):
                view.snapshot = None
                for row in reversed(rows):
                    snapshot.advance(records.read_change(records.read_record(row.body)[1]))
            else:
                snapshot = None
        if snapshot is None:
            snapshot = state_at(self._store, line, newest)
        view.snapshot, view.seq = snapshot, newest
        return snapshot

    def _version(self, files: LineFiles) -> dict[str, Any]:
        line, newest = files.line, files.found().newest
        if newest is None:
            return {"seq": line.parent_seq, "id": version_id(line.parent_seq, line.parent_hash)}
        fields: dict[str, Any] = {"seq": newest.seq, "id": version_id(newest.seq, newest.hash)}
        head = records.read_head(records.read_record(newest.body)[0])
        fields |= {"at": time_text(head.at_us), "kind": KINDS[head.kind]}
        if head.label is not None:
            fields["label"] = head.label
        if head.metadata is not None:
            fields["metadata"] = escape(decode(head.metadata))
        return fields

    def _last(self, line: Line, name: str, log: LogState) -> list[Any]:
        shown: list[Any] = []
        bytes_left = _ITEMS_BYTES
        for start, stop in reversed(log.ranges(max(0, log.length - _ITEMS), log.length)):
            for item in reversed(self._items(line, name, start, stop)):
                text = encode_json(escaped := escape(item))
                bytes_left -= len(text)
                shown.append(escaped if bytes_left >= 0 else f"… {len(text):,} bytes, in the journal")
        return shown[::-1]

    def _items(self, line: Line, log: str, start: int, stop: int) -> list[Any]:
        """Lowered items by their position, wherever they are."""
        found: dict[int, Any] = {}
        while True:
            own = line.counts.get(log, 0) if line.parent else 0
            if stop > own:
                files = self._open_lines(line.id)
                _from_tail(files, log, max(start, own), found)
                if any(position not in found for position in range(max(start, own), stop)):
                    for chunk in files.chunks(log, max(start, own), stop):
                        found.update(enumerate(decode(chunk.block()), chunk.position))
            parent = self._store.line(line.parent) if start < own else None
            if parent is None:
                return [found[position] for position in range(start, stop)]
            line = parent


def _from_tail(files: LineFiles, log: str, start: int, found: dict[int, Any]) -> None:
    """Add the items of versions that aren't folded, from the newest one back to position ``start``."""
    for entry in reversed(files.journal.entries[files.journal.hidden :]):
        _, encoded, blocks = records.read_record(files.journal.body(entry))
        inserts = [splice for splice in records.read_change(encoded).logs if splice[3]]
        for splice, block in zip(inserts, blocks, strict=False):
            if splice[0] == log:
                found.update(enumerate(decode(block), splice[4]))
        if start in found:
            return


def _looks(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _shown(folder: str) -> int | None:
    """The version that a view shows, without reading all of it."""
    with suppress(OSError, ValueError):
        with open(os.path.join(folder, VIEW), "rb") as file:
            beginning = file.read(4096)
        return int(beginning.partition(b'"version": {\n    "seq": ')[2].partition(b",")[0])
    return None


def keep_edited(path: str) -> None:
    """Put a view aside that isn't as it was written."""
    try:
        state = state_of(read_file(path))
    except FileNotFoundError:
        return
    if state == "whole":
        return
    if state == "torn":
        # It may be the rest of an edited view: keep it, but don't report it.
        os.replace(path, f"{path}.torn")
        return
    number = 1
    while os.path.lexists(f"{path}.edited-{number}"):
        number += 1
    os.rename(path, f"{path}.edited-{number}")


def edited_views(folder: str) -> list[str]:
    """Messages about edited views in a line's folder."""
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name == VIEW:
            with suppress(FileNotFoundError):
                if state_of(read_file(path)) == "edited":
                    found.append(f"{path} was edited by hand, which changes nothing: it will be put aside")
        elif name.startswith(f"{VIEW}.edited-"):
            found.append(
                f"{path} was edited by hand and put aside; the thread holds nothing of it. Move it away"
            )
    return found
