"""A new state, compared with the one that a handle stands on and turned into edits of document and logs.

The document holds ``checkpoint`` (what LangGraph says of it), ``channels`` (short values) and ``logs`` (which
channels are logs of the same name, and whether of items or of pieces of a text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from everthread.adapters.langgraph.comparing import cut_text, identity_gaps, value_gaps
from everthread.adapters.langgraph.messages import Mould, is_message, weight
from everthread.adapters.langgraph.shadows import LIST, TEXT, WINDOW, Held, Shadow
from everthread.adapters.langgraph.values import Kept, Values, is_erased
from everthread.arguments import check_name
from everthread.codec.values import decode_plain
from everthread.errors import InvalidNameError
from everthread.threads.document import assign, encode_item, splice

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AsyncThread

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
        held = self._old.held.get(name) if self._old is not None and kind == wanted else None
        log = self._thread.log(name)
        if held is not None and len(held.items) != len(log):
            held = None
        if wanted == LIST:
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
        stored = decode_plain(raw, self._thread._open_seal)
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
