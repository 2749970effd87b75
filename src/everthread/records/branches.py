"""Branches: one incarnation of a thread each, with its fork point; and the marks that other rules rely on.

A branch's identity never changes but for ``deleted``, and is never removed. Two marks of a branch, 8 random
bytes each, are replaced when what a reader relied on has changed: ``shape`` when its rows were replaced or
removed, ``reach`` when something new refers to one of its versions (a fork, a rewind). A write that read rows
before guards the marks that it read: "nothing happened since" is one comparison.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.checked import DAMAGED, CheckedStore, damage
from everthread.records.keys import SEQ_END, Put, decode_number, encode_number, end_of_prefix
from everthread.records.tables import BRANCH, CHILD, MARK, UID
from everthread.stores.interface import Get, Guard, Key, Page

SHAPE = b"shape"
REACH = b"reach"
_CACHED = 4_096
_PAGE = 256

_encode = msgspec.msgpack.encode


class Branch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One incarnation of a thread.

    ``counts`` are the log positions used at the fork point. ``parent_hash`` is the beginning of the hash of
    the version forked from. ``start_hash`` is the hash that the first own version follows. ``root`` is the
    first branch of the family.
    """

    number: int
    uid: bytes
    namespace: str
    name: str
    root: int
    parent: int = 0
    parent_seq: int = 0
    parent_segment: int = 0
    parent_hash: bytes = b""
    start_hash: bytes = b""
    counts: dict[str, int] = {}
    deleted: bool = False


_decode = msgspec.msgpack.Decoder(Branch).decode


def decode_branch(content: bytes) -> Branch:
    try:
        return _decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError("a branch can't be decoded", where="branch") from error


def branch_key(number: int) -> Key:
    return BRANCH.number, 0, number


def put_branch(branch: Branch) -> list[Put]:
    return [
        (branch_key(branch.number), _encode(branch)),
        ((UID.number, 0, branch.uid), encode_number(branch.number)),
    ]


def child_key(parent: int, fork: int) -> Key:
    """Return the key that exists as long as a fork needs its parent's history."""
    return CHILD.number, parent, encode_number(fork)


def mark_key(branch: int, mark: bytes) -> Key:
    return MARK.number, branch, mark


class Branches:
    """Reads identities, children and marks; makes new marks."""

    def __init__(self, store: CheckedStore, random_bytes: Callable[[int], bytes]) -> None:
        self._store = store
        self._random_bytes = random_bytes
        self._known: OrderedDict[int, Branch] = OrderedDict()

    def remember(self, branch: Branch) -> Branch:
        self._known[branch.number] = branch
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return branch

    def forget(self) -> None:
        """Forget what was read, because the whole content has been replaced."""
        self._known.clear()

    async def identity(self, number: int) -> Branch | None:
        """Return a branch whose ``deleted`` may be out of date; a write that relies on it guards HEAD."""
        return self._known.get(number) or await self.get(number)

    async def get(self, number: int) -> Branch | None:
        """Return a branch, deleted ones included; ``None`` if there was never one of this number."""
        known = self._known.get(number)
        if known is not None and known.deleted:
            return known
        if not 0 < number < SEQ_END:
            return None
        (content,) = await self._store.get(branch_key(number))
        return None if content is None else self.remember(decode_branch(content))

    async def get_many(self, numbers: Iterable[int]) -> list[Branch]:
        """Return the identities of branches that are known to exist, in one read at most."""
        wanted = list(numbers)
        missing = [number for number in wanted if number not in self._known]
        found: dict[int, Branch] = {}
        if missing:
            contents = await self._store.get(*map(branch_key, missing))
            for number, content in zip(missing, contents, strict=True):
                if content is None:
                    raise damage(branch_key(number))
                found[number] = self.remember(decode_branch(content))
        return [found.get(number) or self._known[number] for number in wanted]

    async def find(self, uid: bytes) -> Branch | None:
        """Return the branch with this uid, deleted ones included."""
        (value,) = await self._store.get((UID.number, 0, uid)) if uid else (None,)
        return None if value is None else await self.get(decode_number(value))

    async def page(self, after: int, limit: int = _PAGE) -> list[tuple[int, Branch | None]]:
        """Return up to ``limit`` branches by number, after this one; ``None`` for each damaged one."""
        query = Page(BRANCH.number, 0, after + 1, SEQ_END, limit)
        (found,) = await self._store.read([query], mark=True)
        return [(at, None if content is DAMAGED else decode_branch(content)) for at, content in found]

    async def lineage(self, branch: Branch) -> list[tuple[int, int]]:
        """Return ``(number, newest seq visible)`` of all ancestors, the parent first."""
        found: list[tuple[int, int]] = []
        current: Branch | None = branch
        while current is not None and current.parent:
            found.append((current.parent, current.parent_seq))
            current = await self.identity(current.parent)
        return found

    async def children(self, number: int) -> list[int]:
        """Return the forks that need this branch's history."""
        found = await self._store.page_all(CHILD.number, number, b"", end_of_prefix(b""))
        return [decode_number(at) for at, _ in found]

    async def family(self, root: int) -> list[int]:
        """Return the branches of a family that are still needed, the root first."""
        found, level = [root], [root]
        while level:
            queries = [Page(CHILD.number, number, b"", end_of_prefix(b""), 1 << 30) for number in level]
            level = [decode_number(at) for page in await self._store.read(queries) for at, _ in page]
            found += level
        return found

    # ── marks ──

    async def guards(self, *marks: tuple[int, bytes]) -> list[Guard]:
        """Return guards on marks as they are now. Read them before the rows that the write relies on."""
        keys = [mark_key(branch, mark) for branch, mark in marks]
        (values,) = await self._store.read([Get(keys)])
        return [Guard(key, value) for key, value in zip(keys, values, strict=True)]

    def new_mark(self, branch: int, mark: bytes) -> Put:
        return mark_key(branch, mark), self._random_bytes(8)
