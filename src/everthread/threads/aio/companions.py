"""A thread beside a thread: no rewind moves it, a fork takes it along as it stands, delete takes it too.

It holds what must outlive every rewind, such as the ledger of effects. It lives in a space of its own that no
public name reaches, under the uid of the line it belongs to.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import EverthreadError
from everthread.stores.contract import Line

if TYPE_CHECKING:
    from everthread.threads.aio.core import Core
    from everthread.threads.aio.thread import AsyncThread

JOURNAL = "journal"


def beside(core: Core, kind: str = JOURNAL) -> Core:
    """The same store, in the space of the companions of this kind."""
    other = copy.copy(core)
    # NUL keeps public names out.
    other.space = f"{core.space}\0{kind}"
    return other


async def take_along(source: AsyncThread, line: Line, uid: bytes) -> AsyncThread | None:
    """Fork the companion of ``line`` for the line ``uid``, which isn't there yet.

    Before the fork itself, so that no fork is ever without what its source had: a crash in between leaves a
    companion that nobody reaches, nothing worse.
    """
    core = beside(source._core)
    if await core.backend.find(core.space, line.uid.hex()) is None:
        return None
    companion = type(source)(core, line.uid.hex())
    await companion._load()
    return await companion.fork(uid.hex())


async def remove(thread: AsyncThread, line: Line) -> None:
    """Delete the companion of a line that has been deleted."""
    core = beside(thread._core)
    if await core.backend.find(core.space, line.uid.hex()) is not None:
        with suppress(EverthreadError):
            companion = type(thread)(core, line.uid.hex())
            await companion._load()
            await companion.delete()
