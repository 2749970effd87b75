"""The collections of a working state in its document: reading items and making small edits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import InvalidStateError, LimitError
from everthread.history.merge import ABSENT
from everthread.threads.document import TrackedDict
from everthread.working.ground import Ground, held
from everthread.working.layout import COLLECTIONS, CONTEXT_ITEMS, KINDS, Item, Kind, taken, write_time
from everthread.working.loose import LooseDocument

#: A collection or None for the document itself, an id, and what is to stand there, or ABSENT.
Edit = tuple[str | None, Any, Any]


def now_us() -> int:
    return time.time_ns() // 1000


def new_item_id() -> str:
    # Short, since agents read and write it; long enough for the items of one state.
    return uuid.uuid4().hex[:12]


class Shelves:
    """Items by kind and id. A change is checked first and then made whole, or raises and changes nothing."""

    def __init__(
        self,
        ground: Ground,
        *,
        context_max: int,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        self._ground = ground
        self._context_max = context_max
        self.clock = clock or now_us
        self.ids = ids or new_item_id
        #: Shown as empty, whatever the document holds, until the next change or save.
        self.blank = False

    def now(self) -> str:
        return write_time(self.clock())

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def items(self, root: TrackedDict, kind: Kind[Any]) -> TrackedDict | None:
        """A collection in the document, or ``None`` if there is none.

        Raises :class:`InvalidStateError` where something of the caller's stands in its place.
        """
        items = None if self.blank else root.get(kind.key)
        if items is not None and not isinstance(items, TrackedDict):
            raise taken(kind, items)
        return items

    def fields(self, root: TrackedDict, kind: Kind[Any], id: Any) -> TrackedDict | None:
        """The fields of an item, or ``None`` if there is none with this id."""
        items = self.items(root, kind)
        if items is None or not isinstance(id, str) or id not in items:
            return None
        fields = items[id]
        if not isinstance(fields, TrackedDict):
            kind.read(id, fields)
        assert isinstance(fields, TrackedDict)
        return fields

    def known(self, root: TrackedDict, kind: Kind[Any], id: Any) -> TrackedDict:
        """The fields of an item. Raises :class:`InvalidStateError` if there is none with this id."""
        fields = self.fields(root, kind, id)
        if fields is None:
            raise InvalidStateError(
                f"there is no {kind.one.split(' ', 1)[1]} {id!r} in this state; "
                f"state.{kind.key} has those there are"
            )
        return fields

    @held
    def all(self, kind: Kind[Item]) -> list[Item]:
        items = self.items(self._ground.root(), kind)
        return [] if items is None else [kind.read(id, fields) for id, fields in items.plain().items()]

    @held
    def one(self, kind: Kind[Item], id: Any) -> Item:
        return kind.read(id, self.known(self._ground.root(), kind, id).plain())

    @held
    def find(self, kind: Kind[Item], id: Any) -> Item | None:
        fields = self.fields(self._ground.root(), kind, id)
        return None if fields is None else kind.read(id, fields.plain())

    @held
    def last(self, kind: Kind[Item]) -> Item | None:
        """The newest item, without looking at the others."""
        items = self.items(self._ground.root(), kind)
        return self.one(kind, next(reversed(items))) if items else None

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    @held
    def add(self, kind: Kind[Item], fields: dict[str, Any]) -> Item:
        """A new item with a new id and the present time."""
        root = self._ground.writable()
        items = self.items(root, kind)
        id = self.ids()
        while items is not None and id in items:
            id = self.ids()
        now = self.now()
        return self._put_one(root, kind, id, {**fields, "created_at": now, "updated_at": now})

    @held
    def put(self, kind: Kind[Item], id: str, fields: dict[str, Any], optional: tuple[str, ...]) -> Item:
        """An item under a given id, new or in place of the one there.

        Of that one stay ``created_at`` and what isn't among ``fields`` and ``optional``.
        """
        root = self._ground.writable()
        known = self.fields(root, kind, id)
        now = self.now()
        if known is None:
            self._make_room(root, kind, 1)
            return self._put_one(root, kind, id, {**fields, "created_at": now, "updated_at": now})
        known.update({**fields, "updated_at": now})
        for name in optional:
            if name not in fields and name in known:
                del known[name]
        return self.one(kind, id)

    @held
    def change(
        self, kind: Kind[Item], id: str, fields: dict[str, Any], *stamps: str, touch: bool = True
    ) -> Item:
        """Set fields of an item, and the present time in ``stamps`` and, if ``touch``, ``updated_at``."""
        known = self.known(self._ground.writable(), kind, id)
        times = dict.fromkeys((*stamps, "updated_at") if touch else stamps, self.now())
        known.update({**fields, **times})
        return self.one(kind, id)

    @held
    def remove(self, kind: Kind[Item], id: Any) -> Item:
        root = self._ground.writable()
        item = kind.read(id, self.known(root, kind, id).plain())
        del root[kind.key][id]
        return item

    @held
    def apply(self, edits: Sequence[Edit]) -> None:
        """Make many edits as one change."""
        root = self._ground.writable()
        context = self.items(root, CONTEXT_ITEMS)
        fresh = [
            id
            for key, id, value in edits
            if key == CONTEXT_ITEMS.key and value is not ABSENT and (context is None or id not in context)
        ]
        self._make_room(root, CONTEXT_ITEMS, len(fresh))
        # Whatever can't be stored is refused here, before the first edit.
        LooseDocument().root["edits"] = [value for _, _, value in edits if value is not ABSENT]
        for key, id, value in edits:
            if key is not None and value is not ABSENT:
                self._put(root, KINDS[key], id if isinstance(id, str) else self.ids(), value)
                continue
            holder = root if key is None else self.items(root, KINDS[key])
            if value is not ABSENT:
                root[id] = value
            elif holder is not None and id in holder:
                del holder[id]

    def clear(self, root: TrackedDict, *but: str) -> None:
        """If the state was discarded, let the document show it."""
        if self.blank:
            self.blank = False
            for key in COLLECTIONS:
                if key in root and key not in but:
                    root[key] = {}

    def _put_one(self, root: TrackedDict, kind: Kind[Item], id: str, fields: dict[str, Any]) -> Item:
        self._put(root, kind, id, fields)
        return self.one(kind, id)

    def _put(self, root: TrackedDict, kind: Kind[Any], id: str, fields: dict[str, Any]) -> None:
        # What may be refused comes first, so that nothing is changed by halves.
        items = self.items(root, kind)
        if items is None:
            root[kind.key] = {id: fields}
        else:
            items[id] = fields
        self.clear(root, kind.key)
        root.setdefault(VERSION_FIELD, CURRENT_SCHEMA_VERSION)

    def _make_room(self, root: TrackedDict, kind: Kind[Any], count: int) -> None:
        if kind.key != CONTEXT_ITEMS.key or not count:
            return
        total = len(self.items(root, kind) or ()) + count
        if total > self._context_max:
            raise LimitError(
                f"nothing was set: the context would have {total:,} entries, and max_context_entries is "
                f"{self._context_max:,}; remove_context() what is no longer needed, or raise the limit",
                path=kind.key,
            )
