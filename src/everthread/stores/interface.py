"""The store contract: ordered, transactional storage of bytes in ten operations.

A store knows no rule of threads and never decodes a value. The rules live once, above it, in
:mod:`everthread.records`.

A key is ``(table, owner, at)``. ``owner`` is the number of what a value belongs to: a branch, a log, a
stream, a namespace, or 0 for the store itself. ``at`` is a number in *numbered* tables and bytes in *named*
ones. Keys are ordered by table, owner and at. A store creates its tables from declarations.

All methods are ``async``. A blocking store (memory, SQLite, files) never suspends in them, so that a
synchronous caller can drive each coroutine to its end in one step; see :func:`run`.

Errors. Every operation may raise ``StoreUnavailableError``, ``StoreBusyError`` or ``StoreClosedError``.
Reading raises ``StateCorruptedError`` if the engine can't read its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from everthread.errors import LimitError

T = TypeVar("T")

At = int | bytes
Key = tuple[int, int, At]

#: The largest ``at`` of a numbered table is ``2**Table.bits - 1``, the largest owner ``2**(63 - bits) - 1``:
#: a
#: store may keep both in one 64-bit integer.
NAME_MAX = 1_100
OWNER_BITS = 31

#: The progress of a long operation: ``(description, fraction done)``.
Progress = Callable[[str, float], None]


class Form(Protocol):
    """Exact conversion of a value to JSON-compatible data and back, for stores that write readable files."""

    def to_json(self, value: bytes) -> Any:
        """Return the readable form, or ``None`` if this value has none."""

    def from_json(self, form: Any) -> bytes:
        """Return exactly the bytes that :meth:`to_json` was given."""


class Table(NamedTuple):
    """A declared table. A store chooses the physical layout by these properties alone."""

    number: int
    name: str
    #: ``at`` is a number from 1 and values have any size. Otherwise ``at`` is 1 to 1,100 bytes and values
    #: are small.
    numbered: bool = False
    #: Bits of ``at`` in a numbered table.
    bits: int = 32
    #: Every put gives the key a new stamp, and a delete leaves a tombstone: :class:`Feed` reads both by
    #: stamp.
    followed: bool = False
    #: Guards may name keys that their batch does not write: a store with row locks must lock exactly these
    #: keys.
    guarded: bool = False
    #: A value may be a file of its own in file-based stores, so that deleting it unlinks the file.
    separate: bool = False
    #: False if values are only ever read by key.
    ordered: bool = True
    form: Form | None = None


# ── reading ──


class Get(NamedTuple):
    """The values of these keys; ``None`` for each absent one."""

    keys: Sequence[Key]


class Page(NamedTuple):
    """Up to ``limit`` pairs ``(at, value)`` of one owner with ``start <= at < stop``."""

    table: int
    owner: int
    start: At
    stop: At
    limit: int
    reverse: bool = False


class Feed(NamedTuple):
    """Up to ``limit`` triples ``(stamp, at, value)`` of a followed table and owner, oldest change first.

    Each key appears once, under its newest stamp, if that is greater than ``after`` (``b""``: all).
    ``value`` is ``None`` for a deleted key. A page read forwards is final: nothing appears later before its
    end. In reverse the newest change comes first, and stamps are smaller than ``after`` (``b""``: all).
    """

    table: int
    owner: int
    after: bytes
    limit: int
    reverse: bool = False


Query = Get | Page | Feed


# ── writing ──


class Guard(NamedTuple):
    """A condition on a key: its value starts with ``prefix``. ``None``: it is absent. ``b""``: it exists."""

    key: Key
    prefix: bytes | None


class Span(NamedTuple):
    """All keys of one owner with ``start <= at < stop``; ``None`` means no bound on that side."""

    table: int
    owner: int
    start: At | None = None
    stop: At | None = None


class Append(NamedTuple):
    """Values that get the numbers following the owner's highest one, without gaps and in commit order.

    ``names[i]`` lists names under which value ``i`` is also entered into ``index_table`` (a named table, same
    owner): the ``at`` of each entry is the name followed by the number as 8 big-endian bytes; its value is
    empty. A deleted highest number is given out again; callers who must not reuse numbers keep the
    highest one as an empty value.
    """

    table: int
    owner: int
    values: Sequence[bytes]
    index_table: int = 0
    names: Sequence[Sequence[bytes]] = ()


class Trim(NamedTuple):
    """Remove tombstones with stamps up to this one. Later stamps still never repeat an earlier one."""

    table: int
    owner: int
    up_to: bytes


class Batch(NamedTuple):
    """A write that is applied completely or not at all: guards, then deletes, then puts, then append.

    A key is put at most once. All owners belong to one partition.
    """

    guards: Sequence[Guard] = ()
    puts: Sequence[tuple[Key, bytes]] = ()
    deletes: Sequence[Span] = ()
    append: Append | None = None
    trims: Sequence[Trim] = ()
    #: ``(owner, milliseconds since 1970 or None)``: a hint for stores that expire keys themselves.
    expiries: Sequence[tuple[int, int | None]] = ()
    #: False: visible to every reader at once, but a power cut may lose it, with all that followed; never
    #: torn.
    durable: bool = True
    #: True: can be rebuilt from earlier writes (compaction, keyframes), so a store may keep it in an index
    #: alone.
    derived: bool = False
    #: The namespace's number, for row-level security only.
    namespace: int = 0
    #: The cluster partition that holds all its keys.
    partition: int = 0


class Refused(NamedTuple):
    """The first guard that failed, and the value found there. Nothing of the batch was written."""

    guard: Guard
    value: bytes | None


#: The outcome of a batch: a refusal, or the number of the first appended value (0 if nothing was appended).
Outcome = Refused | int


# ── reports ──


class Purged(NamedTuple):
    """The result of a purge, in words for people.

    ``waiting`` names what delayed it and ends by itself (an open reader), ``unreachable`` the copies that the
    store can't reach (replicas, archives).
    """

    done: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


class Residue(NamedTuple):
    """The places a byte scan read ``(place, bytes)``, hits ``(place, count)``, and what it couldn't read."""

    searched: tuple[tuple[str, int], ...] = ()
    hits: tuple[tuple[str, int], ...] = ()
    unreachable: tuple[str, ...] = ()


class Info(NamedTuple):
    """Fixed properties of an open store."""

    #: The address without secrets.
    url: str
    #: memory, sqlite, files, postgres or valkey.
    kind: str
    #: Identifies the file, folder, database or data set, however its URL is spelled.
    identity: str
    #: Acknowledged writes survive the end of the process.
    durable: bool = True
    #: Several processes may open it at once.
    shared: bool = True
    #: Every key of a batch lives in one of this many partitions; 1 except on a cluster.
    partitions: int = 1
    #: Keys expire by ``Batch.expiries``.
    expires: bool = False
    #: Names of the optional operations that this store has: backup, text_index, vacuum, reserve, show.
    optional: frozenset[str] = frozenset()


class Store(Protocol):
    """The ten operations."""

    @property
    def info(self) -> Info: ...

    async def read(
        self, queries: Sequence[Query], namespace: int = 0, partition: int = 0
    ) -> tuple[list[list[Any]], int]:
        """Answer all queries as of one moment, in one round trip.

        Returns one list per query, in their order, and the store's clock in microseconds since 1970. An
        unknown owner has no values. May be repeated.
        """
        ...

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch on its own terms, in order, with one sync and one round trip per partition.

        A refused batch does not affect the others. Everything acknowledged is durable when this returns,
        unless its batch says otherwise. Raises ``StorageWriteError`` when the outcome is unknown: each batch
        is then stored completely or not at all, and the caller reads to find out which. Don't repeat it
        blindly: guards make a repetition safe, an append has none. Raises ``LimitError``, and writes none of
        the batches, if a key that is put or appended is outside the range of its table.
        """
        ...

    async def wait(
        self, keys: Mapping[Key, bytes | None], feeds: Mapping[tuple[int, int], bytes], timeout_s: float
    ) -> bool:
        """Wait until the value of one of these keys differs, or a feed has a newer stamp.

        ``keys`` maps a key to the value last seen, ``feeds`` maps ``(table, owner)`` to the last stamp seen.
        Returns False after ``timeout_s``. May return True without a change. May be repeated.
        """
        ...

    async def walk(self, table: int, after: tuple[int, At] | None, limit: int) -> list[tuple[int, At, bytes]]:
        """Return up to ``limit`` triples ``(owner, at, value)`` of a table over all owners, in key order.

        For verify, export and salvage. Pages are not of one moment. May be repeated.
        """
        ...

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        """Remove the bytes that deleted and replaced values left in the store's files.

        Takes time in proportion to the store. Waits up to ``timeout_s`` for readers that keep old bytes
        alive, then reports them. Repeating it finishes it.
        """
        ...

    async def find_residue(self, samples: Sequence[bytes], progress: Progress | None = None) -> Residue:
        """Search every file of the store for these byte strings (at least 16 bytes each), live or free."""
        ...

    async def check(self) -> list[str]:
        """Return what the engine finds wrong with its own files and indexes, one sentence each."""
        ...

    async def usage(self, owner: int | None) -> Mapping[str, tuple[int, int]]:
        """Return ``table name -> (values, bytes)`` of one owner, or of the whole store, for every table.

        Bytes are those of the values and, in named tables, of their ``at``; deleted keys don't count.
        For the whole store also ``"files" -> (number, bytes)`` and ``"free" -> (0, bytes)`` where they apply.
        """
        ...

    async def flush(self) -> None:
        """Make everything acknowledged so far durable, whatever its batch said.

        Raises ``UnsupportedError`` where the store can't promise that.
        """
        ...

    async def close(self) -> None:
        """Release everything. Repeating it does nothing."""
        ...


def check_key(table: Table, owner: int, at: At) -> None:
    """Raise ``LimitError`` unless a value may be stored under this key."""
    if isinstance(at, int):
        if table.numbered and at > 0 and not at >> table.bits and not owner >> 63 - table.bits:
            return
    elif not table.numbered and 0 < len(at) <= NAME_MAX and not owner >> OWNER_BITS:
        return
    name = f"number {at}" if isinstance(at, int) else f"a name of {len(at)} bytes"
    raise LimitError(
        f"{name} of owner {owner} is outside the range of the table {table.name!r}: numbers have up to "
        f"{table.bits} bits, names 1 to {NAME_MAX} bytes; use a smaller one"
    )


def holds(guard: Guard, value: bytes | None) -> bool:
    """Return True if ``value``, as stored under the guard's key, satisfies it."""
    if guard.prefix is None:
        return value is None
    return value is not None and value.startswith(guard.prefix)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine whose awaits all end in a blocking store; they never suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking store suspended: use open_async for a store with network waits")
