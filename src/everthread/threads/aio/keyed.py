"""Versions found and made by a key of their own, for adapters: the newest version that carries a key counts.

A commit key makes a commit happen once. Here it is the name that a framework gave to a state: it may write
that state again, on any branch, and asks for it by name later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.errors import ConflictError, VersionPrunedError
from everthread.threads.aio.core import key_hash
from everthread.threads.aio.keys import KeyFinder
from everthread.threads.aio.landing import Landed
from everthread.threads.aio.writing import write, write_rewind
from everthread.threads.colours import ASYNC
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AsyncThread


async def version_under(thread: AsyncThread, key: str) -> Version | None:
    """The newest version of a thread, on whatever branch, that carries a key; ``None`` if none does, or if
    it has been pruned."""
    await thread._load()
    line, memo = thread._line, thread._memo
    if line is None or memo is None:
        return None
    if memo.version.key == key:
        return memo.version
    for owner, seq in await KeyFinder(thread.core, line, memo).entries(key_hash(b"key", key)):
        try:
            return (await thread.core.reader.version(owner, seq))[0]
        except VersionPrunedError:
            continue
    return None


async def commit_under(thread: AsyncThread, key: str, metadata: Mapping[str, Any]) -> Version:
    """Make what is pending a version that carries a key, whether or not another one does.

    Raises :class:`ConflictError` if another writer was first.
    """
    await thread._load()
    if ASYNC:
        await thread._before_commit()
    key = check_name(key, "key")
    try:
        return await write(thread, metadata=metadata, key=key, key_hash=key_hash(b"key", key))
    except Landed as landed:
        made = landed.version
        if made.key == key and not thread._dirty:
            return made
        raise ConflictError(
            f"{thread.name!r} stands on {made}, whose answer had been lost; do it again from there",
            expected=None,
            actual=made,
        ) from None


async def rewind_noted(thread: AsyncThread, version: Version, metadata: Mapping[str, Any]) -> Version:
    """Go back to an earlier version, as ``rewind()`` does, with metadata that say what for."""
    thread._require_clean("rewind()")
    line, memo = thread._require()
    reader = thread.core.reader
    owner = await reader.owner(line, version.seq)
    loaded = await reader.load(owner, version.seq)
    try:
        return await write_rewind(thread, line, memo, owner, version, loaded, metadata)
    except Landed as landed:
        raise ConflictError(
            f"{thread.name!r} stands on {landed.version}, whose answer had been lost; do it again from there",
            expected=None,
            actual=landed.version,
        ) from None
