"""Erasure: the ledger, the sealed values of somebody, and getting their bytes out of the server's files.

What was deleted stays in the append-only file and in the last snapshot until both are written anew.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from everthread.errors import EverthreadError, UnsupportedError
from everthread.stores.colours import pause_async
from everthread.stores.contract import ErasedKey, Progress, Purged, Residues, SealedRow
from everthread.stores.valkey import layout, scripts
from everthread.stores.valkey.aio.client import Argument, AsyncServer, Request
from everthread.stores.valkey.aio.upkeep import Upkeep
from everthread.stores.valkey.layout import SHARDS
from everthread.stores.valkey.server_info import ResidueSearch, read_info, server_files

_PAUSE_S = 0.02
#: A server is given so long to write its files anew, however little patience there is.
_REWRITE_S = 3.0
_PAGE = 500
#: What reads everything of a key, by its type.
_READING: dict[bytes, Callable[[bytes], Sequence[Argument]]] = {
    b"hash": lambda key: (b"HGETALL", key),
    b"set": lambda key: (b"SMEMBERS", key),
    b"stream": lambda key: (b"XRANGE", key, b"-", b"+"),
    b"string": lambda key: (b"GET", key),
    b"zset": lambda key: (b"ZRANGE", key, 0, -1),
}
_UNREACHED = ("what the server's host has in swap or in copies of the server's files",)


class Erasure(Upkeep):
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
            command = "SCAN", cursor, "MATCH", self._prefix + b":*", "COUNT", _PAGE
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
