# Generated from stores/valkey/aio/cells_and_events.py by tools/twin.py: change that, then run: make twin
"""Cells, and streams of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.errors import LimitError
from everthread.stores.contract import (
    EVENT_SEQ_MAX,
    Cell,
    KeyErased,
    NewEvent,
    SealedRow,
    StaleCell,
    StoredEvent,
)
from everthread.stores.valkey import layout, scripts
from everthread.stores.valkey.layout import digest
from everthread.stores.valkey.sync.client import Argument, Request
from everthread.stores.valkey.sync.lines import flag, lexical, token
from everthread.stores.valkey.sync.writes import LineWrites, sealed_fields

#: Times beyond these aren't told apart: numbers of scripts are exact up to there.
_TIME_MAX = (1 << 53) - 1
_PAGE = 256


class CellsAndEvents(LineWrites):
    """The verbs of cells and streams. The clock of cells is the server's."""

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        keys = (self._cell_keys(space)[0],)
        answer = self._client.script(scripts.CELL, keys, (name,))
        return None if answer is None else _cell(answer)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        self._list_space(space)
        made = token()

        def arguments(again: bool) -> Sequence[Argument]:
            return name, expected, flag(value is not None), value or b"", made, flag(again)

        answer = self._client.script(scripts.SWAP, self._cell_keys(space), arguments)
        if isinstance(answer, list):
            raise StaleCell(_cell(answer) if answer else None)
        return int(answer)

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        if limit <= 0:
            return []
        keys = self._cell_keys(space)[:2]
        found = self._client.script(scripts.CELLS, keys, (*lexical(prefix, after), limit))
        return [(entry[0].decode(), _cell(entry[1:])) for entry in found]

    def _cell_keys(self, space: str) -> tuple[bytes, bytes, bytes]:
        """Cells, their names in order, and the highest revision that a removed one had."""
        base = self._keys.space(space)[:-1]
        return base + b"c", base + b"o", base + b"i"

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        self._list_stream(space, stream)
        if sealed and not self._single:
            self._seal(sealed)
        fields: dict[str, Any] = {
            "events": [
                [
                    event.at_us,
                    event.type,
                    event.agent if event.agent is not None else False,
                    event.body,
                    _kinds(event),
                ]
                for event in events
            ],
            "token": token(),
            "most": EVENT_SEQ_MAX,
            "sealed": sealed_fields(sealed) if self._single else [],
        }

        def arguments(again: bool) -> Sequence[Argument]:
            return self._prefix, layout.pack({**fields, "retry": again})

        answer = self._client.script(scripts.EMIT, (self._keys.stream(space, stream),), arguments)
        if isinstance(answer, list) and answer[0] == b"erased":
            raise KeyErased(frozenset(answer[1:]))
        if isinstance(answer, list):
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        return int(answer)

    def _list_stream(self, space: str, stream: str) -> None:
        """Before it has events: the list of streams may have too many, never too few."""
        if (space, stream) not in self._streams:
            self._list_space(space)
            place = self._keys.space(space)[:-1] + b"E"
            self._client.command(place, "ZADD", place, 0, stream)
            if len(self._streams) > 10_000:
                self._streams.clear()
            self._streams.add((space, stream))

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        if limit <= 0 or after >= EVENT_SEQ_MAX:
            return []
        if type is not None and agent is not None:
            by = digest("both", type, agent).hex()
        elif type is not None:
            by = digest("type", type).hex()
        else:
            by = digest("agent", agent).hex() if agent is not None else ""
        given = max(after, 0), limit, by, _time(since_us), _time(until_us)
        found = self._client.script(scripts.EVENTS, (self._keys.stream(space, stream),), given)
        return [_event(entry) for entry in found]

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        place = self._keys.space(space)[:-1] + b"E"
        start, stop = lexical(prefix, after)
        found: list[tuple[str, int]] = []
        while len(found) < limit:
            names = self._client.command(place, "ZRANGEBYLEX", place, start, stop, "LIMIT", 0, _PAGE)
            requests = [
                Request(scripts.STREAM, (self._keys.stream(space, name.decode()),), ()) for name in names
            ]
            for name, (_, last, _, count) in zip(names, self._client.all(requests), strict=True):
                if count:
                    found.append((name.decode(), int(last)))
            if len(names) < _PAGE:
                break
            start = b"(" + names[-1]
        return found[:limit]

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        keys = (self._keys.stream(space, stream),)
        packed = layout.pack([[seq, body] for seq, body in bodies.items()])
        return int(self._client.script(scripts.REWRITE, keys, (packed,)))

    def drop_stream(self, space: str, stream: str) -> bool:
        made = token()

        def arguments(again: bool) -> Sequence[Argument]:
            return made, flag(again)

        keys = (self._keys.stream(space, stream),)
        return bool(self._client.script(scripts.DROP, keys, arguments))


def _cell(parts: Sequence[bytes]) -> Cell:
    value, revision, written, now = parts
    # A server's clock may have been set back.
    return Cell(value, int(revision), int(written), max(int(now), int(written)))


def _kinds(event: NewEvent) -> list[str]:
    """What an event is indexed by."""
    kinds = [digest("type", event.type).hex()]
    if event.agent is not None:
        kinds += [digest("agent", event.agent).hex(), digest("both", event.type, event.agent).hex()]
    return kinds


def _time(at_us: int | None) -> bytes:
    return b"" if at_us is None else b"%d" % min(max(at_us, -_TIME_MAX), _TIME_MAX)


def _event(entry: Sequence[Any]) -> StoredEvent:
    seq, fields = entry
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    agent = named.get(b"a")
    return StoredEvent(
        int(seq.partition(b"-")[0]),
        int(named[b"w"]),
        named[b"t"].decode(),
        None if agent is None else agent.decode(),
        named[b"b"],
    )
