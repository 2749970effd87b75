"""What is known of a LangGraph thread besides its checkpoints: how often it was deleted, and when last; which
checkpoints were taken out; what a name that is a digest stands for. One small cell each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.stores.contract import StaleCell

if TYPE_CHECKING:
    from everthread.threads.aio.store import AsyncThreadStore


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """``generation``: how often the thread was deleted. ``deleted``: a checkpoint id of the moment when it
    was last; older ones belong to what is gone. ``gone``: ids that were taken out, by namespace."""

    generation: int = 0
    deleted: str | None = None
    gone: dict[str, list[str]] = {}


_decode = msgspec.msgpack.Decoder(Entry).decode
_decode_pair = msgspec.msgpack.Decoder(tuple[str, str]).decode
NOTHING = Entry()


class AsyncRegistry:
    """The cells of one store."""

    def __init__(self, store: AsyncThreadStore) -> None:
        self._core = store.core

    async def entry(self, name: str) -> Entry:
        """What is known of the thread whose root namespace has this name."""
        return (await self._read(name))[0]

    async def change(self, name: str, change: Callable[[Entry], Entry]) -> Entry:
        """Replace it, whoever else does so at the same moment."""
        core = self._core
        while True:
            entry, revision = await self._read(name)
            entry = change(entry)
            value = records.compress(msgspec.msgpack.encode(entry))
            try:
                await core.backend.swap(core.space, _cell(name), revision, value, core.runtime.now_us())
            except StaleCell:
                continue
            return entry

    async def _read(self, name: str) -> tuple[Entry, int]:
        core = self._core
        cell = await core.backend.cell(core.space, _cell(name), core.runtime.now_us())
        if cell is None:
            return NOTHING, 0
        try:
            return _decode(records.expand(cell.value, "a cell")), cell.revision
        except msgspec.DecodeError as error:
            raise StateCorruptedError(f"the cell {_cell(name)!r} can't be decoded", where="cell") from error

    async def stands_for(self, name: str) -> tuple[str, str] | None:
        """(thread_id, namespace) behind a name that is a digest."""
        core = self._core
        cell = await core.backend.cell(core.space, _meaning(name), core.runtime.now_us())
        if cell is None:
            return None
        try:
            return _decode_pair(records.expand(cell.value, "a cell"))
        except msgspec.DecodeError as error:
            raise StateCorruptedError(
                f"the cell {_meaning(name)!r} can't be decoded", where="cell"
            ) from error

    async def explain(self, name: str, thread_id: str, namespace: str) -> None:
        """Note what a digest stands for. Doing so again changes nothing."""
        core = self._core
        if await self.stands_for(name) is None:
            value = records.compress(msgspec.msgpack.encode((thread_id, namespace)))
            try:
                await core.backend.swap(core.space, _meaning(name), 0, value, core.runtime.now_us())
            except StaleCell:
                return


def _cell(name: str) -> str:
    return f"adapter:{name}"


def _meaning(name: str) -> str:
    return f"adapter-name:{name}"
