"""One namespace of one LangGraph thread: the Everthread thread behind it, and finding checkpoints in it."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.checkpoint.base import empty_checkpoint

from everthread import process
from everthread.adapters.langgraph.colours import AsyncLock
from everthread.adapters.langgraph.names import (
    NOWHERE,
    Place,
    branch_note,
    checkpoint_note,
    id_of,
    note_of,
    origin_id,
    origin_seq,
    place_at,
)
from everthread.adapters.langgraph.values import (
    LIST,
    TEXT,
    WINDOW,
    Held,
    Kept,
    Memory,
    Mould,
    Shadow,
    Values,
    cut_text,
    identity_gaps,
    is_erased,
    is_message,
    places_of,
    split_spans,
    value_gaps,
    weight,
)
from everthread.arguments import check_name
from everthread.codec.values import decode_plain
from everthread.errors import (
    ConflictError,
    InvalidNameError,
    ThreadDeletedError,
    VersionNotFoundError,
    VersionPrunedError,
)
from everthread.threads.aio.keys import commit_under, rewind_noted, version_under
from everthread.threads.aio.thread import MESSAGES
from everthread.threads.document import assign, encode_item, splice
from everthread.threads.twins import pause_async
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.past import AsyncPast
    from everthread.threads.aio.store import AsyncThreadStore
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.lifetimes import Lifetime


#: Namespaces whose handles are kept, and how many bytes of memory the states that are remembered may take.
LANES_MAX: Final = 1024
REMEMBERED_BYTES_MAX: Final = 128 * 1024 * 1024


class AsyncLane:
    """Shared by all callers of a saver; whoever uses ``handle`` holds ``lock``."""

    def __init__(self, store: AsyncThreadStore, name: str, ttl: Lifetime = None) -> None:
        self.store = store
        self.name = name
        self._ttl = ttl
        self.lock = AsyncLock()
        self.memory = Memory()
        #: How often the LangGraph thread had been deleted when this was looked up; ``None``: not yet.
        self.generation: int | None = None
        #: Whether this saver has stored a checkpoint here, or looked whether it may.
        self.begun = False
        self._handle: AsyncThread | None = None

    async def handle(self) -> AsyncThread:
        """The handle that this lane goes on with, wherever it stands."""
        if self._handle is None:
            self._handle = await self.store.thread(self.name, ttl=self._ttl)
        return self._handle

    async def newest(self) -> AsyncThread:
        """The same, standing on the newest version."""
        handle = await self.handle()
        try:
            await handle.refresh()
        except ThreadDeletedError:
            self.forget()
            handle = await self.handle()
        return handle

    async def discard(self) -> None:
        """Forget what was staged and not committed."""
        if self._handle is not None:
            await self._handle.discard()

    def forget(self) -> None:
        """The thread is another one now, or none."""
        self._handle = None
        self.memory = Memory()
        self.generation = None
        self.begun = False


class AsyncLanes:
    """The namespaces that a saver has used last. What is remembered of their states is bounded, all together:
    whoever was used longest ago has to read its state again."""

    def __init__(self, store: AsyncThreadStore, ttl: Lifetime = None) -> None:
        self._store = store
        self._ttl = ttl
        self._lanes: OrderedDict[str, AsyncLane] = OrderedDict()
        # Held for moments only, so that it serves both colours.
        self._lock = process.ProcessLock()
        self._generation = process.generation

    def lane(self, name: str) -> AsyncLane:
        with self._lock:
            if self._generation != process.generation:
                # In a child made by fork(2): others may have been in the middle of using them.
                self._generation, self._lanes = process.generation, OrderedDict()
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = AsyncLane(self._store, name, self._ttl)
                if len(self._lanes) > LANES_MAX:
                    # Whoever uses it at this moment goes on with it; compare-and-set keeps two of them apart.
                    self._lanes.popitem(last=False)
            else:
                self._lanes.move_to_end(name)
        return lane

    def make_room(self, lane: AsyncLane) -> None:
        """After a state was remembered in a lane: let others forget theirs, if all of them are too much."""
        with self._lock:
            left = REMEMBERED_BYTES_MAX - lane.memory.weight
            for other in reversed(self._lanes.values()):
                if other is not lane and other.memory.weight:
                    left -= other.memory.weight
                    if left < 0:
                        other.memory.lighten()


async def find_place(thread: AsyncThread) -> Place:
    """Where a thread stands."""
    head = thread.head
    if head is None:
        return NOWHERE
    place = place_at(head)
    if place is not None:
        return place
    # Somebody else wrote to the thread, or rewound it on purpose: then what was later counts no more.
    version: Version | None = head
    exact, rewound = True, False
    while version is not None:
        place = place_at(version)
        if place is not None:
            if not exact:
                return Place(None, place.standing, True, place.standing)
            return Place(place.standing, place.standing if rewound else place.latest, place.mixed or rewound)
        if version.kind == "rewind" and version.source is not None:
            rewound = True
            version = await thread.handle.find_version(version.source)
        else:
            exact = False
            version = await _before(thread, version)
    # Another framework began it.
    return Place(origin_id(head), origin_id(head)) if len(thread.log(MESSAGES)) else NOWHERE


async def _before(thread: AsyncThread, version: Version) -> Version | None:
    async for older in thread.history(limit=1, before=version):
        return older
    return None


async def find_checkpoint(thread: AsyncThread, checkpoint_id: str) -> Version | None:
    """The version that a checkpoint is; ``None`` if there is none, or it was pruned."""
    version = await version_under(thread, checkpoint_id)
    if version is not None and note_of(version) is not None:
        return version
    seq = origin_seq(checkpoint_id)
    if seq is None or thread.head is None:
        return None
    try:
        version = await thread.handle.find_version(seq)
    except (VersionNotFoundError, VersionPrunedError):
        return None
    return version if note_of(version) is None and origin_id(version) == checkpoint_id else None


async def list_checkpoints(thread: AsyncThread, *, mixed: bool) -> AsyncIterator[Version]:
    """The versions that are checkpoints, by falling id. One that was stored twice comes once."""
    seen: set[str] = set()
    kept: list[Version] = []
    async for version in thread.history(limit=None):
        if version.key is None or version.key in seen or note_of(version) is None:
            continue
        seen.add(version.key)
        if mixed:
            kept.append(version)
        else:
            yield version
    for version in sorted(kept, key=lambda each: each.key or "", reverse=True):
        yield version
    origin = await _origin(thread)
    if origin is not None:
        yield origin


async def _origin(thread: AsyncThread) -> Version | None:
    """The version that the first checkpoint goes on from, if another framework began the thread."""
    oldest: Version | None = None
    async for version in thread.history(limit=None):
        if version.key is not None and note_of(version) is not None:
            oldest = version
    if oldest is not None:
        parent = (note_of(oldest) or {}).get("parent")
        return await find_checkpoint(thread, parent) if type(parent) is str and origin_seq(parent) else None
    return thread.head if thread.head is not None and len(thread.log(MESSAGES)) else None


async def read_state(
    thread: AsyncThread,
    version: Version,
    values: Values,
    known: Shadow | None = None,
    *,
    place: Place = NOWHERE,
) -> tuple[dict[str, Any], dict[str, Any], Shadow] | None:
    """What a checkpoint says of itself, its channels, and the objects to remember; ``None`` if pruned.

    Long lists are taken from what is ``known``, if that is this very version. ``place``: where the thread
    stands; what others have written on top of the checkpoint since belongs to it.
    """
    head = thread.head
    shown = head if head is not None and place.beneath == id_of(version) else version
    if known is not None and known.version_id != shown.id:
        known = None
    source: AsyncThread | AsyncPast = thread
    doubtful = 0 if note_of(version) is None else None
    try:
        if head is None or head.id != shown.id:
            source = await thread.at(shown)
        if shown is not version:
            doubtful = len((await thread.at(version)).log(MESSAGES))
    except VersionPrunedError:
        return None
    document = source.state.plain()
    if note_of(version) is None:
        fields = _origin_fields(version)
    else:
        fields = values.unpack_fields(document["checkpoint"])
    channels = {
        name: values.unpack(stored)
        for name, stored in document.get("channels", {}).items()
        if not is_erased(stored)
    }
    shadow = Shadow(versions=dict(fields.get("channel_versions", {})), version_id=shown.id)
    kinds = dict(document.get("logs", {}))
    if (doubtful is not None or MIXED in document) and len(source.log(MESSAGES)):
        kinds.setdefault(MESSAGES, LIST)
    for name, kind in kinds.items():
        held = known.held.get(name) if known is not None else None
        if kind == LIST:
            count = len(source.log(name))
            spans: list[int] | None = None
            if held is not None and held.moulds is not None:
                moulds, total, spans = held.moulds[: len(held.items)], held.weight, held.spans
                items, last = values.cast(moulds), held.raws
            else:
                stored = await source.log(name).read()
                if name == MESSAGES and (doubtful is not None or document.get(MIXED)):
                    moulds, spans = values.mixed_moulds(stored, 0 if document.get(MIXED) else doubtful or 0)
                else:
                    moulds = values.moulds(stored)
                items, total = values.cast(moulds), weight(moulds)
                first = max(len(stored) - WINDOW, 0)
                packed = stored if spans is None else [*map(values.pack_item, items)]
                places = range(first if spans is None else 0, len(packed))
                last = {at: encode_item(thread, name, packed[at]) for at in places}
            channels[name] = items
            if spans is None and len(items) != count:
                # Some were erased: what stands where in the log isn't known, so that it is written anew.
                continue
            moulded = None if values.personal else moulds
            shadow.held[name] = Held(items.copy(), last, moulded, total, spans)
        else:
            pieces = held.items if held is not None else await source.log(name).read()
            channels[name] = text = "".join(pieces)
            shadow.held[name] = Held(pieces, weight=len(text))
    return fields, channels, shadow


def _origin_fields(version: Version) -> dict[str, Any]:
    """What a checkpoint says of itself that another framework's version is taken for."""
    fields: dict[str, Any] = dict(empty_checkpoint())
    del fields["id"], fields["channel_values"]
    return {**fields, "ts": version.at.isoformat(), "channel_versions": {MESSAGES: 1}}


# A new state, compared with the one that a handle stands on and turned into edits of document and logs.
#
# The document holds ``checkpoint`` (what LangGraph says of it), ``channels`` (short values) and ``logs``
# (which channels are logs of the same name, and whether of items or of pieces of a text).


#: Marks a document whose log ``messages`` holds what other frameworks wrote.
MIXED: Final = "mixed"
#: From so many items on a list without messages is a log too, from so many characters on a text.
_ITEMS_MIN: Final = 32
_TEXT_MIN: Final = 2048
#: About what an item takes in memory besides its bytes.
_ITEM_BYTES: Final = 1_000
#: Items that lie no further apart are read together.
_NEAR: Final = 16


class _Edit(NamedTuple):
    """``stop - start`` items from ``start`` on give way to these."""

    start: int
    stop: int
    raws: list[bytes]
    items: list[Any]
    packed: list[Any]


class Staging:
    """Edits one handle. Nothing is written before its commit."""

    def __init__(
        self,
        thread: AsyncThread,
        values: Values,
        shadow: Shadow | None,
        *,
        touched: dict[int, Any] | None,
        strict: bool,
    ) -> None:
        self._thread = thread
        self._values = values
        self._old = shadow
        self._touched = touched or {}
        self._strict = strict
        self._new = Shadow()

    async def run(
        self, checkpoint: Mapping[str, Any], new_versions: Mapping[str, Any], *, related: bool
    ) -> Shadow:
        """Make the handle hold the checkpoint. ``related``: it stands on the parent, so that a channel whose
        version is the same has the same value."""
        state = self._thread.state
        for part in ("checkpoint", "channels", "logs"):
            if part not in state:
                state[part] = {}
        given: Mapping[str, Any] = checkpoint["channel_values"]
        versions: Mapping[str, Any] = checkpoint.get("channel_versions", {})
        known = {*state["channels"], *state["logs"]}
        for name in self._changed(given, versions, new_versions, known, related):
            if name in given:
                await self._store(name, given[name])
            elif name in known:
                self._remove(name)
        fields = {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}
        assign(self._thread, ("checkpoint",), self._values.pack_fields(fields))
        self._new.versions = dict(versions)
        if self._old is not None:
            kinds = state["logs"]
            for name, held in self._old.held.items():
                if name in kinds and name not in self._new.held:
                    self._new.held[name] = held
        return self._new

    def _changed(
        self,
        given: Mapping[str, Any],
        versions: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        known: set[str],
        related: bool,
    ) -> Iterable[str]:
        if not related:
            return known.union(given)
        before = self._versions_before()
        return {
            name
            for name in {*given, *known}
            if name in new_versions
            or name not in versions
            or name not in known
            or before.get(name) != versions[name]
        }

    def _versions_before(self) -> Mapping[str, Any]:
        if self._old is not None:
            return self._old.versions
        fields = self._values.unpack_fields(self._thread.state.plain()["checkpoint"])
        found: Mapping[str, Any] = fields.get("channel_versions", {})
        return found

    # ── channels ─────────────────────────────────────────────────────────────────────────────

    async def _store(self, name: str, value: Any) -> None:
        state = self._thread.state
        kind = state["logs"].get(name)
        wanted = self._kind(name, value, kind)
        if kind is not None and kind != wanted:
            self._remove(name)
        if wanted is None:
            assign(self._thread, ("channels", name), self._values.pack(value))
            return
        if kind != wanted:
            state["channels"].pop(name, None)
            state["logs"][name] = wanted
        held = self._old.held.get(name) if self._old is not None else None
        if held is not None and kind != wanted and held.spans is None:
            held = None
        log = self._thread.log(name)
        if held is not None and len(held.items if held.spans is None else held.spans) != len(log):
            held = None
        if held is None and name == MESSAGES and state.get(MIXED):
            held = await self._held(log)
        if held is not None and held.spans is not None:
            state[MIXED] = True
            self._new.held[name] = await self._weave(log, value, held, held.spans)
        elif wanted == LIST:
            self._new.held[name] = await self._store_list(log, value, held)
        else:
            self._new.held[name] = await self._store_text(log, value, held)

    def _kind(self, name: str, value: Any, kind: str | None) -> str | None:
        """What a channel is stored as: a log of items or of text, or ``None`` for a part of the document."""
        if type(value) is list:
            wanted = LIST
            enough = (
                kind == LIST
                or len(value) >= _ITEMS_MIN
                or any(type(i) is Kept or is_message(i) for i in value)
            )
        elif type(value) is str and self._values.readable:
            wanted = TEXT
            enough = len(value) >= (_TEXT_MIN // 2 if kind == TEXT else _TEXT_MIN) and _is_text(value)
        else:
            return None
        if not enough or "\0" in name:
            return None
        try:
            check_name(name, "channel")
        except InvalidNameError:
            return None
        return wanted

    def _remove(self, name: str) -> None:
        state = self._thread.state
        state["channels"].pop(name, None)
        if state["logs"].pop(name, None) is not None:
            log = self._thread.log(name)
            splice(log, 0, len(log), [], [])

    async def _store_text(self, log: Any, text: str, held: Held | None) -> Held:
        old = held.items if held is not None else await log.read()
        pieces = cut_text(text, old)
        for gap in value_gaps(old, pieces):
            raws = [self._encode(log, piece) for piece in pieces[gap.begin : gap.end]]
            splice(log, gap.start, gap.stop - gap.start, raws, [None] * len(raws))
        return Held(pieces, weight=len(text))

    async def _store_list(self, log: Any, value: list[Any], held: Held | None) -> Held:
        edits: list[_Edit] = []
        if held is None:
            edits.extend(await self._replace(log, 0, len(log), value))
        else:
            gaps = identity_gaps(held.items, value)
            for gap in gaps:
                edits.extend(await self._replace(log, gap.start, gap.stop, value[gap.begin : gap.end]))
            suspects = sorted(self._suspects(held, value, gaps))
            inside = [place for place in suspects if not _within(place, gaps)]
            edits.extend(await self._recheck(log, held, inside))
            edits.sort(key=lambda edit: edit.start, reverse=True)
        for edit in edits:
            ids = [self._id_of(item) for item in edit.items]
            splice(log, edit.start, edit.stop - edit.start, edit.raws, ids)
        return self._kept(value, held, edits)

    async def _held(self, log: Any) -> Held:
        """What a log that others have written to holds, where nothing of it is remembered."""
        moulds, spans = self._values.mixed_moulds(await log.read(), 0)
        items, values = self._values.cast(moulds), self._values.unsealed()
        raws = {at: self._encode(log, values.pack_item(item)) for at, item in enumerate(items)}
        return Held(items, raws, None, weight(moulds), spans)

    async def _weave(self, log: Any, value: list[Any], held: Held, spans: list[int]) -> Held:
        """Store a list in a log that others have written to: what they wrote stays as it is, unless the list
        has lost or changed it."""
        known, values = self._unchanged(held, value), self._values.unsealed()
        raws = [
            held.raws[known[at]] if at in known else self._encode(log, values.pack_item(item))
            for at, item in enumerate(value)
        ]
        old = [held.raws[at] for at in range(len(held.items))]
        gaps = value_gaps(old, raws)
        spans = list(spans)
        for at in reversed(split_spans(spans, gaps)):
            # A part of what another wrote as one item is gone: the rest of it is this graph's own now.
            begin = sum(spans[:at])
            self._put_items(log, at, 1, held.items[begin : begin + spans[at]])
            spans[at : at + 1] = [1] * spans[at]
        for gap in gaps:
            (start, stop), *others = places_of(spans, gap.start, gap.stop)
            for begin, end in reversed(others):
                self._put_items(log, begin, end - begin, [])
                del spans[begin:end]
            self._put_items(log, start, stop - start, value[gap.begin : gap.end])
            spans[start:stop] = [1] * (gap.end - gap.begin)
        return Held(value.copy(), dict(enumerate(raws)), None, held.weight, spans)

    def _put_items(self, log: Any, start: int, count: int, items: list[Any]) -> None:
        raws = [self._encode(log, self._values.pack_item(item)) for item in items]
        splice(log, start, count, raws, [self._id_of(item) for item in items])

    def _unchanged(self, held: Held, value: list[Any]) -> dict[int, int]:
        """Places of the new list whose objects are those of the old one and can't have been changed, with
        their old places."""
        places = {id(item): at for at, item in enumerate(held.items)}
        found = {at: places[id(item)] for at, item in enumerate(value) if id(item) in places}
        if not self._values.identified:
            # Encoded anew, they differ each time: being the same objects is all that can be told.
            return found
        last = 0 if self._strict else len(held.items) - WINDOW
        return {at: was for at, was in found.items() if was < last and id(value[at]) not in self._touched}

    def _kept(self, value: list[Any], held: Held | None, edits: list[_Edit]) -> Held:
        """What to remember of a list that has been stored."""
        items = value.copy()
        if not edits and held is not None:
            return Held(items, held.raws, held.moulds, held.weight)
        if len(edits) != 1 or edits[0].start + len(edits[0].raws) != len(value):
            return Held(
                items, weight=_ITEM_BYTES * len(items) + sum(len(raw) for edit in edits for raw in edit.raws)
            )
        # Appended, or new: how the last items were encoded is known.
        last, count = edits[0], len(edits[0].raws)
        first = max(len(value) - WINDOW, 0)
        raws = {} if held is None else {at: raw for at, raw in held.raws.items() if first <= at < last.start}
        raws.update((last.start + at, last.raws[at]) for at in range(max(count - WINDOW, 0), count))
        moulds: list[Mould] | None = None
        added = self._values.moulds(last.packed)
        total = weight(added) + (held.weight if held is not None and last.start else 0)
        if not self._values.personal:
            if not last.start:
                moulds = added
            elif held is not None and last.start == len(held.items):
                moulds = held.extended(added)
        return Held(items, raws, moulds, total)

    async def _replace(self, log: Any, start: int, stop: int, items: list[Any]) -> list[_Edit]:
        """Put items in the place of others, of which those stay that are the same byte for byte."""
        packed = [self._values.pack_item(item) for item in items]
        raws = [self._encode(log, item) for item in packed]
        if stop == start or not raws or not self._values.readable:
            return [_Edit(start, stop, raws, items, packed)] if raws or stop > start else []
        old = await log._raw_range(log._current, start, stop)
        return [
            _Edit(
                start + gap.start,
                start + gap.stop,
                raws[gap.begin : gap.end],
                items[gap.begin : gap.end],
                packed[gap.begin : gap.end],
            )
            for gap in value_gaps(old, raws)
        ]

    def _suspects(self, held: Held, value: list[Any], gaps: list[Any]) -> Iterable[int]:
        """Items that are the objects they were, but may have been changed in place."""
        count = len(held.items)
        if self._strict:
            return range(count)
        suspects = set(range(max(count - WINDOW, 0), count))
        returned = self._touched
        if returned:
            new = {id(item) for gap in gaps for item in value[gap.begin : gap.end]}
            elsewhere = returned.keys() - new
            # Asked without a loop of our own first: most of what a node returns never was in the list.
            if elsewhere and not elsewhere.isdisjoint(map(id, held.items)):
                suspects.update(at for at, item in enumerate(held.items) if id(item) in elsewhere)
        return suspects

    async def _recheck(self, log: Any, held: Held, places: list[int]) -> list[_Edit]:
        """Edits for those of the items that aren't what the store holds."""
        edits: list[_Edit] = []
        stored = await self._stored(log, [at for at in places if at not in held.raws])
        for at in places:
            item = held.items[at]
            before = held.raws[at] if at in held.raws else stored[at]
            if not self._values.readable and self._equal(before, item):
                # Where bytes can't tell: encrypted, they differ each time.
                continue
            packed = self._values.pack_item(item)
            raw = self._encode(log, packed)
            if raw != before:
                edits.append(_Edit(at, at + 1, [raw], [item], [packed]))
        return edits

    async def _stored(self, log: Any, places: list[int]) -> dict[int, bytes]:
        """Items as the store holds them, by their places, which rise. Neighbours are read together."""
        found: dict[int, bytes] = {}
        start = 0
        for number, at in enumerate(places, 1):
            if number == len(places) or places[number] - at > _NEAR:
                first, last = places[start], at + 1
                raws = await log._raw_range(log._current, first, last)
                found.update(zip(range(first, last), raws, strict=True))
                start = number
        return found

    def _equal(self, raw: bytes, item: Any) -> bool:
        """Whether an item is the stored one. One that was erased is not stored again by a run that is still
        under way."""
        stored = decode_plain(raw, self._thread.handle.open_seal)
        return is_erased(stored) or bool(self._values.unpack_items([stored]) == [item])

    def _encode(self, log: Any, item: Any) -> bytes:
        return encode_item(self._thread, log.name, item)

    def _id_of(self, item: Any) -> Any:
        """The id under which an item can be found in its log."""
        if not self._values.identified or type(item) is Kept:
            return None
        if is_message(item):
            return item.id
        found = item.get("id") if type(item) is dict else None
        return found if type(found) in (str, int) else None


def _within(place: int, gaps: list[Any]) -> bool:
    return any(gap.start <= place < gap.stop for gap in gaps)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# Storing a checkpoint: only what differs from the one that it follows.


#: How often a checkpoint is tried again because writers of other branches were first.
_TRIES: Final = 200
_PAUSE_S: Final = 0.005


class Refused(Exception):  # noqa: N818 - a signal inside this adapter, callers see its cause
    """The checkpoint must not be stored, and trying again won't help."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Put:
    """One checkpoint on its way into a lane."""

    def __init__(
        self,
        lane: AsyncLane,
        values: Values,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        parent: str | None,
        *,
        exclusive: bool,
        strict: bool,
    ) -> None:
        self._lane = lane
        self._values = values
        self._checkpoint = checkpoint
        self._metadata = values.pack_fields(dict(metadata))
        self._loop = metadata.get("source") == "loop"
        #: Whether somebody asked for a copy of an earlier checkpoint.
        self._forking = metadata.get("source") == "fork"
        self._new_versions = new_versions
        self._parent = parent
        self._exclusive = exclusive
        self._strict = strict

    async def run(self, *, allow_orphan: bool) -> bool:
        """Store it, durably. False, and nothing is changed, if its parent isn't there and must be.

        Raises :class:`ConflictError` if it may be the only one that follows its parent, and isn't.
        """
        for attempt in range(_TRIES):
            thread = await self._lane.handle()
            try:
                return await self._try(thread, allow_orphan)
            except Refused as refused:
                await self._lane.discard()
                raise refused.error from None
            except ThreadDeletedError:
                self._lane.forget()
                if self._parent is not None:
                    raise
            except ConflictError:
                await self._lane.discard()
                await self._lane.newest()
                if attempt:
                    await pause_async(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
            except BaseException:
                await self._lane.discard()
                raise
        raise ConflictError(
            f"others wrote to {self._lane.name!r} all the time, {_TRIES} times in a row; try again",
            expected=None,
            actual=None,
        )

    async def _try(self, thread: AsyncThread, allow_orphan: bool) -> bool:
        lane, checkpoint_id, parent = self._lane, str(self._checkpoint["id"]), self._parent
        place = await find_place(thread)
        if place.standing is None or place.standing != parent:
            # Not where this lane left it, or a first look: see what others did.
            thread = await lane.newest()
            place = await find_place(thread)
        related = parent is not None and place.standing == parent
        if parent is not None and not related:
            version = await find_checkpoint(thread, parent)
            if version is not None and place.beneath == parent and await self._was_shown(thread, version):
                # It goes on from what others have written since, too.
                related = True
            elif version is not None:
                await self._branch(thread, version, place)
                related = True
            elif not allow_orphan:
                return False
        if not related and place.standing is not None and origin_seq(place.standing) is not None:
            raise Refused(_others_wrote(lane.name, place.standing, None, thread.head))
        memory = lane.memory
        staging = Staging(
            thread,
            self._values,
            memory.shadow(parent if related else place.standing),
            touched=memory.touched(parent) if related else None,
            strict=self._strict or (self._loop and memory.touched(parent) is None),
        )
        shadow = await staging.run(self._checkpoint, self._new_versions, related=related)
        note = checkpoint_note(checkpoint_id, parent, self._metadata, place)
        shadow.version_id = (await commit_under(thread, checkpoint_id, note)).id
        memory.keep(checkpoint_id, shadow)
        memory.let_go(parent)
        return True

    async def _branch(self, thread: AsyncThread, version: Version, place: Place) -> None:
        """Go back to the parent, which isn't where the thread stands."""
        parent = self._parent or ""
        if not self._forking and not self._lane.memory.was_named(parent):
            if place.beneath == parent or (note_of(version) is None and place.standing != parent):
                raise Refused(_others_wrote(self._lane.name, parent, version, thread.head))
            rival = await _child_of(thread, version, parent, str(self._checkpoint["id"]))
            if self._exclusive and rival is not None:
                raise Refused(
                    ConflictError(
                        f"another run went on from the checkpoint {parent} of {self._lane.name!r} meanwhile "
                        f"and stored {rival.key}; invoke the graph again to go on from there, or name the "
                        "checkpoint in the config to branch off",
                        expected=version,
                        actual=rival,
                    )
                )
        await rewind_noted(thread, version, branch_note(parent, place))

    async def _was_shown(self, thread: AsyncThread, version: Version) -> bool:
        """Whether the graph was shown all that others have written on top of the parent."""
        shadow = self._lane.memory.shadow(self._parent)
        head = thread.head
        if shadow is not None and head is not None and shadow.version_id == head.id:
            return True
        try:
            past = await thread.at(shadow.version_id if shadow is not None else version)
        except (VersionNotFoundError, VersionPrunedError):
            return False
        for name in {MESSAGES, *thread.state.plain().get("logs", {})}:
            now, then = thread.log(name), past.log(name)
            if len(now) != len(then) or await now.read(-1) != await then.read(-1):
                return False
        return True


def _others_wrote(name: str, parent: str, expected: Version | None, actual: Version | None) -> ConflictError:
    return ConflictError(
        f"others wrote to {name!r} after the graph had read its checkpoint {parent}; invoke the graph again "
        "to go on from what they wrote",
        expected=expected,
        actual=actual,
    )


async def _child_of(thread: AsyncThread, version: Version, parent: str, own: str) -> Version | None:
    """A checkpoint after ``version`` that follows the same parent."""
    async for later in thread.history(limit=None):
        if later.seq <= version.seq:
            return None
        note = note_of(later)
        if note is not None and later.key is not None and later.key != own and note.get("parent") == parent:
            return later
    return None
