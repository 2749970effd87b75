"""Bringing two sides together: rebase (uncommitted changes onto a newer head) and merge (two threads)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.codec.values import decode, encode, same
from everthread.errors import InvalidValueError, MergeConflictError, ThreadDeletedError, UsageError
from everthread.history.diff import Path, diff_documents
from everthread.history.logs import CONTENTS, EMPTY_LOG, LogState, common_prefix
from everthread.history.merge import Conflict, Merge, Merged, merge_documents, merge_tails
from everthread.history.merge import resolve as resolve_documents
from everthread.history.ops import ADD, SET, Op
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import Line
from everthread.threads.aio.commit import write_alone
from everthread.threads.aio.lost_ack import find_landed
from everthread.threads.aio.reader import Reader, Stretch
from everthread.threads.head_cache import CachedHead
from everthread.threads.sealing import same_content
from everthread.threads.twins import ASYNC
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.core import LedgerMerge
    from everthread.threads.aio.handle import Handle
    from everthread.threads.aio.log import AsyncLog

Item = tuple[Any, Any]
Choice = str | Callable[[Conflict], Any] | None


# ── rebase ───────────────────────────────────────────────────────────────────────────────────


async def rebase(handle: Handle, choice: Choice = None) -> Version | None:
    """Move a handle's uncommitted changes onto the newest version of its line."""
    check_choice(choice)
    core = handle.core
    found = await core.find(handle.name)
    if handle.line is not None and (found is None or found.line.uid != handle.line.uid):
        handle.deleted = True
        raise ThreadDeletedError(f"the thread {handle.name!r} was deleted; deletion is final")
    if found is None:
        return handle.version
    if handle.attempted and handle.head is not None:
        # A commit whose answer was lost may be part of what is newer: then it isn't somebody else's.
        await find_landed(handle, found.line, handle.head.seq + 1)
    newest = await core.head(found)
    if handle.head is not None and newest.hash == handle.head.hash:
        return handle.version
    if ASYNC:
        await handle.settle_logs()
        states = [log._current for log in handle.logs.values()]
    logs, conflicts = await _rebased_logs(handle, found.line, newest, choice)
    if ASYNC:
        handle.require_idle("rebase()")
        if states != [log._current for log in handle.logs.values()] or handle.unsettled:
            # Another task went on editing while the store was asked.
            return await rebase(handle, choice)
    increments = handle.open_document().increments()
    document, unsettled = _rebased_document(handle, newest, increments, choice)
    conflicts = [*unsettled, *conflicts]
    if conflicts:
        raise MergeConflictError(
            f"{len(conflicts)} changes of {handle.name!r} collide with {newest.version}: "
            + ", ".join(c.where for c in conflicts[:5]),
            conflicts=conflicts,
            expected=handle.version,
            actual=newest.version,
        )
    sealed, tracked = handle.sealed, handle.open_document()
    handle.stand(found.line, newest, "rebasing")
    handle.sealed = sealed
    # An increment stays one, so that it can be rebased again.
    tracked.apply(additions_kept(diff_documents(tracked.raw, document), tracked.raw, increments))
    for name, splices in logs.items():
        for at, remove, raws, prints in splices:
            if raws or remove:
                handle.log(name)._splice(at, remove, raws, prints)
    handle.moving = ""
    return handle.version


def _rebased_document(
    handle: Handle, newest: CachedHead, increments: Mapping[Path, int | float], choice: Choice
) -> tuple[Any, tuple[Conflict, ...]]:
    """The document that both sides come to, and what is left to decide."""
    base = handle.head.build_document() if handle.head else {}
    theirs = newest.build_document()
    merged = merge_documents(
        base, handle.open_document().raw, theirs, increments=increments, lift=handle.lift
    )
    if merged.conflicts and choice is not None:
        return _settled(handle, merged, choice), ()
    return merged.document, merged.conflicts


def _settled(handle: Handle, merged: Merged, choice: Choice) -> Any:
    return resolve_documents(merged, choice, lower=lambda v: handle.lower(v, "state"))  # type: ignore[arg-type]


def additions_kept(ops: Iterable[Op], document: Any, added: Mapping[Path, int | float]) -> list[Op]:
    """Edits of a document in which what was added to a number is an addition, not its result."""
    return [
        (ADD, op[1], added[op[1]])
        if op[0] == SET and op[1] in added and _comes_to(document, op, added[op[1]])
        else op
        for op in ops
    ]


def _comes_to(document: Any, op: Op, number: int | float) -> bool:
    """Whether adding the number where an edit sets a value comes to the same."""
    node, last = document, op[1][-1]
    try:
        for key in op[1][:-1]:
            node = node[key]
        present = node.get(last, 0) if type(node) is dict else node[last]
    except (KeyError, IndexError, TypeError):
        # An edit before this one has made the place.
        return False
    return type(present) in (int, float) and same(present + number, op[2])


_Splice = tuple[int, int, list[bytes], list[bytes]]


async def _rebased_logs(
    handle: Handle, line: Line, newest: CachedHead, choice: Choice
) -> tuple[dict[str, list[_Splice]], list[Conflict]]:
    logs: dict[str, list[_Splice]] = {}
    conflicts: list[Conflict] = []
    dirty = {name: log for name, log in handle.logs.items() if log._dirty}
    for name, log in dirty.items():
        theirs = newest.logs.get(name, EMPTY_LOG)
        ours_appends = all(not s[2] and s[1] >= log._base.length for s in log._splices)
        if theirs.pieces == log._base.pieces:
            logs[name] = [_as_splice(log, s) for s in log._splices]
        elif ours_appends and _still_ends(log._base, theirs):
            start = common_prefix(log._base, theirs)
            tail = await _tail(handle, line, name, theirs, start)
            mine = [_pair(raw) for raw in log._new]
            merged = merge_tails(tail, mine, path=(name,), equal=_equal_for(handle), lift=handle.lift)
            logs[name] = []
            if merged.conflicts and choice is None:
                conflicts.extend(merged.conflicts)
            elif merged.conflicts:
                decided = _MergedLog(start, tail, tail, list(merged.items), merged.conflicts)
                for at, (item_id, content) in enumerate(decided.decided(handle, name, choice)[: len(tail)]):
                    if not same(content, tail[at][1]):
                        raw = encode(content, handle.limits)
                        logs[name].append((start + at, 1, [raw], [_print(item_id)]))
            fresh = merged.items[len(tail) :]
            raws = [encode(content, handle.limits) for _, content in fresh]
            logs[name].append((theirs.length, 0, raws, [_print(item_id) for item_id, _ in fresh]))
        else:
            conflicts.append(Conflict((name,), log._base.length, len(log), theirs.length))
    return logs, conflicts


def _still_ends(base: LogState, later: LogState) -> bool:
    """Whether a later state of the log still holds what was its last item: nothing was truncated."""
    return not base.pieces or later.index_of(base.pieces[-1][1] - 1) is not None


def _as_splice(log: AsyncLog, splice: list[Any]) -> _Splice:
    _, at, remove, insert, position = splice
    start = position - log._base.count
    prints = log._print_slice(position, insert)
    return at, remove, log._new[start : start + insert], [prints[4 * i : 4 * i + 4] for i in range(insert)]


def _equal_for(handle: Handle) -> Callable[[Any, Any], bool]:
    return lambda a, b: same_content(a, b, handle.open_seal)


def _pair(raw: bytes) -> Item:
    content = decode(raw)
    return (content.get("id") if type(content) is dict else None), content


def _print(item_id: Any) -> bytes:
    return records.NO_FINGERPRINT if item_id is None else records.fingerprint(item_id)


async def _tail(handle: Handle, line: Line, name: str, state: LogState, start: int) -> list[Item]:
    """The items of a log from an index on, as pairs of id and lowered content."""
    raws: list[bytes] = []
    for first, last in state.ranges(start, state.length):
        raws.extend(await handle.core.reader.raw_items(line, name, first, last))
    return [_pair(raw) for raw in raws]


# ── merge ────────────────────────────────────────────────────────────────────────────────────


def check_choice(choice: Choice) -> None:
    if choice is not None and choice not in ("ours", "theirs") and not callable(choice):
        raise InvalidValueError('resolve takes "ours", "theirs" or a function from a conflict to a value')


async def merge(handle: Handle, other: Handle, choice: Choice, label: str | None, unrelated: bool) -> Merge:
    """Three-way merge of ``other``'s head into ``handle``, committed if nothing is left to decide."""
    check_choice(choice)
    _, ours = handle.require()
    their_line, theirs = other.require()
    common = await _common(handle, other)
    reader = handle.core.reader
    owner = await reader.owner(their_line, theirs.seq)
    ledger = await _ledgers(handle, other)
    differing = [] if ledger is None else await ledger.conflicts()
    if common is not None and common[0].uid == owner.uid and common[1] == theirs.seq:
        if differing and choice is None:
            return Merge(None, tuple(differing))
        # Effects make no versions of the thread.
        return Merge(ours.version, effects=0 if ledger is None else await ledger.write(choice))
    if common is None and not unrelated:
        raise UsageError(
            f"{handle.name!r} and {other.name!r} have no version in common: everything that both hold would "
            "be new on both sides. If that is what you want: merge(other, unrelated=True)"
        )
    base = (await reader.load(*common[:2])).snapshot if common else Snapshot.empty()
    by_position = bool(common and common[2])
    added, brought = await _added_by_both(handle, other, common, base)
    current = handle.open_document().raw
    merged = merge_documents(
        base.document, current, theirs.build_document(), increments=added, lift=handle.lift
    )
    logs = {
        name: await _merged_log(handle, other, name, base.logs.get(name, EMPTY_LOG), common, by_position)
        for name in sorted({*ours.logs, *theirs.logs})
        if "\0" not in name
    }
    contents = await _missing_contents(handle, other, base, by_position)
    conflicts = [*merged.conflicts, *(c for log in logs.values() for c in log.conflicts), *differing]
    if conflicts and choice is None:
        return Merge(None, tuple(conflicts))
    document = merged.document
    if merged.conflicts and choice is not None:
        document = _settled(handle, merged, choice)
    brought_effects = 0 if ledger is None else await ledger.write(choice)
    if ASYNC:
        # Another task may have edited this handle meanwhile.
        handle.require_clean("merge()")
    try:
        # What they have added stays an addition, for the next merge.
        current = handle.open_document().raw
        handle.open_document().apply(additions_kept(diff_documents(current, document), current, brought))
        for name, log in logs.items():
            log.settle(handle, name, choice)
        if contents:
            raws = [encode(content, handle.limits) for _, content in contents]
            log_ = handle.log(CONTENTS)
            log_._splice(log_._current.length, 0, raws, [_print(item_id) for item_id, _ in contents])
        segment = theirs.segment if owner.uid == their_line.uid else their_line.parent_segment
        contained = _newer(ours.merged, theirs.merged, {owner.uid: [theirs.seq, segment]})
        source = (owner.uid, theirs.seq, segment, theirs.version.id)
        version = await write_alone(
            handle, "merge()", kind=records.MERGE, label=label, source=source, merged=contained
        )
    except BaseException:
        handle.drop_changes()
        raise
    return Merge(version, effects=brought_effects)


async def _ledgers(handle: Handle, other: Handle) -> LedgerMerge | None:
    """The ledgers of effects beside both, where the store knows of such; not of those of one line."""
    compare = handle.core.compare_ledgers
    (line, _), (their_line, _) = handle.require(), other.require()
    if compare is None or line.uid == their_line.uid:
        return None
    return await compare(handle.core, line.uid.hex(), their_line.uid.hex())


async def _added_by_both(
    handle: Handle, other: Handle, common: tuple[Line, int, bool] | None, base: Snapshot
) -> tuple[dict[Path, int | float], dict[Path, int | float]]:
    """What either side has added to numbers since ``base``, where adding is all that it did to them."""
    if common is None:
        return {}, {}
    reader = handle.core.reader
    known = list(chain(*(await _contained(reader, *common[:2], base.segment, base.merged))))
    found = []
    for side in (handle, other):
        line, head = side.require()
        edits: list[Op] = []
        async for stretch in reader.ancestry(line, head.seq, head.segment):
            shared = [seq + 1 for seq, _ in _shared([stretch], known)]
            low = max([stretch.first, *shared])
            made = await reader.edits(stretch.line, low, stretch.last)
            if made is None:
                # Pruned: nobody knows how the numbers came to be.
                edits = []
                break
            edits += made
            if low > stretch.first:
                break
        found.append(_additions(edits, base.document, head.build_document()))
    return found[0], found[1]


def _additions(edits: list[Op], before: Any, after: Any) -> dict[Path, int | float]:
    """By how much numbers grew that were only added to."""
    grown = {tuple(op[1]) for op in edits if op[0] == ADD}
    other = {tuple(op[1]) for op in edits if op[0] != ADD}
    found: dict[Path, int | float] = {}
    for path in grown:
        if not any(path[:length] in other for length in range(len(path) + 1)):
            was, now = _number_at(before, path), _number_at(after, path)
            if was is not None and now is not None:
                found[path] = now - was
    return found


def _number_at(document: Any, path: Path) -> int | float | None:
    """The number at a place, 0 where a dictionary has no such key; ``None`` if there is something else."""
    node = document
    for depth, key in enumerate(path):
        if type(node) is dict and key not in node and depth == len(path) - 1:
            return 0
        if not (type(node) is dict and key in node):
            return None
        node = node[key]
    return node if type(node) in (int, float) else None


async def _common(handle: Handle, other: Handle) -> tuple[Line, int, bool] | None:
    """The newest version that both sides contain, and whether both share its log positions."""
    reader = handle.core.reader
    line, ours = handle.require()
    their_line, theirs = other.require()
    mine = await _contained(reader, line, ours.seq, ours.segment, ours.merged)
    others = await _contained(reader, their_line, theirs.seq, theirs.segment, theirs.merged)
    found = dict.fromkeys(
        (where.uid, seq) for seq, where in _shared(list(chain(*mine)), list(chain(*others)))
    )
    shared = {(where.uid, seq) for seq, where in _shared(mine[0], others[0])}
    # Of those that both contain, one that no other of them contains: what came last, not what has the
    # highest number, for numbers of different lines say nothing about each other. The highest is only
    # the most likely one, and looked at first.
    best: tuple[Line, int] | None = None
    within: list[Stretch] = []
    for uid, seq in sorted(found, key=lambda place: (place[1], place in shared), reverse=True):
        if best is not None and _holds(within, uid, seq):
            continue
        candidate = (await reader.by_uid(line, uid), seq)
        snapshot = (await reader.load(*candidate)).snapshot
        past = list(chain(*(await _contained(reader, *candidate, snapshot.segment, snapshot.merged))))
        if best is None or _holds(past, best[0].uid, best[1]):
            best, within = candidate, past
    return None if best is None else (*best, (best[0].uid, best[1]) in shared)


async def _contained(
    reader: Reader, line: Line, seq: int, segment: int, merged: dict[bytes, list[int]]
) -> list[list[Stretch]]:
    """What led to a version: its own ancestry first, then that of everything merged into it.

    What came from a thread that has been deleted and purged since is left out: it can't serve as a base.
    """
    found = [[s async for s in reader.ancestry(line, seq, segment)]]
    for uid, place in merged.items():
        source = await reader.backend.line_by_uid(uid)
        if source is not None and (not source.deleted or await reader.has(source, place[0])):
            found.append([s async for s in reader.ancestry(source, *place)])
    return found


def _holds(stretches: list[Stretch], uid: bytes, seq: int) -> bool:
    return any(s.line.uid == uid and s.first <= seq <= s.last for s in stretches)


def _shared(a: list[Stretch], b: list[Stretch]) -> list[tuple[int, Line]]:
    """The newest version of each stretch that lies in both ancestries."""
    by_line: dict[bytes, list[Stretch]] = {}
    for y in b:
        by_line.setdefault(y.line.uid, []).append(y)
    return [
        (min(x.last, y.last), x.line)
        for x in a
        for y in by_line.get(x.line.uid, ())
        if max(x.first, y.first) <= min(x.last, y.last)
    ]


def _newer(*maps: dict[bytes, list[int]]) -> dict[bytes, list[int]]:
    """For each line the newest version that any of the maps names."""
    newest: dict[bytes, list[int]] = {}
    for contained in maps:
        for uid, place in contained.items():
            if uid not in newest or newest[uid][0] < place[0]:
                newest[uid] = place
    return newest


class _MergedLog(msgspec.Struct):
    """A log's common beginning, and what follows it on our side, on theirs, and merged."""

    start: int
    ours: list[Item]
    theirs: list[Item]
    result: list[Item]
    conflicts: tuple[Conflict, ...] = ()

    def settle(self, handle: Handle, name: str, choice: Choice) -> None:
        """Write the result into the handle's log, as one splice of what really differs."""
        result = self.decided(handle, name, choice)
        log = handle.log(name)
        head = 0
        while head < min(len(self.ours), len(result)) and same(self.ours[head][1], result[head][1]):
            head += 1
        tail = 0
        limit = min(len(self.ours), len(result)) - head
        while tail < limit and same(self.ours[-1 - tail][1], result[-1 - tail][1]):
            tail += 1
        fresh = result[head : len(result) - tail]
        remove = len(self.ours) - head - tail
        if fresh or remove:
            raws = [encode(content, handle.limits) for _, content in fresh]
            log._splice(self.start + head, remove, raws, [_print(item_id) for item_id, _ in fresh])

    def decided(self, handle: Handle, name: str, choice: Choice) -> list[Item]:
        """The result with every conflict settled."""
        result = list(self.result)
        choose = _theirs if choice == "theirs" else choice
        if not callable(choose):
            return result
        for conflict in self.conflicts:
            value = choose(conflict)
            if len(conflict.path) == 1:
                return [_pair(encode(handle.log(name)._prepare(v)[0])) for v in value]
            lowered = handle.lower(value, name)
            at = next(i for i, (item_id, _) in enumerate(result) if same(item_id, conflict.path[1]))
            result[at] = (conflict.path[1], lowered)
        return result


def _theirs(conflict: Conflict) -> Any:
    return conflict.theirs


async def _merged_log(
    handle: Handle, other: Handle, name: str, base: LogState, common: Any, by_position: bool
) -> _MergedLog:
    (line, ours), (their_line, theirs) = handle.require(), other.require()
    mine, others = ours.logs.get(name, EMPTY_LOG), theirs.logs.get(name, EMPTY_LOG)
    start = min(common_prefix(base, mine), common_prefix(base, others)) if by_position else 0
    old = await _tail(handle, common[0], name, base, start) if common else []
    us, them = (
        await _tail(handle, line, name, mine, start),
        await _tail(handle, their_line, name, others, start),
    )
    if _begins(us, old) and _begins(them, old):
        merged = merge_tails(
            them[len(old) :], us[len(old) :], path=(name,), equal=_equal_for(handle), lift=handle.lift
        )
        return _MergedLog(start, us, them, [*old, *merged.items], merged.conflicts)
    if _equal(us, old):
        return _MergedLog(start, us, them, them)
    if _equal(them, old) or _equal(us, them):
        return _MergedLog(start, us, them, us)
    sides = [[handle.lift(content) for _, content in side] for side in (old, us, them)]
    return _MergedLog(start, us, them, us, (Conflict((name,), *sides),))


async def _missing_contents(handle: Handle, other: Handle, base: Snapshot, by_position: bool) -> list[Item]:
    """What their document may refer to by id and our log doesn't hold."""
    (_, ours), (their_line, theirs) = handle.require(), other.require()
    mine, others = ours.logs.get(CONTENTS, EMPTY_LOG), theirs.logs.get(CONTENTS, EMPTY_LOG)
    before = base.logs.get(CONTENTS, EMPTY_LOG)
    start = min(common_prefix(before, mine), common_prefix(before, others)) if by_position else 0
    log = handle.log(CONTENTS)
    tail = await _tail(handle, their_line, CONTENTS, others, start)
    return [item for item in tail if await log.find(handle.lift(item[0])) is None]


def _begins(items: list[Item], prefix: list[Item]) -> bool:
    return len(items) >= len(prefix) and all(same(a[1], b[1]) for a, b in zip(items, prefix, strict=False))


def _equal(a: list[Item], b: list[Item]) -> bool:
    return len(a) == len(b) and _begins(a, b)
