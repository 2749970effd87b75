"""Agreement of the feed and of everything by which threads are looked up with the threads themselves.

Every entry is written in the batch of the commit that it follows from. A disagreement is damage or a defect,
so it is reported in words and nothing is repaired here. Other processes may write meanwhile: an entry is
compared with a head that was read in the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.branches import Branch, branch_key, decode_branch
from everthread.records.checked import DAMAGED as UNREADABLE
from everthread.records.checked import CheckedStore, damage
from everthread.records.entries import REFERENCE, entry_thread, reference_of, referenced
from everthread.records.heads import (
    DIGEST_BYTES,
    Head,
    decode_digests,
    decode_head,
    detail_key,
    expiry_at,
    metadata_at,
)
from everthread.records.keys import SEQ_END, decode_name, encode_name, end_of_prefix
from everthread.records.namespaces import Namespaces
from everthread.records.rows import decode_row
from everthread.records.tables import BRANCH, COMMIT_KEY, DETAIL, ENTRY, EXPIRY, HEAD, METADATA, ROW
from everthread.stores.contract import DAMAGED, Row
from everthread.stores.interface import At, Feed, Get, Key, Page, Query

_PAGE = 256
_TRIES = 8

_decode_seqs = msgspec.msgpack.Decoder(list[int]).decode


class _Moment(NamedTuple):
    """A head (``None``: there is no such thread), and the answers that were read together with it."""

    head: Head | None
    answers: list[list[Any]]


class Agreement:
    """Compares threads with their entries, and entries with their threads."""

    def __init__(self, store: CheckedStore, namespaces: Namespaces) -> None:
        self._store = store
        self._namespaces = namespaces

    async def check(self) -> list[str]:
        """Return every disagreement, one sentence each.

        Takes time in proportion to the number of threads and entries, and memory for the names of one
        namespace's threads.
        """
        checks = {
            HEAD.number: self._head,
            BRANCH.number: self._branch,
            METADATA.number: self._metadata,
            EXPIRY.number: self._expiry,
            ENTRY.number: self._entry,
            COMMIT_KEY.number: self._commit_key,
        }
        problems: list[str] = []
        for table, check in checks.items():
            problems += await self._each(table, check)
        for namespace in await self._namespaces.names():
            problems += await self._feed(await self._namespaces.find(namespace))
        return list(dict.fromkeys(problems))

    async def _each(self, table: int, check: Callable[[Key], Any]) -> list[str]:
        problems: list[str] = []
        after: tuple[int, At] | None = None
        while page := await self._store.walk(table, after, _PAGE):
            for owner, at, _ in page:
                try:
                    problems += await check((table, owner, at))
                except StateCorruptedError as error:
                    problems.append(str(error))
            after = page[-1][:2]
        return problems

    async def _moment(
        self, namespace: int, name: bytes, queries: Callable[[Head | None], Sequence[Query]]
    ) -> _Moment:
        """Return a thread's head with the answers to the queries that follow from it, as of one moment.

        A thread that changes all the time is not compared: the moment then has no answers.
        """
        key = (HEAD.number, namespace, name)
        (content,) = await self._store.get(key)
        for _ in range(_TRIES):
            head = None if content is None else decode_head(content)
            (again,), *answers = await self._store.read([Get([key]), *queries(head)], mark=True)
            if again is UNREADABLE:
                raise damage(key)
            if again == content:
                return _Moment(head, answers)
            content = again
        return _Moment(None, [])

    # ── from the thread to its entries ──

    async def _head(self, key: Key) -> list[str]:
        """Compare a thread with its branch, its newest row and the entries that it must have."""
        _, namespace, at = key
        assert isinstance(at, bytes)
        name = decode_name(at)

        def first(head: Head | None) -> list[Query]:
            if head is None:
                return []
            references = Page(DETAIL.number, head.branch, REFERENCE, end_of_prefix(REFERENCE), SEQ_END)
            return [Get([detail_key(head.branch)]), references]

        before = await self._moment(namespace, at, first)
        if before.head is None:
            return []
        expected = _expected(namespace, name, before)

        def second(head: Head | None) -> list[Query]:
            newest = Page(ROW.number, before_branch, 1, SEQ_END, 1, True)
            return [Get([branch_key(before_branch)]), newest, Get(list(expected))]

        before_branch = before.head.branch
        now = await self._moment(namespace, at, second)
        if now.head != before.head:
            # It has changed since, and its entries with it: the commit that did has written them anew.
            return []
        (branch,), rows, entries = now.answers
        problems = _compare_branch(name, before.head, branch, [decode_row(*row) for row in rows])
        missing = [what for what, found in zip(expected.values(), entries, strict=True) if found is None]
        return problems + [f"thread {name!r} isn't found by {what}: the entry is missing" for what in missing]

    # ── from an entry to its thread ──

    async def _branch(self, key: Key) -> list[str]:
        (content,) = (await self._store.read([Get([key])], mark=True))[0]
        if content is None or content is UNREADABLE:
            # A damaged identity is listed with the branches that can't be read.
            return []
        branch = decode_branch(content)
        namespace = await self._namespaces.find(branch.namespace)
        now = await self._moment(namespace, encode_name(branch.name), lambda head: [Get([key])])
        if not now.answers or now.answers[0] != [content] or branch.deleted:
            return []
        if now.head is None:
            return [f"thread {branch.name!r} isn't found by its name: branch {branch.number} is live"]
        if now.head.branch != branch.number:
            return [f"the name {branch.name!r} leads to branch {now.head.branch}, not to {branch.number}"]
        return []

    async def _metadata(self, key: Key) -> list[str]:
        _, namespace, at = key
        assert isinstance(at, bytes)

        def queries(head: Head | None) -> list[Query]:
            return [Get([key]), Get([] if head is None else [detail_key(head.branch)])]

        now = await self._moment(namespace, at[DIGEST_BYTES:], queries)
        if _is_gone(now):
            return []
        name = decode_name(at[DIGEST_BYTES:])
        if now.head is not None and at[:DIGEST_BYTES] in _digests(now.head, now.answers[1]).values():
            return []
        return [f"thread {name!r} is found by metadata that it doesn't have ({at[:DIGEST_BYTES].hex()})"]

    async def _expiry(self, key: Key) -> list[str]:
        _, namespace, at = key
        assert isinstance(at, bytes)
        now = await self._moment(namespace, at[8:], lambda head: [Get([key])])
        name = decode_name(at[8:])
        if _is_gone(now) or (now.head is not None and at == expiry_at(now.head, name)):
            return []
        return [f"thread {name!r} has an expiry entry of another time than its own"]

    async def _entry(self, key: Key) -> list[str]:
        _, namespace, at = key
        assert isinstance(at, bytes)
        name = entry_thread(at)

        def queries(head: Head | None) -> list[Query]:
            return [Get([key]), Get([] if head is None else [reference_of(head.branch, at)])]

        now = await self._moment(namespace, encode_name(name), queries)
        if _is_gone(now):
            return []
        kind = decode_name(at.partition(b"\0")[0])
        if now.head is None:
            return [f"an entry of kind {kind!r} belongs to thread {name!r}, which doesn't exist"]
        if now.answers[1] == [None]:
            return [f"an entry of kind {kind!r} of thread {name!r} isn't listed with the thread"]
        return []

    async def _commit_key(self, key: Key) -> list[str]:
        (content,) = await self._store.get(key)
        if content is None:
            return []
        _, branch, at = key
        assert isinstance(at, bytes)
        seqs = _decode_seqs(content)
        pages: list[Query] = [Page(ROW.number, branch, seq, SEQ_END, 1) for seq in seqs]
        (again,), *found = await self._store.read([Get([key]), *pages], mark=True)
        if again != content:
            return []
        problems = []
        for seq, rows in zip(seqs, found, strict=True):
            row = decode_row(*rows[0]) if rows else None
            if row is None or (row.first > seq and row.kind != DAMAGED):
                problems.append(
                    f"commit key {at.hex()} names version {seq} of branch {branch}, which doesn't exist"
                )
        return problems

    # ── the feed ──

    async def _feed(self, namespace: int) -> list[str]:
        """Compare the feed of a namespace with its threads."""
        problems: list[str] = []
        seen: set[bytes] = set()
        cursor = b""
        query = Feed(HEAD.number, namespace, cursor, _PAGE)
        while page := (await self._store.read([query], mark=True))[0]:
            for stamp, at, _ in page:
                if stamp <= cursor:
                    problems.append(f"the feed repeats or goes back at thread {decode_name(at)!r}")
                cursor = max(cursor, stamp)
                seen.add(at)
            query = query._replace(after=cursor)
        start = b""
        while names := await self._names(namespace, start):
            missing = [at for at in names if at not in seen and await self._is_missing(namespace, at, cursor)]
            problems += [f"thread {decode_name(at)!r} is missing from the feed" for at in missing]
            start = names[-1] + b"\0"
        return problems

    async def _names(self, namespace: int, start: bytes) -> list[bytes]:
        query = Page(HEAD.number, namespace, start, end_of_prefix(b""), _PAGE)
        (page,) = await self._store.read([query], mark=True)
        return [at for at, _ in page]

    async def _is_missing(self, namespace: int, at: bytes, cursor: bytes) -> bool:
        """Return True if a thread exists and the rest of the feed doesn't have it either."""
        later = Feed(HEAD.number, namespace, cursor, SEQ_END)
        (head,), rest = await self._store.read([Get([(HEAD.number, namespace, at)]), later], mark=True)
        return head is not None and at not in {name for _, name, _ in rest}


def _is_gone(now: _Moment) -> bool:
    """Return True if the entry that was looked at no longer exists."""
    return not now.answers or now.answers[0] == [None]


def _digests(head: Head, detail: Sequence[Any]) -> dict[str, bytes]:
    if head.digests is not None:
        return decode_digests(head.digests)
    content = detail[0]
    if content is UNREADABLE:
        raise damage(detail_key(head.branch))
    return decode_digests(content or b"")


def _expected(namespace: int, name: str, thread: _Moment) -> dict[Key, str]:
    """Return the key of every entry that a thread must have, and what the thread is found by with it."""
    assert thread.head is not None
    detail, references = thread.answers
    expected: dict[Key, str] = {
        (METADATA.number, namespace, metadata_at(digest, name)): f"its metadata {field!r}"
        for field, digest in _digests(thread.head, detail).items()
    }
    expiry = expiry_at(thread.head, name)
    if expiry is not None:
        expected[EXPIRY.number, namespace, expiry] = "its expiry"
    for at, _ in references:
        span = referenced(namespace, name, at)
        assert span is not None
        kind = decode_name(at[len(REFERENCE) :].partition(b"\0")[0])
        expected[ENTRY.number, namespace, span.start or b""] = f"its entry of kind {kind!r}"
    return expected


def _compare_branch(name: str, head: Head, content: Any, rows: Sequence[Row]) -> list[str]:
    if content is UNREADABLE:
        return []
    if content is None:
        return [f"thread {name!r} is branch {head.branch}, which doesn't exist"]
    branch = decode_branch(content)
    problems = []
    if branch.deleted or branch.name != name:
        state = "was deleted" if branch.deleted else f"has the name {branch.name!r}"
        problems.append(f"the name {name!r} leads to branch {head.branch}, which {state}")
    return problems + _compare_newest(name, head, branch, rows)


def _compare_newest(name: str, head: Head, branch: Branch, rows: Sequence[Row]) -> list[str]:
    newest = rows[0] if rows else Row(branch.parent_seq, 0, 0, branch.start_hash, b"")
    if newest.seq != head.seq:
        return [f"thread {name!r} has version {newest.seq} as its newest, but its head says {head.seq}"]
    if newest.hash != head.hash and newest.kind != DAMAGED:
        return [f"thread {name!r} has another hash in its head than in its newest version {head.seq}"]
    return []
