"""The contract on Valkey, and from a URL to an open store.

The verbs stand in a row of classes, each of which uses those before it: threads are read in ``lines`` and
written in ``writes``; here follow cells and events, upkeep, persons, and the store as a whole.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import count as numbers
from typing import Any

from redis.exceptions import ResponseError

from everthread.errors import EverthreadError, LimitError, NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.colours import ASYNC, pause_async
from everthread.stores.contract import (
    COLD,
    DELTA,
    EVENT_SEQ_MAX,
    PACK,
    PRUNED,
    REWIND,
    Capabilities,
    Cell,
    Covered,
    ErasedKey,
    KeyErased,
    NewEvent,
    Progress,
    Purged,
    PutCell,
    Residues,
    SealedRow,
    StaleCell,
    StoredEvent,
    TextFound,
    Totals,
    Usage,
    Wanted,
)
from everthread.stores.valkey import layout, scripts
from everthread.stores.valkey.aio.client import Argument, AsyncClient, AsyncServer, Request
from everthread.stores.valkey.aio.lines import flag, lexical, token
from everthread.stores.valkey.aio.writes import LineWrites, sealed_fields
from everthread.stores.valkey.errors import Lost, code_of, text_of, translated, unavailable
from everthread.stores.valkey.layout import SHARDS, Keys, digest, split_id
from everthread.stores.valkey.server_info import (
    ADVICE,
    FULL,
    NOTHING,
    UNKNOWN,
    Durability,
    ResidueSearch,
    read_durability,
    read_info,
    server_files,
    worst,
)
from everthread.stores.valkey.settings import Settings, read_url

if ASYNC:
    from everthread.stores.contract import Backend
    from everthread.stores.offload import run_in_thread


# ── cells and streams of events ────────────────────────────────────────────────────────────────────


#: Times beyond these aren't told apart: numbers of scripts are exact up to there.
_TIME_MAX = (1 << 53) - 1
_PAGE = 256
#: As many events of a stream are removed at once: the server does nothing else meanwhile.
_TRIM_EVENTS = 10_000


class CellAndEventVerbs(LineWrites):
    """The verbs of cells and streams. The clock of cells is the server's."""

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    async def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        keys = (self._cell_keys(space)[0],)
        answer = await self._client.script(scripts.CELL, keys, (name,))
        return None if answer is None else _cell(answer)

    async def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        await self._list_space(space)
        made = token()

        def arguments(again: bool) -> Sequence[Argument]:
            return name, expected, flag(value is not None), value or b"", made, flag(again)

        answer = await self._client.script(scripts.SWAP, self._cell_keys(space), arguments)
        if isinstance(answer, list):
            raise StaleCell(_cell(answer) if answer else None)
        return int(answer)

    async def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        if limit <= 0:
            return []
        keys = self._cell_keys(space)[:2]
        found = await self._client.script(scripts.CELLS, keys, (*lexical(prefix, after), limit))
        return [(entry[0].decode(), _cell(entry[1:])) for entry in found]

    def _cell_keys(self, space: str) -> tuple[bytes, bytes, bytes]:
        """Cells, their names in order, and the highest revision that a removed one had."""
        base = self._keys.space(space)[:-1]
        return base + b"c", base + b"o", base + b"i"

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    async def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        await self._list_stream(space, stream)
        if sealed and not self._single:
            await self._seal(sealed)
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

        answer = await self._client.script(scripts.EMIT, (self._keys.stream(space, stream),), arguments)
        if isinstance(answer, list) and answer[0] == b"erased":
            raise KeyErased(frozenset(answer[1:]))
        if isinstance(answer, list):
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        return int(answer)

    async def _list_stream(self, space: str, stream: str) -> None:
        """Before it has events: the list of streams may have too many, never too few."""
        if (space, stream) not in self._streams:
            await self._list_space(space)
            place = self._keys.space(space)[:-1] + b"E"
            await self._client.command(place, "ZADD", place, 0, stream)
            if len(self._streams) > 10_000:
                self._streams.clear()
            self._streams.add((space, stream))

    async def events(
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
        found = await self._client.script(scripts.EVENTS, (self._keys.stream(space, stream),), given)
        return [_event(entry) for entry in found]

    async def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        place = self._keys.space(space)[:-1] + b"E"
        start, stop = lexical(prefix, after)
        found: list[tuple[str, int]] = []
        while len(found) < limit:
            names = await self._client.command(place, "ZRANGEBYLEX", place, start, stop, "LIMIT", 0, _PAGE)
            requests = [
                Request(scripts.STREAM, (self._keys.stream(space, name.decode()),), ()) for name in names
            ]
            for name, (_, last, _, count) in zip(names, await self._client.all(requests), strict=True):
                if count:
                    found.append((name.decode(), int(last)))
            if len(names) < _PAGE:
                break
            start = b"(" + names[-1]
        return found[:limit]

    async def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        keys = (self._keys.stream(space, stream),)
        packed = layout.pack([[seq, body] for seq, body in bodies.items()])
        return int(await self._client.script(scripts.REWRITE, keys, (packed,)))

    async def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        keys = (self._keys.stream(space, stream),)
        trimmed = 0
        while True:
            given = token(), min(max(up_to, 0), EVENT_SEQ_MAX), _TRIM_EVENTS

            def arguments(again: bool, given: tuple[Argument, ...] = given) -> Sequence[Argument]:
                return *given, flag(again)

            count, is_more = await self._client.script(scripts.TRIM, keys, arguments)
            trimmed += int(count)
            if not is_more:
                return trimmed


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


# ── waiting, sizes, what is on disk ────────────────────────────────────────────────────────────────


class UpkeepVerbs(CellAndEventVerbs):
    """The verbs that no commit waits for."""

    #: What the server said, when the store was opened, about how it keeps what it acknowledged.
    keeping: Durability

    async def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        if ASYNC:
            return await self.signals.wait_async(line, timeout_s, lambda: self.newer(line, seq))
        else:
            return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    async def usage(self, line: int) -> Usage:
        tag, member = split_id(line)
        given = self._prefix, tag, member
        answer = await self._client.script(scripts.USAGE, self._row_keys(tag, member), given)
        if answer is None:
            return Usage()
        by, chunks = answer
        return Usage(
            versions=sum(by[kind][0] for kind in (DELTA, REWIND, PACK, COLD)),
            pruned=by[PRUNED][0],
            records=by[DELTA][1] + by[REWIND][1],
            packs=by[PACK][1] + by[COLD][1],
            tombstones=by[PRUNED][1],
            keyframes=sum(entry[2] for entry in by),
            chunks=chunks,
        )

    async def totals(self) -> Totals:
        requests = [Request(scripts.SEALED_USAGE, (self._keys.shard("v", first),), ()) for first in SHARDS]
        sealed = await self._client.all(requests)
        spaces = await self._client.command(self._keys.spaces, "ZRANGE", self._keys.spaces, 0, -1)
        names = [space.decode() for space in spaces]
        requests = [Request(scripts.CELLS_USAGE, (self._cell_keys(space)[0],), ()) for space in names]
        cells = await self._client.all(requests)
        count = size = 0
        for space in names:
            after = None
            while page := await self.streams(space, "", after, _PAGE):
                requests = [
                    Request(scripts.STREAM, (self._keys.stream(space, name),), ()) for name, _ in page
                ]
                for _, _, taken, held in await self._client.all(requests):
                    count, size = count + held, size + int(taken)
                after = page[-1][0]
        return Totals(
            sealed=(sum(each[0] for each in sealed), sum(each[1] for each in sealed)),
            cells=(sum(each[0] for each in cells), sum(each[1] for each in cells)),
            events=(count, size),
        )

    async def persist(self) -> None:
        if self.keeping.level == NOTHING and not self.keeping.replicas:
            # What was taken away can't come back: nothing does.
            return
        for server in self._client.servers:
            await self._persisted(server)

    async def _persisted(self, server: AsyncServer) -> None:
        """Returns once a server's file, and all of its replicas, have everything that it was told before."""
        url, timeout_s = self._settings.url, self._settings.timeout_s
        (info,) = await self._client.on_server(server, ("INFO", "replication"))
        replicas = int(read_info(info).get("connected_slaves", "0"))
        patience_ms = int(timeout_s * 400)
        # What a connection has written itself is what it may wait for, with all that came before.
        keys = (self._key(f"p{number}", "p") for number in numbers())
        mine = next(key for key in keys if self._client.server_of(key) is server)
        commands = (
            ("SET", mine, "1", "PX", 60_000),
            ("WAIT", replicas, patience_ms),
            ("WAITAOF", 1, 0, patience_ms),
        )
        try:
            answers = await server.run(commands, time.monotonic() + timeout_s)
        except Lost as lost:
            raise unavailable(lost.why, url) from lost
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise UnsupportedError(f"{url} doesn't say what it has on disk: {text_of(answer)}")
        if answers[1] < replicas or answers[2][0] < 1:
            raise UnsupportedError(f"{url} didn't get everything to its disk, or to its replicas, in time")

    async def compact(self) -> None:
        """Let the servers write their append-only files anew, without what was removed. Not waited for."""
        for server in self._client.servers:
            info = read_info((await self._client.on_server(server, ("INFO", "persistence")))[0])
            if info.get("aof_enabled") == "1" and info.get("aof_rewrite_in_progress") == "0":
                await self._client.on_server(server, ("BGREWRITEAOF",))


# ── persons and their erasure ──────────────────────────────────────────────────────────────────────


_PAUSE_S = 0.02
#: A server is given so long to write its files anew, however little patience there is.
_REWRITE_S = 3.0
_KEYS_PAGE = 500
#: What reads everything of a key, by its type.
_READING: dict[bytes, Callable[[bytes], Sequence[Argument]]] = {
    b"hash": lambda key: (b"HGETALL", key),
    b"set": lambda key: (b"SMEMBERS", key),
    b"stream": lambda key: (b"XRANGE", key, b"-", b"+"),
    b"string": lambda key: (b"GET", key),
    b"zset": lambda key: (b"ZRANGE", key, 0, -1),
}
_UNREACHED = ("what the server's host has in swap or in copies of the server's files",)


class ErasureVerbs(UpkeepVerbs):
    """The verbs about persons."""

    # ── the ledger ───────────────────────────────────────────────────────────────────────────

    async def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        if not self._single:
            # First of all nobody takes anything any more; the ledger tells it after that.
            ids = [entry.key_id for entry in keys]
            packed = [layout.pack({"registers": [first], "keys": ids}) for first in SHARDS]
            places = [(self._keys.shard("v", first),) for first in SHARDS]
            requests = [
                Request(scripts.REFUSE, place, (self._prefix, each))
                for place, each in zip(places, packed, strict=True)
            ]
            await self._client.all(requests)
        await self._note(keys)

    async def _note(self, keys: Sequence[ErasedKey]) -> None:
        entries = [[k.key_id, k.phase, str(k.noted_us), k.erasure, k.note] for k in keys]
        packed = layout.pack({"entries": entries, "registers": list(SHARDS) if self._single else []})
        await self._client.script(
            scripts.NOTE, (self._keys.ledger, self._keys.unfinished), (self._prefix, packed)
        )

    async def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        place = self._keys.ledger
        if unfinished:
            ids = sorted(await self._client.command(place, "SMEMBERS", self._keys.unfinished))
            values = await self._client.command(place, "HMGET", place, *ids) if ids else []
            pairs = list(zip(ids, values, strict=True))
        else:
            flat = await self._client.command(place, "HGETALL", place)
            pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
        return [_read_entry(key_id, value) for key_id, value in pairs if value is not None]

    async def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        wanted = list(key_ids)
        if not wanted:
            return set()
        place = self._keys.ledger
        found = await self._client.command(place, "HMGET", place, *wanted)
        return {key_id for key_id, value in zip(wanted, found, strict=True) if value is not None}

    # ── sealed values ────────────────────────────────────────────────────────────────────────

    async def sealed_under(
        self, key_ids: Sequence[bytes] | None, after: bytes, limit: int
    ) -> list[SealedRow]:
        found: list[SealedRow] = []
        for first in SHARDS:
            if len(found) >= limit:
                break
            if after and first < after.hex()[:1]:
                continue
            wanted = None if key_ids is None else list(key_ids)
            fields = {"register": first, "keys": wanted, "after": after, "limit": limit - len(found)}
            keys = (self._keys.shard("v", first),)
            flat = await self._client.script(scripts.SEALED_UNDER, keys, (self._prefix, layout.pack(fields)))
            for value_id, value in zip(flat[::2], flat[1::2], strict=True):
                size = 2 + int.from_bytes(value[:2], "big")
                found.append((value_id, value[2:size], value[size:]))
        return found

    async def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        if self._single:
            groups = [(self._keys.ledger, list(SHARDS))]
        else:
            groups = [(self._keys.shard("v", first), [first]) for first in SHARDS]
        requests = [
            Request(
                scripts.DROP_SEALED,
                (place,),
                (self._prefix, layout.pack({"registers": registers, "keys": list(key_ids)})),
            )
            for place, registers in groups
        ]
        return sum(await self._client.all(requests))

    # ── bytes ────────────────────────────────────────────────────────────────────────────────

    async def identity(self) -> str:
        # A server and its replicas have the same; it is about their data, not about the process.
        found = [(await self._info(server))["master_replid"] for server in self._client.servers]
        return f"valkey {','.join(sorted(found))}/{self._settings.db}"

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        # Only the server's own work is waited for: opening a store finishes an erasure, and mustn't hang.
        until = time.monotonic() + max(timeout_s, _REWRITE_S)
        done: list[str] = []
        waiting: list[str] = []
        unreached: list[str] = list(_UNREACHED)
        servers = self._client.servers
        for number, server in enumerate(servers):
            if progress is not None:
                progress("rewriting the files of the server", number / len(servers))
            try:
                await self._purge_server(server, until, done, waiting, unreached)
            except EverthreadError as error:
                if await self._answers():
                    unreached.append(f"the files of {server.place[0]}:{server.place[1]}: {error}")
                else:
                    raise
        if progress is not None:
            progress("rewriting the files of the server", 1.0)
        return Purged(done=tuple(done), waiting=tuple(waiting), unreached=tuple(unreached))

    async def _answers(self) -> bool:
        """Whether the store can be reached at all: raises otherwise."""
        await self._client.command(self._keys.info, "HGET", self._keys.info, "format")
        return True

    async def _purge_server(
        self, server: AsyncServer, until: float, done: list[str], waiting: list[str], unreached: list[str]
    ) -> None:
        name = f"{server.place[0]}:{server.place[1]}"
        info = await self._info(server)
        if int(info.get("connected_slaves", "0")):
            unreached.append(f"the files of the {info['connected_slaves']} replicas of {name}")
        if info.get("aof_enabled") == "1":
            if await self._rewritten(server, "BGREWRITEAOF", "aof_rewrite", until):
                done.append(f"append-only file of {name} rewritten")
            else:
                waiting.append(
                    f"{name} is still rewriting its append-only file; purge again to see it through"
                )
        if await self._has_snapshot(server, info):
            if await self._rewritten(server, "BGSAVE", "rdb_bgsave", until):
                done.append(f"snapshot of {name} rewritten")
            else:
                waiting.append(f"{name} is still saving its snapshot; purge again to see it through")
        if not done and not waiting:
            done.append(f"{name} keeps no files")

    async def _info(self, server: AsyncServer) -> dict[str, str]:
        return read_info((await self._client.on_server(server, ("INFO",)))[0])

    async def _has_snapshot(self, server: AsyncServer, info: dict[str, str]) -> bool:
        """Whether there is, or may be, a snapshot of an earlier moment."""
        if info.get("rdb_saves", "1") != "0" or info.get("rdb_last_load_keys_loaded", "0") != "0":
            return True
        try:
            ((_, save),) = await self._client.on_server(server, ("CONFIG", "GET", "save"))
        except (EverthreadError, ValueError):
            return True
        return bool(save)

    async def _rewritten(self, server: AsyncServer, verb: str, what: str, until: float) -> bool:
        """Let a server write a file anew: whether that is done in time. One begun before doesn't count."""
        if not await self._idle(server, what, until):
            return False
        await self._client.on_server(server, (verb,))
        if not await self._idle(server, what, until):
            return False
        info = await self._info(server)
        status = info.get("aof_last_bgrewrite_status" if what == "aof_rewrite" else "rdb_last_bgsave_status")
        if status not in (None, "ok"):
            raise UnsupportedError(f"the server couldn't write its file ({verb}: {status}); look at its log")
        return True

    async def _idle(self, server: AsyncServer, what: str, until: float) -> bool:
        while True:
            info = await self._info(server)
            if "1" not in (info.get(f"{what}_in_progress"), info.get(f"{what}_scheduled")):
                return True
            if time.monotonic() >= until:
                return False
            await pause_async(_PAUSE_S)

    async def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        search = ResidueSearch(needles, progress)
        place = f"keys of {self._settings.url}"
        for server in self._client.servers:
            async for keys in self._pages_of_keys(server):
                search.look_into(place, keys)
                search.look_into(place, await self._contents(keys))
            search.look_at_files(server.place[0], await self._files(server))
        return search.found()

    async def _pages_of_keys(self, server: AsyncServer) -> AsyncIterator[list[bytes]]:
        """The keys of this store on a server. No character of the prefix means anything in a pattern."""
        cursor = b"0"
        while True:
            command = "SCAN", cursor, "MATCH", self._prefix + b":*", "COUNT", _KEYS_PAGE
            ((cursor, keys),) = await self._client.on_server(server, command)
            yield keys
            if cursor == b"0":
                return

    async def _contents(self, keys: Sequence[bytes]) -> list[Any]:
        kinds = await self._client.all([Request(None, (key,), ("TYPE", key)) for key in keys])
        pairs = zip(keys, kinds, strict=True)
        return await self._client.all(
            [Request(None, (key,), _READING[kind](key)) for key, kind in pairs if kind in _READING]
        )

    async def _files(self, server: AsyncServer) -> list[str] | None:
        """The files of a server, if it says where they are."""
        try:
            wanted = ("dir", "dbfilename", "appenddirname", "appendfilename")
            answers = await self._client.on_server(server, *(("CONFIG", "GET", name) for name in wanted))
            found = {answer[0].decode(): answer[1].decode() for answer in answers}
        except (EverthreadError, IndexError, UnicodeDecodeError):
            return None
        return server_files(found)


def _read_entry(key_id: bytes, value: bytes) -> ErasedKey:
    """An entry of the erasure ledger: phase, when it was noted, erasure, note."""
    phase, noted, erasure, note = value.split(b" ", 3)
    return ErasedKey(
        key_id=key_id,
        phase=int(phase),
        erasure=bytes.fromhex(erasure.decode()),
        noted_us=int(noted),
        note=note,
    )


# ── the whole store ────────────────────────────────────────────────────────────────────────────────


#: The layout of keys and values. A higher one is left alone.
FORMAT = 1
#: Before these a script could not both look at the clock and write.
_OLDEST = 7

_CONFIG = (
    ("CONFIG", "GET", "appendonly"),
    ("CONFIG", "GET", "appendfsync"),
    ("CONFIG", "GET", "save"),
    ("CONFIG", "GET", "maxmemory-policy"),
)


async def connect(url: str, durability: str, create: bool = True) -> AsyncValkeyBackend:
    """The store at a URL, opened. Without ``create`` none is made: raises :class:`NotFoundError`.

    Raises :class:`UnsupportedError` if ``durability`` is ``"full"`` and the server is known to keep less,
    :class:`StoreUnavailableError`, :class:`AccessError`.
    """
    settings = read_url(url, durability)
    client = AsyncClient(settings)
    try:
        found = await _ask_durability(client)
        # Before anything is written there.
        _check_durability(settings, found)
        await _check_format(client, create)
        return AsyncValkeyBackend(client, found)
    except BaseException:
        await client.close()
        raise


async def _ask_durability(client: AsyncClient) -> Durability:
    info, *config = await client.first_answer(("INFO",), *_CONFIG)
    if isinstance(info, ResponseError):
        if code_of(info) != "NOPERM":
            raise translated(info, client.settings.url)
        facts: dict[str, str] = {}
    else:
        facts = read_info(info)
    _check_version(facts)
    clustered = (
        facts.get("cluster_enabled") == "1" if client.settings.cluster is None else client.settings.cluster
    )
    found = [read_durability(_config(config), facts)]
    if clustered:
        await client.follow_cluster()
        for server in client.servers:
            info, *config = await client.on_server(server, ("INFO",), *_CONFIG)
            found.append(read_durability(_config(config), read_info(info)))
    return worst(found)


def _config(answers: list[Any]) -> dict[str, str] | None:
    if any(isinstance(answer, ResponseError) for answer in answers):
        return None
    found: dict[str, str] = {}
    for answer in answers:
        flat = [each.decode("utf-8", "replace") for each in answer]
        found.update(zip(flat[::2], flat[1::2], strict=True))
    return found


def _check_version(info: dict[str, str]) -> None:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    first = version.partition(".")[0]
    if first.isdigit() and int(first) < _OLDEST:
        raise UnsupportedError(f"the server is {name} {version}; Everthread needs {_OLDEST} or newer")


async def _check_format(client: AsyncClient, create: bool) -> None:
    """Mark a new store, if there may be one, and refuse one that a newer Everthread has made."""
    place = Keys(client.settings.prefix).info
    if create:
        await client.command(place, "HSETNX", place, "format", FORMAT)
    found = await client.command(place, "HGET", place, "format")
    if found is None and not create:
        raise NotFoundError(
            f"there is no store at {client.settings.url}: nothing has the prefix {client.settings.prefix}. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if found is not None and int(found) > FORMAT:
        raise SchemaVersionError(
            f"{client.settings.url} was written by a newer Everthread; upgrade it",
            found=int(found),
            supported=FORMAT,
        )


def _check_durability(settings: Settings, found: Durability) -> None:
    if settings.durability != FULL:
        return
    if found.evicts.startswith("allkeys"):
        raise UnsupportedError(
            f'{settings.url} can\'t keep what durability="full" promises: {found}, or accept it with '
            'durability="process"'
        )
    if found.level == FULL:
        return
    if found.level == UNKNOWN:
        warnings.warn(
            f"{settings.url}: {found}. Whether acknowledged commits survive a power cut can't be told",
            stacklevel=2,
        )
        return
    raise UnsupportedError(
        f'{settings.url} can\'t keep what durability="full" promises: {found}. Let the server do it '
        f'({ADVICE}), or accept it with durability="process"'
    )


class AsyncValkeyBackend(ErasureVerbs):
    """One server, or a cluster. Safe for several threads, tasks, processes and hosts at once."""

    #: The server does nothing else while it takes rows: so many bytes keep it busy for a quarter of a second.
    capabilities = Capabilities(
        durable=True, multi_process=True, backup=False, cold=True, cold_rows_max=1 << 26
    )

    def __init__(self, client: AsyncClient, keeping: Durability) -> None:
        super().__init__(client)
        self.keeping = keeping
        if ASYNC:
            self._blocking: Backend | None = None

    @property
    def url(self) -> str:
        return self._settings.url

    if ASYNC:

        @property
        def blocking(self) -> Backend:
            """The blocking driver, for the one read that can't be awaited. Connects when it is first used."""
            if self._blocking is None:
                from everthread.stores.valkey.sync.client import Client
                from everthread.stores.valkey.sync.store import ValkeyBackend

                client = Client(self._settings)
                client.follow(self._client.places)
                self._blocking = ValkeyBackend(client, self.keeping)
            return self._blocking

        async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
            return await run_in_thread(call, *args)

    async def close(self) -> None:
        await self._client.close()
        if ASYNC and self._blocking is not None:
            self._blocking.close()
        self.signals.close()

    # ── what this store doesn't do ───────────────────────────────────────────────────────────

    async def backup(self, path: str) -> None:
        raise _no_backups()

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise _no_backups()

    async def check(self) -> list[str]:
        """Nothing that only the store as a whole could be asked."""
        return []

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        raise _no_texts()

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        raise _no_texts()

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        raise _no_texts()

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        raise _no_texts()

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        raise _no_texts()

    async def drop_texts(self) -> None:
        """There is nothing to drop."""


def _no_backups() -> UnsupportedError:
    return UnsupportedError(
        "a store on a server isn't backed up or restored from here: copy its RDB snapshot or append-only "
        "files with the server's own tools, or write an archive with store.export() and read it with "
        "store.import_from()"
    )


def _no_texts() -> UnsupportedError:
    return UnsupportedError("this store keeps no index of texts")
