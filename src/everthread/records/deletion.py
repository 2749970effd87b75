"""Deletion of a thread: its name is free, and what no live branch needs is removed with it."""

from __future__ import annotations

import msgspec

from everthread.errors import StoreBusyError
from everthread.records.branches import REACH, SHAPE, Branch, Branches, put_branch
from everthread.records.checked import CheckedStore
from everthread.records.commits import Commits
from everthread.records.entries import referenced
from everthread.records.heads import Head, expiry_at, head_key, index_metadata
from everthread.records.keys import decode_number, encode_name, encode_number, end_of_prefix, only
from everthread.records.logs import LOG_PREFIX
from everthread.records.namespaces import Namespaces
from everthread.records.tables import (
    CHILD,
    COMMIT_KEY,
    DETAIL,
    EXPIRY,
    FINGERPRINT,
    HEAD,
    ITEM,
    KEYFRAME,
    PAST,
    ROW,
)
from everthread.stores.interface import Batch, Guard, Refused, Span

_TRIES = 8


class Deletion:
    """Deletes threads."""

    def __init__(
        self, store: CheckedStore, namespaces: Namespaces, branches: Branches, commits: Commits
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._branches = branches
        self._commits = commits

    async def delete(self, branch: Branch, newest: bytes | None = None) -> bool:
        """Delete a thread durably, in one batch. False if it was deleted before.

        With ``newest`` only if that is its newest hash; False otherwise. History that live forks share stays.
        """
        for _ in range(_TRIES):
            head = await self._commits.head(branch)
            if head is None or newest not in (None, head.hash):
                return False
            batch = await self._plan(branch, head)
            if not isinstance(await self._store.write_one(batch), Refused):
                self._branches.remember(msgspec.structs.replace(branch, deleted=True))
                return True
        raise StoreBusyError("the thread keeps changing: it couldn't be deleted; try again")

    async def _plan(self, branch: Branch, head: Head) -> Batch:
        namespace = await self._namespaces.find(branch.namespace)
        gone = msgspec.structs.replace(branch, deleted=True)
        guards = [Guard(head_key(namespace, branch.name), head.guard)]
        puts = [*put_branch(gone), self._branches.new_mark(branch.number, SHAPE)]
        deletes = [only(HEAD, namespace, encode_name(branch.name))]
        deletes += await self._index_entries(namespace, branch, head)
        # From the branch upwards: a deleted branch is needed as long as a fork needs it.
        current: Branch | None = gone
        cleared = 0
        while current is not None and current.deleted:
            guards += await self._branches.guards((current.number, REACH))
            children = await self._branches.children(current.number)
            if [number for number in children if number != cleared]:
                break
            deletes += await self._content(current.number)
            cleared = current.number
            if current.parent:
                deletes.append(only(CHILD, current.parent, encode_number(cleared)))
            current = await self._branches.get(current.parent) if current.parent else None
        return Batch(guards, puts, deletes)

    async def _index_entries(self, namespace: int, branch: Branch, head: Head) -> list[Span]:
        """Return the deletes of everything by which the thread is looked up."""
        _, deletes = index_metadata(namespace, branch.name, await self._commits.digests(head), {})
        expiry = expiry_at(head, branch.name)
        if expiry is not None:
            deletes.append(only(EXPIRY, namespace, expiry))
        for at, _ in await self._store.page_all(DETAIL.number, branch.number, b"", end_of_prefix(b"")):
            entry = referenced(namespace, branch.name, at)
            if entry is not None:
                deletes.append(entry)
        return deletes

    async def _content(self, number: int) -> list[Span]:
        """Return the deletes of all that a branch holds, besides its identity."""
        deletes = [Span(table.number, number) for table in (ROW, PAST, KEYFRAME, COMMIT_KEY, DETAIL)]
        logs = await self._store.page_all(DETAIL.number, number, LOG_PREFIX, end_of_prefix(LOG_PREFIX))
        for _, value in logs:
            deletes += [Span(table.number, decode_number(value)) for table in (ITEM, FINGERPRINT)]
        return deletes
