# Generated from src/everthread/stores/contract.py by tools/twin.py: change that, then run: make twin
"""The store contract as async callers see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from everthread.history.packs import Chunk
from everthread.stores.contract import (
    NO_TAGS,
    Backend,
    Capabilities,
    Cell,
    Covered,
    ErasedKey,
    Fold,
    Found,
    Line,
    NewEvent,
    NewRow,
    Progress,
    Prune,
    Purged,
    PutCell,
    Residues,
    Row,
    SealedRow,
    StoredEvent,
    TextFound,
    Totals,
    Usage,
    Wanted,
)
from everthread.stores.signals import Signals


class AsyncBackend(Protocol):
    """The contract. Every method may raise ``StoreUnavailableError``, ``StoreBusyError``,
    ``StoreClosedError``; the writing ones ``StorageWriteError``, after which the line holds either the
    old or the new state, never a mixture."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Where this store is, without secrets."""

    async def identity(self) -> str:
        """What tells the file, folder, database or data set that holds this store from all others, however
        its URL is spelled: a keyring must not be kept in the same."""

    async def find(self, space: str, name: str) -> Found | None:
        """The live line of this name and its newest row, or ``None``."""

    async def line(self, line: int) -> Line | None:
        """A line by id, deleted ones included."""

    async def line_by_uid(self, uid: bytes) -> Line | None:
        """A line by its uid, deleted ones included."""

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        """Rows from the one holding ``seq`` downwards, newest first, as far as replaying needs.

        Ends, inclusively, with the first row that has a keyframe (as of its own end), with a REWIND row,
        or before a row that lies wholly at or below ``floor``. Packs come without body, except the
        first one if ``seq`` lies inside it; its keyframe doesn't count then.
        """

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        """At most ``limit`` whole rows from the one holding ``seq`` downwards, newest first, no seal."""

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        """The rows after the last pack, oldest first, each with its key hash."""

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        """The chunks that hold physical positions of ``[start, stop)``, in order."""

    async def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        """(position, fingerprints) of every chunk that ends after ``start``, in order."""

    async def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        """(line, seq) of the folded versions in this family of lines that carry this key hash."""

    async def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        """Sealed bytes by value id; absent ones are simply missing."""

    async def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        """A new line, with its first row and tags, atomically. ``id`` (and ``root`` where 0) are assigned.

        Raises :class:`NameTaken` if a live line has the name, :class:`SourceGone` if the line ``source``,
        which it is forked from, has been deleted, :class:`VersionGone` if the version has been pruned,
        :class:`KeyErased` as told at :meth:`note_erasures`.
        """

    async def append(self, line: int, row: NewRow) -> None:
        """Append one row, durably, if the newest row of the line has the hash ``row.previous``.

        A line without rows counts as having its ``start_hash``. Raises :class:`StaleWrite` otherwise,
        :class:`KeyKnown` if ``row.guard`` is set and :meth:`keyed` would find the key, and
        :class:`VersionGone` if ``row.source`` has been pruned, :class:`KeyErased` as told at
        :meth:`note_erasures`.
        Comparing the hash, not a number, holds through folding, sealing, deletion and a restored backup.
        """

    async def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        """Append several rows, each on its own terms, with one sync: what :meth:`append` would have raised
        for each, or ``None``. The rows that follow each other in one line count in their order."""

    async def fold(self, line: Line, fold: Fold) -> bool:
        """Replace the single records ``pack.first`` … ``pack.last`` of a line by the pack, all at once.

        False, and nothing changed, if they aren't all single records any more, or others, or if the version
        right before them is a single record (DELTA) and ``fold.beside`` isn't set: single records below a
        pack would be lost from sight. Needs no durability of its own as long as whoever folds dies with what
        it lost: a fold that is lost is done again.
        """

    async def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        """Attach a keyframe to the row that ends with version ``seq``, if that has this hash."""

    async def delete(self, line: Line, newest: bytes | None = None) -> bool:
        """Seal a line for ever and free its name. False if it was sealed already.

        With ``newest`` only if that is the hash of its newest row (its ``start_hash`` without one): False
        otherwise. Everything that no living line reaches any more is removed with it.
        """

    async def prune(self, line: Line, prune: Prune) -> bool:
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

    async def newer(self, line: int, seq: int) -> bool:
        """Whether a line has a version after ``seq``, was deleted, or isn't there."""

    async def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        """Wait until :meth:`newer` says so, or for so long; what it says in the end.

        Line 0 stands for one that isn't there yet: wait until any line may be new.
        """

    async def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        """Live lines by name in code point order, from the first name > ``after`` that has the prefix."""

    async def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        """Live lines whose tags have all of these values, by name in code point order."""

    async def untagged(self, space: str) -> list[tuple[Line, int]]:
        """Live lines that have rows newer than their tags, with the seq that the tags cover."""

    async def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        """Set tags of a line, which then cover the versions up to ``seq``. Never goes back.

        What is set here can be told from the rows: a store whose writers wait for each other doesn't let this
        one wait for long and raises :class:`StoreBusyError`."""

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    async def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        """The cell of this name, or ``None``."""

    async def swap(
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

    async def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        """Cells by name in code point order, from the first name > ``after`` that has the prefix."""

    # ── streams of events ────────────────────────────────────────────────────────────────────

    async def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        """Append events, one at least, to a stream, all or none, durably. Returns the seq of the first.

        Any number of writers at once: each waits its turn, none conflicts. Seqs have no gaps and follow
        the order of the commits, so that whoever reads on from a seq misses nothing. They begin with 1 and
        never repeat: a stream that was trimmed goes on with the next one. Raises ``LimitError``
        beyond :data:`EVENT_SEQ_MAX`.
        """

    async def events(
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

    async def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Streams that hold events, with their last seq, by name in code point order, from the first name
        > ``after`` that has the prefix."""

    async def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        """Remove the events of a stream up to this seq, oldest first; how many there were. Those that come
        later go on with the next seq, also where none is left. Whoever dies in between has removed some of
        them."""

    async def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        """Put other bodies in the place of those of events, by seq, all at once, durably; how many of them
        there were. Nothing else about them changes."""

    # ── erasure ──────────────────────────────────────────────────────────────────────────────

    async def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        """Merge entries into the erasure ledger, all at once, durably: see
        :func:`everthread.stores.contract.merged`.

        From here on nothing is taken that is sealed under these keys: :meth:`create`, :meth:`append` and
        :meth:`emit` raise :class:`KeyErased`, decided in the transaction that would have written it.
        """

    async def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        """The ledger, by key id; or what of it isn't FINISHED yet, which must be quick: every open asks."""

    async def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        """Which of these keys stand in the ledger, in whatever phase."""

    async def sealed_under(
        self, key_ids: Sequence[bytes] | None, after: bytes, limit: int
    ) -> list[SealedRow]:
        """Sealed values that need at least one of these keys (``None``: all there are), by value id, from the
        first one > ``after``."""

    async def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        """Delete all sealed values that need at least one of these keys, at once; how many there were."""

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        """Remove what deleted rows have left behind from everything that this store keeps on disk.

        May take as long as the store is large. Others go on reading; where they have to be waited for,
        that is given up after ``timeout_s`` and told. Calling it again finishes it.
        """

    async def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        """Look for byte strings, 16 long at least, in everything that this store keeps on disk, byte by byte:
        live or free, in clear or as this store writes them (base64, say)."""

    # ── the text index: only where ``capabilities.texts`` says so ──

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        """For the uid of each line that is indexed the mark that came with its texts."""

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        """The keys of a line's texts of these kinds."""

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        """Bring the index of a line up to date, all at once. False, and nothing changed, if its mark isn't
        the one that the caller began with. Needs no durability."""

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        """Remove everything that is indexed of these lines."""

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        """The texts that fit best, best first."""

    async def drop_texts(self) -> None:
        """Remove the index of all namespaces, and its bytes; the next search makes it anew."""

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def every_line(self) -> AsyncIterator[Line]:
        """All lines of all namespaces, deleted ones included, by id; without those whose entry is damaged."""

    async def unreadable_lines(self) -> list[str]:
        """What :meth:`every_line` leaves out, in words: who takes everything out must know that it can't."""

    async def check(self) -> list[str]:
        """What the engine itself finds wrong with its files."""

    async def usage(self, line: int) -> Usage:
        """What a line takes up. Reads no content."""

    async def totals(self) -> Totals:
        """What everything else takes up."""

    async def persist(self) -> None:
        """Returns once everything that was acknowledged before would survive the end of the machine, whatever
        the durability of commits is. Raises :class:`UnsupportedError` if the store can't see to that."""

    async def compact(self) -> None:
        """Give space that is free back to the operating system. Others may have to wait meanwhile."""

    async def backup(self, path: str) -> None:
        """A complete, consistent copy of the store at ``path``, which must not exist."""

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        """Replace the whole content by that of a backup, all or nothing; ``cells`` are part of it, in the
        place of those that the backup has of these names.

        The erasure ledger is merged with the backup's (:func:`erasure_after_restore`), and
        what is sealed under its keys isn't brought back.
        """

    async def close(self) -> None:
        """Release everything. Calling it again does nothing."""

    @property
    def blocking(self) -> Backend:
        """The driver beneath, for the one read that can't be awaited: the value of a personal item."""

    async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
        """What ``call(*args)`` returns, made on another thread: it takes long and needs no connection."""
