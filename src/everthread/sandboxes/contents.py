"""The contents of files, as items of a log of their thread: each is stored once for all versions.

An item is one of these; its ``id`` is made from the content, or random if that is sealed:

    {"id", "data"}                     a content, or a piece of a large one
    {"id", "base", "edits", "depth"}   a content as edits of another one
    {"id", "parts"}                    a large content: the ids of its pieces, in order

All data is bytes, uncompressed: what folds records compresses it, and scanning and redacting find it. The log
is one that no caller's name reaches, so that comparing threads doesn't show contents as messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from everthread.codec import records
from everthread.errors import ErasedError, StateCorruptedError, VersionPrunedError
from everthread.history.logs import CONTENTS, EMPTY_LOG, LogState
from everthread.sandboxes.chunks import PIECE_BYTES_MAX, content_id, cut, parts_id
from everthread.sandboxes.edits import apply_edits, find_edits, size_of
from everthread.sandboxes.tree import CLEAR, ID_BYTES, SEALED, FileEntry
from everthread.values import Erased, Personal

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread

LOG = CONTENTS
#: So many contents may have to be read to read one; the next one is stored as a whole.
DEPTH_MAX = 32
#: Below this a content is stored as a whole: edits would hardly be shorter.
_EDITS_FROM = 512
#: How many items that lie near each other are read at a time: if they are small, and if they are large.
_SPAN, _SPAN_LARGE = 64, 4
_LARGE = 64 * 1024
#: Items between two that are wanted which it is cheaper to read along.
_GAP = 8

#: Superseded contents are left in the log until they are more than those in use, and this many.
RELEASE_FROM = 256

Item = dict[str, Any]


class Contents:
    """The contents that a thread holds, and those that its handle is about to commit."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._handle = thread.handle
        #: Not committed yet, by id.
        self._pending: dict[bytes, Item] = {}
        #: How many items were worth looking through when that was last done.
        self._released = 0
        #: About how many bytes these are.
        self.pending_bytes = 0

    # ── putting in ───────────────────────────────────────────────────────────────────────────

    def put(
        self, read: Callable[[int], bytes], mode: int, before: FileEntry | None = None, seal: Any = None
    ) -> FileEntry:
        """Store what ``read(count)`` gives until it gives nothing; to be committed.

        ``before`` is what stood in its place: a content that resembles it is stored as its edits. ``seal``
        makes of bytes a ``Personal``; without it the content is stored in clear.
        """
        how, first = CLEAR if seal is None else SEALED, b""
        while len(first) <= PIECE_BYTES_MAX and (more := read(PIECE_BYTES_MAX + 1 - len(first))):
            first += more
        if not first:
            return FileEntry(mode, 0)
        if len(first) <= PIECE_BYTES_MAX:
            return FileEntry(mode, len(first), self._put_piece(first, before, seal), how)
        parts, size = [], 0
        for piece in cut(read, first):
            parts.append(self._put_piece(piece, None, seal))
            size += len(piece)
        return FileEntry(mode, size, self._put_parts(parts), how)

    def _put_piece(self, data: bytes, before: FileEntry | None, seal: Any) -> bytes:
        if seal is not None:
            # No part of it may tell what it holds.
            id_: bytes = self._handle.runtime.random_bytes(ID_BYTES)
            self._add({"id": id_, "data": seal(data)}, len(data))
            return id_
        id_ = self._free_id(content_id(data), lambda known: self._is_content(known, data))
        if not self._holds(id_):
            item = self._as_edits(data, before) or {"data": data}
            self._add({"id": id_, **item}, len(data))
        return id_

    def _put_parts(self, parts: list[bytes]) -> bytes:
        id_ = self._free_id(parts_id(parts), lambda known: self._items([known])[known].get("parts") == parts)
        if not self._holds(id_):
            self._add({"id": id_, "parts": parts}, len(parts) * ID_BYTES)
        return id_

    def _free_id(self, id_: bytes, fits: Callable[[bytes], bool]) -> bytes:
        """The id, unless another content has it by now: one in which something was redacted keeps its own."""
        while self._holds(id_) and not fits(id_):
            id_ = content_id(id_ + b"another")
        return id_

    def _is_content(self, id_: bytes, data: bytes) -> bool:
        try:
            return self.load([id_])[id_] == data
        except (ErasedError, VersionPrunedError):
            return False

    def _as_edits(self, data: bytes, before: FileEntry | None) -> Item | None:
        """A content as edits of the one before it, if that is shorter."""
        if before is None or before.how != CLEAR or not before.content:
            return None
        if not _EDITS_FROM <= before.size <= PIECE_BYTES_MAX or len(data) < _EDITS_FROM:
            return None
        try:
            items = self._with_bases([before.content], None)
        except VersionPrunedError:
            return None
        item = items[before.content]
        depth = item.get("depth", 0)
        if "parts" in item or depth >= DEPTH_MAX:
            return None
        edits = find_edits(self._made(before.content, items, {}), data)
        if size_of(edits) > len(data) // 2:
            return None
        return {"base": before.content, "edits": edits, "depth": depth + 1}

    def _add(self, item: Item, size: int) -> None:
        self._handle.log(LOG).append(item)
        self._pending[item["id"]] = item
        self.pending_bytes += size

    def _holds(self, id_: bytes) -> bool:
        return id_ in self._pending or self._handle.log(LOG).find(id_) is not None

    def release(self, live: Iterable[bytes]) -> None:
        """Take contents out of the log that neither these ids nor what they are made from need, if these are
        more than half. Versions before keep theirs; when retention takes them, the bytes go as well."""
        log = self._handle.log(LOG)
        ids: list[bytes] = []
        needs: dict[bytes, list[bytes]] = {}
        for start in range(0, len(log), _SPAN):
            for item in log.read(start, start + _SPAN):
                ids.append(item["id"])
                needs[item["id"]] = [*([item["base"]] if "base" in item else []), *item.get("parts", ())]
        needed: set[bytes] = set()
        left = list(live)
        while left:
            id_ = left.pop()
            if id_ not in needed:
                needed.add(id_)
                left += needs.get(id_, ())
        kept = [index for index, id_ in enumerate(ids) if id_ in needed]
        self._released = 2 * len(kept)
        if 2 * len(kept) < len(ids):
            self._handle.drop_items(LOG, [(index, index + 1) for index in kept])

    def is_crowded(self, live: int) -> bool:
        """Whether the log holds so much more than the tree needs that looking through it is worth while."""
        return len(self._handle.log(LOG)) > max(2 * live, self._released) + RELEASE_FROM

    def settle(self) -> None:
        """What was pending is committed, or discarded."""
        self._pending, self.pending_bytes = {}, 0

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def load(self, ids: Iterable[bytes], state: LogState | None = None) -> dict[bytes, bytes]:
        """The contents with these ids, as the log has them at ``state`` (by default: now).

        Raises :class:`ErasedError` for what was sealed and erased since, :class:`StateCorruptedError` for
        what isn't there.
        """
        wanted = list(dict.fromkeys(ids))
        items = self._with_bases(wanted, state)
        made: dict[bytes, bytes] = {}
        return {id_: self._made(id_, items, made) for id_ in wanted}

    def stream(self, id_: bytes, state: LogState | None = None) -> Iterator[bytes]:
        """A content piece by piece: memory stays bounded."""
        parts = self._items([id_], state)[id_].get("parts")
        if parts is None:
            yield self.load([id_], state)[id_]
            return
        for part in parts:
            yield self.load([part], state)[part]

    def personal(self, id_: bytes) -> Personal | None:
        """What a sealed content was sealed as; nothing if that was erased."""
        item = self._items([id_])[id_]
        if "parts" in item:
            item = self._items(item["parts"][:1])[item["parts"][0]]
        found = item.get("data")
        return found if isinstance(found, Personal) else None

    def _made(self, id_: bytes, items: dict[bytes, Item], made: dict[bytes, bytes]) -> bytes:
        chain: list[bytes] = []
        at = id_
        while at not in made and "base" in items[at]:
            chain.append(at)
            at = items[at]["base"]
            if len(chain) > 2 * DEPTH_MAX:
                raise StateCorruptedError("the edits of a content have no end", where=id_.hex())
        if at not in made:
            made[at] = self._whole(items[at], items)
        data = made[at]
        for each in reversed(chain):
            data = made[each] = apply_edits(data, items[each].get("edits"), each.hex())
        return data

    def _whole(self, item: Item, items: dict[bytes, Item]) -> bytes:
        if "parts" in item:
            parts = [items[part] for part in item["parts"]]
            if any("parts" in part for part in parts):
                raise StateCorruptedError("a piece of a content has pieces itself", where=item["id"].hex())
            return b"".join(self._whole(part, items) for part in parts)
        data = item.get("data")
        if isinstance(data, Personal):
            data = data.value
        if isinstance(data, Erased):
            raise ErasedError("this content belonged to somebody who was erased")
        if type(data) is not bytes:
            raise StateCorruptedError("a content isn't bytes", where=item["id"].hex())
        return data

    def _with_bases(self, ids: list[bytes], state: LogState | None) -> dict[bytes, Item]:
        """The items of these ids, and all that they are made from."""
        found: dict[bytes, Item] = {}
        missing = ids
        while missing:
            items = self._items(missing, state)
            found.update(items)
            needed = [item["base"] for item in items.values() if "base" in item]
            needed += [part for item in items.values() for part in item.get("parts", ())]
            missing = [each for each in dict.fromkeys(needed) if each not in found]
        return found

    def _items(self, ids: Iterable[bytes], state: LogState | None = None) -> dict[bytes, Item]:
        found = {id_: self._pending[id_] for id_ in ids if id_ in self._pending}
        left = [id_ for id_ in ids if id_ not in found]
        if left:
            found.update(self._stored(left, state))
        return found

    def _stored(self, ids: list[bytes], state: LogState | None) -> dict[bytes, Item]:
        handle = self._handle
        if handle.line is None or handle.head is None:
            raise StateCorruptedError("a content isn't stored", where=ids[0].hex())
        if state is None:
            state = handle.head.logs.get(LOG, EMPTY_LOG)
        found: dict[bytes, Item] = {}
        places = {id_: self._places(id_, state) for id_ in ids}
        while left := [id_ for id_ in ids if id_ not in found]:
            tried = [(places[id_].pop(0), id_) for id_ in left if places[id_]]
            if len(tried) < len(left):
                absent = next(id_ for id_ in left if not any(id_ == tried_id for _, tried_id in tried))
                raise StateCorruptedError(
                    f"a content of {self._thread.name!r} isn't in its log; see store.verify()",
                    where=absent.hex(),
                )
            for item in self._fetched(sorted(position for position, _ in tried)):
                if item.get("id") in places:
                    found.setdefault(item["id"], item)
        return found

    def _places(self, id_: bytes, state: LogState) -> list[int]:
        """Where an item may be: first in the log as it is at a version, the newest first, then elsewhere."""
        positions = list(self._handle.find_print(LOG, records.fingerprint(id_), state.count))
        held = [position for position in positions if state.index_of(position) is not None]
        return [*held, *(position for position in positions if position not in held)]

    def _fetched(self, positions: list[int]) -> Iterator[Item]:
        """The items at these positions, and some that lie between them."""
        span, at = _SPAN, 0
        while at < len(positions):
            start = last = positions[at]
            while at < len(positions) and positions[at] - last <= _GAP and positions[at] - start < span:
                last = positions[at]
                at += 1
            try:
                items = self._read(start, last + 1)
            except VersionPrunedError:
                # What lies between them, or one of them, is gone: the others are read by themselves.
                items = []
                for position in positions[:at]:
                    if position >= start:
                        with suppress(VersionPrunedError):
                            items += self._read(position, position + 1)
            sizes = [len(data) for item in items if type(data := item.get("data")) is bytes]
            span = _SPAN_LARGE if sum(sizes) > _LARGE * len(items) else _SPAN
            yield from items

    def _read(self, start: int, stop: int) -> list[Item]:
        handle = self._handle
        assert handle.line is not None
        found = handle.core.reader.items(handle.line, LOG, start, stop, None, handle.open_seal)
        return [item for item in found if type(item) is dict]
