"""Falls back to the last version that can be read when the newest can't, and goes on from there.

Nothing here removes anything. The damaged rows stay where they are, as evidence and for whoever can make
more of them; a thread goes on over them with a rewind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from everthread.codec import records
from everthread.errors import StateCorruptedError, VersionPrunedError
from everthread.history import packs
from everthread.history.chain import link, record_digest
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.stores.contract import DAMAGED, PACK, SEAL_SEQ, Found, Line, Row
from everthread.threads.aio.journals import in_words, is_companion
from everthread.threads.aio.reader import Loaded, Loading
from everthread.threads.head_cache import CachedHead, from_snapshot
from everthread.threads.reports import Recovered
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.stores.contract_async import AsyncBackend
    from everthread.threads.aio.core import Core
    from everthread.threads.aio.handle import Handle
    from everthread.threads.aio.reader import Reader

_REASONS_MAX = 8


class Good(msgspec.Struct, frozen=True):
    """The last version of a line that can be rebuilt, and why the newer ones can't."""

    version: Version
    hash: bytes
    loaded: Loaded
    reasons: tuple[str, ...]


async def fall_back(
    handle: Handle, error: StateCorruptedError
) -> tuple[Line | None, CachedHead | None, Recovered | None]:
    """The last good version of a thread whose newest one raised ``error``; raises that if there is none."""
    core = handle.core
    try:
        # Once more: SQLite says the same of a page that the disk couldn't read just now.
        found = await core.backend.find(core.space, handle.name)
        return (found.line, await core.head(found), None) if found is not None else (None, None, None)
    except StateCorruptedError:
        line, top = await _locate(core, handle.name, error)
    good = await last_good(core.reader, line, top)
    if good is None:
        raise error
    version = good.version
    digest = line.start_hash if version.seq == line.parent_seq else good.hash
    head = from_snapshot(good.loaded.snapshot, version.seq, digest, version, good.loaded.costs, {})
    reasons = good.reasons or (str(error),)
    called = f"the thread {handle.name!r}"
    if is_companion(line):
        called = await in_words(core.backend, repr(handle.name))
        reasons = tuple([await in_words(core.backend, reason) for reason in reasons])
    recovered = Recovered(version, version.seq + 1, top, reasons)
    if reasons not in core.warned:
        # Once: forks that share what is damaged would say the same.
        core.warned.add(reasons)
        core.warn(called, recovered)
    return line, head, recovered


def log_damage(called: str, recovered: Recovered) -> None:
    """Say that a handle stands on an older version than the newest."""
    # Only who needs it pays for the import.
    import logging

    logging.getLogger("everthread").warning("%s %s", called, recovered)


def refusal(handle: Handle) -> Exception:
    """Why a handle that stands on an older version doesn't write."""
    found = handle.recovered
    assert found is not None
    return StateCorruptedError(
        f"{handle.name!r} {found}. Nothing was written. thread.rewind(thread.head) goes on from there and "
        "keeps the damaged versions as they are; thread.fork(name) leaves the thread alone",
        where=handle.name,
    )


async def last_good(reader: Reader, line: Line, top: int) -> Good | None:
    """The highest version up to ``top`` that can be rebuilt."""
    reasons: dict[str, None] = {}
    seq = await _existing(reader, line, top)
    while seq > 0:
        loading = Loading(reader, line, seq)
        below = seq
        try:
            loaded = await loading.run()
            version, digest = await reader.version(line, seq)
        except (StateCorruptedError, VersionPrunedError) as error:
            reasons[str(error)] = None
            # Having got as far as the head of the version, only that is damaged.
            below = min(loading.reached, seq) if not loading.done else seq
        else:
            return Good(version, digest, loaded, tuple(reasons)[:_REASONS_MAX])
        seq = await _existing(reader, line, below - 1)
    return None


async def _existing(reader: Reader, line: Line, seq: int) -> int:
    """The highest version up to ``seq`` that any row holds; 0 if there is none."""
    while seq > 0:
        owner = await reader.owner(line, seq)
        try:
            rows = await reader.backend.scan(owner.id, seq, 2)
        except StateCorruptedError:
            seq = await readable_below(reader.backend, owner, seq)
            continue
        for row in rows:
            if row.first <= seq:
                return min(row.seq, seq)
        seq = owner.parent_seq
    return 0


async def readable_below(backend: AsyncBackend, line: Line, seq: int) -> int:
    """The highest seq below ``seq`` at which the store finds anything of a line without stumbling.

    At least ``line.parent_seq``, where the line begins.
    """
    if not await _stands(backend, line, line.parent_seq + 1):
        return line.parent_seq
    step, fails = 1, seq
    while True:
        works = max(seq - step, line.parent_seq)
        if works == line.parent_seq or await _stands(backend, line, works):
            break
        fails, step = works, step * 2
    while fails - works > 1:
        middle = (works + fails) // 2
        if await _stands(backend, line, middle):
            works = middle
        else:
            fails = middle
    return works


async def _stands(backend: AsyncBackend, line: Line, seq: int) -> bool:
    try:
        return bool(await backend.scan(line.id, seq, 1))
    except StateCorruptedError:
        return False


async def _locate(core: Core, name: str, error: StateCorruptedError) -> tuple[Line, int]:
    """The line of a name and its newest seq, as far as the store can still tell."""
    try:
        found = await core.backend.find(core.space, name)
        if found is not None:
            return found.line, found.newest.seq if found.newest else found.line.parent_seq
    except StateCorruptedError:
        pass
    async for line in core.backend.every_line():
        if line.space == core.space and line.name == name and not line.deleted:
            return line, await newest_seq(core.backend, line)
    raise error


async def remaining_lines(core: Core, prefix: str, after: str | None) -> list[Found]:
    """The threads from a name on, one by one, where the store stumbles over listing them."""
    found = [
        line
        async for line in core.backend.every_line()
        if line.space == core.space and line.name.startswith(prefix) and not line.deleted
    ]
    lines = sorted((line for line in found if after is None or line.name > after), key=lambda line: line.name)
    return [Found(line, await _newest_row(core.backend, line)) for line in lines]


async def _newest_row(backend: AsyncBackend, line: Line) -> Row | None:
    try:
        rows = await backend.scan(line.id, SEAL_SEQ - 1, 1)
    except StateCorruptedError:
        seq = await newest_seq(backend, line)
        return Row(seq + 1, seq + 1, DAMAGED, b"", b"")
    return rows[0] if rows else None


async def newest_seq(backend: AsyncBackend, line: Line) -> int:
    """The newest seq of a line, or of what can be reached of it."""
    try:
        rows = await backend.scan(line.id, SEAL_SEQ - 1, 1)
    except StateCorruptedError:
        return await readable_below(backend, line, SEAL_SEQ - 1)
    return rows[0].seq if rows else line.parent_seq


# ── going on ─────────────────────────────────────────────────────────────────────────────────────


async def over_the_damage(handle: Handle, line: Line, head: CachedHead) -> CachedHead:
    """What a rewind goes on from: the damaged newest row, with as much as is known of what it used.

    Raises :class:`StateCorruptedError` if the store can't even reach that row.
    """
    backend = handle.core.backend
    try:
        rows = await backend.scan(line.id, SEAL_SEQ - 1, 1)
    except StateCorruptedError as error:
        raise StateCorruptedError(
            f"the newest row of {handle.name!r} can't be reached ({error}), so that nothing can follow it; "
            "thread.fork(name) goes on from the last good version under another name",
            where=handle.name,
        ) from error
    if not rows:
        return head
    newest = rows[0]
    used = {name: log.count for name, log in head.logs.items()}
    await _note_used(backend, line, head.seq, used)
    logs = {name: _with_count(head.logs.get(name, EMPTY_LOG), count) for name, count in used.items()}
    return msgspec.structs.replace(head, seq=newest.seq, hash=newest.hash, logs=logs, singles=None)


async def _note_used(backend: AsyncBackend, line: Line, after: int, used: dict[str, int]) -> None:
    """Note the log positions that rows after a version took: they are never given out again."""
    seq = SEAL_SEQ - 1
    while rows := await backend.scan(line.id, seq, 64):
        for row in rows:
            try:
                _note_row(row, used)
            except StateCorruptedError:
                continue
        seq = min(seq, rows[-1].first) - 1
        if seq <= max(after, line.parent_seq):
            break
    for log, count in used.items():
        for position, prints in await backend.fingerprints(line.id, log, count):
            used[log] = max(used[log], position + len(prints) // 4)


def _note_row(row: Row, used: dict[str, int]) -> None:
    packed = row.kind == PACK
    for encoded in packs.read_pack(row.body).changes if packed else records.read_record(row.body)[1:2]:
        change = records.read_change(encoded)
        for log, _, _, insert, position, *_ in change.logs:
            used[log] = max(used.get(log, 0), position + insert)
        for log, count in change.counts.items():
            used[log] = max(used.get(log, 0), count)


def _with_count(log: LogState, count: int) -> LogState:
    return log if log.count == count else LogState(count, log.pieces, log.length)


def follows(found: Found) -> bool:
    """Whether the newest row is seen to build on the one before it. That of a detached record isn't."""
    newest = found.newest
    if newest is None or newest.kind == PACK:
        return True
    return link(found.before or found.line.start_hash, record_digest(newest.body)) == newest.hash


async def hash_before(reader: Reader, line: Line, newest: Row) -> bytes | None:
    """The hash of the version before the newest one, which doesn't seem to follow from it.

    ``None`` if that one is damaged. Raises if the newest one itself has no business there.
    """
    rows = await reader.backend.scan(line.id, newest.seq, 3)
    if not rows or rows[0].hash != newest.hash:
        raise await reader.missing(line, newest.seq)
    _, encoded, blocks = records.read_record(newest.body)
    damaged = len(rows) > 1 and rows[1].kind == DAMAGED
    if not blocks and packs.inserted_ranges(encoded):
        return rows[1].hash if len(rows) > 1 and not damaged else None
    if not damaged:
        raise StateCorruptedError(
            f"version {newest.seq} of {line.name!r} doesn't follow from the one before it",
            where=f"{line.name} {newest.seq}",
        )
    # Its hash may follow from the version before it in turn; the newest one proves it.
    below = rows[2].hash if len(rows) > 2 else line.start_hash
    for row in (await reader.backend.replay(line.id, newest.seq - 1, newest.seq - 2))[:1]:
        digest = link(below, record_digest(row.body))
        if link(digest, record_digest(newest.body)) == newest.hash:
            return digest
    return None
