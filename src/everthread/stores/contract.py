"""What a store must do, and the records it keeps.

The verbs are coarse on purpose: each is one round trip on a network store and one transaction on any
store. A store knows lines, rows, chunks and sealed values; it doesn't know what a document or a
message is, and it never decodes a value. Beside lines it keeps *cells*, small registers that are replaced by
compare-and-set (leases, heartbeats, positions), and *streams* of events, which many writers extend without
ever being in each other's way.

Words. A *line* is one incarnation of a thread: a growing sequence of rows, numbered by ``seq``. A fork
is a line whose parent is a version of another line. A *row* holds one record (DELTA, REWIND), several
folded records (PACK), stands for records that were pruned (PRUNED) or marks the end of a deleted line (SEAL).
The newest row of a line is never part of a larger pack, so that a head is read with one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from everthread.errors import UnsupportedError
from everthread.history.packs import Chunk, Pack
from everthread.stores.signals import Signals

# ── what a store keeps ──

DELTA = 0
PACK = 1
REWIND = 2
SEAL = 3
#: What stands there isn't what was written: no body, and a seq that needn't be true. Never stored.
DAMAGED = 4
#: Stands for versions that were pruned: their digests, and the heads that something still refers to.
PRUNED = 5
#: Stands for versions that are in an archive, and says where: see stores/cold.
COLD = 6

NO_TAGS: Mapping[str, bytes] = MappingProxyType({})

#: The seq of a seal: no version can follow it.
SEAL_SEQ = 0xFFFF_FFFF

#: (value id, the key ids one after another, sealed bytes): a personal value, kept out of line. Without bytes
#: it is in the store already, and only its keys are looked at.
SealedRow = tuple[bytes, bytes, bytes]

#: The largest seq of an event: room for a thousand events a second over two years, in one stream.
EVENT_SEQ_MAX = (1 << 36) - 1


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a thread. Everything but ``id``, ``root`` and ``parent`` survives a copy.

    ``counts`` are the log positions used at the fork point; ``parent_hash`` is the beginning of the hash of
    the version forked from, as packs keep it; ``start_hash`` is what the first own version builds on.
    """

    id: int
    uid: bytes
    space: str
    name: str
    root: int
    parent: int = 0
    parent_seq: int = 0
    parent_segment: int = 0
    parent_hash: bytes = b""
    start_hash: bytes = b""
    counts: dict[str, int] = {}
    deleted: bool = False


class Row(msgspec.Struct, frozen=True):
    """One stored row. For a PACK ``first`` … ``seq`` are folded, for a PRUNED they are gone; ``hash`` belongs
    to ``seq``.

    ``body`` may be empty where a reader asked only for what replaying needs (``net``, ``keyframe``).
    """

    seq: int
    first: int
    kind: int
    hash: bytes
    body: bytes
    net: bytes | None = None
    keyframe: bytes | None = None


class NewRow(msgspec.Struct, frozen=True):
    """A row to append. ``previous`` is the hash of the version before it, ``key`` the hash of its commit or
    step key; ``guard`` is a root, none of whose folded versions may carry that key already; ``source`` is
    (line, seq) of the version that a REWIND goes back to. A large commit comes *detached*: its items in
    chunks, its body without them. ``ttl_us`` is how long the line lives if no other row follows, 0 for ever:
    a store that can removes it by itself some time after that, besides what a living fork reaches."""

    seq: int
    kind: int
    previous: bytes
    hash: bytes
    body: bytes
    key: bytes | None = None
    chunks: tuple[Chunk, ...] = ()
    sealed: tuple[SealedRow, ...] = ()
    guard: int = 0
    source: tuple[int, int] | None = None
    ttl_us: int = 0
    #: The time and the encoded metadata of the record. 0: read them from the body.
    at_us: int = 0
    metadata: bytes | None = None


class Fold(msgspec.Struct, frozen=True):
    """A pack, the hash of its last version, and a keyframe as of its end, keys (hash, seq) and tags.

    ``beside`` says that the row before it is known to stay as it is, because it can't be read.
    """

    pack: Pack
    hash: bytes
    keyframe: bytes | None = None
    keys: tuple[tuple[bytes, int], ...] = ()
    tags: Mapping[str, bytes] = {}
    beside: bool = False


class Prune(msgspec.Struct, frozen=True):
    """``rows`` take the place of ``old``, rows as they were read, one after another, for the same versions.

    ``dropped`` are (log, start, stop): positions of the line that nobody holds any more. ``chunks`` take the
    place of what was dropped, now or before. ``seen`` are (line, seq): every line from which these versions
    can be reached, and its newest version that was considered. ``records`` are (seq, bytes) of versions whose
    content is another one in ``rows``, items included, for a store that keeps each by itself. ``held`` are
    chunks as they were read: where a store has a cold tier, nothing happens if they aren't those any more.
    """

    old: tuple[Row, ...] = ()
    rows: tuple[Row, ...] = ()
    dropped: tuple[tuple[str, int, int], ...] = ()
    seen: tuple[tuple[int, int], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    records: tuple[tuple[int, bytes], ...] = ()
    held: tuple[Chunk, ...] = ()


class Found(msgspec.Struct, frozen=True):
    """A live thread and its newest row (``None`` for a fork that has no version of its own yet).

    ``before`` is the hash of the row before the newest one, ``None`` if that is the line's first. ``holed``:
    the store has noticed, without being asked to look, that a row below the newest one can't be read.
    """

    line: Line
    newest: Row | None
    before: bytes | None = None
    holed: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A cell as it was read: when it was written and when it was read, both by the store's clock.

    A store without a clock of its own takes the caller's (``now_us``).
    """

    value: bytes
    revision: int
    written_us: int
    read_us: int


class PutCell(msgspec.Struct, frozen=True):
    """A cell that is to stand in a store whatever a restored backup says of it."""

    space: str
    name: str
    value: bytes
    written_us: int


class NewEvent(msgspec.Struct, frozen=True):
    """An event to emit. ``at_us`` is what its writer's clock said: it needn't follow the order of events."""

    at_us: int
    type: str
    agent: str | None
    body: bytes


class StoredEvent(msgspec.Struct, frozen=True):
    """An event of a stream; ``seq`` is its place in it."""

    seq: int
    at_us: int
    type: str
    agent: str | None
    body: bytes


class StaleWrite(Exception):  # noqa: N818 - a signal between layers, callers see ConflictError
    """The line has a row at or after the one to append; ``newest`` is that row, ``sealed`` if deleted."""

    def __init__(self, newest: Row | None, sealed: bool = False) -> None:
        super().__init__("stale")
        self.newest = newest
        self.sealed = sealed


class KeyKnown(Exception):  # noqa: N818 - a signal between layers, callers see the version that has it
    """A folded version in the family that ``guard`` names carries the key already."""


class SourceGone(Exception):  # noqa: N818 - a signal between layers, callers see ThreadDeletedError
    """The thread to fork from was deleted meanwhile."""


class VersionGone(Exception):  # noqa: N818 - a signal between layers, callers see VersionPrunedError
    """The version to fork from, or to rewind to, has been pruned meanwhile."""


class NameTaken(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """A live line of this name exists already."""


class StaleCell(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """The cell isn't at the expected revision; ``actual`` is what it holds, ``None`` if it is absent."""

    def __init__(self, actual: Cell | None) -> None:
        super().__init__("stale")
        self.actual = actual


class KeyErased(Exception):  # noqa: N818 - a signal between layers, callers see ErasedError
    """A row seals under keys that stand in the erasure ledger; ``key_ids`` are these."""

    def __init__(self, key_ids: frozenset[bytes]) -> None:
        super().__init__("erased")
        self.key_ids = key_ids


# ── erasures ──
# What a store remembers of erasures, and what it says about the bytes that may be left of somebody.
#
# The *erasure ledger* lists the ids of keys that were destroyed, or are about to be, and how far each
# erasure has come. It knows no names. It outlives everything else: a restored backup is merged with it, a
# phase never goes back while the content stays, and no entry is ever removed. A store takes nothing that is
# sealed under a key of its ledger.


#: The phases of an erasure, in their order: the key is about to be destroyed, has been, the sealed values are
#: deleted, their bytes are gone from the files as well, and somebody has looked for them in vain.
NOTED, DESTROYED, DELETED, PURGED, FINISHED = 1, 2, 3, 4, 5

#: Told now and then by what takes long: what is being done, and which part of it is done (0 … 1).
Progress = Callable[[str, float], None]


class ErasedKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key in the ledger. ``erasure`` is the same for keys that are erased together; ``note`` belongs to
    who erases, and is of use until it is finished."""

    key_id: bytes
    phase: int
    erasure: bytes = b""
    noted_us: int = 0
    note: bytes = b""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge came to. ``waiting`` says what kept it from being complete and passes by itself, such as
    readers; ``unreached`` which copies it can't get at, such as replicas; ``replaced`` where rows that
    something else took the place of leave their bytes; sealed values never stood there."""

    done: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class Residues(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store has looked for bytes (place, how many bytes there are), where it found some (place, how
    often), and where it couldn't look."""

    looked: tuple[tuple[str, int], ...] = ()
    hits: tuple[tuple[str, int], ...] = ()
    unreached: tuple[str, ...] = ()


def merged_erasure(known: ErasedKey | None, new: ErasedKey) -> ErasedKey:
    """One entry in the place of two: the later phase with its note, and what was known first of the rest."""
    if known is None:
        return new
    if new.phase < known.phase:
        return known
    return msgspec.structs.replace(known, phase=new.phase, note=new.note)


def erasure_after_restore(present: ErasedKey, restored: ErasedKey | None) -> ErasedKey:
    """The entry after a backup took the place of the content: whatever that holds has to be erased again."""
    if restored is not None and restored.phase == FINISHED:
        return restored
    return msgspec.structs.replace(present, phase=min(present.phase, DESTROYED), note=b"")


def split_keys(joined: bytes) -> list[bytes]:
    """The key ids of a sealed row, which stand there one after another."""
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


# ── sizes ──
# What a store says about the room that it takes up.


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a line takes up: its own versions, those that are left and those that were pruned, and bytes."""

    versions: int = 0
    pruned: int = 0
    records: int = 0
    packs: int = 0
    keyframes: int = 0
    chunks: int = 0
    tombstones: int = 0


def line_usage(rows: Sequence[tuple[int, int, int, int]], chunks: int) -> Usage:
    """What a line takes up, of the rows of each kind (versions, bytes, bytes of keyframes) and its chunks."""
    by_kind = {kind: (versions, size) for kind, versions, size, _ in rows}
    nothing = (0, 0)
    singles = [by_kind.get(kind, nothing) for kind in (DELTA, REWIND)]
    packs, pruned = by_kind.get(PACK, nothing), by_kind.get(PRUNED, nothing)
    cold = by_kind.get(COLD, nothing)
    return Usage(
        versions=packs[0] + cold[0] + sum(versions for versions, _ in singles),
        pruned=pruned[0],
        records=sum(size for _, size in singles),
        packs=packs[1] + cold[1],
        tombstones=pruned[1],
        keyframes=sum(keyframes for kind, _, _, keyframes in rows if kind != SEAL),
        chunks=chunks,
    )


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a store takes up besides its lines: (number, payload bytes) of each kind; its files with their
    sizes, and how many bytes of these are free to be used again. ``data``: what the store itself takes up,
    where its files are longer by room that is only kept ready; 0 if they aren't."""

    sealed: tuple[int, int] = (0, 0)
    cells: tuple[int, int] = (0, 0)
    events: tuple[int, int] = (0, 0)
    files: tuple[tuple[str, int], ...] = ()
    free: int = 0
    data: int = 0


# ── the text index ──
# Texts that a store makes findable: an index apart from everything else, made when somebody searches.
#
# It is derived and may be dropped at any time. It holds words in their plain form, never a text, and never
# anything sealed. ``mark`` is the caller's note of what the index covers of a line: whoever brings it up to
# date names the mark that they began with, so that two who do it at once can't mix.


class Text(msgspec.Struct, frozen=True):
    """What can be found of a line: ``words`` in plain form, with spaces between them, under a ``key`` that is
    unique in the line."""

    key: str
    kind: str
    words: str


class Covered(msgspec.Struct, frozen=True):
    """The texts of a line that come and go between two marks."""

    uid: bytes
    before: bytes | None
    mark: bytes
    gone: Sequence[str] = ()
    texts: Sequence[Text] = ()


class Wanted(msgspec.Struct, frozen=True):
    """What is looked for: ``terms`` of one word, or of several that follow each other, which must all occur,
    in texts of these kinds, and of these lines unless that is ``None``."""

    terms: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]
    uids: tuple[bytes, ...] | None
    limit: int


class TextFound(msgspec.Struct, frozen=True):
    """A text that fits; a higher score fits better."""

    uid: bytes
    key: str
    kind: str
    score: float


class NoTexts:
    """The verbs of a store that keeps no index: nobody calls them, as its capabilities say."""

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        raise self._none()

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        raise self._none()

    def cover_texts(self, space: str, covered: Covered) -> bool:
        raise self._none()

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        raise self._none()

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        raise self._none()

    def drop_texts(self) -> None:
        """There is nothing to drop."""

    def _none(self) -> UnsupportedError:
        return UnsupportedError("this store keeps no index of texts")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can do besides the contract; tests skip by these and nothing else."""

    durable: bool
    multi_process: bool
    backup: bool
    prune: bool = True
    #: It keeps an index of texts. Without one, searching looks at everything.
    texts: bool = False
    #: Its lines can be moved to an archive: :meth:`Backend.prune` puts chunks back.
    cold: bool = False
    #: Bytes of rows, without chunks, that it can put back at once.
    cold_rows_max: int = 1 << 30
    #: All rows of a line that are to be replaced come in one :meth:`Backend.prune`: it rewrites whole files.
    rewrites_lines: bool = False


class Backend(Protocol):
    """The contract. Every method may raise ``StoreUnavailableError``, ``StoreBusyError``,
    ``StoreClosedError``; the writing ones ``StorageWriteError``, after which the line holds either the
    old or the new state, never a mixture."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Where this store is, without secrets."""

    def identity(self) -> str:
        """What tells the file, folder, database or data set that holds this store from all others, however
        its URL is spelled: a keyring must not be kept in the same."""

    def find(self, space: str, name: str) -> Found | None:
        """The live line of this name and its newest row, or ``None``."""

    def line(self, line: int) -> Line | None:
        """A line by id, deleted ones included."""

    def line_by_uid(self, uid: bytes) -> Line | None:
        """A line by its uid, deleted ones included."""

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        """Rows from the one holding ``seq`` downwards, newest first, as far as replaying needs.

        Ends, inclusively, with the first row that has a keyframe (as of its own end), with a REWIND row,
        or before a row that lies wholly at or below ``floor``. Packs come without body, except the
        first one if ``seq`` lies inside it; its keyframe doesn't count then.
        """

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        """At most ``limit`` whole rows from the one holding ``seq`` downwards, newest first, no seal."""

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        """The rows after the last pack, oldest first, each with its key hash."""

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        """The chunks that hold physical positions of ``[start, stop)``, in order."""

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        """(position, fingerprints) of every chunk that ends after ``start``, in order."""

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        """(line, seq) of the folded versions in this family of lines that carry this key hash."""

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        """Sealed bytes by value id; absent ones are simply missing."""

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        """A new line, with its first row and tags, atomically. ``id`` (and ``root`` where 0) are assigned.

        Raises :class:`NameTaken` if a live line has the name, :class:`SourceGone` if the line ``source``,
        which it is forked from, has been deleted, :class:`VersionGone` if the version has been pruned,
        :class:`KeyErased` as told at :meth:`note_erasures`.
        """

    def append(self, line: int, row: NewRow) -> None:
        """Append one row, durably, if the newest row of the line has the hash ``row.previous``.

        A line without rows counts as having its ``start_hash``. Raises :class:`StaleWrite` otherwise,
        :class:`KeyKnown` if ``row.guard`` is set and :meth:`keyed` would find the key, and
        :class:`VersionGone` if ``row.source`` has been pruned, :class:`KeyErased` as told at
        :meth:`note_erasures`.
        Comparing the hash, not a number, holds through folding, sealing, deletion and a restored backup.
        """

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        """Append several rows, each on its own terms, with one sync: what :meth:`append` would have raised
        for each, or ``None``. The rows that follow each other in one line count in their order."""

    def fold(self, line: Line, fold: Fold) -> bool:
        """Replace the single records ``pack.first`` … ``pack.last`` of a line by the pack, all at once.

        False, and nothing changed, if they aren't all single records any more, or others, or if the version
        right before them is a single record (DELTA) and ``fold.beside`` isn't set: single records below a
        pack would be lost from sight. Needs no durability of its own as long as whoever folds dies with what
        it lost: a fold that is lost is done again.
        """

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        """Attach a keyframe to the row that ends with version ``seq``, if that has this hash."""

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        """Seal a line for ever and free its name. False if it was sealed already.

        With ``newest`` only if that is the hash of its newest row (its ``start_hash`` without one): False
        otherwise. Everything that no living line reaches any more is removed with it.
        """

    def prune(self, line: Line, prune: Prune) -> bool:
        """Put other rows in the place of some, which keep their keys, and drop items, all at once.

        False, and nothing changed, if the rows aren't these any more, or if a line of ``seen`` was forked
        since, or has a REWIND, or a PRUNED or COLD row (which may have been one), that ends after the seq
        there. Chunks whose positions are all dropped give way to one that has neither fingerprints nor data;
        ``chunks`` take the place of those that have no data and lie where they do, and of no others. Durable.
        """

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    @property
    def signals(self) -> Signals:
        """Rings whenever there may be something new."""

    def newer(self, line: int, seq: int) -> bool:
        """Whether a line has a version after ``seq``, was deleted, or isn't there."""

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        """Wait until :meth:`newer` says so, or for so long; what it says in the end.

        Line 0 stands for one that isn't there yet: wait until any line may be new.
        """

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        """Live lines by name in code point order, from the first name > ``after`` that has the prefix."""

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        """Live lines whose tags have all of these values, by name in code point order."""

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        """Live lines that have rows newer than their tags, with the seq that the tags cover."""

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        """Set tags of a line, which then cover the versions up to ``seq``. Never goes back.

        What is set here can be told from the rows: a store whose writers wait for each other doesn't let this
        one wait for long and raises :class:`StoreBusyError`."""

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        """The cell of this name, or ``None``."""

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        """Replace the value of a cell if it is at the revision ``expected``; 0 means that it is absent.

        Returns the new revision, which this name never had before, not even before it was removed. A
        value of ``None`` removes the cell and returns 0. Raises :class:`StaleCell` otherwise. What isn't
        ``durable`` is seen by everybody at once but may be lost in a power cut, never torn.
        """

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        """Cells by name in code point order, from the first name > ``after`` that has the prefix."""

    # ── streams of events ────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        """Append events, one at least, to a stream, all or none, durably. Returns the seq of the first.

        Any number of writers at once: each waits its turn, none conflicts. Seqs have no gaps and follow
        the order of the commits, so that whoever reads on from a seq misses nothing. They begin with 1 and
        never repeat: a stream that was trimmed goes on with the next one. Raises ``LimitError``
        beyond :data:`EVENT_SEQ_MAX`.
        """

    def events(
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
        """At most ``limit`` events with a seq > ``after`` that are of this type, by this agent and between
        these times, both inclusive, in the order of their seqs. None of them if there is no such stream.

        Reads about as many events as it returns when a type, agent or times are given, however long the
        stream is, as far as times follow the order of events.
        """

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Streams that hold events, with their last seq, by name in code point order, from the first name
        > ``after`` that has the prefix."""

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        """Remove the events of a stream up to this seq, oldest first; how many there were. Those that come
        later go on with the next seq, also where none is left. Whoever dies in between has removed some of
        them."""

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        """Put other bodies in the place of those of events, by seq, all at once, durably; how many of them
        there were. Nothing else about them changes."""

    # ── erasure ──────────────────────────────────────────────────────────────────────────────

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        """Merge entries into the erasure ledger, all at once, durably: see
        :func:`everthread.stores.contract.merged`.

        From here on nothing is taken that is sealed under these keys: :meth:`create`, :meth:`append` and
        :meth:`emit` raise :class:`KeyErased`, decided in the transaction that would have written it.
        """

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        """The ledger, by key id; or what of it isn't FINISHED yet, which must be quick: every open asks."""

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        """Which of these keys stand in the ledger, in whatever phase."""

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        """Sealed values that need at least one of these keys (``None``: all there are), by value id, from the
        first one > ``after``."""

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        """Delete all sealed values that need at least one of these keys, at once; how many there were."""

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        """Remove what deleted rows have left behind from everything that this store keeps on disk.

        May take as long as the store is large. Others go on reading; where they have to be waited for,
        that is given up after ``timeout_s`` and told. Calling it again finishes it.
        """

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        """Look for byte strings, 16 long at least, in everything that this store keeps on disk, byte by byte:
        live or free, in clear or as this store writes them (base64, say)."""

    # ── the text index: only where ``capabilities.texts`` says so ──

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        """For the uid of each line that is indexed the mark that came with its texts."""

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        """The keys of a line's texts of these kinds."""

    def cover_texts(self, space: str, covered: Covered) -> bool:
        """Bring the index of a line up to date, all at once. False, and nothing changed, if its mark isn't
        the one that the caller began with. Needs no durability."""

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        """Remove everything that is indexed of these lines."""

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        """The texts that fit best, best first."""

    def drop_texts(self) -> None:
        """Remove the index of all namespaces, and its bytes; the next search makes it anew."""

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def every_line(self) -> Iterator[Line]:
        """All lines of all namespaces, deleted ones included, by id; without those whose entry is damaged."""

    def unreadable_lines(self) -> list[str]:
        """What :meth:`every_line` leaves out, in words: who takes everything out must know that it can't."""

    def check(self) -> list[str]:
        """What the engine itself finds wrong with its files."""

    def usage(self, line: int) -> Usage:
        """What a line takes up. Reads no content."""

    def totals(self) -> Totals:
        """What everything else takes up."""

    def persist(self) -> None:
        """Returns once everything that was acknowledged before would survive the end of the machine, whatever
        the durability of commits is. Raises :class:`UnsupportedError` if the store can't see to that."""

    def compact(self) -> None:
        """Give space that is free back to the operating system. Others may have to wait meanwhile."""

    def backup(self, path: str) -> None:
        """A complete, consistent copy of the store at ``path``, which must not exist."""

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        """Replace the whole content by that of a backup, all or nothing; ``cells`` are part of it, in the
        place of those that the backup has of these names.

        The erasure ledger is merged with the backup's (:func:`erasure_after_restore`), and
        what is sealed under its keys isn't brought back.
        """

    def close(self) -> None:
        """Release everything. Calling it again does nothing."""
