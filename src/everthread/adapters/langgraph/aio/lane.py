"""One namespace of one LangGraph thread: the Everthread thread behind it, and finding checkpoints in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from everthread import process
from everthread.adapters.langgraph.colours import AsyncLock
from everthread.adapters.langgraph.messages import weight
from everthread.adapters.langgraph.notes import NOWHERE, Place, note_of, place_at
from everthread.adapters.langgraph.shadows import LIST, WINDOW, Held, Memory, Shadow
from everthread.adapters.langgraph.values import Values, is_erased
from everthread.errors import ThreadDeletedError, VersionPrunedError
from everthread.threads.aio.keys import version_under
from everthread.threads.document import encode_item
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.past import AsyncPast
    from everthread.threads.aio.store import AsyncThreadStore
    from everthread.threads.aio.thread import AsyncThread


#: Namespaces whose handles are kept, and how many bytes of memory the states that are remembered may take.
LANES_MAX: Final = 1024
REMEMBERED_BYTES_MAX: Final = 128 * 1024 * 1024


class AsyncLane:
    """Shared by all callers of a saver; whoever uses ``handle`` holds ``lock``."""

    def __init__(self, store: AsyncThreadStore, name: str) -> None:
        self.store = store
        self.name = name
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
            self._handle = await self.store.thread(self.name)
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

    def __init__(self, store: AsyncThreadStore) -> None:
        self._store = store
        self._lanes: OrderedDict[str, AsyncLane] = OrderedDict()
        # Held for moments only, so that it serves both colours.
        self._lock = process.fork_lock()
        self._generation = process.generation

    def lane(self, name: str) -> AsyncLane:
        with self._lock:
            if self._generation != process.generation:
                # In a child made by fork(2): others may have been in the middle of using them.
                self._generation, self._lanes = process.generation, OrderedDict()
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = AsyncLane(self._store, name)
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
            latest = place.standing if rewound else place.latest
            return Place(place.standing if exact else None, latest, place.mixed or rewound)
        if version.kind == "rewind" and version.source is not None:
            rewound = True
            version = await thread._resolve(version.source)
        else:
            exact = False
            version = await _before(thread, version)
    return NOWHERE


async def _before(thread: AsyncThread, version: Version) -> Version | None:
    async for older in thread.history(limit=1, before=version):
        return older
    return None


async def find_checkpoint(thread: AsyncThread, checkpoint_id: str) -> Version | None:
    """The version that a checkpoint is; ``None`` if there is none, or it was pruned."""
    version = await version_under(thread, checkpoint_id)
    return version if version is not None and note_of(version) is not None else None


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


async def read_state(
    thread: AsyncThread, version: Version, values: Values, known: Shadow | None = None
) -> tuple[dict[str, Any], dict[str, Any], Shadow] | None:
    """What a checkpoint says of itself, its channels, and the objects to remember; ``None`` if pruned.

    Long lists are taken from what is ``known``, if that is this very version.
    """
    if known is not None and known.version_id != version.id:
        known = None
    source: AsyncThread | AsyncPast = thread
    head = thread.head
    if head is None or head.id != version.id:
        try:
            source = await thread.at(version)
        except VersionPrunedError:
            return None
    document = source.state.plain()
    fields = values.unpack_fields(document["checkpoint"])
    channels = {
        name: values.unpack(stored) for name, stored in document["channels"].items() if not is_erased(stored)
    }
    shadow = Shadow(versions=dict(fields.get("channel_versions", {})), version_id=version.id)
    for name, kind in document["logs"].items():
        held = known.held.get(name) if known is not None else None
        if kind == LIST:
            count = len(source.log(name))
            if held is not None and held.moulds is not None:
                moulds, last, total = held.moulds[: len(held.items)], held.raws, held.weight
            else:
                stored = await source.log(name).read()
                first = max(len(stored) - WINDOW, 0)
                last = {at: encode_item(thread, name, stored[at]) for at in range(first, len(stored))}
                moulds = values.moulds(stored)
                total = weight(moulds)
            items = values.cast(moulds)
            channels[name] = items
            if len(items) != count:
                # Some were erased: what stands where in the log isn't known, so that it is written anew.
                continue
            shadow.held[name] = Held(items.copy(), last, None if values.personal else moulds, total)
        else:
            pieces = held.items if held is not None else await source.log(name).read()
            channels[name] = text = "".join(pieces)
            shadow.held[name] = Held(pieces, weight=len(text))
    return fields, channels, shadow
