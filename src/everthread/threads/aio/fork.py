"""Forking: a new line whose past is another line's."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_function
from everthread.codec import records
from everthread.codec.values import encode
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidValueError,
    StateCorruptedError,
    ThreadDeletedError,
    ThreadExistsError,
    VersionNotFoundError,
)
from everthread.history import packs
from everthread.history.chain import HASH_KEPT, branch, version_id
from everthread.history.metadata import index_value
from everthread.stores.contract import DELTA, PACK, Line, NameTaken, SourceGone, VersionGone
from everthread.threads.aio import journals
from everthread.threads.aio.commit import write
from everthread.threads.aio.journals import bury
from everthread.threads.aio.reader import placed
from everthread.threads.aio.workspace import FILES_LOG
from everthread.threads.head_cache import CachedHead, from_snapshot
from everthread.threads.tombstones import pruned
from everthread.threads.twins import ASYNC, refuse_coroutine
from everthread.values import Erased, Personal
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.history.logs import LogState
    from everthread.threads.aio.past import AsyncPast
    from everthread.threads.aio.reader import Loaded, Reader
    from everthread.threads.aio.thread import AsyncThread

#: Versions before the one that is forked from in which its logs' newest items are looked for.
_LOOK_BACK = 4

#: With a second parameter these are called for every log of the thread's users, and told its name.
Prepare = Callable[..., Iterable[Any]]
Transform = Callable[..., Any]
#: The log that a function without one is for.
_MESSAGES = "messages"
#: Logs that sessions keep for themselves.
_LIBRARY = ("session/", "\0")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


#: Used in forks that make no effects; no caller's log can have this name. A rewind frees no position of a
#: log, so that no rewind lets effects be made again.
EFFECTS_LOG = "\0effects"


class Terms(msgspec.Struct, frozen=True):
    """What a fork is made with: hooks, the key that says which call makes it, whether effects are denied in
    it, and whether the caller chose the version (or takes the head)."""

    prepare: Prepare | None = None
    transform: Transform | None = None
    key: str | None = None
    deny: bool = False
    chosen: bool = True

    @property
    def hooks(self) -> bool:
        return self.prepare is not None or self.transform is not None


def denies_effects(head: CachedHead) -> bool:
    """Whether a version is one of a fork that makes no effects."""
    return EFFECTS_LOG in head.logs and head.logs[EFFECTS_LOG].count > 0


def deny_effects(thread: AsyncThread) -> None:
    """Let no effects be made in a thread from its next version on: it works for a fork that makes none."""
    head = thread.handle.head
    if head is None or not denies_effects(head):
        thread.handle.log(EFFECTS_LOG)._add({"fork": thread.name}, None)


async def fork(source: AsyncThread, other: AsyncThread, version: Version, terms: Terms) -> None:
    """Make ``other`` a fork of ``source`` at ``version``; with hooks, a key or denied effects it gets a first
    version of its own."""
    if terms.prepare is not None:
        check_function(terms.prepare, "prepare")
    if terms.transform is not None:
        check_function(terms.transform, "transform")
    try:
        await _fork(source, other, version, terms)
    except ThreadExistsError:
        if terms.key is not None and await _made_before(source, other, version, terms):
            other.handle.drop_changes()
            await other.refresh()
            return
        if not await bury(source.core, other.name):
            raise
        await _fork(source, other, version, terms)


async def _made_before(source: AsyncThread, other: AsyncThread, version: Version, terms: Terms) -> bool:
    """Whether the thread of this name is the fork that an earlier call with the same key made."""
    core = source.core
    found = await core.find(other.name)
    if found is None or found.newest is None or not found.line.parent:
        return False
    first = found.line.parent_seq + 1
    head = core.reader.head(await core.reader.row(found.line, first), first)
    if head.kind != records.FORK or head.key != terms.key or head.source is None:
        return False
    line, _ = source.handle.require()
    if terms.chosen:
        return head.source[3] == version.id
    return found.line.root == line.root


async def _fork(source: AsyncThread, other: AsyncThread, version: Version, terms: Terms) -> None:
    core = source.core
    line, head = source.handle.require()
    # A fork of a fork that has no version of its own begins where that one began.
    owner = await core.reader.owner(line, version.seq)
    deny = terms.deny or denies_effects(head)
    plain = not (terms.hooks or terms.key is not None or deny)
    pointed = loaded = None
    if not ASYNC:
        # Else the handle has to be looked at without waiting.
        pointed = await _pointed(core.reader, line, head, version.seq) if plain and owner is line else None
    if pointed is not None:
        digest, counts = pointed
        segment = head.segment
    elif version.id == head.version.id:
        digest = head.hash if owner.uid == line.uid else line.parent_hash
        counts, segment = _counts(head.logs), head.segment
        if owner.uid != line.uid:
            segment = line.parent_segment
        if (await core.reader.version(owner, version.seq))[1][:HASH_KEPT] != digest[:HASH_KEPT]:
            # A backup was restored since this handle read it.
            raise VersionNotFoundError(f"{source.name!r} has no {version} any more; get a new handle")
    else:
        loaded = await core.reader.load(owner, version.seq)
        snapshot, digest = loaded.snapshot, loaded.digest
        counts, segment = _counts(snapshot.logs), snapshot.segment
    if (loaded is not None or pointed is not None) and version_id(version.seq, digest) != version.id:
        raise VersionNotFoundError(f"{source.name!r} has no version {version.id}")
    marked = deny and not counts.get(EFFECTS_LOG)
    uid = core.runtime.random_bytes(16)
    new = Line(
        id=0, uid=uid, space=core.space, name=other.name, root=owner.root, parent=owner.id,
        parent_seq=version.seq, parent_segment=segment, parent_hash=digest[:HASH_KEPT],
        start_hash=branch(digest[:HASH_KEPT], uid), counts=counts,
    )  # fmt: skip
    # A fork starts with the metadata of the version it was made from.
    shown = {k: v for k, v in version.metadata.items() if not isinstance(v, Personal | Erased)}
    tags = {name: index_value(other.handle.lower(value, "metadata")) for name, value in shown.items()}
    beside = [await journals.take_along(source.core, line, uid)]
    if FILES_LOG in head.logs:
        beside.append(await journals.take_along(source.core, line, uid, journals.FILES))
    try:
        if pointed is not None:
            # Nothing but a pointer: what is there is read when somebody looks.
            other.handle.line = await core.backend.create(new, None, line.id, tags)
            other.handle.moving = "standing"
        elif not (terms.hooks or terms.key is not None or marked):
            start = _start(head, loaded, new.start_hash, version)
            other.handle.stand(await core.backend.create(new, None, line.id, tags), start)
            other.handle.slot.head = start
        else:
            other.handle.stand_unborn(new, _start(head, loaded, new.start_hash, version), line.id, tags)
            if terms.hooks:
                past = await source.at(version)
                for name in _hooked_logs(counts, terms):
                    before = await past.log(name).read()
                    _replace_items(other, name, before, _hooked(name, before, terms))
            if marked:
                other.handle.log(EFFECTS_LOG)._add({"fork": other.name}, None)
            start_of = (owner.uid, version.seq, segment, version.id)
            await write(other.handle, kind=records.FORK, key=terms.key, source=start_of)
    except (SourceGone, VersionGone, NameTaken, ConflictError) as error:
        # Only where it is certain that there is no fork: after a lost answer there may be one.
        for companion in beside:
            if companion is not None:
                with suppress(EverthreadError):
                    await companion.delete()
        if isinstance(error, SourceGone):
            source.handle.deleted = True
            raise ThreadDeletedError(f"the thread {source.name!r} was deleted; deletion is final") from None
        if isinstance(error, VersionGone):
            raise pruned(version.seq, source.name) from None
        raise ThreadExistsError(
            f"a thread named {other.name!r} exists already; choose another name"
        ) from None


async def begin_again(past: AsyncPast, other: AsyncThread, terms: Terms) -> None:
    """Make the document and the logs of ``other`` what a fork of this version begins with; the caller
    commits. Unlike another fork, the thread keeps its name, its history and its effect ledger."""
    document = past.state.plain()
    for name in [each for each in other.state if each not in document]:
        del other.state[name]
    for name, value in document.items():
        if name not in other.state or other.state[name] != value:
            other.state[name] = value
    hooked = set(_hooked_logs(dict.fromkeys(past.logs, 0), terms))
    for name in sorted({*past.logs, *other.logs}):
        after = await past.log(name).read()
        if name in hooked:
            after = _hooked(name, after, terms)
        _replace_items(other, name, await other.log(name).read(), after)


def _counts(logs: dict[str, LogState]) -> dict[str, int]:
    return {name: log.count for name, log in logs.items()}


async def _pointed(
    reader: Reader, line: Line, head: CachedHead, seq: int
) -> tuple[bytes, dict[str, int]] | None:
    """Hash and log positions of a version before the head, from its own row alone; ``None`` if that doesn't
    say enough.

    A log whose newest items are found there has used as many positions as these reach to: positions only
    grow along a line.
    """
    rows = await reader.backend.scan(line.id, seq, 1) if head.segment < seq < head.seq else []
    if not rows or rows[0].kind not in (DELTA, PACK) or not rows[0].first <= seq <= rows[0].seq:
        return None
    row = rows[0]
    counts: dict[str, int] = {}
    try:
        if row.kind == PACK:
            body, index = reader.pack(row), seq - row.first
            changes, digest = body.changes[max(index + 1 - _LOOK_BACK, 0) : index + 1], body.hashes[index]
        else:
            changes, digest = [records.read_record(row.body)[1]], row.hash
        for encoded in reversed(changes):
            for log, _, stop in reversed(packs.inserted_ranges(encoded)):
                counts.setdefault(log, stop)
            if len(counts) == len(head.logs):
                return digest, counts
    except StateCorruptedError as error:
        raise placed(error, line, row) from error
    return None


def _start(head: CachedHead, loaded: Loaded | None, start_hash: bytes, version: Version) -> CachedHead:
    """What the fork goes on from: the source's head as it is remembered, or a version that was read."""
    if loaded is not None:
        loaded.snapshot.branch()
        return from_snapshot(loaded.snapshot, version.seq, start_hash, version, loaded.costs, {})
    return CachedHead(
        version.seq,
        start_hash,
        version,
        head.document,
        head.changes[: head.changes_count],
        head.changes_count,
        head.changes_bytes,
        head.logs,
        0,
        head.merged,
        {},
        head.costs,
    )


def _hooked_logs(counts: dict[str, int], terms: Terms) -> list[str]:
    """The logs that the functions of a fork are called for."""
    if not (_takes_log(terms.prepare) or _takes_log(terms.transform)):
        return [_MESSAGES]
    return [_MESSAGES, *(log for log in sorted(counts) if log != _MESSAGES and not log.startswith(_LIBRARY))]


def _takes_log(function: Callable[..., Any] | None) -> bool:
    """Whether a function has a second parameter, which it needs to be given: the name of the log."""
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [each for each in parameters if each.kind in _POSITIONAL and each.default is each.empty]
    return len(needed) == 2


def _caller(function: Callable[..., Any] | None, log: str) -> Callable[[Any], Any] | None:
    """How a function is called for a log; ``None`` if it isn't meant for this one."""
    if _takes_log(function):
        return lambda given: function(given, log)  # type: ignore[misc]
    return function if log == _MESSAGES else None


def _hooked(log: str, before: list[Any], terms: Terms) -> list[Any]:
    """The items of a log that a fork starts with."""
    after, prepare, transform = before, _caller(terms.prepare, log), _caller(terms.transform, log)
    if prepare is not None:
        prepared = prepare(copy.deepcopy(before))
        refuse_coroutine(prepared, "prepare", "give a plain function")
        if isinstance(prepared, str | bytes | dict) or not isinstance(prepared, Iterable):
            raise InvalidValueError("prepare must return the messages that the fork starts with")
        after = list(prepared)
    if transform is not None:
        after = [transform(copy.deepcopy(message)) for message in after]
        for made in after:
            refuse_coroutine(made, "transform", "give a plain function")
            if made is None:
                raise InvalidValueError(
                    "transform returned None; it must return each message as it should be in the fork "
                    "(prepare leaves messages out)"
                )
    return after


def _replace_items(other: AsyncThread, name: str, before: list[Any], after: list[Any]) -> None:
    """Make the items of a log of the fork ``after``; what stays as it was at the beginning isn't written
    again."""
    log = other.log(name)
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    raws, prints = [], []
    for message in after[kept:]:
        lowered, item_id, _ = log._prepare(message)
        raws.append(encode(lowered, other.handle.limits))
        prints.append(records.NO_FINGERPRINT if item_id is None else records.fingerprint(item_id))
    if raws or kept < len(before):
        log._splice(kept, len(before) - kept, raws, prints)
