"""What a legal hold keeps of a person while the rest of them is erased.

The person gets a new key, and each value that is held is sealed once more under it before the older keys are
destroyed. History isn't touched: a reference in it still names the destroyed key, and a cell says which value
stands for it now. Values of the user store move to the thread that is called after the new key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from everthread.codec import records
from everthread.codec.seal import SubjectKey, read_reference
from everthread.codec.values import encode_stored
from everthread.errors import KeyringError, SealError
from everthread.people.holds import Holds, Scope
from everthread.stores.contract import EVENT_SEQ_MAX, NewEvent, SealedRow, StaleCell, split_keys
from everthread.threads.sealing import KEPT, PEOPLE, Kept, pack_kept
from everthread.threads.sync.journals import beside
from everthread.threads.sync.thread import Thread
from everthread.threads.sync.update import Draft
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_USERS = "users"
#: A stream that no namespace has: personal values come only along with something.
_CARRIER = ("\0people", "held values")
_CARRIED = "everthread.held"
_NOTHING = records.frame(encode_stored([None, 0]))
_BATCH = 256
#: What values of the user store are counted under.
USER_VALUES = "user values"

#: Where values stay, and how many.
Stayed = tuple[tuple[str, int], ...]


class _Held(NamedTuple):
    """A value that a hold covers: where it stands, and by which value it is known in history."""

    thread: str
    value_id: bytes
    tagged: Tagged


def stays(core: Core, key_ids: Collection[bytes], scope: Scope) -> tuple[Stayed, int]:
    """What would stay of what is under these keys, and how many sealed bytes. Reads all; changes nothing."""
    found = [(held.thread, held.tagged) for held in _in_threads(core, key_ids, scope)]
    found += [(USER_VALUES, tagged) for _, tagged in _user_values(core, key_ids, scope)]
    return _measured(core, found)


def _measured(core: Core, found: list[tuple[str, Tagged]]) -> tuple[Stayed, int]:
    """How many of these values stand where, and how many sealed bytes they are."""
    value_ids = list({read_reference(tagged).value_id for _, tagged in found})
    size = 0
    for start in range(0, len(value_ids), _BATCH):
        size += sum(map(len, core.backend.sealed(value_ids[start : start + _BATCH]).values()))
    return tuple(sorted(Counter(where for where, _ in found).items())), size


def keep(core: Core, key_ids: Collection[bytes], scope: Scope, key_id: bytes) -> tuple[Stayed, int]:
    """Seal what a hold covers under another key as well, durably; what that is, and how many sealed bytes.
    May be done twice.

    Raises :class:`KeyringError` if the keyring doesn't have the key.
    """
    key = core.vault.keyring.key(key_id)
    if key is None:
        raise KeyringError(
            "the key that held values are to be kept under isn't in this keyring, which is an older one: "
            "put a newer copy of it back (everthread keyring restore FILE). Nothing was destroyed"
        )
    batch: list[tuple[_Held, Tagged]] = []
    pending: dict[bytes, SealedRow] = {}
    for held in _in_threads(core, key_ids, scope):
        # What nobody could open before is nobody's to keep.
        with suppress(SealError):
            batch.append((held, core.vault.reseal(held.tagged, key_ids, key, pending)))
        if len(batch) == _BATCH:
            _write(core, batch, pending)
            batch, pending = [], {}
    _write(core, batch, pending)
    _keep_user_values(core, key_ids, scope, key)
    core.vault.forget_kept()
    # Also what an earlier call has kept that was cut short.
    kept = core.vault.kept().values()
    found = [(k.thread, k.tagged) for k in kept if key_id in read_reference(k.tagged).key_ids]
    found += [(USER_VALUES, tagged) for _, tagged in _user_values(core, [key_id], scope)]
    return _measured(core, found)


def _in_threads(core: Core, key_ids: Collection[bytes], scope: Scope) -> Iterator[_Held]:
    """The values in threads, each once: those that stand in them, and those that were kept before."""
    from everthread.people.users import PersonScanner, keys_needle

    if not scope.threads:
        return
    kept = core.vault.kept()
    bounds = _bounds(core, scope)
    seen: set[bytes] = set()
    scanner = PersonScanner(core, keys_needle(key_ids))
    for _ in scanner.run():
        pass
    for found in scanner.found:
        thread, first = found.place.get("thread"), found.place.get("first", 0)
        value_id = read_reference(found.tagged).value_id
        if found.place.get("beside") == _USERS or thread is None or first > bounds.get(thread, -1):
            continue
        if value_id not in seen and value_id not in kept:
            seen.add(value_id)
            yield _Held(thread, value_id, found.tagged)
    for value_id, each in kept.items():
        if not set(key_ids).isdisjoint(read_reference(each.tagged).key_ids) and scope.covers(each.thread):
            yield _Held(each.thread, value_id, each.tagged)


def _bounds(core: Core, scope: Scope) -> dict[str, int]:
    """By thread up to which version it is held: all of those that the hold names, and of what these were
    forked from as much as they share."""
    lines = {line.id: line for line in core.backend.every_line() if line.space == core.space}
    bounds: dict[str, int] = {}
    for line in lines.values():
        if scope.covers(line.name):
            bounds[line.name] = EVENT_SEQ_MAX
            child = line
            while (parent := lines.get(child.parent)) is not None:
                bounds[parent.name] = max(bounds.get(parent.name, 0), child.parent_seq)
                child = parent
    return bounds


def _user_values(core: Core, key_ids: Collection[bytes], scope: Scope) -> Iterator[tuple[str, Tagged]]:
    users = beside(core, _USERS)
    for key_id in key_ids if scope.keys else ():
        thread = Thread(users, key_id.hex())
        if thread.head is None:
            continue
        for name, value in thread.state.items():
            if name in scope.keys and isinstance(value, Personal | Erased) and value.sealed is not None:
                yield name, value.sealed


def _keep_user_values(core: Core, key_ids: Collection[bytes], scope: Scope, key: SubjectKey) -> None:
    pending: dict[bytes, SealedRow] = {}
    # The oldest key first: of two values under one name the newer counts.
    found = {}
    for name, tagged in _user_values(core, key_ids, scope):
        with suppress(SealError):
            found[name] = core.vault.reseal(tagged, key_ids, key, pending)
    if found:
        values = {name: core.vault.open(tagged, pending) for name, tagged in found.items()}
        thread = Thread(beside(core, _USERS), key.key_id.hex())
        _set_if_absent(thread, values)


def _set_if_absent(thread: Thread, values: Mapping[str, Personal | Erased]) -> None:
    """What was set since then is newer."""

    def edit(draft: Draft) -> None:
        draft.state.update({key: value for key, value in values.items() if key not in draft.state})

    thread.update(edit)


def _write(core: Core, batch: list[tuple[_Held, Tagged]], pending: dict[bytes, SealedRow]) -> None:
    if not batch:
        return
    _bring(core, list(pending.values()))
    for held, tagged in batch:
        _put(core, held.value_id, Kept(held.thread, tagged))


def _bring(core: Core, rows: list[SealedRow]) -> None:
    core.backend.emit(*_CARRIER, [NewEvent(0, _CARRIED, None, _NOTHING)], rows)
    core.backend.trim_stream(*_CARRIER, EVENT_SEQ_MAX)


def _put(core: Core, value_id: bytes, kept: Kept | None) -> None:
    name, now_us = KEPT + value_id.hex(), core.runtime.now_us()
    value = None if kept is None else pack_kept(kept)
    while True:
        cell = core.backend.cell(PEOPLE, name, now_us)
        if cell is None and value is None:
            return
        with suppress(StaleCell):
            core.backend.swap(PEOPLE, name, 0 if cell is None else cell.revision, value, now_us)
            return


def drop(core: Core, key_ids: Collection[bytes]) -> None:
    """After keys were destroyed: what was kept under them isn't any more."""
    core.vault.forget_kept()
    for value_id, kept in core.vault.kept().items():
        if not set(key_ids).isdisjoint(read_reference(kept.tagged).key_ids):
            _put(core, value_id, None)
    core.vault.forget_kept()


class Carried(NamedTuple):
    """What is kept, to be put back after a backup was restored: a backup from before has it only under the
    keys that were destroyed."""

    values: dict[bytes, Kept]
    rows: list[SealedRow]
    #: (name of the thread of user data, key, value).
    users: list[tuple[str, str, Tagged]]


def carried(core: Core) -> Carried:
    """What is kept now."""
    found = Carried(dict(core.vault.kept()), [], [])
    for key_id, standing in Holds(core).standings():
        scope = standing.scope
        if standing.hold is not None and scope is not None and scope.space == core.space:
            values = _user_values(core, [key_id], scope)
            found.users.extend((key_id.hex(), name, tagged) for name, tagged in values)
    tagged = [kept.tagged for kept in found.values.values()] + [each for _, _, each in found.users]
    references = {reference.value_id: reference for reference in map(read_reference, tagged)}
    there = core.backend.sealed(references)
    found.rows.extend((v, b"".join(references[v].key_ids), data) for v, data in there.items())
    return found


def put_back(core: Core, before: Carried) -> None:
    """Let what was kept before a backup was restored be kept after it."""
    gone = core.backend.erased({key_id for _, joined, _ in before.rows for key_id in split_keys(joined)})
    there = core.backend.sealed([row[0] for row in before.rows])
    rows = [row for row in before.rows if row[0] not in there and gone.isdisjoint(split_keys(row[1]))]
    for start in range(0, len(rows), _BATCH):
        _bring(core, rows[start : start + _BATCH])
    for value_id, kept in before.values.items():
        _put(core, value_id, kept)
    core.vault.forget_kept()
    for name, key, tagged in before.users:
        value = core.vault.open(tagged, {})
        _set_if_absent(Thread(beside(core, _USERS), name), {key: value})
