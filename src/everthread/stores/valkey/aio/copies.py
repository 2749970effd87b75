"""Backups: everything at one moment, and bringing it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.stores.backup_file import folder_for
from everthread.stores.contract import PutCell
from everthread.stores.valkey import scripts
from everthread.stores.valkey.aio.calls import Ask
from everthread.stores.valkey.aio.erasing import Erasing
from everthread.stores.valkey.backups import Entry, read_backup, write_backup
from everthread.stores.valkey.keys import slot_tag
from everthread.stores.valkey.resp import Argument
from everthread.stores.valkey.restoring import commands, restored

_BATCH = 500


class Copies(Erasing):
    """On one server a backup is what stood there at one moment, and restoring is one transaction. In a
    cluster that holds for each family of threads, each space and each stream by itself."""

    async def backup(self, path: str) -> None:
        folder_for(path)
        start = len(self._prefix) + 1
        found = await self._read_all()
        write_backup(path, [(key[start:], kind, content) for key, kind, content in found])

    async def _read_all(self) -> list[Entry]:
        found = []
        for pattern, key in await self._patterns():
            answer = await self._calls.patiently(Ask(scripts.READ_ALL, (key,), (pattern,)))
            found += as_entries(answer)
        return found

    async def _patterns(self) -> list[tuple[bytes, bytes]]:
        """What to read at once: a pattern of keys, and a key that says where. The prefix has nothing in it
        that a pattern gives a meaning to."""
        if self._whole:
            return [(self._prefix + b":*", self._keys.info)]
        tags = {slot_tag(key) for key in await self._scan()}
        places = [b"%b:{%b}:" % (self._prefix, tag) for tag in sorted(tags)]
        return [(place + b"*", place) for place in places]

    async def _scan(self) -> list[bytes]:
        """The keys of this store, on whichever server."""
        found = []
        for server in self._calls.servers:
            cursor = b"0"
            while True:
                command = "SCAN", cursor, "MATCH", self._prefix + b":*", "COUNT", 1000
                ((cursor, keys),) = await self._calls.on_server(server, command)
                found += keys
                if cursor == b"0":
                    break
        return found

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        prefix = self._prefix + b":"
        entries = [(prefix + key, kind, content) for key, kind, content in read_backup(path)]
        if self._whole:
            read = Ask(scripts.READ_ALL, (self._keys.info,), (prefix + b"*",))
            wipe = Ask(scripts.WIPE, (self._keys.info,), (prefix + b"*",)).command(False)

            def replace(answer: list[Any]) -> list[Sequence[Argument]]:
                made = restored(entries, as_entries(answer), self._keys, cells)
                return [wipe, *(command for entry in made for command in commands(entry))]

            # Whoever notes an erasure meanwhile lets it begin anew: no entry of the ledger may be lost.
            await self._calls.transaction(self._keys.ledger, read, replace)
        else:
            await self._replace(restored(entries, await self._read_all(), self._keys, cells))
        self._spaces.clear()
        self._streams.clear()
        self.signals.ring_all()

    async def _replace(self, entries: Sequence[Entry]) -> None:
        """In a cluster this can't be one transaction: a store in which it was cut short says so."""
        info = self._keys.info
        await self._calls.command(info, "HSET", info, "restoring", "1")
        for pattern, key in await self._patterns():
            if slot_tag(key) != b"root":
                await self._calls.patiently(Ask(scripts.WIPE, (key,), (pattern,)))
        asks = [
            Ask(None, (entry[0],), command)
            for entry in entries
            if entry[0] != info
            for command in commands(entry)
        ]
        for at in range(0, len(asks), _BATCH):
            await self._calls.all(asks[at : at + _BATCH])
        await self._calls.command(info, "HDEL", info, "restoring")

    async def check(self) -> list[str]:
        """What only the store as a whole can be asked: whether a restore was cut short."""
        info = self._keys.info
        if await self._calls.command(info, "HGET", info, "restoring"):
            return ["a restore was cut short: part of its content is missing; restore the backup again"]
        return []


def as_entries(answer: list[Any]) -> list[Entry]:
    """What a script has read."""
    return [(key, kind.decode(), content) for key, kind, content in answer]
